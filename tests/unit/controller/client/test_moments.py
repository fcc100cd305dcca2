import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dbw_controller.client import Moments

gradients = st.integers(1, 6).flatmap(
    lambda size: st.lists(arrays(np.float64, size, elements=st.floats(-1e6, 1e6)), min_size=1, max_size=8)
)


def moments_of(gradients: object) -> Moments:
    moments = Moments()
    for gradient in gradients:  # type: ignore[attr-defined]
        moments.add(gradient)
    return moments


@given(gradients)
def test_the_summary_has_the_moments_of_the_contract(gradients: list[np.ndarray]) -> None:
    summary = moments_of(gradients).summary()
    mean = np.mean(gradients, axis=0)
    assert summary["k"] == len(gradients)
    assert summary["mean_squared_norm"] == pytest.approx(mean @ mean, rel=1e-9, abs=1e-9)
    assert summary["sum_squared_norms"] == pytest.approx(sum(g @ g for g in gradients), rel=1e-9)


@given(gradients)
def test_tensors_and_arrays_and_their_parts_have_the_same_moments(gradients: list[np.ndarray]) -> None:
    expected = moments_of(gradients).summary()
    tensors = [torch.tensor(gradient, requires_grad=True) for gradient in gradients]
    halves = [(gradient[:1], gradient[1:]) for gradient in gradients]
    mappings = [{"first": gradient[:1], "rest": torch.tensor(gradient[1:])} for gradient in gradients]
    for others in (tensors, [g.reshape(1, -1) for g in gradients], halves, mappings, [g.tolist() for g in gradients]):
        assert moments_of(others).summary() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_mean_has_the_form_of_what_was_added(dtype: npt.DTypeLike) -> None:
    mean = moments_of(np.array([[[1, 2]], [[3, 6]]], dtype)).mean()
    assert isinstance(mean, np.ndarray)
    assert mean.dtype == dtype
    assert mean.tolist() == [[2, 4]]


def test_the_mean_of_integers_is_not_rounded() -> None:
    assert np.array_equal(moments_of([np.array([1, 2]), np.array([2, 2])]).mean(), [1.5, 2.0])


def test_the_mean_of_tensors_in_parts_is_of_tensors_in_parts() -> None:
    weight, bias = torch.ones(2, 3), torch.tensor(2.0, dtype=torch.bfloat16)
    mean = moments_of([(weight, bias), (3 * weight, bias)]).mean()
    torch.testing.assert_close(mean, [2 * weight, bias])
    named = moments_of([{"weight": weight, "bias": bias}, {"bias": bias, "weight": 3 * weight}]).mean()
    torch.testing.assert_close(named, {"weight": 2 * weight, "bias": bias})


def test_single_precision_gradients_are_added_up_in_double_precision() -> None:
    size, small = 10_000, np.float32(1e-4)
    gradients = [np.ones(size, np.float32), np.full(size, small, np.float32)]
    summary = moments_of(gradients).summary()
    assert summary["sum_squared_norms"] == pytest.approx(size * (1 + float(small) ** 2), rel=1e-14)


@pytest.mark.parametrize("buffer", [np.zeros(2), torch.zeros(2, dtype=torch.float64)], ids=["array", "tensor"])
def test_what_was_added_is_neither_changed_nor_looked_at_again(buffer: Any) -> None:
    moments = Moments()
    for values in ((1.0, 2.0), (3.0, 4.0)):
        buffer[0], buffer[1] = values
        moments.add(buffer)
        assert buffer.tolist() == list(values)
    assert moments.mean().tolist() == [2.0, 3.0]
    assert moments.summary() == pytest.approx({"k": 2, "mean_squared_norm": 13.0, "sum_squared_norms": 30.0})


def test_a_gradient_that_is_not_finite_makes_moments_that_are_not() -> None:
    summary = moments_of([np.array([math.inf]), np.array([1.0])]).summary()
    assert summary["mean_squared_norm"] == summary["sum_squared_norms"] == math.inf


@pytest.mark.parametrize(
    "other", [np.ones(3), np.ones((2, 1)), [np.ones(2)], [np.ones(2), np.ones(1)], {"w": np.ones(2)}]
)
def test_a_gradient_of_another_form_is_refused_and_changes_nothing(other: object) -> None:
    moments = moments_of([np.ones(2)])
    with pytest.raises(ValueError, match=r"the gradient is .*; those before it are an array of shape \(2,\)"):
        moments.add(other)
    assert moments.summary() == {"k": 1, "mean_squared_norm": 2.0, "sum_squared_norms": 2.0}


@pytest.mark.parametrize("part", [None, "text", np.array([1j]), torch.ones(2).to_sparse()], ids=lambda part: type(part))
def test_what_has_no_numbers_is_refused_and_changes_nothing(part: object) -> None:
    moments = moments_of([[np.ones(2), np.ones(1)]])
    with pytest.raises(TypeError, match="a part of the gradient is"):
        moments.add([np.ones(2), part])
    with pytest.raises(ValueError, match="has no parts"):
        moments.add([])
    assert moments.summary() == {"k": 1, "mean_squared_norm": 3.0, "sum_squared_norms": 3.0}


def test_without_a_gradient_there_are_no_moments() -> None:
    for ask in (Moments().mean, Moments().summary):
        with pytest.raises(ValueError, match="no gradient was added"):
            ask()
