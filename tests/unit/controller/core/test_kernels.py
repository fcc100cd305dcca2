"""Kernels are compiled as well as it is possible here."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dbw_controller.core import kernels as module
from dbw_controller.core.kernels import compiled


def kernel(x: int) -> int:
    return x


def numba_that_refuses(monkeypatch: pytest.MonkeyPatch, option: str, error: type[Exception]) -> list[dict[str, Any]]:
    """Put something in the place of numba that knows all options but one; returns the options it is used with."""
    used: list[dict[str, Any]] = []

    def njit(**options: Any) -> Callable[[Any], Any]:
        if option in options:
            raise error(option)
        used.append(options)
        return lambda function: function

    monkeypatch.setattr(module, "numba", SimpleNamespace(njit=njit), raising=False)
    monkeypatch.setattr(module, "COMPILED", True)
    return used


def test_without_a_place_for_a_cache_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    used = numba_that_refuses(monkeypatch, "cache", RuntimeError)
    assert compiled(kernel) is kernel
    assert used == [{"nogil": True, "forceinline": True, "_nrt": False}]


def test_a_numba_without_the_unofficial_option_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    used = numba_that_refuses(monkeypatch, "_nrt", KeyError)
    assert compiled(kernel) is kernel
    assert used == [{"nogil": True, "cache": True, "forceinline": True}]


def test_without_numba_a_kernel_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPILED", False)
    assert compiled(kernel) is kernel
