"""Which inputs a check asks for: those that every learner sees, and those that only a grader knows."""

import hashlib

PUBLIC = 2  # chooses the cases of every check in a notebook


def hidden(course_seed: int, assignment: str, grade_id: str) -> int:
    """The seed of one graded cell of a course. Each cell has its own: one that leaks does not give the others away.

    Always 19 digits, so that a feedback page can be searched for it.
    """
    digest = hashlib.sha256(f"{course_seed}/{assignment}/{grade_id}".encode()).digest()
    return 2**60 + int.from_bytes(digest[:7], "big")
