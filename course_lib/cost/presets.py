"""Step costs by name, for command lines and lessons. All are models; none is a measurement of a server."""

from collections.abc import Iterator

from course_lib.cli import UserError
from course_lib.cost import linear
from course_lib.cost.attention import AttentionCost
from course_lib.cost.devices import DEVICES, MODELS
from course_lib.cost.roofline import Roofline
from course_lib.cost.staircase import STAIRCASES
from course_lib.cost.work import StepCost

MODEL_NAMES = {"8b": "Llama 3 8B", "7b": "Llama 2 7B"}


def _all() -> Iterator[tuple[str, StepCost, str]]:
    """Name, cost and one line about it, of each preset."""
    reference = linear.PRESETS["reference"]
    yield "reference", reference, "18 us per prompt token and no attention: the course's reference read-outs"
    yield "reference-attention", AttentionCost(), "15 us per prompt token, and 0.74 ns per pair of tokens in attention"
    for model, shape in MODELS.items():
        for name, device in DEVICES.items():
            if shape.weight_bytes >= device.memory_bytes:
                continue  # preset_named says so
            about = f"{MODEL_NAMES[model]} in 16 bits on one {device.name}, roofline from the data sheet"
            yield f"{model}-{name}", Roofline(device=device, model=shape), about
            if name in STAIRCASES:
                stairs = Roofline(device=device, model=shape, staircase=STAIRCASES[name])
                fitted = "the H100's staircase" if name == "h200" else "matrix products by a measured staircase"
                yield f"{model}-{name}-staircase", stairs, f"{about}, {fitted}"


_ALL = tuple(_all())
PRESETS: dict[str, StepCost] = {name: cost for name, cost, _ in _ALL}
ABOUT: dict[str, str] = {name: about for name, _, about in _ALL}  # one line each


def preset_named(name: str) -> StepCost:
    """The preset of that name. UserError, with the names that there are, for another."""
    if name in PRESETS:
        return PRESETS[name]
    why = ""
    model, _, device = name.removesuffix("-staircase").partition("-")
    if model in MODELS and device in DEVICES and f"{model}-{device}" not in PRESETS:
        needs, has = MODELS[model].weight_bytes / 1e9, DEVICES[device].memory_bytes / 1e9
        why = f" ({MODEL_NAMES[model]} needs {needs:.2f} GB for its weights; a {DEVICES[device].name} has {has:.0f} GB)"
    raise UserError(f"no preset {name!r}{why}; there are {', '.join(PRESETS)}.")
