"""Equal runs have equal outcomes, and a run ends when it should."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec
import pytest
import torch
from msgspec.structs import asdict, replace

from dbw_experiments.laboratory.learning import Learner, Learnt
from dbw_experiments.laboratory.runner import bundles
from dbw_experiments.laboratory.runs import Column, Outcome, Run
from dbw_experiments.laboratory.training import execute, in_process, train
from dbw_ps.decider import FinishedIteration
from dbw_ps.rounds import Cause

RUN = Run(
    model="mlp",
    dataset="digits",
    workers=4,
    batch=8,
    policy="dbw",
    rate=0.2,
    delay="exp:1",
    seed=3,
    iterations=15,
    detail="estimates",
)
POLICIES = ["dbw", "b-dbw", "adasync", "static:2"]
VARIANTS = [
    replace(RUN, policy=policy, sync_mode=mode)
    for policy, mode in product(POLICIES, ("push-wait", "push-interrupt", "pull"))
]
EACH = pytest.mark.parametrize("run", VARIANTS, ids=[f"{run.policy} {run.sync_mode}" for run in VARIANTS])
DELAYS = ["constant:1", "exp:1", "pareto:1.5,0.1", "uniform:0.1,0.9 * factors:1,1,1,6"]


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    """Leave as many threads for other tests as there were."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def outcome(run: Run) -> Outcome:
    return execute([run])[0]


def numbers(column: Column) -> list[float]:
    assert all(isinstance(value, (int, float)) for value in column)
    return [value for value in column if isinstance(value, (int, float))]


@EACH
def test_equal_runs_have_equal_outcomes(run: Run) -> None:
    first, second = outcome(run), outcome(replace(run))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert first.iterations == 15
    assert len(set(map(len, first.columns.values()))) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_another_seed_gives_something_else(policy: str) -> None:
    first, other = (outcome(replace(RUN, policy=policy, seed=seed)) for seed in (3, 4))
    assert first.loss != other.loss
    assert first.seconds != other.seconds


def test_outcomes_are_the_same_to_the_bit_in_another_process() -> None:
    program = """
import sys, msgspec
from dbw_experiments.laboratory.runs import Run
from dbw_experiments.laboratory.training import execute
for run in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Run]):
    sys.stdout.buffer.write(msgspec.json.encode(execute([run])[0]) + b"\\n")
"""
    runs = [replace(run, accuracy_every=5) for run in VARIANTS]
    asked = msgspec.json.encode(runs)
    answer = subprocess.run([sys.executable, "-c", program], input=asked, capture_output=True, check=True, timeout=120)
    assert answer.stdout.splitlines() == [msgspec.json.encode(outcome(run)) for run in runs]


def test_runs_do_not_influence_those_that_come_after_them() -> None:
    alone = outcome(RUN)
    outcome(replace(RUN, workers=3, batch=5, seed=11, policy="static:1"))
    assert outcome(RUN) == alone


def test_push_and_wait_and_pull_are_the_same_without_a_network() -> None:
    for policy in POLICIES:
        run = replace(RUN, policy=policy)
        assert outcome(run) == outcome(replace(run, sync_mode="pull"))


@pytest.mark.parametrize("mode", ["push-wait", "push-interrupt"])
def test_a_bundle_gives_what_each_run_gives_alone(mode: str) -> None:
    """Also where one ends earlier than the others, or goes on for longer than those before it."""
    base = Run(**asdict(RUN) | {"sync_mode": mode, "seconds": 12.0, "accuracy_every": 4, "target_loss": 1.2})
    for policy in ("static:1", "static:3", "adasync"):
        runs = [replace(base, policy=policy, delay=delay, case=delay) for delay in DELAYS]
        together = execute(runs)
        assert together == [outcome(run) for run in runs]
        assert len({one.iterations for one in together}) > 1


def test_bundles_are_of_runs_that_differ_in_their_delays_only() -> None:
    runs = [
        replace(RUN, policy=policy, delay=delay, case=delay, seed=seed, split=split)
        for delay, policy, seed, split in product(DELAYS, [*POLICIES, "sync"], (0, 1), (False, True))
    ]
    found = bundles(runs)
    assert sorted(map(str, (run for bundle in found for run in bundle))) == sorted(map(str, runs))
    together = [bundle for bundle in found if len(bundle) > 1]
    assert {run.policy for bundle in together for run in bundle} == {"static:2", "adasync", "sync"}
    assert {(run.policy, run.seed) for bundle in together for run in bundle if run.split} == set()
    for bundle in together:
        assert [run.delay for run in bundle] == DELAYS
        assert len({replace(run, delay="", case="") for run in bundle}) == 1


def test_a_policy_that_looks_at_times_is_never_bundled() -> None:
    """What DBW learns does depend on delays."""
    for policy in ("dbw", "b-dbw"):
        run = replace(RUN, policy=policy, detail="curves")
        slow = replace(run, delay="constant:1 * factors:1,1,1,9")
        assert not run.ignores_time
        assert outcome(run).columns["k"] != outcome(slow).columns["k"]


class Watched:
    """A learner, and whose gradients it was asked for."""

    def __init__(self, run: Run) -> None:
        self._learner = Learner(run, torch.device("cpu"))
        self.asked: list[list[int]] = []

    def step(self, workers: Sequence[int]) -> Learnt:
        self.asked.append(list(workers))
        return self._learner.step(workers)


@pytest.mark.parametrize(("split", "expected"), [(True, [2, 0]), (False, [0, 1])])
def test_gradients_are_known_by_their_worker_only_where_data_are_split(split: bool, expected: list[int]) -> None:
    """Of workers that take 2, 3 and 1 s, worker 2 is first and worker 0 second, in each iteration."""
    delay = "constant:1 * factors:2,3,1"
    run = replace(RUN, workers=3, policy="static:2", sync_mode="push-interrupt", delay=delay, split=split, iterations=5)
    learning = Watched(run)
    asyncio.run(train(run, learning.step, in_process(run)))
    assert learning.asked == [expected] * 5


def reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], FinishedIteration]]:
    """The workers that the decider of a run knows of when an iteration ends, and what it is told of it."""
    decider, live, reports = in_process(run), list[int](), list[tuple[list[int], FinishedIteration]]()
    set_workers, end_iteration = decider.set_workers, decider.end_iteration

    def note_workers(workers: Sequence[int]) -> None:
        live[:] = workers
        set_workers(workers)

    async def note_end(finished: FinishedIteration) -> None:
        reports.append((list(live), finished))
        await end_iteration(finished)

    monkeypatch.setattr(decider, "set_workers", note_workers)
    monkeypatch.setattr(decider, "end_iteration", note_end)
    asyncio.run(train(run, Learner(run, torch.device("cpu")).step, decider))
    return reports


@pytest.mark.parametrize("mode", ["push-wait", "push-interrupt", "pull"])
def test_the_decider_is_told_who_is_there_when_an_iteration_ends(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """All take a second. Workers 0 and 1 leave at 2.5, when all four are waited for, and come back at 5."""
    membership = {"membership": "0-1@2.5-5", "sync_mode": mode}
    run = Run(**asdict(RUN) | {"policy": "sync", "delay": "constant:1", "iterations": 7} | membership)
    all_four, two = [0, 1, 2, 3], [2, 3]
    ended = reported(run, monkeypatch)
    assert [workers for workers, _ in ended] == [all_four, all_four, two, two, all_four, all_four, all_four]
    assert [(one.end.k, one.end.seconds, one.end.lost) for _, one in ended] == [
        (k, 1.0, lost) for k, lost in [(4, 0), (4, 0), (2, 2), (2, 0), (2, 0), (4, 0), (4, 0)]
    ]
    causes = [one.end.cause for _, one in ended]
    assert causes == [Cause.K_REACHED] * 2 + [Cause.NO_MORE_EXPECTED] + [Cause.K_REACHED] * 4


def test_the_first_decision_is_for_those_who_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = replace(RUN, policy="sync", delay="constant:1", membership="1-3@0-1.5", iterations=4)
    assert in_process(run).k == 1
    assert [(workers, one.end.k) for workers, one in reported(run, monkeypatch)] == [
        ([0], 1),
        ([0, 1, 2, 3], 1),
        ([0, 1, 2, 3], 4),
        ([0, 1, 2, 3], 4),
    ]


def test_the_decider_is_told_the_learning_rates_of_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = "steplr:step_size=2,gamma=0.5"
    run = replace(RUN, policy="static:2", optimizer="sgd:momentum=0.75", schedule=schedule, iterations=5)
    rates = [0.2, 0.2, 0.1, 0.1, 0.05]
    for factor, changed in ((1.0, run), (0.5, replace(run, rate_exponent=1.0))):
        ended = [one for _, one in reported(changed, monkeypatch)]
        assert [one.learning_rate for one in ended] == pytest.approx([factor * rate for rate in rates])
        assert [one.effective_learning_rate for one in ended] == pytest.approx([4 * factor * rate for rate in rates])


@pytest.mark.parametrize("policy", ["dbw", "b-dbw", "adasync", "static:3", "sync"])
@pytest.mark.parametrize("mode", ["push-wait", "push-interrupt"])
def test_every_policy_goes_on_though_workers_come_and_go(policy: str, mode: str) -> None:
    """Three of them are there before 3 s, and again after 9 s."""
    changed = {"policy": policy, "sync_mode": mode, "membership": "0@0-3, 1-2@4-8, 3@9", "iterations": 40}
    run = Run(**asdict(RUN) | changed)
    found = outcome(run)
    assert found == outcome(replace(run))
    assert found.iterations == 40
    ends = numbers(found.columns["seconds"])
    for k, began, ended in zip(numbers(found.columns["k"]), [0.0, *ends], ends, strict=False):
        assert k <= (3 if ended < 3 or began > 9 else 4)


def judged(run: Run, outcome: Outcome) -> list[float | None]:
    """The loss of the fewest latest iterations that have n gradients, at the end of each; None before there are any."""
    ks, losses = numbers(outcome.columns["k"]), numbers(outcome.columns["loss"])
    means: list[float | None] = []
    for end in range(1, len(ks) + 1):
        starts = [start for start in range(end) if sum(ks[start:end]) >= run.workers]
        window = slice(max(starts, default=0), end)
        total = sum(k * loss for k, loss in zip(ks[window], losses[window], strict=True))
        means.append(total / sum(ks[window]) if starts else None)
    return means


@pytest.mark.parametrize("policy", ["dbw", "b-dbw", "adasync", "static:1", "static:3", "sync"])
@pytest.mark.parametrize("target", [1.9, 1.2])
def test_the_target_is_reached_when_the_loss_of_the_latest_n_gradients_is(policy: str, target: float) -> None:
    run = replace(RUN, policy=policy, target_loss=target, iterations=300, detail="curves")
    found = outcome(run)
    means = judged(run, found)
    assert found.reached == found.seconds
    assert [mean is not None and mean <= target for mean in means] == [False] * (found.iterations - 1) + [True]
    assert found.loss == pytest.approx(means[-1], rel=1e-5)
    assert found.gradients == sum(numbers(found.columns["k"]))


@pytest.mark.parametrize(("policy", "iterations"), [("static:1", 4), ("static:2", 2), ("static:3", 2), ("sync", 1)])
def test_no_target_is_reached_with_fewer_gradients_than_workers(policy: str, iterations: int) -> None:
    found = outcome(replace(RUN, policy=policy, target_loss=1e9))
    assert found.iterations == iterations
    assert found.reached == found.seconds > 0


def test_a_target_that_is_out_of_reach_is_not_reached() -> None:
    found = outcome(replace(RUN, target_loss=1e-9))
    assert (found.reached, found.iterations) == (None, 15)


def test_a_run_goes_on_in_the_same_way_when_it_may_last_longer() -> None:
    """And without a target or a limit of time, but for iterations, nothing ends it."""
    short, long = outcome(replace(RUN, iterations=10)), outcome(replace(RUN, iterations=20))
    assert (short.iterations, long.iterations) == (10, 20)
    assert short.columns == {name: column[:10] for name, column in long.columns.items()}


@pytest.mark.parametrize(("seconds", "iterations"), [(5.5, 6), (6.0, 6), (6.5, 7), (1e9, 15)])
def test_a_run_ends_with_the_iteration_in_which_its_time_is_up(seconds: float, iterations: int) -> None:
    found = outcome(replace(RUN, policy="static:2", delay="constant:1", seconds=seconds))
    assert (found.iterations, found.seconds, found.gradients) == (iterations, float(iterations), 2 * iterations)
    assert found.reached is None


@pytest.mark.parametrize("rate", [1e3, 1e10, 1e30])
@EACH
def test_a_run_that_diverges_ends_without_a_loss(run: Run, rate: float) -> None:
    """A rate of 1000 makes the loss huge; where it stays finite, training goes on to its end."""
    found = outcome(replace(run, rate=rate, target_loss=0.01))
    assert found.reached is None
    if rate > 1e3:
        assert found.iterations < 15
        assert found.loss is None
        assert found.columns["loss"][-1] is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=Outcome) == found


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("summary", set()),
        ("curves", {"seconds", "k", "loss", "estimated_squared_norm", "estimated_variance", "estimated_smoothness"}),
        (
            "estimates",
            {"seconds", "k", "loss", "estimated_squared_norm", "estimated_variance", "estimated_smoothness"}
            | {"estimated_gain", "estimated_durations", "average_durations"},
        ),
    ],
)
def test_as_much_is_kept_of_each_iteration_as_was_asked_for(detail: str, expected: set[str]) -> None:
    run = Run(**asdict(RUN) | {"detail": detail})
    found = outcome(run)
    assert set(found.columns) == expected
    assert replace(found, columns={}) == replace(outcome(RUN), columns={})  # it changes nothing else
    measured = outcome(replace(run, accuracy_every=5, exact_every=10, batch=200))
    further = {"accuracy", "exact_loss", "exact_squared_norm", "exact_variance"} if expected else set()
    assert set(measured.columns) == expected | further


def test_columns_are_of_the_iteration_that_they_stand_beside() -> None:
    """With constant delays of 1 s and Push & Interrupt, every k takes a second, and is estimated to from the first."""
    run = replace(RUN, delay="constant:1", sync_mode="push-interrupt", accuracy_every=10, exact_every=10, batch=200)
    columns = outcome(run).columns
    assert columns["seconds"] == list(range(1, 16))
    assert columns["k"][:2] == [4, 4]
    assert columns["estimated_durations"][1:] == [[1.0] * 4] * 14
    assert [i for i, value in enumerate(columns["accuracy"]) if value is not None] == [0, 10]
    assert [i for i, value in enumerate(columns["exact_loss"]) if value is not None] == [0, 1, 10, 11]
    # Before anything was learnt nothing is estimated, and what is estimated then is about right.
    assert columns["estimated_variance"][0] is None
    exact, estimated = columns["exact_variance"][1], columns["estimated_variance"][1]
    assert isinstance(exact, float)
    assert isinstance(estimated, float)
    assert 0.3 < estimated / exact < 3
