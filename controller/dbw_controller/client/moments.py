"""The gradients' moments that `end_iteration` needs, from gradients as they come in. None of them is kept."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Array = Any  # a dense tensor of PyTorch, on any device that has double precision, or what NumPy can make an array of
Gradient = Array | Sequence[Array] | Mapping[str, Array]
WHOLE = None  # the name of the only part of a gradient that is one array


class AveragedGradients(TypedDict):
    """That part of a `Summary` which is about gradients."""

    k: int
    mean_squared_norm: float
    sum_squared_norms: float


class Moments:
    """Adds up the gradients of one iteration, in double precision, on the devices that they are on.

    A gradient is one array or, in parts, a sequence or mapping of them: all gradients of an iteration in the same way.
    """

    def __init__(self) -> None:
        self.k = 0  # how many there are
        self._sums: dict[Any, _Sum] = {}  # of each part, by its name
        self._forms: dict[Any, str] = {}
        self._is_mapping = False

    def add(self, gradient: Gradient) -> None:
        """Take in a gradient. One that does not fit those before is refused, and changes nothing."""
        parts = {name: _numbers(array) for name, array in _named(gradient).items()}
        if not parts:
            raise ValueError("the gradient has no parts; there must be at least one")
        forms = {name: _form(array) for name, array in parts.items()}
        if self.k and forms != self._forms:
            raise ValueError(f"the gradient is {_text(forms)}; those before it are {_text(self._forms)}")
        if not self.k:
            self._forms, self._is_mapping = forms, isinstance(gradient, Mapping)
            self._sums = {name: _Sum(array) for name, array in parts.items()}
        for name, array in parts.items():
            self._sums[name].add(array)
        self.k += 1

    def mean(self) -> Any:  # noqa: ANN401 (a `Gradient`)
        """The mean gradient, in the form and precision of the first; of other frameworks than PyTorch, as NumPy's."""
        self._require_some()
        means = {name: part.mean(self.k) for name, part in self._sums.items()}
        if WHOLE in means:
            return means[WHOLE]
        return means if self._is_mapping else list(means.values())

    def summary(self) -> AveragedGradients:
        """Fields of the summary: `job.end_iteration(loss=…, learning_rate=…, **moments.summary())`."""
        self._require_some()
        parts = self._sums.values()
        return {
            "k": self.k,
            "mean_squared_norm": sum(float(_squared_norm(part.sum)) for part in parts) / self.k**2,
            "sum_squared_norms": sum(float(part.squares) for part in parts),
        }

    def _require_some(self) -> None:
        if not self.k:
            raise ValueError("no gradient was added; an iteration averages at least one")


class _Sum:
    """The sum of an array that all gradients have, and of its squares. On a GPU nobody waits for them."""

    def __init__(self, array: Array) -> None:
        self.sum, self.squares, self._dtype = _zeros(array), 0.0, array.dtype

    def add(self, array: Array) -> None:
        self.sum += array
        self.squares += _squared_norm(array)

    def mean(self, k: int) -> Array:
        mean = self.sum / k
        return mean.to(self._dtype) if _is_tensor(mean) else mean.astype(self._dtype)


def _named(gradient: Gradient) -> Mapping[Any, Array]:
    if hasattr(gradient, "shape"):
        return {WHOLE: gradient}
    return gradient if isinstance(gradient, Mapping) else dict(enumerate(gradient))


def _is_tensor(array: Array) -> bool:
    return hasattr(array, "detach")


def _form(array: Array) -> str:
    kind = f"a tensor on {array.device}" if _is_tensor(array) else "an array"
    return f"{kind} of shape {tuple(array.shape)}"


def _text(forms: Mapping[Any, str]) -> str:
    return forms[WHOLE] if WHOLE in forms else str(forms)


# NumPy and PyTorch are imported where they are used: a client that only counts need not wait for either.


def _numbers(array: Array) -> Array:
    """The array as NumPy's or PyTorch's own, of real numbers; refuses what has none."""
    if _is_tensor(array):
        if array.is_sparse:
            raise TypeError("a part of the gradient is sparse; it must be dense: see to_dense()")
        return array.detach()
    import numpy as np

    numbers = np.asarray(array)
    if numbers.dtype.kind in "OSUmMc":  # objects, None for example, text, times and complex numbers
        raise TypeError(f"a part of the gradient is {array!r:.40}; it must be an array of real numbers")
    return numbers.astype(float) if numbers.dtype.kind in "iub" else numbers


def _zeros(array: Array) -> Array:
    if _is_tensor(array):
        return array.new_zeros(array.shape).double()
    import numpy as np

    return np.zeros(array.shape)


def _squared_norm(array: Array) -> Any:  # noqa: ANN401 (a number, on the device that the array is on)
    if _is_tensor(array):
        import torch

        return torch.linalg.vector_norm(array, dtype=torch.float64) ** 2
    column = array.astype(float).ravel()
    return column @ column
