"""A gradient that is slow, stalls or breaks off on its way holds up nobody for ever, and its worker starts over."""

from contextlib import ExitStack

import grpc
import pytest
import torch

from dbw.v1 import parameter_server_pb2 as pb
from dbw_ps import pieces
from dbw_ps.rounds import MAX_LOST_IN_A_ROW
from dbw_ps.tensors import bytes_of
from tests.reports import failure
from tests.servers import PATIENCE, parameter_server, wait_until
from tests.workers import Pace, Rogue, UnfinishedPush, gradient, heartbeats, is_close, trained, working

TINY = ("--model", "tests.models:tiny", "--accumulate", "float64", "--policy", "sync")
LARGE = ("--model", "tests.models:large", "--policy", "static:1", "--min-workers", "3")


def test_the_only_worker_starts_over_when_its_upload_has_stalled() -> None:
    """It would wait for newer parameters, and the server for its gradient."""
    flags = (*TINY, "--worker-timeout", "10")
    with parameter_server(*flags) as server, Rogue(server.target) as rogue, heartbeats(rogue):
        rogue.wait_until_expected(workers=1)
        stream = rogue.stub.Subscribe(pb.SubscribeRequest(session=rogue.session), timeout=PATIENCE)
        vector = torch.ones(39)
        push = rogue.begin_push()
        push.send(rogue.half(0, vector))
        with pytest.raises(grpc.RpcError) as caught:
            push.call.result(PATIENCE)
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)  # which waits for newer parameters
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
        rogue.rejoin()
        assert rogue.push_gradient(0, vector).outcome == pb.GRADIENT_OUTCOME_USED
        assert 'dbw_ps_gradients_total{outcome="lost"} 1.0' in server.metrics()


def test_a_worker_that_breaks_its_upload_off_starts_over() -> None:
    with parameter_server(*TINY) as server, Rogue(server.target) as rogue:
        rogue.wait_until_expected(workers=1)
        stream = rogue.stub.Subscribe(pb.SubscribeRequest(session=rogue.session), timeout=PATIENCE)
        push = rogue.begin_push()
        push.send(rogue.half(0, torch.ones(39)))
        wait_until(lambda: "dbw_ps_staged_gradients 1.0" in server.metrics())
        push.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
        rogue.rejoin()
        assert rogue.push_gradient(0, torch.ones(39)).outcome == pb.GRADIENT_OUTCOME_USED


def test_a_worker_that_says_that_its_gradient_is_late_when_it_is_not_starts_over() -> None:
    """As one does whose stream of parameters has broken: training did not diverge."""
    with parameter_server(*TINY) as server, Rogue(server.target) as rogue:
        rogue.wait_until_expected(workers=1)
        rogue.stub.NotifyCompletion(pb.NotifyCompletionRequest(session=rogue.session, version=0))
        server.wait_for_log("none of the gradients of all 1 workers for iteration 0 can be used")
        rogue.rejoin()
        assert rogue.push_gradient(0, torch.ones(39)).outcome == pb.GRADIENT_OUTCOME_USED
        wait_until(lambda: rogue.version == 1)


def test_a_second_upload_of_the_same_gradient_counts_once_and_the_first_one_hurts_nobody() -> None:
    with parameter_server(*TINY) as server, working(server.target, 1) as (worker,):
        worker.wait_for(1)
        with Rogue(server.target) as rogue:
            version = rogue.wait_until_expected(workers=2)
            worker.wait_for(version)
            vector = gradient(worker.seen[version], rogue.number, version)
            push = rogue.begin_push()
            push.send(rogue.half(version, vector))
            wait_until(lambda: "dbw_ps_staged_gradients 1.0" in server.metrics())
            assert rogue.push_gradient(version, vector).outcome == pb.GRADIENT_OUTCOME_USED
            push.cancel()
            worker.wait_for(version + 1)
            numbers = [worker.number, rogue.number]
            assert is_close(worker.seen[version + 1], trained(worker.seen[version], numbers, [version]))


class Dribbling:
    """An upload of which an element comes whenever somebody asks."""

    def __init__(self, rogue: Rogue, version: int, elements: int) -> None:
        vector = torch.zeros(elements)
        self._header, self._data = rogue.header(version, vector), bytes_of(vector)
        self.push: UnfinishedPush = rogue.begin_push()
        self.push.send(pieces.encode(self._header.SerializeToString(), 0, self._data[:0]))
        self._sent = 0

    def dribble(self) -> None:
        """Send an element."""
        self.push.send(pieces.encode(None, self._sent, self._data[self._sent : self._sent + 4]))
        self._sent += 4


def dribble_until_done(push: UnfinishedPush, *uploads: Dribbling) -> None:
    """Let some elements of each upload come all the time, until a push has an answer."""

    def is_done() -> bool:
        for upload in uploads:
            upload.dribble()
        return bool(push.call.done())

    wait_until(is_done)


def test_an_upload_that_dribbles_does_not_stop_the_others() -> None:
    """Long gradients come in one after the other, and its turn would never end."""
    with parameter_server(*LARGE) as server, Rogue(server.target) as rogue, Rogue(server.target, "other") as other:
        assert (rogue.number, other.number) == (0, 1)
        with Rogue(server.target, "third"):
            wait_until(lambda: server.status().k == 1)
            slow = Dribbling(rogue, 0, 1_201_200)
            wait_until(lambda: "dbw_ps_staged_gradients 1.0" in server.metrics())
            pushing = other.begin_push()
            for piece in pieces.cut(other.header(0, torch.zeros(1_201_200)), bytes_of(torch.zeros(1_201_200))):
                pushing.send(piece)
            dribble_until_done(pushing, slow)
            assert pushing.end().outcome == pb.GRADIENT_OUTCOME_USED
            assert slow.push.end().outcome == pb.GRADIENT_OUTCOME_LATE


def test_two_uploads_that_dribble_do_not_stop_the_others_for_long() -> None:
    """They take every place, and are broken off as soon as they have had far more time than is usual."""
    flags = ("--model", "tests.models:large", "--policy", "static:1", "--min-workers", "3", "--worker-timeout", "600")
    with parameter_server(*flags) as server, ExitStack() as stack:
        rogues = [stack.enter_context(Rogue(server.target, f"rogue-{i}")) for i in range(3)]
        wait_until(lambda: server.status().k == 1)
        vector = torch.zeros(1_201_200)
        assert rogues[2].push_gradient(0, vector).outcome == pb.GRADIENT_OUTCOME_USED  # which is how long one takes
        wait_until(lambda: rogues[2].version == 1)
        slow = [Dribbling(rogue, 1, len(vector)) for rogue in rogues[:2]]
        wait_until(lambda: "dbw_ps_staged_gradients 2.0" in server.metrics())
        pushing = rogues[2].begin_push()
        for piece in pieces.cut(rogues[2].header(1, vector), bytes_of(vector)):
            pushing.send(piece)
        dribble_until_done(pushing, *slow)
        assert pushing.end().outcome == pb.GRADIENT_OUTCOME_USED
        assert 'dbw_ps_gradients_total{outcome="lost"}' in server.metrics()


def test_a_worker_whose_uploads_break_off_again_and_again_is_left_out_for_some_iterations() -> None:
    """As behind a network that loses large packets: its heartbeats come."""
    pace, vector = Pace(0), torch.ones(39)
    with (
        parameter_server(*TINY, "--min-workers", "2") as server,
        Rogue(server.target) as rogue,
        working(server.target, 1, pace) as (worker,),
    ):
        rogue.wait_until_expected(workers=2)
        for _ in range(MAX_LOST_IN_A_ROW):
            push = rogue.begin_push()
            push.send(rogue.half(0, vector))
            wait_until(lambda: "dbw_ps_staged_gradients 1.0" in server.metrics())
            push.cancel()
            wait_until(lambda: server.status().live_workers == 1)
            rogue.rejoin()
        assert rogue.push_gradient(0, vector).outcome == pb.GRADIENT_OUTCOME_LEFT_OUT
        pace.until(1 + 2**MAX_LOST_IN_A_ROW)
        worker.wait_for(1 + 2**MAX_LOST_IN_A_ROW)
        assert rogue.push_gradient(max(worker.seen), vector).outcome == pb.GRADIENT_OUTCOME_USED


def test_an_upload_that_dribbles_is_broken_off() -> None:
    """Otherwise iterations that wait for all workers would wait for it."""
    flags = ("--model", "tests.models:large", "--policy", "sync", "--min-workers", "2", "--worker-timeout", "4")
    with (
        parameter_server(*flags) as server,
        Rogue(server.target) as rogue,
        heartbeats(rogue),
        working(server.target, 1) as (worker,),
    ):
        wait_until(lambda: 'dbw_ps_gradients_total{outcome="used"} 1.0' in server.metrics())  # the worker's
        slow = Dribbling(rogue, 0, 1_201_200)
        dribble_until_done(slow.push, slow)
        with pytest.raises(grpc.RpcError) as caught:
            slow.push.call.result(PATIENCE)
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
        worker.wait_for(3)
