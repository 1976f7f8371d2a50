"""Attention of one request's new tokens over all its keys, several ways behind one name.

Each is called as attend(q, k, v, start, mask=None); attention/exact.py states the shapes.
`reference.attend` is the one-head formula that learners write.
"""

from course_lib.attention.exact import attend_exact
from course_lib.attention.plain import attend_plain
from course_lib.attention.tiled import attend_tiled

ATTEND = {"exact": attend_exact, "tile": attend_tiled, "plain": attend_plain}
