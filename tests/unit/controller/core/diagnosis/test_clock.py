from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dbw_controller.core.diagnosis import FindingKind
from dbw_controller.core.policies import Dbw, Policy, Static, Sync
from tests.cluster import Array
from tests.unit.controller.core.diagnosis.server import Change, Server, both, changed_arrivals, changed_summary


def since_start(starts: dict[int, float]) -> Change:
    """Times since the beginning of the training, where iterations began at these times."""
    times = changed_arrivals(lambda a: replace(a, seconds=a.seconds + starts[a.iteration]))
    return both(times, changed_summary(lambda s: {"duration_seconds": s.duration_seconds + starts[s.iteration]}))


def started(server: Server, origin: float) -> dict[int, float]:
    """When iterations begin, filled in as they do."""
    starts: dict[int, float] = {}
    step = server.step

    def noted(*arguments: Any, **fields: Any) -> None:
        starts[server.iteration] = server.clock - origin
        step(*arguments, **fields)

    server.step = noted  # type: ignore[method-assign]
    return starts


def scaled(factor: float) -> Change:
    times = changed_arrivals(lambda a: replace(a, seconds=a.seconds * factor))
    return both(times, changed_summary(lambda s: {"duration_seconds": s.duration_seconds * factor}))


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_cluster_that_slows_down_is_no_mistake(workers: int, publishes: bool) -> None:
    slowness = 1.0

    def slower(rng: np.random.Generator, count: int) -> Array:
        nonlocal slowness
        slowness *= 1.02
        return slowness * (0.9 + rng.exponential(0.1, count))

    server = Server(workers, Static(3), round_trips=slower, publishes=publishes).run()
    assert slowness > 100
    assert server.findings == []


def test_a_virtual_clock_may_stand_still() -> None:
    assert Server(publishes=False, change=scaled(0.0)).run(100).findings == []


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 16])
@pytest.mark.parametrize("policy", [Dbw(), Static(1), Sync()], ids=repr)
def test_times_since_the_start_of_the_training_are_found(policy: Policy, workers: int, publishes: bool) -> None:
    server = Server(workers, policy, publishes=publishes)
    server.change = since_start(started(server, 123.0))
    assert server.run(110).kinds == [FindingKind.TIMES_NOT_SINCE_PUBLICATION]


@pytest.mark.parametrize(
    ("origin", "publishes", "iterations"), [(-1.7e9, False, 30), (-5000.0, True, 30), (-5000.0, False, 110)]
)
def test_times_since_long_ago_are_found(origin: float, publishes: bool, iterations: int) -> None:
    server = Server(publishes=publishes)
    server.change = since_start(started(server, origin))
    assert server.run(iterations).kinds == [FindingKind.TIMES_NOT_SINCE_PUBLICATION]


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(
    ("factor", "publishes"), [(1e3, True), (1e6, True), (1e9, True), (1e6, False), (1e9, False), (1e-9, False)]
)
def test_times_in_other_units_are_found(workers: int, factor: float, publishes: bool) -> None:
    server = Server(workers, publishes=publishes, change=scaled(factor)).run(100)
    assert server.kinds == [FindingKind.TIMES_NOT_SECONDS]
