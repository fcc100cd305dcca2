"""How long iterations last, against theory: order statistics, and Markov chains that are solved exactly.

Seeds are fixed, and a mean may be off by five standard errors, which are those of theory where it has them: of a
million seeds, one would fail.
"""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dbw_controller.core.spec import SyncMode
from dbw_experiments.laboratory.cluster import Cluster
from dbw_worker.delays import parse_delay

STANDARD_ERRORS = 5
ITERATIONS = 1000


@cache
def durations(
    delay: str, workers: int, ks: tuple[int, ...], mode: SyncMode, iterations: int = ITERATIONS
) -> NDArray[np.float64]:
    """The seconds of iterations that have these k's in turn, but for the first iteration of all."""
    cluster = Cluster(workers, parse_delay(delay), 2020, mode)
    return np.array([cluster.iterate(ks[i % len(ks)]).end.seconds for i in range(iterations + 1)])[1:]


def assert_has_mean(sample: NDArray[np.float64], mean: float, variance: float) -> None:
    assert abs(sample.mean() - mean) < STANDARD_ERRORS * math.sqrt(variance / len(sample))


def exponential(workers: int, k: int) -> tuple[float, float]:
    """Mean and variance of the k-th of n draws of Exp(1): H_n − H_{n−k}, and the same with squares (Rényi)."""
    gaps = [1 / left for left in range(workers - k + 1, workers + 1)]
    return sum(gaps), sum(gap**2 for gap in gaps)


def uniform(workers: int, k: int) -> tuple[float, float]:
    """Mean and variance of the k-th of n draws between 0 and 1: it has the distribution Beta(k, n−k+1)."""
    n = workers
    return k / (n + 1), k * (n - k + 1) / ((n + 1) ** 2 * (n + 2))


EACH = [(1, 1), (4, 1), (4, 3), (4, 4), (7, 4)]


@pytest.mark.parametrize(("workers", "k"), EACH)
def test_interrupted_exponential_workers_take_a_difference_of_harmonic_numbers(workers: int, k: int) -> None:
    assert_has_mean(durations("exp:1", workers, (k,), SyncMode.PUSH_INTERRUPT), *exponential(workers, k))


def test_the_slowest_of_n_exponential_workers_takes_the_nth_harmonic_number() -> None:
    assert exponential(4, 4)[0] == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    for mode in SyncMode:  # nobody is late where all are waited for
        assert_has_mean(durations("exp:1", 4, (4,), mode), *exponential(4, 4))


@pytest.mark.parametrize(("workers", "k"), [(4, 1), (4, 3), (7, 4)])
def test_a_shift_and_a_scale_go_through_to_the_iterations(workers: int, k: int) -> None:
    mean, variance = exponential(workers, k)
    sample = durations("shifted-exp:0.3,0.7", workers, (k,), SyncMode.PUSH_INTERRUPT)
    assert_has_mean(sample, 0.3 + 0.7 * mean, 0.7**2 * variance)


@pytest.mark.parametrize(("workers", "k"), [(4, 1), (4, 3), (7, 4)])
def test_interrupted_uniform_workers_are_evenly_spaced(workers: int, k: int) -> None:
    mean, variance = uniform(workers, k)
    sample = durations("uniform:0.5,2.5", workers, (k,), SyncMode.PUSH_INTERRUPT)
    assert_has_mean(sample, 0.5 + 2 * mean, 2**2 * variance)


def test_an_iteration_s_time_varies_as_theory_says() -> None:
    """Of n = k = 1, where the fourth central moment is known to be 9: the sample variance has the variance 8/N."""
    sample = durations("exp:1", 1, (1,), SyncMode.PUSH_INTERRUPT)
    assert abs(sample.var(ddof=1) - 1) < STANDARD_ERRORS * math.sqrt(8 / len(sample))


def waiting(workers: int, previous_k: int, k: int) -> tuple[float, float]:
    """Mean and variance of T_{h,k}: an iteration with k after one with h, Push & Wait, Exp(1).

    The h workers whose gradients were used begin afresh; all others have a stale gradient first. Exp(1) has no memory:
    whenever they began, a stale gradient takes another Exp(1), and so do fresh ones. So an iteration is a Markov chain
    in continuous time on (s, f), how many are stale and fresh, which depends on nothing that came before:

        (s, f) → (s−1, f+1) at rate s: a late gradient comes, and its worker goes on with a fresh one
        (s, f) → (s, f−1) at rate f: a gradient is used; the kth ends the iteration

    With its generator Q, restricted to states in which fewer than k are used, the time until the end has the moments
    −Q·m₁ = 1 and −Q·m₂ = 2·m₁.
    """
    states = [(s, f) for s in range(workers + 1) for f in range(workers + 1 - s) if workers - s - f < k]
    number = {state: i for i, state in enumerate(states)}
    generator = np.zeros((len(states), len(states)))
    for (s, f), i in number.items():
        generator[i, i] = -(s + f)
        if s:
            generator[i, number[s - 1, f + 1]] = s
        if f and (s, f - 1) in number:
            generator[i, number[s, f - 1]] = f
    first = np.linalg.solve(-generator, np.ones(len(states)))
    second = np.linalg.solve(-generator, 2 * first)
    begin = number[workers - previous_k, previous_k]
    return first.item(begin), second.item(begin) - first.item(begin) ** 2


def test_the_chain_agrees_with_what_can_be_said_without_it() -> None:
    for workers in range(1, 7):
        for k in range(1, workers + 1):  # all are fresh after k = n: the order statistic
            assert waiting(workers, workers, k) == pytest.approx(exponential(workers, k))
    # n = 2, k = 1: the fresh worker is first (in 1/2 on average), or the stale one is, and then it takes 1/2 more.
    assert waiting(2, 1, 1)[0] == pytest.approx(1 / 2 + 1 / 2 * 1 / 2)
    # n = 2, T_{1,2}: the maximum of Exp(1) and of a sum of two.
    assert waiting(2, 1, 2)[0] == pytest.approx(1 / 2 + 1 / 2 * (1 + 1 / 2) + 1 / 2 * 2)


@pytest.mark.parametrize(("workers", "k"), [(n, k) for n in range(2, 6) for k in range(1, n + 1)])
def test_workers_that_are_waited_for_take_as_long_as_the_chain(workers: int, k: int) -> None:
    """For a static k all iterations but the first are the same chain, independent of each other."""
    assert_has_mean(durations("exp:1", workers, (k,), SyncMode.PUSH_WAIT), *waiting(workers, k, k))


@pytest.mark.parametrize(("h", "k"), [(1, 4), (2, 3), (4, 5)])
def test_an_iteration_after_another_k_takes_as_long_as_the_chain(h: int, k: int) -> None:
    sample = durations("exp:1", 5, (h, k), SyncMode.PUSH_WAIT)
    assert_has_mean(sample[0::2], *waiting(5, h, k))
    assert_has_mean(sample[1::2], *waiting(5, k, h))


def test_stale_gradients_cost_time_that_the_theory_sees() -> None:
    """What the two modes' theories say is further apart than the tests allow for: they tell the modes apart."""
    for k in (1, 2, 3):
        (waits, _), (interrupts, _) = waiting(4, k, k), exponential(4, k)
        _, variance = waiting(4, k, k)
        assert waits - interrupts > STANDARD_ERRORS * math.sqrt(variance / ITERATIONS)


def test_paper_waiting_for_one_more_never_takes_less_time_in_the_chain() -> None:
    for n in range(2, 9):
        assert all(waiting(n, k, k)[0] <= waiting(n, k + 1, k + 1)[0] for k in range(1, n))
        for h in range(1, n + 1):
            assert all(waiting(n, h, k)[0] < waiting(n, h, k + 1)[0] for k in range(1, n))


@pytest.mark.parametrize("mode", [SyncMode.PUSH_WAIT, SyncMode.PUSH_INTERRUPT])
@pytest.mark.parametrize("delay", ["uniform:0,2", "pareto:2.5,0.6", "shifted-exp:0.5,0.5 * factors:1,1,1,3"])
def test_paper_waiting_for_one_more_never_takes_less_time_on_average(delay: str, mode: SyncMode) -> None:
    """E[T_{k,k}] ≤ E[T_{k+1,k+1}] also where iterations depend on each other: errors are those of means of batches."""
    samples = [durations(delay, 4, (k,), mode, 300).reshape(15, 20).mean(axis=1) for k in range(1, 5)]
    for fewer, more in pairwise(samples):
        error = math.sqrt((fewer.var(ddof=1) + more.var(ddof=1)) / len(fewer))
        assert fewer.mean() <= more.mean() + STANDARD_ERRORS * error
