"""Known mistakes are read from text: the solution with a place changed; a change that no longer fits is refused."""

import pytest

from autograder.exercise import WrongAnswer
from autograder.kept import known_mistakes, solution_text

MASK = "course_lib.attention.mask:chunk_attention_mask"
HEAD = "def chunk_attention_mask(chunk_len, cached_len):\n"
QUERY = "    query = cached_len + np.arange(chunk_len)[:, None]\n"
KEY = "    key = np.arange(cached_len + chunk_len)[None, :]\n"


def one(text, solution=MASK):
    (found,) = known_mistakes(solution, text)
    return found


def test_a_solution_is_read_without_docstring_and_annotations():
    assert solution_text(MASK) == f"{HEAD}{QUERY}{KEY}    return key <= query\n"


def test_methods_and_keyword_arguments_lose_theirs_too():
    text = solution_text("course_lib.lessons.nb01_divisible:KVCache")
    assert "def append(self, layer, k, v):\n        self.k[layer] = np.concatenate" in text
    assert "requests, *, max_num_batched_tokens, max_chunk, max_num_seqs\n" in solution_text(
        "course_lib.schedule.plan:plan_step"
    )


def test_a_change_is_made_at_its_one_place():
    changes = "strict\n  key <= query  ->  key < query\n"
    made = one(f"{changes}Each query misses\nits own key.\nreread: Section 2.\nalike: 0.5")
    assert made == WrongAnswer(
        "strict", f"{HEAD}{QUERY}{KEY}    return key < query\n", "Each query misses its own key.", "Section 2.", 0.5
    )


def test_several_changes_are_made_and_a_line_without_a_new_text_is_left_out():
    made = one("x\n  key <= query  ->  True\n  key = np.arange(cached_len + chunk_len)[None, :]  ->\nNo keys.")
    assert made.source == f"{HEAD}{QUERY}    return True\n"


def test_a_new_text_of_several_lines_keeps_the_indent():
    made = one(r"x" + "\n  return key <= query  ->  seen = key <= query\\nreturn seen\nTwo lines.")
    assert made.source == f"{HEAD}{QUERY}{KEY}    seen = key <= query\n    return seen\n"


def test_lines_of_code_are_the_body_or_the_whole_answer():
    assert one("x\n  | mask = 1\n  | return mask\nOne.").source == f"{HEAD}    mask = 1\n    return mask\n"
    whole = "x\n  | def chunk_attention_mask(a, b):\n  |     return a\nOther names."
    assert one(whole).source == "def chunk_attention_mask(a, b):\n    return a\n"


def test_blocks_are_read_in_order_whatever_their_common_indent():
    text = "\n    one\n      | return 1\n    First.\n\n    two\n      | return 2\n    Second.\n"
    assert [(w.name, w.message) for w in known_mistakes(MASK, text)] == [("one", "First."), ("two", "Second.")]


@pytest.mark.parametrize(
    "text, says",
    [
        ("x\n  key > query  ->  key\nM.", "'key > query' stands 0 times in the solution, wanted once"),
        ("x\n  cached_len  ->  0\nM.", "'cached_len' stands 3 times in the solution, wanted once"),
        ("x\n  key <= query\nM.", "a change is OLD  -> NEW"),
        ("x\n  key <= query  ->  key <=\nM.", "is no Python"),
        ("x\n  key <= query  ->  key\n  | return 1\nM.", "give one of them"),
        ("x\n  | return 1", "needs a name, what makes it and a message"),
        ("x\nOnly a message.", "needs a name, what makes it and a message"),
        ("two words\n  | return 1\nM.", "needs a name, what makes it and a message"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text, says):
    with pytest.raises(ValueError, match=says):
        known_mistakes(MASK, text)
