"""Workers, the controller and the parameter server itself are killed, whenever it comes, and training goes on."""

import random
import re
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import training_log
from tests import servers
from tests.ports import lasting_address
from tests.servers import ParameterServer, controller, parameter_server, wait_until
from tests.workers import (
    STOPS,
    TINY,
    Pace,
    Rogue,
    Stop,
    WorkerProcess,
    first_parameters,
    gradient,
    is_close,
    newest,
    trained,
    working,
)


def log_of(path: Path) -> list[dict[str, Any]]:
    return list(training_log.read(path))


# Workers


@pytest.mark.parametrize("policy", ["sync", "dbw"])
def test_workers_that_are_killed_do_not_stop_the_others_and_come_back_under_their_number(
    tmp_path: Path, policy: str
) -> None:
    """Wherever it happens: while they compute, in the middle of a gradient, while they wait."""
    rng = random.Random(policy)
    path, pace = tmp_path / "log", Pace(0)
    run = ("--policy", policy, "--min-workers", "3", "--iterations", "100", "--training-log", str(path))
    with (
        parameter_server(*TINY, *run) as server,
        working(server.target, 2, pace) as (worker, other),
    ):
        numbers, iteration = set(), 0
        for point in rng.sample(STOPS, len(STOPS)):
            at = iteration + rng.randrange(10)
            with WorkerProcess(server.target, "process", Stop(at, point)) as process:
                pace.until(at + 3)
                iteration, number = process.wait_for("stopped")
                numbers.add(number)
                process.kill()
            iteration += 5
            pace.until(iteration)
            worker.wait_for(iteration)
            wait_until(lambda: server.status().live_workers == 2)
        with WorkerProcess(server.target, "process") as process:
            numbers.add(process.wait_for("parameters")[1])
            pace.until(2**62)
            worker.join()
            other.join()
            process.wait_for("over")
        assert server.wait() == 0
    assert len(numbers) == 1
    assert sorted({worker.number, other.number, *numbers}) == [0, 1, 2]
    assert [entry["iteration"] for entry in log_of(path)] == list(range(100))


def test_a_connection_that_breaks_in_the_middle_of_a_gradient_ends_the_wait_for_it_at_once() -> None:
    """The time-out is much too long to do so."""
    pace = Pace(5)
    with (
        parameter_server(*TINY, "--policy", "sync", "--min-workers", "3", "--worker-timeout", "3600") as server,
        working(server.target, 2, pace) as (worker, _),
        WorkerProcess(server.target, "process", Stop(7, "half")) as process,
    ):
        pace.until(8)
        version, _ = process.wait_for("stopped")
        process.kill()
        worker.wait_for(version + 1)
        numbers = {0, 1, 2} - {process.events[-1][2]}
        assert is_close(worker.seen[version + 1], trained(worker.seen[version], sorted(numbers), [version]))


# The controller


def test_training_goes_on_without_its_controller_and_obeys_it_when_it_is_back(tmp_path: Path) -> None:
    path, pace = tmp_path / "log", Pace(20)
    with ExitStack() as stack:
        first = stack.enter_context(controller("--listen", lasting_address()))
        flags = ("--controller", first.target, "--min-workers", "3", "--training-log", str(path))
        server = stack.enter_context(parameter_server(*TINY, *flags))
        (worker, *_) = stack.enter_context(working(server.target, 3, pace))

        def advanced_by(source: "pb.DecisionSource.ValueType") -> bool:
            """Go on by a few iterations; whether the last decision is from there."""
            iteration = server.status().iteration + 5
            pace.until(iteration)
            worker.wait_for(iteration)
            return server.status().decision_source == source

        wait_until(lambda: advanced_by(pb.DECISION_SOURCE_CONTROLLER))
        first.kill()
        wait_until(lambda: advanced_by(pb.DECISION_SOURCE_FALLBACK))
        assert advanced_by(pb.DECISION_SOURCE_FALLBACK)
        again = stack.enter_context(controller("--listen", first.target))
        wait_until(lambda: advanced_by(pb.DECISION_SOURCE_CONTROLLER))
        assert advanced_by(pb.DECISION_SOURCE_CONTROLLER)
        assert again.process.poll() is None
        entries = log_of(path)
        assert [entry["iteration"] for entry in entries] == list(range(len(entries)))
        server.wait_for_log("on fallback")
        server.wait_for_log("decisions of the controller again")


# The parameter server


def test_a_parameter_server_that_is_killed_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    """The same parameters as if nothing had happened, after SIGKILL and SIGTERM at random points."""
    rng = random.Random(5)
    folder, path, pace = tmp_path / "checkpoints", tmp_path / "log", Pace(0)
    run = ("--policy", "sync", "--min-workers", "3", "--iterations", "200", "--training-log", str(path), "--resume")
    checkpoints = ("--checkpoint-dir", str(folder), "--checkpoint-iterations", "7")
    with ExitStack() as stack:
        address = ("--listen", lasting_address())
        server = stack.enter_context(parameter_server(*TINY, *run, *checkpoints, *address))
        workers = stack.enter_context(working(server.target, 3, pace))
        reached = 0
        for end in (ParameterServer.kill, ParameterServer.stop, ParameterServer.kill):
            reached += rng.randrange(20, 50)
            pace.until(reached + 50)
            workers[0].wait_for(reached)
            code = end(server)
            lines = [entry["iteration"] for entry in log_of(path)]
            assert lines == list(range(len(lines)))
            reached = len(lines)
            if end is ParameterServer.stop:
                assert code == 0
                assert newest(folder)[0] == reached, "nothing has to be done again"
            server = stack.enter_context(parameter_server(*TINY, *run, *checkpoints, *address))
        pace.until(2**62)
        for worker in workers:
            worker.join()
        assert server.wait() == 0
    entries = log_of(path)
    assert [entry["iteration"] for entry in entries] == list(range(200))
    assert {(entry["k"], entry["lost_gradients"]) for entry in entries} == {(3, 0)}
    iteration, parameters = newest(folder)
    assert iteration == 200
    assert is_close(parameters, trained(first_parameters(), range(3), range(200)))


def test_sigterm_in_the_middle_of_a_gradient_does_not_end_the_iteration_without_it(tmp_path: Path) -> None:
    """It is done again, with all gradients, by whoever resumes from the checkpoint."""
    pace = Pace(5)
    flags = ("--policy", "sync", "--min-workers", "2", "--checkpoint-dir", str(tmp_path))
    with (
        servers.parameter_server(*TINY, *flags) as server,  # whose last words count, too
        working(server.target, 1, pace) as (worker,),
        Rogue(server.target) as rogue,
    ):
        worker.wait_for(0)
        for version in range(3):
            worker.wait_for(version)
            rogue.push_gradient(version, gradient(worker.seen[version], rogue.number, version))
        worker.wait_for(3)
        push = rogue.begin_push()
        push.send(rogue.half(3, worker.seen[3]))
        wait_until(lambda: 'dbw_ps_gradients_total{outcome="used"} 7.0' in server.metrics())
        wait_until(lambda: "dbw_ps_staged_gradients 1.0" in server.metrics())
        assert server.stop() == 0
        push.cancel()
        assert server.other_output == []
        assert [line for line in server.logs if line["level"] == "error"] == []
    iteration, parameters = newest(tmp_path)
    assert iteration == 3
    assert is_close(parameters, worker.seen[3])


# The disk


def test_training_goes_on_while_the_disk_is_full_and_checkpoints_as_soon_as_there_is_room(tmp_path: Path) -> None:
    """A limit of the size of files, to be changed while the process runs: a full disk for everybody."""
    pace = Pace(5)
    flags = ("--policy", "sync", "--checkpoint-dir", str(tmp_path), "--checkpoint-iterations", "10")
    with parameter_server(*TINY, *flags) as server, working(server.target, 1, pace) as (worker,):
        pid = server.process.pid
        # The one before training, and the one with its workers: no other can begin until they are written.
        wait_until(lambda: [line["message"] for line in server.logs].count("checkpoint written") == 2)
        usual = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, usual[1]))
        pace.until(100)
        worker.wait_for(100)
        line = server.wait_for_log("the checkpoint of iteration", level="error")
        assert "cannot be written" in line["message"]
        assert re.search("^dbw_ps_checkpoint_failures [1-9]", server.metrics(), re.MULTILINE)
        assert server.status().checkpoint_iteration == 0
        resource.prlimit(pid, resource.RLIMIT_FSIZE, usual)

        def is_written() -> bool:
            iteration = server.status().iteration + 1
            pace.until(iteration)
            worker.wait_for(iteration)
            return server.status().checkpoint_iteration > 0

        wait_until(is_written)
        assert server.stop() == 0
    iteration, parameters = newest(tmp_path)
    assert iteration >= 100
    assert is_close(parameters, trained(first_parameters(), [0], range(iteration)))
