"""Workers come, go, stand still and come back, and training goes on with those that are there."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import torch
import trustme
from torch import Tensor

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import training_log
from dbw_ps.client import LinkError
from dbw_ps.client import ParameterServer as ParameterServerLink
from dbw_ps.rounds import MAX_LOST_IN_A_ROW
from dbw_runtime.channel import Connection
from tests.reports import failure
from tests.servers import PATIENCE, ParameterServer, parameter_server, wait_until
from tests.workers import (
    TINY,
    Pace,
    Rogue,
    Stop,
    Worker,
    WorkerProcess,
    first_parameters,
    gradient,
    heartbeats,
    is_close,
    trained,
    working,
)


def live(server: ParameterServer) -> set[str]:
    return {worker.worker_id for worker in server.status().workers if worker.live}


class Stuck:
    """Computes for ever: until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, parameters: Tensor, worker: int, version: int) -> Tensor:
        self.released.wait()
        return gradient(parameters, worker, version)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [(("--policy", "static:2"), "k_reached"), (("--policy", "sync", "--max-wait", "0.1"), "max_wait")],
    ids=["static", "max-wait"],
)
def test_a_worker_that_never_sends_does_not_keep_training_from_its_end(
    tmp_path: Path, flags: tuple[str, ...], cause: str
) -> None:
    """Its heartbeats go on: it does not time out, and learns in the end that training is over."""
    path, stuck = tmp_path / "log", Stuck()
    run = ("--min-workers", "3", "--iterations", "12", "--training-log", str(path))
    with parameter_server(*TINY, *flags, *run) as server:
        idle = Worker(Connection(server.target), "stuck", compute=stuck)
        with working(server.target, 2) as (one, other):
            one.join()
            other.join()
            assert live(server) == {"stuck"}
            stuck.released.set()
            idle.join()
            assert idle.outcomes == [(0, pb.GRADIENT_OUTCOME_LATE)]
        idle.close()
        assert server.wait() == 0
    entries = list(training_log.read(path))
    assert [entry["iteration"] for entry in entries] == list(range(12))
    assert {entry["end_cause"] for entry in entries} == {cause}
    assert {entry["k"] for entry in entries} <= {1, 2}


@pytest.mark.parametrize("computes", [False, True], ids=["while it waits", "while it computes"])
def test_a_worker_that_stands_still_times_out_and_joins_again_by_itself(computes: bool) -> None:
    pace = Pace(10)
    stop = Stop(9, "parameters") if computes else None
    with (
        parameter_server(*TINY, "--policy", "sync", "--min-workers", "3", "--worker-timeout", "10") as server,
        working(server.target, 2, pace) as (worker, _),
        WorkerProcess(server.target, "process", stop) as process,
    ):
        _, number = process.wait_for("stopped" if computes else "used", 1 if computes else 11)
        process.send_signal(signal.SIGSTOP)
        pace.until(15)  # for which it must time out
        worker.wait_for(15)
        wait_until(lambda: live(server) == {"thread-0", "thread-1"})
        process.send_signal(signal.SIGCONT)
        if computes:
            process.go_on()
        wait_until(lambda: "process" in live(server))
        before = process.count("used")
        pace.until(2**62)
        assert process.wait_for("used", before + 5)[1] == number


def test_a_worker_that_falls_silent_within_a_gradient_times_out_and_loses_one(tmp_path: Path) -> None:
    path, pace = tmp_path / "log", Pace(0)
    run = ("--policy", "sync", "--worker-timeout", "10", "--training-log", str(path))
    with parameter_server(*TINY, *run) as server, working(server.target, 1, pace) as (worker,):
        worker.wait_for(0)
        with Rogue(server.target) as rogue:
            push = rogue.begin_push()
            push.send(rogue.half(0, gradient(worker.seen[0], rogue.number, 0)))
            with pytest.raises(grpc.RpcError) as caught:
                push.call.result(timeout=PATIENCE)
            assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
            wait_until(lambda: live(server) == {"thread-0"})
        pace.until(2**62)
        worker.wait_for(2)
        assert is_close(worker.seen[1], trained(worker.seen[0], [worker.number], [0]))
    entry = next(training_log.read(path))
    assert (entry["k"], entry["lost_gradients"]) == (1, 1)


@contextmanager
def awaited_rogue() -> Iterator[tuple[ParameterServer, Rogue]]:
    """An iteration that waits for a rogue, and for another worker that never sends its gradient."""
    with (
        parameter_server(*TINY, "--policy", "sync", "--min-workers", "2") as server,
        working(server.target, 1, Pace(0)),
        Rogue(server.target) as rogue,
    ):
        rogue.wait_until_expected(workers=2)
        yield server, rogue


def test_a_worker_whose_session_ends_within_gradients_again_and_again_is_left_out() -> None:
    """As that of one whose heartbeats no longer come, either, as soon as it sends much."""
    with awaited_rogue() as (server, rogue):
        for _ in range(MAX_LOST_IN_A_ROW):
            push = rogue.begin_push()
            push.send(rogue.half(0, torch.ones(39)))
            wait_until(lambda: "dbw_ps_staged_gradients 1.0" in server.metrics())
            rogue.leave()
            with pytest.raises(grpc.RpcError):
                push.call.result(timeout=PATIENCE)
            rogue.rejoin()
        assert rogue.push_gradient(0, torch.ones(39)).outcome == pb.GRADIENT_OUTCOME_LEFT_OUT


def test_a_worker_that_leaves_and_joins_again_and_again_is_not_left_out() -> None:
    with awaited_rogue() as (_, rogue):
        for _ in range(MAX_LOST_IN_A_ROW):
            rogue.leave()
            rogue.rejoin()
        assert rogue.push_gradient(0, torch.ones(39)).outcome == pb.GRADIENT_OUTCOME_USED


def test_sixty_four_workers_that_join_at_once_train_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    run = ("--policy", "sync", "--min-workers", "64", "--iterations", "10", "--training-log", str(path))
    with parameter_server(*TINY, *run) as server:
        with working(server.target, 64) as workers:
            for worker in workers:
                worker.join()
        assert sorted(worker.number for worker in workers) == list(range(64))
        assert all(worker.used == list(range(10)) for worker in workers)
        assert is_close(workers[0].seen[9], trained(first_parameters(), range(64), range(9)))
        assert server.wait() == 0
    assert [entry["k"] for entry in training_log.read(path)] == [64] * 10


def test_a_worker_without_a_token_is_refused_and_others_train(tmp_path: Path) -> None:
    authority, ca, tokens, token = trustme.CA(), tmp_path / "ca.pem", tmp_path / "tokens", tmp_path / "token"
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(ca)
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    tokens.write_text("workers s3cret\n")
    token.write_text("s3cret\n")
    own = ("--tls-cert", str(tmp_path / "own.pem"), "--tls-key", str(tmp_path / "own.pem"))
    with parameter_server(*TINY, *own, "--token-file", str(tokens), "--iterations", "5") as server:
        stranger = ParameterServerLink(Connection(server.target, tls_ca=ca), "stranger", patience=1.0)
        with pytest.raises(LinkError, match="UNAUTHENTICATED"):
            stranger.newer(None)
        stranger.close()
        friend = Worker(Connection(server.target, tls_ca=ca, token_file=token), "friend")
        friend.join()
        assert friend.used == list(range(5))
        friend.close()
        assert server.wait() == 0


def test_a_gradient_that_stalls_does_not_keep_others_from_sending_theirs() -> None:
    """Its worker goes on to say that it is alive, and long gradients come in one after the other."""
    flags = ("--model", "tests.models:large", "--policy", "sync", "--min-workers", "2", "--worker-timeout", "4")
    with (
        parameter_server(*flags) as server,
        Rogue(server.target) as rogue,
        heartbeats(rogue),
        working(server.target, 1) as (worker,),
    ):
        worker.wait_for(0)
        vector = torch.zeros(len(worker.seen[0]))
        push = rogue.begin_push()
        push.send(rogue.half(0, vector))
        with pytest.raises(grpc.RpcError) as caught:
            push.call.result(PATIENCE)
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
        worker.wait_for(1)


def test_a_training_goes_on_after_a_restart_though_a_worker_is_gone_for_good(tmp_path: Path) -> None:
    """Also where it was killed before its first checkpoint was due."""
    kept = ("--checkpoint-dir", str(tmp_path), "--checkpoint-seconds", "0", "--resume")
    flags = (*TINY, "--policy", "sync", "--min-workers", "3", *kept)
    with parameter_server(*flags) as server, working(server.target, 3):
        wait_until(lambda: torch.load(tmp_path / "checkpoint-000000000000.pt")["workers"])
        server.kill()
    with parameter_server(*flags, "--rejoin-seconds", "1") as again, working(again.target, 2) as (one, _):
        again.wait_for_log("going on with fewer workers than --min-workers")
        wait_until(lambda: one.used and again.status().k == 2)
        assert again.status().missing_workers == 0
        with working(again.target, 3):  # thread-2 is back, and takes part
            wait_until(lambda: again.status().k == 3)
