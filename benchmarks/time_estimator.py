"""What the duration estimate costs for each decision, beside general solvers and beside solving everything anew.

Every call adds the arrivals of one iteration, one from each worker, and solves e:quadratic_opt. All rows are sampled:
the job has waited for every k twenty times or, where it is called young, once: then every sample still moves its mean
a lot, and the solution changes most. The general solvers are those of cvxpy, with the problem built once
and only its parameters changed; those whose results are off by more than 0.1 % do not count.
"""

import importlib
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import quadprog

from benchmarks._harness import Bar, Report, Spread, interleave, ratio, run
from dbw_controller.core.estimators import durations as compiled_durations
from dbw_controller.core.estimators import isotonic, reference
from dbw_controller.core.estimators.grid import Grid, empty_grid
from dbw_controller.core.job import Job
from dbw_controller.core.kernels import COMPILED, Array, compiled
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Arrivals, GradientMoments, IterationSummary, Membership
from dbw_controller.core.reports import Report as IterationReport
from dbw_controller.core.spec import JobSpec

SOLVERS = ("CLARABEL", "OSQP", "SCS")
ACCURACY = 1e-3
REPETITIONS, CALLS = 25, 7
MATURE, YOUNG = 20, 1  # iterations at every k
LARGE = 1000


def arrival_times(rng: np.random.Generator, workers: int, idle: int) -> Array:
    """Times of one iteration with shifted exponential round trips; busy workers finish another one first."""
    times = 0.3 + rng.exponential(0.7, workers)
    times[idle:] += rng.exponential(0.7, workers - idle)
    return np.sort(times)


def histories(workers: int, iterations_at_every_k: int) -> Iterator[tuple[int, Array]]:
    """How many were waited for before, and when gradients came, for ever: first every h as often, then any."""
    rng = np.random.default_rng(workers)
    for _ in range(iterations_at_every_k):
        for h in range(1, workers + 1):
            yield h, arrival_times(rng, workers, h)
    while True:
        h = int(rng.integers(1, workers + 1))
        yield h, arrival_times(rng, workers, h)


def full_estimator(
    workers: int, durations: ModuleType, iterations_at_every_k: int = MATURE
) -> tuple[compiled_durations.DurationEstimator, Callable[[], None]]:
    """An estimator with all rows sampled, and a function that adds the next iteration's samples."""
    estimator, history = durations.DurationEstimator(workers), histories(workers, iterations_at_every_k)
    for h, times in islice(history, iterations_at_every_k * workers):
        estimator.add(h, 1, times, 0.0)
    estimator.estimate()
    future = cycle(list(islice(history, REPETITIONS * CALLS)))

    def add() -> None:
        h, times = next(future)
        estimator.add(h, 1, times, 0.0)

    return estimator, add


def uncompiled_durations() -> ModuleType:
    """The same module as on a machine without numba."""
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("dbw_controller")}
    numba: Any = importlib.import_module("numba")
    numba.config.DISABLE_JIT = 1
    try:
        return importlib.import_module("dbw_controller.core.estimators.durations")
    finally:
        numba.config.DISABLE_JIT = 0
        sys.modules.update(own)


def exact(durations: ModuleType, workers: int, iterations_at_every_k: int) -> Callable[[], object]:
    """One decision's estimate by our solver."""
    estimator, add = full_estimator(workers, durations, iterations_at_every_k)

    def call() -> object:
        add()
        return estimator.estimate()

    return call


def general(solver: str, workers: int, iterations_at_every_k: int, errors: dict[str, float]) -> Callable[[], object]:
    """One decision's estimate by a solver of cvxpy; takes note of how far it is off."""
    estimator, add = full_estimator(workers, compiled_durations, iterations_at_every_k)
    problem = reference.Problem([(h, k) for h in range(workers) for k in range(workers)], solver)
    grid = estimator._grid

    def call() -> object:
        add()
        return problem.solve(grid.weight, grid.mean)

    isotonic.update(grid)
    found = problem.solve(grid.weight, grid.mean)
    errors[solver] = float(np.max(np.abs(found / grid.value - 1)))
    return call


@compiled
def empty_kernel(grid: Grid) -> None:
    """Do nothing with all columns of a problem: the floor under any compiled solver."""


def compare_with_cvxpy(report: Report, workers: int, age: int, bar: float, bar_without_numba: float) -> None:
    """Time our solver, with and without numba, side by side with cvxpy's."""
    errors: dict[str, float] = {}
    size = f"n = {workers}" + (", young" if age == YOUNG else "")
    candidates = {solver: general(solver, workers, age, errors) for solver in SOLVERS}
    grid = empty_grid(workers)
    candidates |= {
        "exact": exact(compiled_durations, workers, age),
        "without numba": exact(uncompiled_durations(), workers, age),
        "floor, an empty kernel": lambda: empty_kernel(grid),
    }
    for call in candidates.values():
        call()
    seconds = interleave(candidates, REPETITIONS, CALLS)
    for name, values in seconds.items():
        report.results[f"{size}: {name}"] = Spread.of([value * 1e6 for value in values], "µs")
    accurate = [solver for solver in SOLVERS if errors[solver] < ACCURACY]
    best = min(accurate, key=lambda solver: report.results[f"{size}: {solver}"].median)
    for name, least in (("exact", bar), ("without numba", bar_without_numba)):
        title = f"{size}: {best} / {name}"
        report.results[title] = ratio(seconds[best], seconds[name])
        report.bars.append(Bar(title, report.results[title].median, ">=", least))


def compare_with_solving_anew(report: Report) -> None:
    """Time an incremental decision of a large cluster beside a cold solve, and a whole report beside both."""
    estimator, add = full_estimator(LARGE, compiled_durations)

    def repaired() -> object:
        add()
        return estimator.estimate()

    job, reports = Job(JobSpec(Dbw()), Membership(LARGE)), iteration_reports(LARGE)
    for _ in range(LARGE):
        job.report(next(reports))
    candidates: dict[str, Callable[[], object]] = {
        "incremental": repaired,
        "cold": lambda: isotonic.solve(estimator._grid),
        "whole decision": lambda: job.report(next(reports)),
    }
    seconds = interleave(candidates, 5, 5)
    for name, values in seconds.items():
        report.results[f"n = {LARGE}: {name}"] = Spread.of([value * 1e3 for value in values], "ms")
    title = f"n = {LARGE}: cold / incremental"
    report.results[title] = ratio(seconds["cold"], seconds["incremental"])
    report.bars.append(Bar(title, report.results[title].median, ">=", 40))
    for name in ("incremental", "whole decision"):
        median = report.results[f"n = {LARGE}: {name}"].median
        report.bars.append(Bar(f"n = {LARGE}: {name}, ms", median, "<=", 5))


def iteration_reports(workers: int) -> Iterator[IterationReport]:
    """What a parameter server would report that waits for every k in turn, all arrivals included."""
    rng = np.random.default_rng(workers)
    previous_k, time_lines = workers, [arrival_times(rng, workers, h) for h in range(1, workers + 1)]
    for iteration, k in enumerate(cycle(range(workers, 0, -1))):
        times = time_lines[previous_k - 1] * rng.uniform(0.9, 1.1)
        moments = GradientMoments(1.0, sum_squared_norms=k * (1.0 + 5.0 * rng.random()))
        summary = IterationSummary(iteration, k, float(times[k - 1]), 2.0 + rng.random(), 0.1, moments)
        yield IterationReport([Arrivals(iteration, times)], summary)
        previous_k = k


def memory_of_a_job(iterations: int, checkpoints: int) -> list[float]:
    """Memory that a process uses, in MB: before it has a large job, and then at equal distances."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    compiled_durations.kernels()
    reports = iteration_reports(LARGE)
    next(reports)
    used = [resident()]
    job = Job(JobSpec(Dbw()), Membership(LARGE))
    reports = iteration_reports(LARGE)
    for _ in range(checkpoints):
        for _ in range(iterations // checkpoints):
            job.report(next(reports))
        used.append(resident())
    return used


def measure_memory(report: Report) -> None:
    """Run a large job for long, in a process of its own."""
    if not Path("/proc/self/statm").exists():
        print("SKIPPED: the memory of a job, which only Linux tells", file=sys.stderr)
        return
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        used = pool.apply(memory_of_a_job, (10_000, 5))
    names = ("before the job", "after 4000 iterations, all that is remembered seen", "after 10000 iterations")
    for name, megabytes in zip(names, (used[0], used[2], used[-1]), strict=True):
        report.results[f"n = {LARGE}: memory {name}"] = Spread.of([megabytes], "MB")
    growth = (used[-1] - used[0]) / (used[2] - used[0])
    report.bars.append(Bar(f"n = {LARGE}: memory of the job after 10000 / after 4000 iterations", growth, "<=", 1.01))


def compare_with_quadprog(report: Report) -> None:
    """How far we are from a general solver that is exact as well."""
    workers = 16
    estimator, _ = full_estimator(workers, compiled_durations)
    grid = estimator._grid
    pairs = reference.order([(h, k) for h in range(workers) for k in range(workers)])
    constraints = np.zeros((workers**2, len(pairs)))
    for column, (i, j) in enumerate(pairs):
        constraints[i, column], constraints[j, column] = -1, 1
    weight, mean = np.asarray(grid.weight), np.asarray(grid.mean)
    begin = time.perf_counter()
    found = quadprog.solve_qp(np.diag(weight), weight * mean, constraints, np.zeros(len(pairs)))[0]
    report.results[f"n = {workers}: quadprog"] = Spread.of([(time.perf_counter() - begin) * 1e6], "µs")
    report.bars.append(
        Bar("relative difference to quadprog", float(np.max(np.abs(grid.value / found - 1))), "<=", 1e-9)
    )


def measure() -> Report:
    """Measure small, medium and large clusters."""
    if not COMPILED:
        sys.exit("numba is not installed: there is nothing to compare with the solver that it compiles")
    compiled_durations.kernels()
    report = Report()
    compare_with_quadprog(report)
    for age in (MATURE, YOUNG):
        compare_with_cvxpy(report, 16, age, 50, 10)
        compare_with_cvxpy(report, 64, age, 400, 30)
    compare_with_solving_anew(report)
    measure_memory(report)
    return report


def main() -> None:
    """Run the benchmark."""
    run("time_estimator", measure, __doc__)


if __name__ == "__main__":
    main()
