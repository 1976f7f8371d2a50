"""Where a model's weights come from: a seeded integer generator, or a Hugging Face style folder."""

from course_lib.weights.huggingface import load_model
from course_lib.weights.seeded import SEEDED, seeded_model

__all__ = ["SEEDED", "load_model", "seeded_model"]
