"""Random work for the engine over the oracle model, and what must hold after every step.

Nothing here trusts the scheduler's own check(): tables, counts, free blocks, slots, hits and tokens are
recomputed from what the engine shows. A violation is an AssertionError whose message says what broke.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from oracle_model import Failure, OracleModel, content, extend

from course_lib.engine import Engine
from course_lib.sampling import sample
from course_lib.schedule.profiles import PROFILES

VOCAB = 3  # few tokens, so that prompts share beginnings by themselves


@dataclass(frozen=True)
class Knobs:
    profile: str = "course"
    block_size: int = 2
    num_blocks: int = 8
    budget: int = 4
    max_chunk: int = 0
    max_num_seqs: int = 4
    caching: bool = True


def random_knobs(rng: Random, profiles=tuple(PROFILES)) -> Knobs:
    budget = rng.randint(1, 12)
    return Knobs(
        profile=rng.choice(profiles), block_size=rng.randint(1, 4), num_blocks=rng.randint(2, 12), budget=budget,
        max_chunk=rng.choice((0, 0, 1, 2, 3, 5)), max_num_seqs=rng.randint(1, min(budget, 5)),
        caching=rng.random() < 0.9,
    )  # fmt: skip


@dataclass
class Known:
    """What the test itself knows of a request."""

    request: object
    prompt: list[int]
    computed: int = 0
    expected: list[int] = field(default_factory=list)


class Workload:
    """An engine over the oracle, driven by add, step, fail and abort; every step is judged.

    make        builds the engine from (model, **arguments): a faulty one, for instance
    plan_step   a policy from outside: then the queue's order, decodes first and max_chunk are not judged
    """

    def __init__(self, knobs: Knobs, make=Engine, plan_step=None):
        self.from_outside, self.model, self.rules = plan_step is not None, OracleModel(VOCAB), PROFILES[knobs.profile]
        caps = self.rules.caps_chunks or self.from_outside
        self.knobs = knobs = knobs if caps else replace(knobs, max_chunk=0)
        own = {"plan_step": plan_step} if self.from_outside else {}
        self.engine = make(
            self.model, num_blocks=knobs.num_blocks, block_size=knobs.block_size, profile=knobs.profile,
            max_num_batched_tokens=knobs.budget, max_chunk=knobs.max_chunk, max_num_seqs=knobs.max_num_seqs,
            enable_prefix_caching=knobs.caching, **own,
        )  # fmt: skip
        self.engine.scheduler.recover = self._recovered
        self.model.watch = self._note_writers
        self.writers: dict[int, str] = {}  # block -> salt of the request that wrote it last
        self.known: dict[int, Known] = {}  # unfinished requests
        self.answered: list[list[int]] = []  # prompts with their answers
        self.queue: list[int] = []  # waiting requests, in order, as it should be
        self.running: list[int] = []  # running requests, in order of admission, as it should be
        self.filled: dict[int, tuple[str, int]] = {}  # full block -> (salt of its writer, what its last slot holds)
        self.allocated: set[int] = set()  # in this step: their content is gone, even if nothing is written
        if not self.rules.radix:
            allocator = self.engine.scheduler.cache.allocator
            allocator.allocate = self._watch(allocator.allocate)

    @staticmethod
    def _recovered():
        raise AssertionError("after an ordinary exception the engine did not add up, and had to start all over")

    def _note_writers(self, chunks) -> None:
        for chunk in chunks:
            salts = [k.request.salt for k in self.known.values() if k.request.block_table is chunk.block_table]
            for block in chunk.block_table[chunk.start // self.knobs.block_size :]:
                self.writers[block] = salts[0] if salts else "nobody's"

    def _watch(self, allocate):
        def watched(count):
            blocks = allocate(count)
            self.allocated.update(blocks or ())
            return blocks

        return watched

    # --- what a user does

    def add(self, prompt, max_tokens=1, temperature=0.0, seed=0, salt="", read_cache=True) -> bool:
        """Add a request; False if the engine refuses it, which it does exactly when it can never finish."""
        possible = self._possible(len(prompt) + max_tokens - 1)
        try:
            request = self.engine.add_request(
                prompt, max_tokens=max_tokens, temperature=temperature, seed=seed, salt=salt, read_cache=read_cache
            )
        except ValueError as error:
            assert not possible and "can never finish" in str(error), f"{len(prompt)} + {max_tokens} tokens: {error}"
            return False
        assert possible, f"{len(prompt)} + {max_tokens} tokens can never be served, and were accepted"
        self.known[request.id] = Known(request, list(prompt), expected=self._alone(prompt, request))
        self.queue.append(request.id)
        return True

    def _possible(self, longest: int) -> bool:
        k = self.knobs
        if -(-longest // k.block_size) > k.num_blocks:
            return False
        if self.from_outside:
            return True
        if k.profile == "whole-prompt":
            return longest <= k.budget
        most = min(k.budget, k.max_chunk or k.budget)
        return not self.rules.whole_blocks or most >= k.block_size or longest <= most

    def _alone(self, prompt, request) -> list[int]:
        """The tokens that the request gets when it is alone in the world."""
        tokens = list(prompt)
        for index in range(len(prompt), len(prompt) + request.max_tokens):
            logits = self.model.logits(content(tokens))
            tokens.append(sample(logits, temperature=request.temperature, seed=request.seed, index=index))
        return tokens[len(prompt) :]

    def abort(self, request_id: int) -> None:
        self.engine.abort(self.known.pop(request_id).request)
        (self.queue if request_id in self.queue else self.running).remove(request_id)
        self._check_state()

    def fail(self, when: str) -> None:
        """A step in which something raises: no request has advanced or got a token; admitted ones wait again.

        when   "before" or "after" the writes of the forward, or in "match", "publish" or "forget" of the prefix cache
        """
        prefix = getattr(self.engine.scheduler.cache, "prefix", None)
        if when in ("before", "after"):
            self.model.fail = when
        elif prefix is not None:
            setattr(prefix, when, partial(self._raise_once, prefix, when))
        tokens = {i: list(k.request.token_ids) for i, k in self.known.items()}
        before = self._look()
        try:
            record = self.engine.step()
        except Failure:
            for i, known in self.known.items():
                assert known.request.token_ids == tokens[i], f"request {i} got a token in a step that failed"
            scheduler = self.engine.scheduler
            still = [r.id for r in scheduler.running]
            assert still == self.running[: len(still)], f"{still} run after a failed step, {self.running} before"
            assert len(still) == len(self.running) or before["need"] > before["free"] or not before["all decode"]
            if not self.from_outside:
                assert [r.id for r in scheduler.waiting][-len(self.queue) :] == self.queue or not self.queue
            self.queue = [*self.running[len(still) :], *self.queue]  # preempted before it failed
            for i in self.running[len(still) :]:
                self.known[i].computed = 0
            self.running = still
            self._forget_allocated()
        else:  # what should have raised was not called
            self.model.fail = None
            assert not record.chunks or when not in ("before", "after")
            self._judge(record, before)
        finally:
            if prefix is not None:
                vars(prefix).pop(when, None)
        self._check_state()

    @staticmethod
    def _raise_once(prefix, name, *arguments):
        delattr(prefix, name)
        raise Failure

    def step(self):
        before = self._look()
        record = self.engine.step()
        self._judge(record, before)
        self._check_state()
        return record

    def drain(self) -> None:
        """Everything finishes, and all blocks are free again. A bound on the steps catches livelock."""
        limit = 30 + 12 * sum(len(k.prompt) + k.request.max_tokens for k in self.known.values())
        for _ in range(limit):
            if not self.known:
                break
            record = self.step()
            assert record.chunks or record.preempted, f"nothing is planned, and {sorted(self.known)} are not done"
        assert not self.known, f"{sorted(self.known)} are not done after {limit} steps"
        assert self.engine.scheduler.cache.num_free == self.knobs.num_blocks, "blocks are lost"

    # --- what must hold

    def _look(self) -> dict:
        """What a step is judged against: the state before it."""
        size = self.knobs.block_size
        self.allocated.clear()
        decodes = [self.known[i] for i in self.running if self._is_decode(i)]
        return {
            "decodes": [known.request.id for known in decodes],
            "all decode": len(decodes) == len(self.running),
            "free": self.engine.scheduler.cache.num_free,
            "need": sum(-(-(k.computed + 1) // size) - len(k.request.block_table) for k in decodes),
            "alone": len(self.known) == 1,
        }

    def _is_decode(self, i: int) -> bool:
        known = self.known[i]
        return known.request.num_tokens > len(known.prompt) and known.computed == known.request.num_tokens - 1

    def _judge(self, record, before: dict) -> None:
        k, chunks, sampled = self.knobs, {i: (a, b) for i, a, b in record.chunks}, dict(record.sampled)
        assert record.num_tokens <= k.budget, f"{record.num_tokens} tokens in a step of {k.budget}"
        assert len(chunks) == len(record.chunks) <= k.max_num_seqs, f"{len(record.chunks)} chunks"
        assert record.num_running <= k.max_num_seqs, f"{record.num_running} run"
        capped = k.max_chunk and k.profile not in ("whole-prompt", "sarathi") and not self.from_outside
        if capped and not (before["alone"] and self.rules.lone_request_ignores_max_chunk):
            assert all(b - a <= k.max_chunk for a, b in chunks.values()), f"a chunk over max_chunk: {chunks}"
        self._judge_preemptions(record, before)
        self._judge_admissions(record, sampled)
        prompts = [i for i in chunks if i not in before["decodes"]]
        skipped = [i for i in before["decodes"] if i not in chunks and i not in record.preempted]
        may_skip = self.from_outside or (k.profile == "sglang-prefill-first" and prompts)
        assert not skipped or may_skip, f"decodes {skipped} were skipped"
        for i, (start, stop) in chunks.items():
            known = self.known[i]
            assert start == known.computed < stop, f"request {i}: chunk {start, stop} with {known.computed} computed"
            ends = stop == known.request.num_tokens - (i in sampled)
            assert ends == (i in sampled), f"request {i} sampled {sampled.get(i)} from a chunk that stops at {stop}"
            known.computed = stop
            want = known.expected[: len(known.request.generated)]
            assert known.request.generated == want, f"request {i} got {known.request.generated}, alone it gets {want}"
        tables = dict(zip(chunks, self.model.tables))
        for i, (_, stop) in chunks.items():
            self._check_kv(self.known[i].request, tables[i], stop)
        self._judge_hits(record, chunks, tables, sampled)
        for i in record.finished:
            known = self.known.pop(i)
            self.running.remove(i)
            self.answered.append(known.request.token_ids)
            assert known.request.generated == known.expected, f"request {i} stopped early: {known.request.generated}"

    def _judge_preemptions(self, record, before: dict) -> None:
        if record.preempted:
            victims = self.running[len(self.running) - len(record.preempted) :]
            assert sorted(record.preempted) == sorted(victims), f"preempted {record.preempted}, not the last admitted"
            needless = before["all decode"] and before["need"] <= before["free"]
            assert not needless, f"preempted with {before['free']} blocks free and {before['need']} needed"
        for i in record.preempted:
            self.running.remove(i)
            self.queue.insert(0, i)
            self.known[i].computed = 0

    def _judge_admissions(self, record, sampled: dict) -> None:
        hits, k = dict(record.hits), self.knobs
        assert not (hits and record.preempted), "admitted a request in a step that preempted"
        in_order = list(hits) == self.queue[: len(hits)]
        assert in_order or self.from_outside, f"admitted {list(hits)}, but the queue is {self.queue}"
        for i, hit in hits.items():
            self.queue.remove(i)
            self.running.append(i)
            self.known[i].computed = hit
        if hits and not record.finished and self.rules.admission_needs != "first chunk" and not self.from_outside:
            last = self.known[list(hits)[-1]].request
            wanted = -(-(last.num_tokens - (last.id in sampled)) // k.block_size)
            room = len(last.block_table) + record.free_blocks
            assert wanted <= room, f"admitted {wanted} blocks of prompt into room for {room}: it will be preempted"

    def _judge_hits(self, record, chunks: dict, tables: dict, sampled: dict) -> None:
        """A hit is of the same salt, in whole blocks, and no shorter than what lay there all through the step."""
        size = self.knobs.block_size
        self._forget_allocated()
        there = set(self.filled.values())
        for i, (start, stop) in chunks.items():
            request = self.known[i].request
            for block in range(start // size, stop // size):
                self.filled[tables[i][block]] = (request.salt, content(request.token_ids[: (block + 1) * size]))
        for i, hit in record.hits:
            request = self.known[i].request
            if not (self.knobs.caching and request.read_cache and self.rules.caches_prefixes):
                assert hit == 0, f"request {i} reads no cache, and hit {hit} tokens"
                continue
            assert hit % size == 0, f"a hit of {hit} tokens is not in whole blocks of {size}"
            most = (request.num_tokens - (i in sampled) - 1) // size * size
            assert hit <= most, f"a hit of {hit} tokens leaves request {i} nothing to compute"
            for block in tables[i][: hit // size] if i in tables else ():
                salt = self.writers[block]
                assert salt == request.salt, f"request {i} of salt {request.salt!r} hit a block of salt {salt!r}"
            least = 0
            while least < most and (request.salt, content(request.token_ids[: least + size])) in there:
                least += size
            # A radix tree gives up a whole leaf at once: blocks that are not overwritten may be found no more.
            assert hit >= least or self.rules.radix, f"request {i} hit {hit} tokens, and {least} are cached"

    def _forget_allocated(self) -> None:
        for block in self.allocated:
            self.filled.pop(block, None)

    def _check_kv(self, request, table, stop: int) -> None:
        """What the request's slots hold is what its own tokens make, at every position below stop."""
        held, pool = 0, self.engine.pool
        for position in range(stop):
            held = extend(held, request.token_ids[position], position)
            found = pool.cells[pool.slot(table, position)]
            assert found == held, f"request {request.id}, position {position}: its slot holds another prefix ({found})"

    def _check_state(self) -> None:
        scheduler = self.engine.scheduler
        assert [r.id for r in scheduler.running] == self.running, f"{scheduler.running} run, not {self.running}"
        assert [r.id for r in scheduler.waiting] == self.queue, f"{scheduler.waiting} wait, not {self.queue}"
        for i in self.running:
            known = self.known[i]
            assert known.request.num_computed == known.computed, f"request {i}: {known.request.num_computed} computed"
            self._check_kv(known.request, known.request.block_table, known.computed)
        for i in self.queue:
            request = self.known[i].request
            assert request.num_computed == 0 and not request.block_table, f"request {i} waits, and holds something"
        count = Counter(b for i in self.running for b in self.known[i].request.block_table)
        assert 0 not in count, "the null block is in a table"
        cache = scheduler.cache
        if self.rules.radix:
            cache.check(scheduler.running)
        else:
            refs = {block: n for block, n in enumerate(cache.allocator.refs) if n}
            assert refs == dict(count), f"blocks are counted {refs}, and held {dict(count)}"
            free = cache.allocator.free_order
            assert sorted([*free, *count]) == list(range(1, self.knobs.num_blocks + 1)), f"free {free}, held {count}"
            if cache.prefix is not None:
                cache.prefix.check()


def random_work(rng: Random, work: Workload, operations: int) -> None:
    """Drive a workload: prompts from a few families, aborts and failures among the steps, then to the end."""
    families = [[rng.randrange(VOCAB) for _ in range(16)] for _ in range(2)]
    for _ in range(operations):
        kind = rng.random()
        if kind < 0.35:
            begin = work.answered[-3:] if work.answered and rng.random() < 0.3 else families  # a chat goes on
            shared, own = rng.choice(begin)[: rng.randint(0, 14)], rng.randint(0, 4)
            work.add(
                [*shared, *(rng.randrange(VOCAB) for _ in range(own))] or [0], max_tokens=rng.randint(1, 6),
                temperature=rng.choice((0.0, 0.0, 1.0)), seed=rng.randrange(3), salt=rng.choice(("", "", "", "a")),
                read_cache=rng.random() < 0.95,
            )  # fmt: skip
        elif kind < 0.40 and work.known:
            work.abort(rng.choice(sorted(work.known)))
        elif kind < 0.45:
            work.fail(rng.choice(("before", "after", "match", "publish", "forget")))
        else:
            work.step()
    work.drain()
    for tokens in reversed(work.answered[-3:]):  # the chats go on: what they left is still there, and is found
        work.add([*tokens, 0])
        work.drain()
