"""Fuzzes all rpcs of a real server over real connections, beside clients that behave well and must not notice."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import grpc
import torch
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from dbw.v1 import controller_pb2 as pb
from dbw.v1 import parameter_server_pb2 as ps
from dbw.v1.iteration_pb2 import EndedIteration, Membership
from dbw.v1.job_pb2 import DbwPlusPolicy, JobSpec, Policy
from dbw_controller.core.job import Job
from dbw_controller.core.policies import DbwPlus
from dbw_controller.core.reports import Membership as LiveWorkers
from dbw_controller.core.spec import JobSpec as Spec
from dbw_controller.wire import messages
from dbw_runtime.channel import Connection
from tests.fuzz.calls import Known, attempt, problem_with
from tests.reports import TIMES, whole_iteration
from tests.servers import PATIENCE, Controller, Server, controller, parameter_server
from tests.workers import TINY, Worker, first_parameters

CLIENTS = 4  # that fuzz at the same time
CALLS_OF_A_CONNECTION = 50
GOOD = "good"  # a job that only its own client knows
NAMES = ["a", "b", "c.1"]
MAX_KNOWN = 50  # values of a kind, such as sessions
# What gRPC prints, rarely, of a call whose client has gone before it is begun.
CANCELLED = re.compile(r"Traceback .*\n  File .*_schedule_rpc_coro\nasyncio.exceptions.CancelledError\n")


def fuzz(
    server: Server, service: ServiceDescriptor, known: Known, seed: int, is_over: Callable[[int], bool]
) -> list[str]:
    """Make calls until it is over, of which the number of calls of each client is told; returns what was wrong."""

    def client(number: int) -> tuple[int, list[str]]:
        count, findings = 0, list[str]()
        while not is_over(count):
            with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                for _ in range(CALLS_OF_A_CONNECTION):
                    made = attempt(service, Random(f"{seed}/{number}/{count}"), known)
                    if (problem := problem_with(made, channel, known)) is not None:
                        findings.append(f"{problem}\n    {made}")
                    count += 1
                    if is_over(count):
                        break
        return count, findings

    with ThreadPoolExecutor(CLIENTS) as clients:
        results = list(clients.map(client, range(CLIENTS)))
    findings = [finding for _, found in results for finding in found]
    calls = sum(count for count, _ in results)
    print(f"{service.name}: {calls} calls, seed {seed}, {len(findings)} findings", flush=True)
    return findings


def problems_in_log(server: Server) -> list[str]:
    """Errors that a server has logged, and all that it wrote that is not a line of its log."""
    errors = [str(line) for line in server.logs if line["level"] in ("error", "critical")]
    rest = CANCELLED.sub("", "".join(line for line in server.other_output if line.strip()))
    return [*errors, rest] if rest else errors


def fuzz_controller(seed: int, is_over: Callable[[int], bool], folder: Path) -> list[str]:
    """Fuzz a controller, which must find all of its jobs again when it starts next; returns what was wrong."""
    flags = ("--state-dir", str(folder), "--save-iterations", "3", "--max-workers", "64")
    with controller(*flags) as server:
        service, known = pb.DESCRIPTOR.services_by_name["ControllerService"], _known_to_controller()
        over = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            training = executor.submit(train, server, over)
            try:
                findings = fuzz(server, service, known, seed, is_over)
            finally:
                over.set()
        if (error := training.exception()) is not None:
            findings.append(f"the good client failed: {error!r}")
        code = server.stop()
        findings += problems_in_log(server) + ([f"the server ended with {code}"] if code else [])
    with controller(*flags) as again:
        with again.stub() as stub:
            names = {job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs}
            missing = [] if GOOD in names else [f"the good job was lost: {names}"]
        return findings + missing + problems_in_log(again)


def train(server: Controller, over: threading.Event) -> None:
    """Train with a controller until it is over; its decisions must be those that a job makes in this process."""
    with server.stub() as stub:
        own, iteration = Job(Spec(DbwPlus()), LiveWorkers(len(TIMES))), 0
        policy = JobSpec(policy=Policy(dbw_plus=DbwPlusPolicy()))
        membership = Membership(live_workers=len(TIMES))
        session = stub.CreateJob(pb.CreateJobRequest(job=GOOD, spec=policy, membership=membership, iteration=0)).session
        reports: SimpleQueue[pb.CoordinateRequest | None] = SimpleQueue()
        stream = stub.Coordinate(iter(reports.get, None))
        while not over.wait(0.01):
            report = whole_iteration(GOOD, session, iteration, own.decision().k)
            expected = own.report(messages.report_from(report))
            assert expected is not None
            if iteration % 2:
                reports.put(report)
                found = next(stream).decision
            else:
                unary = pb.EndIterationRequest.FromString(report.SerializeToString())
                found = stub.EndIteration(unary, timeout=PATIENCE).decision
            assert found == messages.decision_message(expected, include_estimates=False), (found, expected)
            iteration += 1
        reports.put(None)
        assert list(stream) == []


def _known_to_controller() -> Known:
    states: list[tuple[pb.JobStateHeader, bytes]] = []
    sessions = dict.fromkeys(NAMES, "")
    iterations: dict[str, int] = {}
    values: dict[str, list[Any]] = {
        "job": NAMES,
        "iteration": [*range(8)],
        "k": [1, 2, 3, 4],
        "live_workers": [0, 1, 4, 64, 65],
    }
    values |= {"workers": [0, 1, 2, 3], "previous_k": [1, 2, 4], "preceding": [0, 1, 2], "session": [""]}

    def learn(response: Message) -> None:
        match response:
            case pb.CreateJobResponse():
                sessions[response.job.name] = response.session
                values["session"] = [*values["session"], response.session][-MAX_KNOWN:]
            case pb.ExportJobStateResponse() if response.HasField("header"):
                states.append((response.header, response.data))
                del states[:-MAX_KNOWN]
        job = getattr(response, "job", None)
        if job is not None:
            iterations[job.name] = job.decision.iteration

    def example(kind: type[Message], random: Random) -> Message | None:
        name = random.choice(NAMES)
        report = whole_iteration(name, sessions[name], iterations.get(name, 0), random.randint(1, 4))
        match kind():
            case pb.CreateJobRequest():
                return pb.CreateJobRequest(job=name, membership=Membership(live_workers=4), iteration=0)
            case pb.CoordinateRequest() | pb.EndIterationRequest():
                if random.random() < 0.3:
                    before = whole_iteration(name, sessions[name], iterations.get(name, 0), 2)
                    report.preceding.append(EndedIteration(arrivals=before.arrivals, summary=before.summary))
                    report.summary.iteration += 1
                iterations[name] = report.summary.iteration + 1
                return kind.FromString(report.SerializeToString())
            case pb.ReportRequest():
                return pb.ReportRequest(job=name, session=sessions[name], arrivals=report.arrivals)
            case pb.ImportJobStateRequest() if states:
                header, data = random.choice(states)
                return pb.ImportJobStateRequest(job=name, session=sessions[name], header=header, data=data)
            case pb.DeleteJobRequest() if random.random() < 0.8:  # or there would rarely be a job
                return pb.DeleteJobRequest(job=name, session="another", allow_missing=True)
        return None

    return Known(values, example, learn)


def fuzz_parameter_server(seed: int, is_over: Callable[[int], bool]) -> list[str]:
    """Fuzz a parameter server, whose training must go on; returns what was wrong."""
    # Every gradient ends an iteration, and moves nothing: whoever is let in may spoil a training with its gradients.
    flags = (*TINY, "--policy", "static:1", "--optimizer", "sgd:lr=1e-30", "--worker-timeout", "5")
    with parameter_server(*flags) as server:
        workers = [Worker(Connection(server.target), f"good-{number}") for number in range(3)]
        for worker in workers:
            worker.wait_for(5)
        known = _known_to_parameter_server(lambda: max(workers[0].seen))
        service = ps.DESCRIPTOR.services_by_name["ParameterServerService"]
        findings = fuzz(server, service, known, seed, is_over)
        try:
            for worker in workers:
                worker.wait_for(max(worker.seen) + 5)
        except AssertionError:
            findings.append("training does not go on")
        findings += [problem for worker in workers for problem in _problems_of(worker)]
        about_good = [line for line in server.logs if str(line.get("worker_id")).startswith("good-")]
        findings += [str(line) for line in about_good if line["message"] != "a worker has joined"]
        for worker in workers:
            worker.close()
        code = server.stop()
        return findings + problems_in_log(server) + ([f"the server ended with {code}"] if code else [])


def _problems_of(worker: Worker) -> list[str]:
    """What a worker that behaves well has noticed."""
    allowed = {ps.GRADIENT_OUTCOME_USED, ps.GRADIENT_OUTCOME_LATE}
    others = [(version, outcome) for version, outcome in list(worker.outcomes) if outcome not in allowed]
    found = [f"{worker.id}: gradients, by version, ended as {others}"] if others else []
    if worker.refused is not None:
        found.append(f"{worker.id} was refused: {worker.refused}")
    first = first_parameters()
    wrong = [version for version, seen in dict(worker.seen).items() if not torch.allclose(seen, first)]
    return [*found, f"{worker.id} got other parameters: {wrong}"] if wrong else found


def _known_to_parameter_server(newest: Callable[[], int]) -> Known:
    elements = len(first_parameters())
    values: dict[str, list[Any]] = {
        "session": [""],
        "worker_id": ["bad-1", "bad-2"],
        "total_bytes": [4 * elements],
        "offset": [0, 4, 80],
    }
    values |= {"version": [0], "known_version": [0], "computing_version": [0]}
    layouts: list[ps.ModelLayout] = []

    def learn(response: Message) -> None:
        if isinstance(response, ps.JoinResponse):
            values["session"] = [*values["session"], response.session][-4:]
            layouts[:] = [response.layout]
        for name in ("version", "known_version", "computing_version"):
            values[name] = [newest() + ahead for ahead in (-1, 0, 0, 0, 1)]

    def example(kind: type[Message], random: Random) -> Message | None:
        session = random.choice(values["session"])
        match kind():
            case ps.JoinRequest():
                return ps.JoinRequest(worker_id=random.choice(values["worker_id"]), layout=next(iter(layouts), None))
            case ps.PushGradientRequest():
                header = ps.GradientHeader(session=session, version=newest(), total_bytes=4 * elements, loss=1.0)
                size = random.choice((elements, elements, elements // 2, 0))
                data = torch.randn(size).numpy().tobytes()
                return ps.PushGradientRequest(header=header, data=data)
            case ps.LeaveRequest() if random.random() < 0.8:  # or there would rarely be a session
                return ps.LeaveRequest(session="another")
        message = kind()
        if "session" in kind.DESCRIPTOR.fields_by_name:
            setattr(message, "session", session)  # noqa: B010 (types of messages differ)
        return message

    return Known(values, example, learn)
