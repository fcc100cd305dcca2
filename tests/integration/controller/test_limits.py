"""What a controller bears: broken connections, messages that make no sense, too much of everything, and slow peers."""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, QuotaFailure, RetryInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Arrivals, Decision, EndedIteration, Membership
from dbw.v1.job_pb2 import CustomPolicy, JobSpec, Policy
from dbw_controller.core import spec
from dbw_controller.core.job import Job
from dbw_controller.core.policies import Dbw
from dbw_controller.core.reports import Membership as LiveWorkers
from dbw_controller.server.heavy import MAX_WAITING
from dbw_controller.wire import messages
from dbw_runtime.failure import reason_of
from dbw_runtime.health import MAX_WATCHERS
from tests.reports import create, failure, summary, train, whole_iteration
from tests.servers import PATIENCE, Controller, controller, wait_until

METHODS = list(pb.DESCRIPTOR.services_by_name["ControllerService"].methods)
MAX_JOBS, MAX_WORKERS, MAX_STATE_BYTES, MAX_MESSAGE_BYTES = 100, 32, 300, 100_000
NO_MESSAGE = b"\xff\xff\xff"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
names = (f"job-{number}" for number in count())


@pytest.fixture(scope="module")
def server() -> Iterator[Controller]:
    """A controller that does not take much, and that none of this may make say something is wrong."""
    limits = {
        "--max-jobs": MAX_JOBS,
        "--max-workers": MAX_WORKERS,
        "--max-state-bytes": MAX_STATE_BYTES,
        "--max-message-bytes": MAX_MESSAGE_BYTES,
    }
    with controller(*(str(word) for pair in limits.items() for word in pair)) as running:
        yield running
        assert running.stop() == 0
        assert not [line for line in running.logs if line["level"] in ("warning", "error")]
        assert running.other_output == []


@pytest.fixture(scope="module")
def stub(server: Controller) -> Iterator[ControllerServiceStub]:
    """A connection that is open all the time."""
    with server.stub() as stub:
        yield stub


@pytest.fixture
def job(stub: ControllerServiceStub) -> Iterator[str]:
    """The name of a job that does not exist yet, and is gone afterwards."""
    name = next(names)
    yield name
    stub.DeleteJob(pb.DeleteJobRequest(job=name, allow_missing=True))


def serves(server: Controller, stub: ControllerServiceStub) -> bool:
    """Whether a connection that was there and a new one both get answers."""
    stub.ListJobs(pb.ListJobsRequest(), timeout=PATIENCE)
    with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        ControllerServiceStub(channel).ListJobs(pb.ListJobsRequest(), timeout=PATIENCE)
    return True


class Stream:
    """A Coordinate stream whose requests are sent one by one."""

    def __init__(self, stub: ControllerServiceStub) -> None:
        self._requests: SimpleQueue[pb.CoordinateRequest | None] = SimpleQueue()
        self._responses = stub.Coordinate(iter(self._requests.get, None), timeout=PATIENCE)

    def ask(self, request: pb.CoordinateRequest) -> Decision:
        self._requests.put(request)
        return next(self._responses).decision

    def end(self) -> None:
        self._requests.put(None)
        assert list(self._responses) == []


# Connections


def connect(server: Controller) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 64,
        PREFACE + bytes(range(255, 0, -1)) * 64,
        PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\0\0\0\x01",  # a frame of 16 MiB without headers
        PREFACE + SETTINGS + b"\0\0\x08\x01\x05\0\0\0\x01" + b"\xff" * 8,  # headers that are no HPACK
    ],
    ids=["HTTP/1.1", "noise", "noise after the preface", "a frame too large", "broken headers"],
)
def test_a_peer_that_speaks_no_http2_is_hung_up_on_and_others_are_served(
    server: Controller, stub: ControllerServiceStub, sent: bytes
) -> None:
    with connect(server) as peer:
        peer.sendall(sent)
        try:
            while peer.recv(65_536):
                pass
        except ConnectionResetError:
            pass
    assert serves(server, stub)


@pytest.mark.parametrize("sent", [b"", b"PRI * HTT", PREFACE, PREFACE + SETTINGS + b"\0\0"])
def test_peers_that_say_nothing_more_do_not_keep_others_from_being_served(
    server: Controller, stub: ControllerServiceStub, sent: bytes
) -> None:
    peers = [connect(server) for _ in range(20)]
    for peer in peers:
        peer.sendall(sent)
    assert serves(server, stub)
    for peer in peers:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets the connection
        peer.close()
    assert serves(server, stub)


def test_clients_that_vanish_in_the_middle_leave_nothing_behind(
    server: Controller, stub: ControllerServiceStub, job: str
) -> None:
    for _ in range(5):
        with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            gone = ControllerServiceStub(channel)
            session = create(gone, job)
            watch = gone.WatchJob(pb.WatchJobRequest(job=job))
            next(watch)
            stream = Stream(gone)
            for iteration in range(20):
                stream.ask(whole_iteration(job, session, iteration))
    assert serves(server, stub)


# Messages


@pytest.mark.parametrize("rpc", METHODS, ids=lambda rpc: rpc.name)
def test_a_message_that_makes_no_sense_is_refused(server: Controller, rpc: Any) -> None:
    shape = f"{'stream' if rpc.client_streaming else 'unary'}_{'stream' if rpc.server_streaming else 'unary'}"
    with grpc.insecure_channel(server.target) as channel:
        call = getattr(channel, shape)(f"/dbw.v1.ControllerService/{rpc.name}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([NO_MESSAGE]) if rpc.client_streaming else NO_MESSAGE, timeout=PATIENCE))
        code, reason, _, details = failure(caught.value)
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
        assert [type(detail) for detail in details] == [BadRequest]


def test_a_bad_message_ends_its_stream_and_no_other_of_the_same_connection(server: Controller, job: str) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = ControllerServiceStub(channel)
        session = create(stub, job)
        good = Stream(stub)
        first = whole_iteration(job, session, 0)
        assert good.ask(first).iteration == 1
        bad: Any = channel.stream_stream("/dbw.v1.ControllerService/Coordinate")
        responses = bad(iter([first.SerializeToString(), NO_MESSAGE]), timeout=PATIENCE)
        assert pb.CoordinateResponse.FromString(next(responses)).decision.iteration == 1
        with pytest.raises(grpc.RpcError) as caught:
            next(responses)
        assert failure(caught.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")
        assert good.ask(whole_iteration(job, session, 1)).iteration == 2
        good.end()


def test_a_message_that_is_too_large_ends_its_call_and_nothing_else(server: Controller, job: str) -> None:
    with server.stub() as stub:
        session = create(stub, job)
        good, bad = Stream(stub), Stream(stub)
        huge = whole_iteration(job, session, 0)
        huge.arrivals[0].seconds.extend([1.0] * (MAX_MESSAGE_BYTES // 8))
        unary = pb.EndIterationRequest.FromString(huge.SerializeToString())
        calls: list[Callable[[], object]] = [lambda: bad.ask(huge), lambda: stub.EndIteration(unary)]
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert good.ask(whole_iteration(job, session, 0)).iteration == 1
        good.end()


# Limits


def assert_limit(error: grpc.RpcError, limit: str) -> None:
    """An rpc failed because of this limit, and says when to try again."""
    code, reason, _, details = failure(error)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")
    quota, retry = details
    assert isinstance(quota, QuotaFailure)
    assert [violation.subject for violation in quota.violations] == [limit]
    assert quota.violations[0].description
    assert isinstance(retry, RetryInfo)
    assert retry.retry_delay.ToNanoseconds() > 0


def test_there_are_not_more_jobs_than_allowed(stub: ControllerServiceStub) -> None:
    there = len(stub.ListJobs(pb.ListJobsRequest()).jobs)
    created = [next(names) for _ in range(MAX_JOBS - there)]
    for name in created:
        create(stub, name)
    with pytest.raises(grpc.RpcError) as caught:
        create(stub, "one-too-many")
    assert_limit(caught.value, "max_jobs")
    create(stub, created[0])  # attaching to one that exists is no new one
    for name in created:
        stub.DeleteJob(pb.DeleteJobRequest(job=name))
    create(stub, created[0])
    stub.DeleteJob(pb.DeleteJobRequest(job=created[0]))


def test_a_job_has_not_more_workers_than_allowed(stub: ControllerServiceStub, job: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        create(stub, job, workers=MAX_WORKERS + 1)
    assert_limit(caught.value, "max_workers")
    session = create(stub, job, workers=MAX_WORKERS)
    more = Membership(live_workers=MAX_WORKERS + 1)
    asked: dict[str, Any] = {"job": job, "session": session, "membership": more}
    ended = summary(0)
    calls: list[Callable[[], object]] = [
        lambda: stub.Report(pb.ReportRequest(**asked)),
        lambda: stub.EndIteration(pb.EndIterationRequest(**asked, summary=ended)),
        lambda: Stream(stub).ask(pb.CoordinateRequest(**asked, summary=ended)),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert_limit(caught.value, "max_workers")
    unchanged = stub.GetJob(pb.GetJobRequest(job=job)).job
    assert (unchanged.membership.live_workers, unchanged.decision.iteration) == (MAX_WORKERS, 0)


def test_a_report_has_not_more_messages_of_arrivals_than_allowed(stub: ControllerServiceStub, job: str) -> None:
    session = create(stub, job)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Report(pb.ReportRequest(job=job, session=session, arrivals=[Arrivals()] * 5000))
    assert_limit(caught.value, "arrivals")


def test_a_summary_does_not_follow_more_iterations_than_allowed(stub: ControllerServiceStub, job: str) -> None:
    session = create(stub, job)
    last, others = summary(5000), [EndedIteration(summary=summary(i)) for i in range(1025)]
    with pytest.raises(grpc.RpcError) as caught:
        stub.EndIteration(pb.EndIterationRequest(job=job, session=session, summary=last, preceding=others))
    assert_limit(caught.value, "preceding")
    batches = [EndedIteration(summary=summary(i), arrivals=[Arrivals()] * 1000) for i in range(5)]
    with pytest.raises(grpc.RpcError) as caught:
        stub.EndIteration(pb.EndIterationRequest(job=job, session=session, summary=last, preceding=batches))
    assert_limit(caught.value, "arrivals")


@pytest.mark.parametrize("iterations", [(1, 1), (2, 1), (1, 7), (1, 8)])
def test_iterations_that_are_not_in_order_are_refused_and_change_nothing(
    stub: ControllerServiceStub, job: str, iterations: tuple[int, int]
) -> None:
    session = create(stub, job)
    preceding = [EndedIteration(summary=summary(i)) for i in iterations]
    with pytest.raises(grpc.RpcError) as caught:
        stub.EndIteration(pb.EndIterationRequest(job=job, session=session, summary=summary(7), preceding=preceding))
    assert reason_of(caught.value) == "INVALID_VALUE"
    assert stub.GetJob(pb.GetJobRequest(job=job)).job.decision.iteration == 0


def test_a_state_is_not_larger_than_allowed(stub: ControllerServiceStub, job: str) -> None:
    session = create(stub, job)
    train(stub, job, session, range(3))
    exported = list(stub.ExportJobState(pb.ExportJobStateRequest(job=job)))
    assert exported[0].header.total_bytes > MAX_STATE_BYTES
    first = pb.ImportJobStateRequest(job=job, session=session, header=exported[0].header, data=exported[0].data)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ImportJobState(iter([first]), timeout=PATIENCE)
    assert_limit(caught.value, "max_state_bytes")


# Slow peers


def test_a_watcher_that_does_not_read_holds_nobody_up_and_gets_the_newest_iterations_later(
    server: Controller, stub: ControllerServiceStub, job: str
) -> None:
    iterations = 400
    session = create(stub, job)
    small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]  # so that little is sent unread
    with grpc.insecure_channel(server.target, small) as channel:
        watch = ControllerServiceStub(channel).WatchJob(pb.WatchJobRequest(job=job, include_estimates=True))
        next(watch)
        stream = Stream(stub)
        for iteration in range(iterations):
            assert stream.ask(whole_iteration(job, session, iteration)).iteration == iteration + 1
        stream.end()
        stub.DeleteJob(pb.DeleteJobRequest(job=job))  # after which the watcher's stream ends

        seen = list(watch)
    expected = 0
    for response in seen:
        expected += response.skipped_iterations
        assert response.summary.iteration == expected
        assert response.job.decision.iteration == expected + 1
        expected += 1
    assert expected == iterations, "the newest one is not there"
    assert len(seen) < iterations, "the watcher was not slow"


# Many jobs at a time


async def _train(stub: Any, job: str, seed: int, iterations: int) -> list[tuple[pb.CoordinateRequest, Decision]]:
    """What a parameter server asked on a stream, and the answers."""
    created = await stub.CreateJob(pb.CreateJobRequest(job=job, iteration=0, membership=Membership(live_workers=4)))
    k, stream, said = created.job.decision.k, stub.Coordinate(), []
    for iteration in range(iterations):
        request = whole_iteration(job, created.session, iteration, k, seed)
        request.include_estimates = True
        await stream.write(request)
        decision = (await stream.read()).decision
        said.append((request, decision))
        k = decision.k
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    await stub.DeleteJob(pb.DeleteJobRequest(job=job))
    return said


def test_many_jobs_at_a_time_get_the_decisions_that_each_would_get_alone(server: Controller) -> None:
    async def train_all() -> list[list[tuple[pb.CoordinateRequest, Decision]]]:
        async with grpc.aio.insecure_channel(server.target) as channel:
            stub = ControllerServiceStub(channel)
            return await asyncio.gather(*(_train(stub, next(names), seed, 50) for seed in range(64)))

    answers = asyncio.run(train_all())
    for said in answers:
        alone = Job(spec.JobSpec(Dbw()), LiveWorkers(4))
        for request, decision in said:
            expected = alone.report(messages.report_from(request))
            assert expected is not None
            message = messages.decision_message(expected, include_estimates=True)
            assert message.SerializeToString(deterministic=True) == decision.SerializeToString(deterministic=True)
    assert len({str([decision for _, decision in said]) for said in answers}) == 64, "all jobs were the same"


MAX_CALLS = 8


def is_opened(gate: Path, opened: list[int]) -> bool:
    """Open a pipe for writing, if somebody reads from it."""
    with suppress(OSError):
        opened.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    return bool(opened)


def test_a_job_whose_decision_takes_long_does_not_keep_another_s_from_coming(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened: list[int] = []
    place = "tests.policies:Gated"
    with controller("--policies", place, GATE=str(gate)) as server, server.stub() as stub:
        gated = JobSpec(policy=Policy(custom=CustomPolicy(name=place)))
        slow, fast = create(stub, "slow", spec=gated), create(stub, "fast")
        train(stub, "slow", slow, range(1))
        ended = whole_iteration("slow", slow, 1)
        request = pb.EndIterationRequest.FromString(ended.SerializeToString())
        answer = stub.EndIteration.future(request, timeout=PATIENCE)
        wait_until(lambda: is_opened(gate, opened) or answer.done())
        assert len(train(stub, "fast", fast, range(5))) == 5
        assert not answer.done()
        os.close(opened[0])
        assert answer.result().decision.iteration == 2


def test_heavy_work_of_an_identity_waits_for_itself_and_decisions_do_not(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened: list[int] = []
    place = "tests.policies:Gated"
    with controller("--policies", place, GATE=str(gate)) as server, server.stub() as stub:
        gated = JobSpec(policy=Policy(custom=CustomPolicy(name=place)))
        slow, fast = create(stub, "slow", spec=gated), create(stub, "fast")
        train(stub, "fast", fast, range(5))
        (state,) = stub.ExportJobState(pb.ExportJobStateRequest(job="fast"))
        first = pb.ImportJobStateRequest(job="slow", session=slow, header=state.header, data=state.data)
        bytes_sent = iter([first])
        imported: Any = []
        importing = threading.Thread(
            target=lambda: imported.append(stub.ImportJobState(bytes_sent, timeout=PATIENCE)), daemon=True
        )
        importing.start()
        wait_until(lambda: is_opened(gate, opened))

        request = pb.DiagnoseJobRequest(job="fast")
        waiting = [stub.DiagnoseJob.future(request, timeout=PATIENCE) for _ in range(MAX_WAITING + 1)]
        wait_until(lambda: any(call.done() for call in waiting))
        (refused,) = [call for call in waiting if call.done()]
        error: Any = refused.exception()
        assert_limit(error, "heavy_work")
        assert len(train(stub, "fast", fast, range(5, 10))) == 5
        assert sum(call.done() for call in waiting) == 1

        os.close(opened[0])
        assert {call.result().iterations for call in waiting if call is not refused} == {10}
        importing.join(PATIENCE)
        assert imported


def test_there_are_not_more_calls_than_allowed_and_a_busy_server_still_looks_alive() -> None:
    with controller("--max-calls", str(MAX_CALLS)) as server, grpc.insecure_channel(server.target) as channel:
        stub = ControllerServiceStub(channel)
        create(stub, "watched")
        watches = [stub.WatchJob(pb.WatchJobRequest(job="watched")) for _ in range(MAX_CALLS)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetJob(pb.GetJobRequest(job="watched"))
        assert_limit(caught.value, "max_calls")
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.WatchJob(pb.WatchJobRequest(job="watched")))
        assert_limit(caught.value, "max_calls")
        health: Any = HealthStub(channel)  # its type lacks the rpcs
        assert health.Check(HealthCheckRequest()).status == HealthCheckResponse.SERVING

        watches[0].cancel()
        wait_until(lambda: _is_served(stub))


def _is_served(stub: ControllerServiceStub) -> bool:
    try:
        stub.GetJob(pb.GetJobRequest(job="watched"))
    except grpc.RpcError:
        return False
    return True


def test_those_who_watch_the_health_do_not_take_the_place_of_clients(server: Controller) -> None:
    with grpc.insecure_channel(server.target) as channel:
        health: Any = HealthStub(channel)  # its type lacks the rpcs
        watches = [health.Watch(HealthCheckRequest()) for _ in range(MAX_WATCHERS)]
        for watch in watches:
            next(watch)
        one_more = health.Watch(HealthCheckRequest())
        with pytest.raises(grpc.RpcError) as error:
            next(one_more)
        assert isinstance(error.value, grpc.Call)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ControllerServiceStub(channel).ListJobs(pb.ListJobsRequest()) is not None
