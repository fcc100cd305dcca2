"""The gradients' moments that `end_iteration` needs, from gradients as they come in. None of them is kept."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Array = Any  # of PyTorch, on any device, or what NumPy can make an array of
Gradient = Array | Sequence[Array] | Mapping[str, Array]


WHOLE = None  # the name of the only part of a gradient that is one array


class AveragedGradients(TypedDict):
    """That part of a `Summary` which is about gradients."""

    k: int
    mean_squared_norm: float
    sum_squared_norms: float


class Moments:
    """Adds up the gradients of one iteration, in double precision, where they are: on a GPU nothing waits for it.

    A gradient is one array or, in parts, a sequence or mapping of them: all gradients of an iteration in the same way.
    """

    def __init__(self) -> None:
        self.k = 0  # how many there are
        self._parts: dict[Any, _Part] = {}  # by their names
        self._is_mapping = False

    def add(self, gradient: Gradient) -> None:
        """Take in a gradient. One that does not fit those before is refused, and changes nothing."""
        parts = {name: _Part(array) for name, array in _named(gradient).items()}
        shapes, expected = ({name: part.shape for name, part in own.items()} for own in (parts, self._parts))
        if not self.k:
            self._parts, self._is_mapping = parts, isinstance(gradient, Mapping)
        elif shapes == expected:
            for name, part in parts.items():
                self._parts[name].add(part)
        else:
            raise ValueError(f"the gradient has the shapes {shapes}; those before it have {expected}")
        self.k += 1

    def mean(self) -> Any:  # noqa: ANN401 (a `Gradient`)
        """The mean gradient, in the form and precision of the first; of other frameworks than PyTorch, as NumPy's."""
        self._require_some()
        means = {name: part.mean(self.k) for name, part in self._parts.items()}
        if WHOLE in means:
            return means[WHOLE]
        return means if self._is_mapping else list(means.values())

    def summary(self) -> AveragedGradients:
        """What `end_iteration` is to be told: `job.end_iteration(loss=…, learning_rate=…, **moments.summary())`."""
        self._require_some()
        return {
            "k": self.k,
            "mean_squared_norm": float(sum(part.sum @ part.sum for part in self._parts.values())) / self.k**2,
            "sum_squared_norms": float(sum(part.squares for part in self._parts.values())),
        }

    def _require_some(self) -> None:
        if not self.k:
            raise ValueError("no gradient was added; an iteration averages at least one")


def _named(gradient: Gradient) -> Mapping[Any, Array]:
    if hasattr(gradient, "shape"):
        return {WHOLE: gradient}
    return gradient if isinstance(gradient, Mapping) else dict(enumerate(gradient))


class _Part:
    """The sum of an array that all gradients have, and the sum of its squares."""

    def __init__(self, array: Array) -> None:
        self._is_tensor = hasattr(array, "detach")
        array = array.detach() if self._is_tensor else _as_numpy(array)
        self.shape, self._dtype = tuple(array.shape), array.dtype
        self.sum = array.double().flatten() if self._is_tensor else array.astype(float).ravel()
        self.squares = self.sum @ self.sum

    def add(self, other: "_Part") -> None:
        self.sum = self.sum + other.sum  # not in place: the first one may be the caller's own memory
        self.squares = self.squares + other.squares

    def mean(self, k: int) -> Array:
        mean = (self.sum / k).reshape(self.shape)
        return mean.to(self._dtype) if self._is_tensor else mean.astype(self._dtype)


def _as_numpy(array: Array) -> Array:
    import numpy as np  # not above: who has tensors, or only counts, need not wait for it

    numbers = np.asarray(array)
    return numbers if numbers.dtype.kind == "f" else numbers.astype(float)
