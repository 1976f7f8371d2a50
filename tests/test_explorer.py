"""Explorers: the picture's numbers are the library's, artists are reused, and it works with and without widgets."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from starting import ROOT

pytest.importorskip("matplotlib")

from course_lib.attention.mask import chunk_attention_mask
from course_lib.widgets.explorer import EXPLORER_CLASS, Choice, Slider, Switch, explore
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


def test_a_widget_comes_with_what_keeps_its_keys_from_jupyterlab_and_has_the_class_that_this_looks_for(monkeypatch):
    pytest.importorskip("ipywidgets")
    shown = []
    display = pytest.importorskip("IPython.display")
    monkeypatch.setattr(display, "display", lambda what, raw=False: shown.append(what))
    small()._ipython_display_()
    script, view = shown
    assert f'closest(".{EXPLORER_CLASS}")' in script["application/javascript"] and script["text/plain"] == ""
    assert EXPLORER_CLASS in view._dom_classes


# ---- in JupyterLab, for real


@pytest.fixture(scope="module")
def lab_page(tmp_path_factory):
    """JupyterLab in a browser, with a notebook whose first cell has shown an explorer."""
    why = "needs playwright to drive a browser: pip install playwright"
    api = pytest.importorskip("playwright.sync_api", reason=why)
    pytest.importorskip("jupyterlab")
    folder, port = tmp_path_factory.mktemp("lab"), free_port()
    sources = ("from course_lib.widgets.mask import explore_mask\nexplore_mask()", "'behind'", "'last'")
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
        for i, text in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    book = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "keys.ipynb").write_text(json.dumps(book))
    command = [
        sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--port={port}", "--ip=127.0.0.1",
        "--IdentityProvider.token=", "--LabApp.news_url=None", f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(ROOT), "JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_DATA_DIR": str(folder)}
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    browsers = ("chromium", "chromium-browser", "google-chrome", "chrome")
    try:
        wait_until(lambda: answers(port), 120)
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=next(filter(None, map(shutil.which, browsers))),
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/lab/tree/keys.ipynb")
            page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=120_000)

            def run_first_cell():  # a kernel that only just begins may miss the first time
                page.click(".jp-CodeCell >> nth=0 >> .cm-content")
                page.keyboard.press("Shift+Enter")
                with contextlib.suppress(api.TimeoutError):
                    page.wait_for_selector(".noUi-handle", timeout=20_000)
                return page.locator(".noUi-handle").count()

            wait_until(run_first_cell, 180)
            yield page
            browser.close()
    finally:
        server.terminate()
        server.wait(timeout=30)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} seconds"
        time.sleep(0.2)


@pytest.mark.browser
def test_a_key_pressed_in_an_explorer_does_nothing_to_the_notebooks_cells(lab_page):
    places = (".noUi-handle >> nth=0", f".{EXPLORER_CLASS} select")
    for place in places:
        for keys in (["d", "d"], ["x"], ["a"], ["b"], ["y"], ["m"], ["1"], ["Shift+M"]):
            lab_page.locator(place).focus()
            for key in keys:
                lab_page.keyboard.press(key)
            lab_page.wait_for_timeout(300)
            assert lab_page.locator(".jp-CodeCell").count() == lab_page.locator(".jp-Notebook .jp-Cell").count() == 3
            assert lab_page.locator(".noUi-handle").count() == 2, (place, keys)


@pytest.mark.browser
def test_arrow_keys_move_a_slider_and_leave_the_selected_cell(lab_page):
    slider = lab_page.locator(".noUi-handle >> nth=0")
    slider.focus()
    before = int(float(slider.get_attribute("aria-valuenow")))
    for key, step in (("ArrowRight", 1), ("ArrowUp", 1), ("ArrowLeft", -1), ("ArrowDown", -1)):
        lab_page.keyboard.press(key)
        before += step
        wait_until(lambda wanted=before: float(slider.get_attribute("aria-valuenow")) == wanted, 20)
        assert lab_page.evaluate("document.activeElement.classList.contains('noUi-handle')")


@pytest.mark.browser
def test_escape_and_keys_with_a_modifier_reach_jupyterlab(lab_page):
    lab_page.locator(".noUi-handle >> nth=0").focus()
    lab_page.evaluate("""() => { window.seen = []; document.addEventListener('keydown', (event) => window.seen.push(
        [event.key, event.target.hasAttribute('data-lm-suppress-shortcuts')]), true); }""")
    for key in ("a", "Escape"):
        lab_page.keyboard.press(key)
    assert lab_page.evaluate("window.seen") == [["a", True], ["Escape", False]]
    lab_page.locator(".noUi-handle >> nth=0").focus()
    lab_page.keyboard.press("Shift+Enter")  # runs the cell and goes on to the next
    wait_until(lambda: lab_page.locator(".jp-Cell >> nth=1").get_attribute("class").count("jp-mod-active"), 30)


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
