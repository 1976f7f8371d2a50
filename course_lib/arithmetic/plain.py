"""Ordinary operations of NumPy and torch: what runs inside a tile, and what other engines use.

On whole chunks these give no bit identity (notebook 04 shows it). Inside an aligned tile of fixed shape
they do.
"""

from course_lib.arithmetic.arrays import cast, namespace


def rms_norm(x, gain, eps: float):
    """x / sqrt(mean(x ** 2) + eps) * gain over the last axis, in float32, rounded to x's dtype at the end."""
    xp = namespace(x)
    wide = cast(x, xp.float32)
    mean = xp.sum(wide * wide, axis=-1, keepdims=True) * (1.0 / x.shape[-1])
    return cast(wide / xp.sqrt(mean + eps) * cast(gain, xp.float32), x.dtype)


def silu_mul(gate, up):
    """silu(gate) * up in float32, rounded to gate's dtype. Not F.silu: its bits depend on the flat index."""
    xp = namespace(gate)
    wide = cast(gate, xp.float32)
    sigmoid = 1 / (1 + xp.exp(-xp.clip(wide, -80, None)))  # below -80 the result is 0 all the same, without overflow
    return cast(wide * sigmoid * cast(up, xp.float32), gate.dtype)
