"""Plain data is copied, told from what is none, and compared; a form says what a judge may be given."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.plain import ARRAY, Either, Other, array_of, equal, fits, is_plain, plain

LEAVES = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | st.text() | st.binary()
PLAIN = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=20)


@given(PLAIN)
def test_plain_data_stays_what_it_is(value):
    assert equal(plain(value), value) and is_plain(plain(value))


def test_arrays_are_copied_and_lists_become_tuples():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    got = plain([array, [1, (2.5, "x")], range(3)])
    array[:] = 0
    assert got[0].tolist() == [[0, 1, 2], [3, 4, 5]] and got[0].dtype == np.int16
    assert got[1:] == ((1, (2.5, "x")), (0, 1, 2))


def test_numbers_of_numpy_and_subclasses_become_pythons():
    class Answer(int):
        def __repr__(self):
            raise ValueError

    got = plain((np.int64(3), np.bool_(True), np.float64(0.5), Answer(7)))
    assert got == (3, True, 0.5, 7) and [type(x) for x in got] == [int, bool, float, int]
    assert plain(np.float32(0.1)).dtype == np.float32


def test_a_tensor_becomes_an_array():
    torch = pytest.importorskip("torch")
    assert plain(torch.arange(3)).tolist() == [0, 1, 2]
    assert plain(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


class _Hostile:
    def __array__(self, *args, **kwargs):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError


def _deep():
    value = ()
    for _ in range(50):
        value = (value,)
    return value


@pytest.mark.parametrize(
    "value",
    [object(), {1}, {}, collections.deque([1]), 1j, 10**40, np.array(["a"]), np.array([None]), _Hostile(), lambda: 1],
)
def test_what_is_not_plain_is_told_in_words(value):
    got = plain(value)
    assert isinstance(got, Other) and got.kind == type(value).__name__ and len(got.text) <= 80


def test_what_is_too_deep_or_too_large_does_not_travel():
    assert "Other" in repr(plain(_deep())) and not is_plain(_deep())
    assert isinstance(plain(range(10**9)), Other) and isinstance(plain("x" * (1 << 27)), Other)
    assert isinstance(plain(np.broadcast_to(np.zeros(1), (10**10,))), Other)


def test_an_array_is_whatever_can_be_read_as_one():
    assert (
        array_of((1, 2)).tolist() == [1, 2] and array_of(((1, 2), (3, 4))).shape == (2, 2) and array_of(3).shape == ()
    )
    for value in (None, "12", b"12", ((1, 2), (3,)), Other("set", ""), (None, 1), (2**70,)):
        assert array_of(value) is None


def test_equal_looks_at_kinds_dtypes_and_bits():
    nan = float("nan")
    assert equal((1, nan), (1, nan)) and not equal(1, True) and not equal(1, 1.0) and not equal((1,), (1, 1))
    assert not equal(np.zeros(2), np.zeros(2, np.float32)) and not equal(np.array([0.0]), np.array([-0.0]))


@pytest.mark.parametrize(
    "value, form, does",
    [
        (1, int, True), (True, int, False), (1.0, int, False), (None, None, True), (0, None, False),
        ((1, 2), (int, int), True), ((1, 2, 3), (int, int), False), ((), [int], True), ((1, 2), [int], True),
        ((1, "x"), [int], False), ([1], [int], False), (np.zeros(2), ARRAY, True), ((0, 0), ARRAY, False),
        ((1, None), (int, Either(None, int)), True), ((1, "x"), (int, Either(None, int)), False),
        (("a", ((), 1)), (str, object), True), (Other("set", ""), int, False),
    ],
)  # fmt: skip
def test_a_form_is_met_or_not(value, form, does):
    assert fits(value, form) is does
