"""Run the model with what a learner's function returned, and compare its KV cache with one pass, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autograder.drivers.nb01 import model
from autograder.exercise import Call, Verdict
from course_lib.diagnosis.kv_diff import first_divergence
from course_lib.prefill import KVSnapshot, one_pass, prefill

BLOCK = 16


@dataclass(frozen=True)
class Cut:
    """A prompt, how many of its tokens come from the prefix cache, and the chunks that compute the rest."""

    ids: tuple[int, ...]
    hit: int
    sizes: tuple[int, ...]

    def chunks(self) -> list[tuple[int, int]]:
        """(computed, take) of every chunk: tokens computed before it since the hit, and its length."""
        starts = np.cumsum((0, *self.sizes[:-1]))
        return [(int(c), t) for c, t in zip(starts, self.sizes, strict=True)]

    def __str__(self) -> str:
        cached = f", {self.hit} of them cached" if self.hit else ""
        return f"{len(self.ids)} tokens{cached}, cut {' + '.join(map(str, self.sizes))}"


def prompt(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    """Random token ids, no two neighbours alike."""
    vocab = model().config.vocab_size
    return tuple(int(t) for t in np.cumsum(rng.integers(1, vocab, length)) % vocab)


def ragged(rng: np.random.Generator, total: int, parts: int) -> tuple[int, ...]:
    """`parts` chunk lengths of at least 1 that add up to `total`, the first two different."""
    while True:
        ends = np.sort(rng.choice(np.arange(1, total), parts - 1, replace=False))
        sizes = np.diff(np.concatenate([[0], ends, [total]]))
        if sizes[0] != sizes[1]:
            return tuple(int(s) for s in sizes)


def three_cuts(seed: int) -> list[Cut]:
    """Ragged chunks; ragged ones behind a hit inside a block; chunks that end where blocks do, and one token."""
    rng = np.random.default_rng(seed)
    tail, hit = int(rng.integers(20, 31)), int(rng.integers(1, BLOCK)) + BLOCK * int(rng.integers(0, 2))
    first = int(rng.integers(2, BLOCK))
    return [
        Cut(prompt(rng, 36), 0, ragged(rng, 36, 4)),
        Cut(prompt(rng, hit + tail), hit, ragged(rng, tail, 3)),
        Cut(prompt(rng, 2 * BLOCK + first + 1), 0, (BLOCK, BLOCK, first, 1)),
    ]


def judge_cuts(calls: Sequence[Call], values: Sequence[np.ndarray], plug: Callable[[dict], dict]) -> Verdict:
    """Passed if, for every cut, the model that uses the returned values has one pass's KV and logits in all bits.

    calls   facts["cut"] is the Cut that a call belongs to; its args are the key under which its value is looked up
    plug    from {args: value} of one cut to the keyword arguments of `prefill`
    """
    cuts = dict.fromkeys(c.facts["cut"] for c in calls)
    for cut in cuts:
        table = {c.args: v for c, v in zip(calls, values, strict=True) if c.facts["cut"] == cut}
        got = prefill(model(), cut.ids, list(cut.sizes), hit=cut.hit, block_size=BLOCK, **plug(table))
        difference = first_difference(got, one_pass(model(), cut.ids))
        if difference:
            return Verdict(False, what=f"A prompt of {cut}: compared with one pass, {difference}")
    return Verdict(True, count=f"{len(cuts)} cuts, K, V and logits equal in every bit")


def first_difference(got: KVSnapshot, right: KVSnapshot) -> str:
    """Where two runs first differ, layer by layer, and what the equal part before it tells; "" if nowhere."""
    d = first_divergence(right, got)
    if d is None:
        return ""
    if d.layer is None:
        return "every K and V is equal and the logits differ: the last layer's attention reaches only the logits."
    first = f"layer {d.layer} {d.tensor} differs, first at position {d.position}"
    if d.layer == 0:
        clean = "; layer 0 V is equal. V has no position in it, K has: the rotation is wrong, not the tokens"
        return f"{first}{'' if d.where[0, 1].any() else clean}."
    return (
        f"{first}; layer 0 is equal. Layer 0's K and V are made before any attention, so a wrong mask cannot "
        f"touch them: attention in layer {d.layer - 1} read the wrong keys, or turned its queries wrongly."
    )
