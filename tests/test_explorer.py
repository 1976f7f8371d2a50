"""Explorers: the picture's numbers are the library's, artists are reused, and it works with and without widgets."""

import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from course_lib.attention.mask import chunk_attention_mask
from course_lib.widgets.explorer import Choice, Slider, Switch, explore
from course_lib.widgets.mask import RULES, explore_mask, mask_of
from course_lib.widgets.seams import explore_seams, positions_of


def small(calls=None):
    calls = [] if calls is None else calls

    def build(figure):
        calls.append("build")
        return figure.add_subplot().plot([0, 1], [0, 1])[0]

    def update(line, n, kind, on):
        calls.append((n, kind, on))
        line.set_ydata([0, n])
        return f"{n} <{kind}> {on}"

    return explore(
        build, update, n=Slider("n", 1, 9, 3), kind=Choice("kind", ["a", "b"]), on=Switch("on"), size=(2, 1)
    )


def test_the_picture_is_built_once_and_moved_afterwards():
    calls = []
    explorer = small(calls)
    assert explorer.set(n=5) == "5 <a> False"
    explorer.set(kind="b", on=True)
    assert calls == ["build", (3, "a", False), (5, "a", False), (5, "b", True)]


def test_another_setting_is_another_picture_and_the_same_setting_the_same():
    explorer = small()
    first = explorer.png()
    explorer.set(n=7)
    second = explorer.png()
    assert second != first and first.startswith(b"\x89PNG") and explorer.png() == second


@pytest.mark.parametrize(
    ("values", "says"),
    [({"m": 1}, "no control 'm'"), ({"n": 10}, "wanted 1 .. 9"), ({"kind": "c"}, "one of"), ({"on": 1}, "True or")],
)
def test_a_setting_that_does_not_exist_is_refused_and_nothing_moves(values, says):
    explorer = small()
    with pytest.raises(ValueError, match=says):
        explorer.set(**values)
    assert explorer.values == {"n": 3, "kind": "a", "on": False}


def test_the_widget_moves_the_picture_and_reads_the_sentence_out():
    pytest.importorskip("ipywidgets")
    explorer = small()
    slider, menu, switch, image, sentence = explorer.widget().children
    before = image.value
    slider.value = 8
    assert image.value != before and explorer.values["n"] == 8
    menu.value, switch.value = "b", True
    assert explorer.sentence == "8 <b> True"
    assert 'aria-live="polite"' in sentence.value and "8 &lt;b&gt; True" in sentence.value


def test_without_ipywidgets_and_while_grading_the_picture_alone_is_shown(monkeypatch):
    explorer, shown = small(), []
    display = pytest.importorskip("IPython.display")
    monkeypatch.setattr(display, "display", lambda what, raw=False: shown.append((what, raw)))
    monkeypatch.setenv("COURSE_GRADING", "1")
    explorer._ipython_display_()
    monkeypatch.delenv("COURSE_GRADING")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    explorer._ipython_display_()
    assert [set(what) for what, _ in shown] == [{"image/png", "text/plain"}] * 2 and all(raw for _, raw in shown)


@pytest.mark.parametrize("rule", RULES)
def test_the_mask_explorer_counts_the_entries_that_differ(rule):
    explorer = explore_mask()
    for chunk_len, cached_len in ((1, 0), (3, 5), (8, 12), (1, 7)):
        said = explorer.set(chunk_len=chunk_len, cached_len=cached_len, rule=rule)
        wrong = int((mask_of(rule, chunk_len, cached_len) != chunk_attention_mask(chunk_len, cached_len)).sum())
        assert (f" {wrong} of {chunk_len * (cached_len + chunk_len)} entries are wrong" in said) == (wrong > 0)


def test_the_seams_explorer_tells_the_first_token_with_another_position():
    explorer = explore_seams()
    assert explorer.set(rule="absolute", chunk=8, hit=64).startswith("absolute: every token is told where it stands")
    assert "Token 32 is told 0." in explorer.set(rule="chunk-relative", chunk=32, hit=0)
    assert "Token 40 is told 0." in explorer.set(rule="from the end of the hit", chunk=32, hit=40)
    told, starts = positions_of("chunk index x chunk size", 32, 0)
    assert np.array_equal(told, np.arange(96)) and starts == [0, 32, 64], "equal chunks and no hit hide it"
    assert "Token 8 is told 0." in explorer.set(rule="chunk index x chunk size", chunk=32, hit=8)
