"""Exercise 9.3, recommend: the chunk and the budget that keep every step within a target."""

from __future__ import annotations

import numpy as np

from autograder.compare import first_trouble, same_integers
from autograder.exercise import Call, Exercise, Group, Outcome, Verdict, WrongAnswer
from course_lib.cost.attention import AttentionCost


def drive(answer, target_us: int, users: int, longest: int, cost: list[int]):
    """The cost is four numbers: fixed us, us per prompt token, us per decode, ps per query-key pair."""
    return answer(target_us, users, longest, AttentionCost(*cost))


def value_cases(seed: int) -> list[Call]:
    """Settings that fit, one in which the longest prompt fits whole, and some in which nothing does."""
    rng = np.random.default_rng(seed)
    draw = lambda low, high: int(rng.integers(low, high))  # noqa: E731
    rows = [(50_000, 24, 8_192, [2_600, 15, 108, 740]), (50_000, 24, 32_768, [2_600, 15, 108, 740])]
    for _ in range(6):
        cost = [draw(900, 4_000), draw(6, 30), draw(40, 200), draw(100, 2_000)]
        rows.append((draw(20_000, 90_000), draw(1, 60), draw(6_000, 60_000), cost))
    rows.append((400_000, draw(1, 9), draw(300, 900), [draw(900, 4_000), 10, 100, 500]))
    rows.append((2_000, draw(8, 30), 8_192, [draw(2_100, 4_000), 15, 108, 740]))
    users = draw(5, 50)
    rows.append((1_000 + 100 * users + 20, users, 4_096, [1_000, 20, 100, 0]))  # one token fits exactly
    return [Call((t, u, longest, c), f"recommend({t:,}, {u}, {longest:,}, cost)") for t, u, longest, c in rows]


def last_chunk_us(chunk: int, users: int, longest: int, cost: list[int]) -> int:
    """The step with the prompt's last `chunk` tokens and all decodes, in us, from the formula."""
    fixed, token, decode, pair_ps = cost
    keys = chunk * (2 * longest - chunk + 1) // 2
    return fixed + token * chunk + decode * users + pair_ps * keys // 1_000_000


def wanted(target_us: int, users: int, longest: int, cost: list[int]) -> tuple[int, int]:
    chunk = 0
    for step in (4_096, 512, 64, 8, 1):
        while chunk + step <= longest and last_chunk_us(chunk + step, users, longest, cost) <= target_us:
            chunk += step
    return (chunk, chunk + users) if chunk else (0, 0)


def _trouble(call: Call, got: np.ndarray) -> str | None:
    if got.shape != (2,) or got.dtype.kind not in "biu":
        return f"{call.label} gives {got.tolist()!r:.60}, wanted two whole numbers: max_chunk, max_num_batched_tokens."
    target, users, longest, cost = call.args
    (chunk, budget), right = got.tolist(), wanted(*call.args)
    if (chunk, budget) == right:
        return None
    what = f"{call.label} gives {(chunk, budget)}, wanted {right}. "
    what += "The cost is {:,} us, {} per prompt token, {} per decode, {} ps per pair.".format(*cost)
    if 0 < chunk <= longest:
        what += f" With your chunk the longest step takes {last_chunk_us(chunk, users, longest, cost):,} us."
    return what


def judge_values(calls: list[Call], outcomes: list[Outcome]) -> Verdict:
    return first_trouble(calls, outcomes, _trouble) or Verdict(True, count=f"{len(calls)} settings")


def _answer(prefill: str, decodes: str, result: str, test: str = "us <= target_us") -> str:
    return f"""\
def recommend(target_us, users, longest, cost):
    low, high = 0, longest + 1
    while high - low > 1:
        chunk = (low + high) // 2
        us = cost.work_us(work_of([{prefill}], {decodes}))
        low, high = (chunk, high) if {test} else (low, chunk)
    chunk = low
    return {result}
"""


LAST, ALL, GOOD = "(longest - chunk, longest)", "[longest] * users", "(chunk, chunk + users) if chunk else (0, 0)"
WRONG = (
    WrongAnswer(
        "no_decodes",
        _answer(LAST, "[]", GOOD),
        "The decodes of the users who stream are left out of the step. Each has one token in every step, "
        "and takes time.",
    ),
    WrongAnswer(
        "first_chunk",
        _answer("(0, chunk)", ALL, GOOD),
        "This is right for the prompt's first chunk. A later one has more keys before it, so attention takes longer, "
        "and the last takes the longest.",
    ),
    WrongAnswer(
        "budget_is_the_chunk",
        _answer(LAST, ALL, "(chunk, chunk)"),
        "The budget is the chunk. Decodes come out of the budget first, so they take their tokens from the chunk: the "
        "budget must hold both.",
    ),
    WrongAnswer(
        "four_chunks",
        _answer(LAST, ALL, "(chunk, 4 * chunk + users) if chunk else (0, 0)"),
        "The budget holds several chunks. When several prompts wait, a step is then filled with a chunk of each and "
        "takes several times as long: it is the budget that bounds a step.",
    ),
    WrongAnswer(
        "one_too_many",
        _answer(LAST, ALL, "(chunk + 1, chunk + 1 + users)"),
        "This chunk is one token too large: the smallest that misses the target, and not the largest that meets it.",
    ),
    WrongAnswer(
        "strictly_below",
        _answer(LAST, ALL, GOOD, "us < target_us"),
        "A step that takes exactly the target meets it. This one stops below.",
    ),
    WrongAnswer(
        "power_of_two",
        _answer(LAST, ALL, "((p := 1 << chunk.bit_length() - 1), p + users) if chunk else (0, 0)"),
        "The chunk is rounded down to a power of two. Nothing asks for that, and up to half of what fits "
        "is given away.",
    ),
    WrongAnswer(
        "decodes_off_the_chunk",
        _answer(LAST, ALL, "(chunk - users, chunk)"),
        "The users' tokens are taken off the chunk as if they were prompt tokens. Their time is in work_us already; "
        "the budget grows by them.",
    ),
    WrongAnswer(
        "prompt_alone",
        _answer(LAST, "[]", "(chunk, chunk)"),
        "This answer has no streaming users: it fits the chunk alone into the target, and into the budget.",
    ),
    WrongAnswer(
        "none_that_fits",
        _answer(LAST, ALL, "(max(chunk, 1), max(chunk, 1) + users)"),
        "Where not even one token fits, this still recommends a chunk of 1. No knob can make the decodes themselves "
        "faster: say (0, 0).",
    ),
    WrongAnswer(
        "longer_than_the_prompt",
        _answer("(max(longest - chunk, 0), max(longest, chunk))", ALL, GOOD).replace("longest + 1", "1 << 20"),
        "The chunk is longer than the longest prompt. There is no such chunk: stop at `longest`.",
    ),
    WrongAnswer(
        "one_decode",
        _answer(LAST, "[longest] * min(users, 1)", GOOD),
        "One decode is counted for all users together. Each user who streams has one in every step.",
    ),
)

RIGHT = (
    _answer(LAST, ALL, GOOD),
    """\
def recommend(target_us, users, longest, cost):
    def fits(chunk):
        return cost.work_us(work_of([(longest - chunk, longest)], [longest for _ in range(users)])) <= target_us

    chunk = 0
    for power in reversed(range(20)):
        if chunk + 2**power <= longest and fits(chunk + 2**power):
            chunk += 2**power
    return np.array([chunk, chunk + users if chunk else 0])
""",
)

EXERCISE = Exercise(
    name="recommend",
    number="9.3",
    title="Which knobs for which target?",
    notebook="09_production",
    mode="equal",
    groups=(Group("values", 3, value_cases, judge_values),),
    same=same_integers,
    wrong_answers=WRONG,
    right_answers=RIGHT,
    reread="Reread notebook 09, section 3.",
    imports="import numpy as np\nfrom course_lib.cost.work import work_of",
    library=("course_lib.lessons.nb09_device:recommend",),
    driver=drive,
)
