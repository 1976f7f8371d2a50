"""A matrix product that does all that a vendor may do, in the place of torch's own.

`tile` rests on two assumptions: the same call on the same shape gives the same bits, and a row does not depend on
the contents of other rows. A real kernel is often kinder than that, so a mistake that costs no bit on one machine
costs some on the next. The *fickle* product keeps the two assumptions and nothing more: the order in which it adds
the terms of an element depends on the shape and on the slot. It refuses what torch refuses, with torch's own errors.
It is made of single IEEE operations, so it has the same bits on every machine. A sum that is exact is the same in
every order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

PRIME = 65537


@dataclass
class Seen:
    """What went on under the fickle product."""

    products: int = 0
    left: bool = False  # numbers went to NumPy, where no product is fickle


def tensor(arg: np.ndarray):
    """The torch tensor that an array of plain data stands for: float32, or bfloat16 where the array holds uint16."""
    import torch

    made = torch.from_numpy(arg)
    return made.view(torch.bfloat16) if made.dtype == torch.uint16 else made


def on_tensors(fn: Callable, *args):
    """fn(*args) with each array as a torch tensor."""
    return fn(*(tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args))


def on_fickle_tensors(fn: Callable, *args):
    """The same, and every matrix product in it is fickle."""
    with fickle_products():
        return on_tensors(fn, *args)


@contextlib.contextmanager
def fickle_products() -> Iterator[Seen]:
    """While open, torch multiplies matrices by the fickle product, whichever of its functions is called (CPU).

    Multiplying with broadcasting and adding up, (x[:, :, None] * w).sum(1), is a matrix product as well: so is the sum
    over one axis of a tensor that has three or more.
    """
    seen = Seen()
    products, functions = _modes()
    with products(seen), functions(seen):
        yield seen


@functools.lru_cache(maxsize=1)
def _modes() -> tuple[type, type]:
    """The classes of the two contexts, made at the first use, since torch may be absent."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    def attention(q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
        math = torch.ops.aten._scaled_dot_product_attention_math
        mean, weights = math(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
        return mean, weights.sum(-1)  # in place of the logsumexp, which only a gradient would need

    class FickleProducts(TorchDispatchMode):
        def __init__(self, seen: Seen) -> None:
            super().__init__()
            self.seen = seen

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch imports its compiler, which takes seconds, to say that it is not compiling

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs, name = kwargs or {}, func.overloadpacket.__name__
            if name == "_scaled_dot_product_flash_attention_for_cpu":
                with self:
                    return attention(*args, **kwargs)
            product = PRODUCTS.get(name.removesuffix("_"))
            if product is None and (torch.is_inference_mode_enabled() or name in WHOLE):
                with self:
                    made = func.decompose(*args, **kwargs)
                if made is not NotImplemented:
                    return made
            if product is None:
                return func(*args, **kwargs)
            given = args
            if func._schema.is_mutable:  # in place, or with out=
                given = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            real = func(*args, **kwargs)
            options = {key: value for key, value in kwargs.items() if key in ("alpha", "beta")}
            fickle = product(*given, **options) if real.is_floating_point() else None
            if fickle is None:
                return real
            self.seen.products += 1
            return real.copy_(fickle)

    class Watch(TorchFunctionMode):
        def __init__(self, seen: Seen) -> None:
            super().__init__()
            self.seen = seen

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") in ("numpy", "__array__", "__dlpack__"):
                self.seen.left |= args[0].is_floating_point() and args[0].numel() > 1
            return func(*args, **(kwargs or {}))

    return FickleProducts, Watch


WHOLE = ("matmul", "_scaled_dot_product_attention_math")  # come so, and not as mm, in inference mode and from in here


def _plus(c, product, beta=1, alpha=1):
    return alpha * product if beta == 0 else beta * c + alpha * product  # with beta=0 a NaN in c is not looked at


PRODUCTS = {  # torch's operations, without the _ of those that work in place
    "mm": lambda a, b: _product(a, b),
    "bmm": lambda a, b: _product(a, b),
    "mv": lambda a, b: _product(a, b[:, None])[:, 0],
    "dot": lambda a, b: _product(a[None], b[:, None])[0, 0],
    "vdot": lambda a, b: _product(a[None], b[:, None])[0, 0],
    "addmm": lambda c, a, b, **more: _plus(c, _product(a, b), **more),
    "baddbmm": lambda c, a, b, **more: _plus(c, _product(a, b), **more),
    "addbmm": lambda c, a, b, **more: _plus(c, _product(a, b).sum(0), **more),
    "addmv": lambda c, a, b, **more: _plus(c, _product(a, b[:, None])[:, 0], **more),
    "sum": lambda x, axes=None, keepdim=False: _sum(x, axes, keepdim),
}


def _product(a, b):
    """[M, K] @ [K, N], or a batch of them: each row's terms added in the order of its shape and slot."""
    import torch

    if a.dim() == 3:
        return torch.stack([_rows(x, y, len(a)) for x, y in zip(a, b)])
    return _rows(a, b, 0)


def _rows(a, b, batch: int):
    (rows, inner), columns = a.shape, b.shape[1]
    order = _order(rows, inner, columns, batch)
    return _pairwise(_wide(a).gather(1, order)[:, :, None] * _wide(b)[order], a.dtype)  # of [rows, inner, columns]


def _sum(x, axes, keepdim: bool):
    """The sum over one axis of a tensor that has three or more, each number's terms in its own order; else None."""
    if x.dim() < 3 or not axes or len(axes) != 1:
        return None
    terms = x.movedim(axes[0], -1)
    flat = terms.reshape(-1, terms.shape[-1])
    added = _pairwise(_wide(flat).gather(1, _order(*flat.shape, 1, x.dim())), x.dtype).reshape(terms.shape[:-1])
    return added.unsqueeze(axes[0]) if keepdim else added


def _wide(x):
    import torch

    return x.to(x.dtype if x.dtype == torch.float64 else torch.float32)


def _pairwise(terms, dtype):
    """The sum over axis 1: each half added to the other, and so on."""
    import torch

    while terms.shape[1] > 2:
        half = terms.shape[1] // 2
        terms = torch.cat([terms[:, :half] + terms[:, half : 2 * half], terms[:, 2 * half :]], 1)
    # 16-bit: the last two partial sums are rounded before they are added, as in a kernel that splits the sum.
    return terms.to(dtype).sum(1)


@functools.lru_cache(maxsize=1024)
def _order(rows: int, inner: int, columns: int, batch: int):
    """For each row, the order in which its terms are added: [rows, inner]."""
    import torch

    shape = 7919 * rows + 104_729 * columns + 1_299_709 * inner + 15_485_863 * batch
    key = (shape + 31 * torch.arange(rows)) % (PRIME - 1) + 1
    return (key[:, None] * torch.arange(1, inner + 1) % PRIME).argsort(1)
