"""What runs keep of each iteration, as arrays."""

from collections.abc import Iterable

import numpy as np

from dbw_controller.core.kernels import Array
from dbw_experiments.laboratory.history import LatestLoss
from dbw_experiments.laboratory.runs import Column, Outcome


def numbers(column: Column | None) -> Array:
    """A column of numbers; NaN where there is none."""
    return np.array([value if isinstance(value, (int, float)) else np.nan for value in column or []], dtype=float)


def matrix(column: Column | None, width: int) -> Array:
    """A column of lists, a row each; NaN where there is no number."""
    rows = [numbers(list(row)) if isinstance(row, list) else np.full(width, np.nan) for row in column or []]
    return np.array(rows, dtype=float).reshape(-1, width)


def began(outcome: Outcome) -> Array:
    """When iterations began. Accuracies are of the parameters that they began with."""
    return np.concatenate([[0.0], numbers(outcome.columns["seconds"])[:-1]])


def smoothed(ks: Iterable[float], losses: Iterable[float], workers: int) -> Array:
    """For each iteration the mean loss of the latest n gradients, or a few more: what the target is judged by."""
    latest = LatestLoss(workers)
    return np.array([latest.add(k, loss) for k, loss in zip(ks, losses, strict=True)])


def last_accuracy(outcome: Outcome) -> float | None:
    """The last accuracy that was measured."""
    known = numbers(outcome.columns.get("accuracy"))
    known = known[np.isfinite(known)]
    return float(known[-1]) if known.size else None


def seconds_to_accuracy(outcome: Outcome, target: float) -> float | None:
    """When an accuracy was measured first; None if it never was."""
    reached = np.flatnonzero(numbers(outcome.columns.get("accuracy")) >= target)
    return float(began(outcome)[reached[0]]) if reached.size else None


def exact(columns: dict[str, Column], name: str) -> Array:
    """What is estimated; NaN where it was not measured. The gain is judged by the loss of the next iteration."""
    if name != "gain":
        return numbers(columns.get(f"exact_{name}"))
    losses = numbers(columns.get("exact_loss"))
    return losses - np.append(losses[1:], np.nan) if len(losses) else losses
