"""Answers that take torch tensors, and a matrix product that does all that a vendor may do.

`tile` rests on two assumptions: the same call on the same shape gives the same bits, and a row does not depend on
the contents of other rows. A real kernel is often kinder than that, so a mistake that costs no bit on one machine
costs some on the next. The *fickle* product keeps the two assumptions and nothing more: the order in
which it adds the terms of an element depends on the shape and on the slot. It is made of single IEEE operations, so
it has the same bits on every machine. A sum that is exact is the same in every order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import numpy as np

PRIME = 65537


def tensor_arg(x: np.ndarray, dtype: str) -> np.ndarray:
    """x (float32) as plain data for a tensor of `dtype`: itself, or for bfloat16 its bits, rounded half to even."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    if dtype == "float32":
        return x
    word = x.view(np.uint32)
    return ((word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def values(arg: np.ndarray) -> np.ndarray:
    """The numbers of a `tensor_arg` as float32."""
    return (arg.astype(np.uint32) << 16).view(np.float32) if arg.dtype == np.uint16 else arg


def on_tensors(fn: Callable, *args):
    """fn(*args) with each array as a torch tensor: float32, or bfloat16 where it holds uint16. A driver."""
    import torch

    def tensor(arg: np.ndarray):
        made = torch.from_numpy(arg)
        return made.view(torch.bfloat16) if made.dtype == torch.uint16 else made

    return fn(*(tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args))


def on_fickle_tensors(fn: Callable, *args):
    """The same, and every matrix product in it is fickle. A driver."""
    with fickle_products():
        return on_tensors(fn, *args)


@contextlib.contextmanager
def fickle_products() -> Iterator[None]:
    """While open, torch multiplies matrices by the fickle product, whichever of its functions is called (CPU)."""
    with _mode()():
        yield


@functools.lru_cache(maxsize=1)
def _mode() -> type:
    """The class of the context, made at the first use, since torch may be absent."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    products = {
        aten.mm: _product,
        aten.bmm: _product,
        aten.mv: lambda a, b: _product(a, b[:, None])[:, 0],
        aten.dot: lambda a, b: _product(a[None], b[:, None])[0, 0],
        aten.addmm: lambda c, a, b, beta=1, alpha=1: beta * c + alpha * _product(a, b),
        aten.baddbmm: lambda c, a, b, beta=1, alpha=1: beta * c + alpha * _product(a, b),
    }
    attention = aten._scaled_dot_product_flash_attention_for_cpu

    def by_products(q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
        mean, weights = aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
        return mean, weights.sum(-1)  # in place of the logsumexp, which only a gradient would need

    class FickleProducts(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch imports its compiler, which takes seconds, to say that it is not compiling

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs, name = dict(kwargs or {}), func.overloadpacket
            if name is attention:
                with self:
                    return by_products(*args, **kwargs)
            if name not in products:
                return func(*args, **kwargs)
            out = kwargs.pop("out", None)
            result = products[name](*args, **kwargs)
            return result if out is None else out.copy_(result)

    return FickleProducts


def _product(a, b):
    """[M, K] @ [K, N], or a batch of them: each row's terms added pairwise, in the order of its shape and slot."""
    import torch

    if a.dim() == 3:
        return torch.stack([_rows(x, y, len(a)) for x, y in zip(a, b)])
    return _rows(a, b, 0)


def _rows(a, b, batch: int):
    import torch

    (rows, inner), columns = a.shape, b.shape[1]
    wide = a.dtype if a.dtype == torch.float64 else torch.float32
    order = _order(rows, inner, columns, batch)
    terms = a.to(wide).gather(1, order)[:, :, None] * b.to(wide)[order]  # [rows, inner, columns]
    while terms.shape[1] > 2:
        half = terms.shape[1] // 2
        terms = torch.cat([terms[:, :half] + terms[:, half : 2 * half], terms[:, 2 * half :]], 1)
    # 16-bit: the last two partial sums are rounded before they are added, as in a kernel that splits the sum.
    return terms.to(a.dtype).sum(1)


@functools.lru_cache(maxsize=1024)
def _order(rows: int, inner: int, columns: int, batch: int):
    """For each row, the order in which its terms are added: [rows, inner]."""
    import torch

    shape = 7919 * rows + 104_729 * columns + 1_299_709 * inner + 15_485_863 * batch
    key = (shape + 31 * torch.arange(rows)) % (PRIME - 1) + 1
    return (key[:, None] * torch.arange(1, inner + 1) % PRIME).argsort(1)
