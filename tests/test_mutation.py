"""Small changes of right answers earn no full points; those that compute the same are listed with their reason."""

import random

import mutation
import pytest
from mutation import Mutant, equivalents, mutants, outcome, run_all, survivors

from autograder.exercises import EXERCISES

IN_EVERY_RUN = 3  # of an exercise's mutants
# A policy is judged by its share of requests: one that plans with 1 us less is another right policy.
EXACT = [name for name in EXERCISES if name != "my_policy"]


def test_a_mutant_is_the_answer_with_one_place_changed():
    made = {m.what: m.source for m in mutants(EXERCISES["chunk_attention_mask"])}
    one = "chunk_attention_mask, solution, comparison: return key <= query -> return key < query"
    assert made[one].endswith("    return key < query")
    kinds = {what.split(", ", 2)[2].partition(":")[0] for what in made}
    assert {"comparison", "operator", "variable", "line left out", "order of lines", "remembered"} <= kinds


def test_a_mutant_that_hangs_or_ends_the_process_is_not_taken_for_a_survivor(monkeypatch):
    monkeypatch.setattr(mutation, "SECONDS", 2)
    source = "def next_chunk(request, left, max_chunk):\n    "
    bodies = ["while True: pass", "import os; os._exit(0)", "return request.num_computed, request.num_computed"]
    made = [Mutant("next_chunk", body, source + body + "\n") for body in bodies]
    assert run_all(made) == ["does not end", "does not end", "refused"]


def test_the_right_answers_themselves_survive():
    for name in ("next_chunk", "positions"):
        source = mutation.solution_text(EXERCISES[name].solution)
        assert outcome(Mutant(name, "as it is", source)) == "survives"


def test_what_is_listed_as_equivalent_is_a_mutant_and_has_a_reason():
    made = {m.what for exercise in EXERCISES.values() for m in mutants(exercise)}
    for what, reason in equivalents().items():
        assert what in made, f"tests/equivalent.txt lists what is no mutant any more: {what}"
        assert len(reason.split()) > 3, what


def test_some_mutants_of_every_exercise_earn_no_full_points():
    chosen = [m for name in EXACT for m in random.Random(name).sample(mutants(EXERCISES[name]), IN_EVERY_RUN)]
    assert [m.what for m in survivors(chosen)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_no_mutant_earns_full_points(name):
    assert [m.what for m in survivors(mutants(EXERCISES[name]))] == []
