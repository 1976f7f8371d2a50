"""Controls over a picture, behind one call: explore(build, update, name=Slider(...), ...).

The figure and its artists are made once and reused: a control moves them, and the figure is drawn to a PNG that an
image widget shows. That works the same in JupyterLab, in Colab (ipywidgets 7.7.1) and without any widget.
"""

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# JupyterLab's shortcuts are single keys where a cell is selected: `d d` on a focused slider would delete the explorer's
# cell, `a` would insert one above. JupyterLab itself takes no shortcut from an element that has this attribute, so each
# key that is pressed in an explorer sets it there, except for those that only leave or run the cell. The event itself
# goes on as it was: arrow keys move the slider. Elsewhere than in JupyterLab the attribute means nothing.
EXPLORER_CLASS = "chunked-prefill-explorer"
KEYS_STAY = """
if (!window.chunkedPrefillKeysStay) {
  window.chunkedPrefillKeysStay = true;
  window.addEventListener("keydown", (event) => {
    const at = event.target;
    if (!at.closest || !at.closest(".EXPLORER_CLASS")) return;
    const runs = event.key === "Enter" && event.shiftKey;
    const passes = runs || event.key === "Escape" || event.ctrlKey || event.altKey || event.metaKey;
    at.toggleAttribute("data-lm-suppress-shortcuts", !passes);
  }, true);
}
""".replace("EXPLORER_CLASS", EXPLORER_CLASS)


@dataclass(frozen=True)
class Slider:
    """A whole number from `low` to `high` in steps of `step`; `start` is where it stands first."""

    label: str
    low: int
    high: int
    start: int
    step: int = 1


@dataclass(frozen=True)
class Choice:
    """One of `options`, any plain values; `start` is chosen first (the first option if not given)."""

    label: str
    options: Sequence[Any]
    start: Any = None


@dataclass(frozen=True)
class Switch:
    """On or off."""

    label: str
    start: bool = False


Control = Slider | Choice | Switch


class Explorer:
    """A picture and its controls. `set` moves it from code; in a notebook it shows itself.

    build(figure) -> artists          called once
    update(artists, **values) -> str  called for each setting: moves the artists, says in one sentence what is seen
    """

    def __init__(self, build: Callable, update: Callable, controls: dict[str, Control], size: tuple[float, float]):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(self.figure)
        self._update, self.controls = update, controls
        self._artists = build(self.figure)
        self.values = {name: _start(control) for name, control in controls.items()}
        self.sentence = update(self._artists, **self.values)

    def set(self, **values) -> str:
        """Move to a setting; names that are not given keep their value. Returns the sentence.

        Raises ValueError for a control that does not exist, or a value that it does not have.
        """
        for name, value in values.items():
            if name not in self.controls:
                raise ValueError(f"no control {name!r}; there are {', '.join(self.controls)}.")
            _expect(self.controls[name], name, value)
        self.values |= values
        self.sentence = self._update(self._artists, **self.values)
        return self.sentence

    def png(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=90)
        return buffer.getvalue()

    def _repr_mimebundle_(self, **_) -> dict:
        """Without a widget: the picture, and the sentence as text."""
        import base64

        return {"image/png": base64.b64encode(self.png()).decode(), "text/plain": self.sentence}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        view = None if "COURSE_GRADING" in os.environ else self.widget()
        if view is None:
            display(self._repr_mimebundle_(), raw=True)
        else:
            display({"application/javascript": KEYS_STAY, "text/plain": ""}, raw=True)
            display(view)

    def widget(self):
        """The controls over the picture as an ipywidgets box; None where ipywidgets is not installed."""
        try:
            import ipywidgets as w
        except ImportError:
            return None
        image = w.Image(value=self.png(), format="png")
        sentence = w.HTML(value=_plain(self.sentence))
        inputs = {name: _input(w, control) for name, control in self.controls.items()}

        def moved(_):
            said = self.set(**{name: control.value for name, control in inputs.items()})
            image.value, sentence.value = self.png(), _plain(said)

        for control in inputs.values():
            control.observe(moved, names="value")
        return w.VBox([*inputs.values(), image, sentence], _dom_classes=[EXPLORER_CLASS])


def explore(build: Callable, update: Callable, *, size: tuple[float, float] = (9, 4.5), **controls) -> Explorer:
    """An Explorer. `size`: inches of the picture; `controls`: a Slider, Choice or Switch by each name update takes."""
    return Explorer(build, update, controls, size)


def _start(control: Control):
    if isinstance(control, Choice) and control.start is None:
        return control.options[0]
    return control.start


def _expect(control: Control, name: str, value) -> None:
    if isinstance(control, Slider):
        good, wanted = control.low <= value <= control.high, f"{control.low} .. {control.high}"
    elif isinstance(control, Choice):
        good, wanted = value in control.options, f"one of {list(control.options)}"
    else:
        good, wanted = isinstance(value, bool), "True or False"
    if not good:
        raise ValueError(f"{name}={value!r}; wanted {wanted}.")


def _input(w, control: Control):
    wide = {"style": {"description_width": "12em"}, "layout": {"width": "34em"}}
    if isinstance(control, Slider):
        return w.IntSlider(
            value=control.start, min=control.low, max=control.high, step=control.step, description=control.label,
            continuous_update=False, **wide,
        )  # fmt: skip
    if isinstance(control, Choice):
        return w.Dropdown(options=list(control.options), value=_start(control), description=control.label, **wide)
    return w.Checkbox(value=control.start, description=control.label, indent=True, **wide)


def _plain(sentence: str) -> str:
    from html import escape

    return f'<div role="status" aria-live="polite">{escape(sentence)}</div>'
