"""Notebook 08: its functions say what the engine does, and its wrong engines are wrong where the advice says."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.build import ROOT
from autograder.check import evaluate
from autograder.exercise import Callback, Returned
from autograder.exercises import EXERCISES
from autograder.exercises.nb08_composition import MISTAKES, RIGHT_ENGINES, WEIGHTS, usage
from autograder.exercises.nb08_engines import MAX_TOKENS, EngineStopped, make_reference, make_serve
from course_lib.cache.manager import CacheManager
from course_lib.cache.prefix import PrefixIndex
from course_lib.commands import walkthrough
from course_lib.cost.linear import PRESETS, LinearCost, chunked, exclusive_baseline
from course_lib.cost.work import pairs
from course_lib.lessons.nb08_both import admit, check_composition, next_chunk, two_by_two
from course_lib.schedule.plan import plan_step
from course_lib.schedule.request import Request

COMPOSITION = EXERCISES["check_composition"]
REFERENCE = make_reference(Callback("reference", (0,)))
A = [(7 * i * i + 3 * i) % 128 for i in range(24)]
B = A[:18] + [5, 4, 3, 2, 1]


def serve_of(name, weights=0):
    return make_serve(Callback("serve", (name, weights)))


# The functions of the lesson


@given(prompt=st.integers(1, 60), shared=st.integers(0, 60), block_size=st.integers(1, 20))
def test_admit_is_what_the_cache_attaches(prompt, shared, block_size):
    shared = min(shared, prompt)
    cache = CacheManager(200, block_size, PrefixIndex())
    before = Request(0, [*range(shared), *range(1_000, 1_060)])
    cache.allocate(before, shared)
    cache.publish(before, 0, shared)
    found = cache.match(Request(1, list(range(prompt))))
    assert admit(prompt, shared, block_size) == len(found) * block_size


@given(tokens=st.integers(1, 50), computed=st.integers(0, 49), left=st.integers(-3, 60), max_chunk=st.integers(0, 20))
def test_next_chunk_is_what_the_planner_gives_to_a_request_alone(tokens, computed, left, max_chunk):
    request = Request(0, list(range(tokens)), num_computed=min(computed, tokens - 1))
    plan = plan_step([request], max_num_batched_tokens=left, max_chunk=max_chunk, max_num_seqs=1)
    start = request.num_computed
    assert next_chunk(request, left, max_chunk) == (plan[0].start, plan[0].stop) if plan else (start, start)


@given(
    tail=st.integers(1, 9_000), hit=st.integers(0, 9_000), users=st.integers(1, 60), chunk=st.integers(50, 9_000),
    fixed=st.integers(1, 9_000), token=st.integers(0, 60), decode=st.integers(0, 900),
)  # fmt: skip
def test_the_four_ways_are_the_cost_models_timelines(tail, hit, users, chunk, fixed, token, decode):
    m, prompt = LinearCost(fixed, token, decode), tail + hit
    lines = [f(m, prompt, users, *more) for f, more in (
        (exclusive_baseline, ()), (chunked, (chunk,)), (exclusive_baseline, (hit,)), (chunked, (chunk, hit)),
    )]  # fmt: skip
    assert two_by_two(prompt, hit, users, chunk, m) == [(line.ttft_us, line.worst_stall_us) for line in lines]


# The engines of the exercise


@pytest.mark.parametrize("name", RIGHT_ENGINES)
def test_a_right_engine_gives_a_cold_runs_bits_whatever_is_asked(name):
    rng = np.random.default_rng(5)
    for _ in range(6):
        cut = int(rng.integers(3, 20))
        prompts = [A, A[:cut] + rng.integers(0, 128, 5).tolist()]
        asked = {"answer": int(rng.integers(1, 4)), "together": bool(rng.integers(2)), "preempt": int(rng.integers(5))}
        results = serve_of(name)(prompts, int(rng.integers(3, 12)), **asked)
        for prompt, (tokens, hit, *left) in zip(prompts, results):
            assert tokens[: len(prompt)] == prompt and len(tokens) == len(prompt) + asked["answer"] - 1
            assert all(np.array_equal(*pair) for pair in zip(left, REFERENCE(tokens)))
            assert hit % 4 == 0 and hit < len(tokens)


ASKS = {  # a call of serve for each kind of question
    "chunks": (([A], 9), {}),
    "hit": (([A, B], 9), {}),
    "uneven": (([A, B], 9), {}),
    "part": (([A, B], 9), {}),
    "long": (([A, B], 9), {}),
    "whole": (([A, A], 9), {}),
    "together": (([A, B], 6), {"together": True}),
    "preempt_part": (([A], 6), {"preempt": 1}),
    "preempt_answer": (([A], 6), {"answer": 3, "preempt": 5}),
}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in MISTAKES.items() for name in names])
def test_a_mistake_shows_to_who_asks_as_advised_and_to_nobody_who_serves_one_prompt(group, name):
    def refuses(args, options):
        try:
            results = serve_of(name)(*args, **options)
        except EngineStopped:
            return True
        right = serve_of("plain")(*args, **options)
        same = all(np.array_equal(x, y) for r in results for x, y in zip(r[2:], REFERENCE(r[0])))
        return not same or (group == "saved" and [r[1] for r in results] != [r[1] for r in right])

    needs = MISTAKES[group][name].needs
    assert refuses(*ASKS[needs])
    assert not refuses(([A], 40), {})  # alone and in one chunk nothing can show
    assert needs == "chunks" or not refuses(*ASKS["chunks"])


def test_kept_tests_ask_what_their_words_say():
    def asked(name):
        for wrong in COMPOSITION.wrong_answers:
            if wrong.name == name:
                fn, calls = COMPOSITION.compile(wrong.source), []
                break
        serve = serve_of("plain")

        def logged(prompts, chunk, answer=1, together=False, preempt=0):
            calls.append(("serve", prompts, chunk, answer, together, preempt))
            return serve(prompts, chunk, answer, together, preempt)

        fn(logged, REFERENCE)
        return usage(Returned(None, asked=tuple(calls)))

    assert not asked("one_prompt") & {"hit", "together", "preempt_part"} and "chunks" in asked("one_prompt")
    assert "chunks" not in asked("whole_prompts") and "whole" in asked("whole_prompts")
    assert not asked("never_preempts") & {"preempt_part", "preempt_answer"}
    assert "together" not in asked("one_after_the_other") and "part" not in asked("even_lengths")
    assert "whole" not in asked("never_twice")
    assert "preempt_part" in asked("preempts_the_prompt") and "preempt_answer" not in asked("preempts_the_prompt")


@pytest.mark.parametrize("seed", [WEIGHTS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in WEIGHTS[1:])])
def test_the_weights_of_every_seed_show_every_mistake_to_the_shipped_test(seed):
    for names in MISTAKES.values():
        for name in names:
            with pytest.raises(AssertionError):
                check_composition(serve_of(name, seed), make_reference(Callback("reference", (seed,))))


def test_a_test_that_breaks_has_not_refused_and_hears_what_serve_takes():
    for body, says in (
        ("serve('a prompt', 4)", "takes a list of prompts"),
        ("serve([[1, 2]], 1)", "chunk=1, answer=1, preempt=0: wanted at least 2"),
        ("serve([[1]], 4, answer=9)", "wanted at least 2, 1 to 8"),
        (f"serve([[1] * {MAX_TOKENS + 1}], 4)", f"of {MAX_TOKENS} tokens together at most"),
        ("serve([[128]], 4)", "numbers from 0 to 127"),
        ("serve([[1], []], 4)", "none empty"),
        ("serve([[1, 2]], 4)[0].hit", "AttributeError"),
    ):
        fn = COMPOSITION.compile(f"def check_composition(serve, reference):\n    {body}\n")
        message = evaluate(COMPOSITION, COMPOSITION.group("order"), fn).message
        assert "your test itself broke" in message and says in message, message


def test_an_engine_that_stops_is_refused_by_asking_and_a_test_that_catches_it_lets_it_through():
    ask = "def check_composition(serve, reference):\n    serve([list(range(8))] * 2, 8)\n"
    with pytest.raises(EngineStopped, match="no step computes any of its tokens"):
        COMPOSITION.compile(ask)(serve_of("full_hit"), REFERENCE)
    caught = ask.replace("    serve", "    try: serve") + "    except AssertionError: pass\n"
    message = evaluate(COMPOSITION, COMPOSITION.group("behind_a_hit"), COMPOSITION.compile(caught)).message
    assert "full_hit" in message


def test_results_are_copies():
    first = serve_of("plain")([A], 9)
    first[0][2][...] = 0
    assert np.array_equal(serve_of("plain")([A], 9)[0][2], REFERENCE(A)[0])


# The explorer, and the numbers of the questions


def test_the_explorer_shows_the_four_ways():
    pytest.importorskip("matplotlib")
    from course_lib.widgets.both import explore_both

    explorer = explore_both()
    assert "Hit 4,992 tokens, tail 2,008 = 1,024 + 984" in explorer.sentence
    said = explorer.set(block_size=256, users=24)
    (ttft, gap), bars = two_by_two(7_000, 4_864, 24, 1_024, PRESETS["reference"])[3], explorer._artists["bars"]
    assert f"first token after {ttft / 1e3:.1f} ms, longest gap {gap / 1e3:.1f} ms" in said
    assert "caching only has the earliest first token" in said
    assert (bars[0][3].get_height(), bars[1][3].get_height()) == (ttft / 1e3, gap / 1e3)
    assert "both has the earliest first token" in explorer.set(shared=4_000)
    assert "No way keeps" in explorer.set(shared=0, chunk=4_096)
    assert "tail 8 = 8" in explorer.set(shared=7_000, block_size=8)


def test_the_numbers_in_the_questions_are_computed():
    questions = json.loads((ROOT / "solutions" / "08_both.questions.json").read_text("utf-8"))
    right = {q["id"]: next(o["text"] for o in q["options"] if o.get("right")) for q in questions}
    assert right["nb08-q1"] == f"{walkthrough.tell(walkthrough.OWN_CAP, 16).hit:,}"
    assert right["nb08-q2"] == "A quarter" and round(100 * pairs(0, 3_500) / pairs(0, 7_000)) == 25
    assert right["nb08-q3"] == str(3_000 - 3_000 // 1_024 * 1_024)
    cells = two_by_two(7_000, 5_000, 24, 1_024, PRESETS["reference"])
    assert [round(gap / 1e3) for _, gap in cells[2:]] == [44, 24] and cells[2][0] < cells[3][0]
    assert right["nb08-q5"] == f"{1_024 - 5:,} + {2_000 - 1_019}"
    assert right["nb08-q7"] == f"{4_992 + 1_000:,}"


def test_the_counts_in_the_prose_are_the_exercises():
    text = re.sub(r"\n# ?", " ", (ROOT / "solutions" / "08_both.py").read_text("utf-8"))
    behind, saved, order = (len(names) for names in MISTAKES.values())
    assert f"a hit ({behind} wrong engines), what is saved ({saved}), and the order of events ({order})" in text
    assert behind + saved + order == 14 and "Fourteen are wrong" in text
    assert len(RIGHT_ENGINES) == 3 and "Three engines are right" in text
