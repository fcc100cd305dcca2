"""`dbw conformance` against a real controller, and against ones that are broken on purpose: by a proxy in between."""

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1.health_pb2 import HealthCheckResponse

from dbw.v1 import controller_pb2 as pb
from dbw.v1.error_pb2 import ErrorReason
from dbw_controller.cli.conformance.check import CODES
from dbw_controller.cli.conformance.command import CHECKS
from dbw_runtime.failure import reason_of
from tests.programs import dbw
from tests.proxy import Forward, RefusalError, Spoil, proxied
from tests.servers import PATIENCE, Controller, controller

SOON = "5"  # seconds after which a call has failed, where one never ends; enough for all others
SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"]


def conformance(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return dbw("conformance", *arguments).run()


def names(done: "subprocess.CompletedProcess[str]", outcome: str) -> set[str]:
    return set(re.findall(rf"^{outcome} +([a-z-]+): ", done.stdout, re.MULTILINE))


def jobs_left(server: Controller) -> list[str]:
    with server.stub() as stub:
        return [job.name for job in stub.ListJobs(pb.ListJobsRequest()).jobs]


def test_our_controller_conforms(server: Controller) -> None:
    done = conformance(server.target)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, total = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"ok      {check.name}" for check in CHECKS]
    assert total == f"{len(CHECKS)} passed, 0 failed"
    assert jobs_left(server) == []


def test_every_reason_that_is_checked_is_of_the_contract() -> None:
    assert {f"ERROR_REASON_{reason}" for reason in CODES} <= {*ErrorReason.keys()}


def test_a_controller_conforms_beside_other_jobs_with_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("vision secret\n")
    (tmp_path / "token").write_text("secret\n")
    with controller("--token-file", str(tmp_path / "tokens")) as server:
        refused = conformance(server.target)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "UNAUTHENTICATED" in refused.stderr
        done = conformance("--controller", server.target, "--token-file", str(tmp_path / "token"))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nowhere",), 2, "it must be HOST:PORT"),
        (("127.0.0.1:1", "more"), 2, "unrecognized arguments: more"),
        (("127.0.0.1:1", "--timeout", "0"), 2, "--timeout is 0.0; it must be between"),
        (("127.0.0.1:1",), 1, "UNAVAILABLE"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = conformance(*arguments)
    assert (done.returncode, text in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


def test_a_run_that_nobody_reads_to_its_end_is_no_pass(server: Controller) -> None:
    assert dbw("conformance", server.target).run_unread() == (1, "")
    assert jobs_left(server) == []


def test_a_controller_conforms_behind_a_proxy_and_every_rpc_is_checked(server: Controller) -> None:
    called = set[str]()

    def note(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        called.add(rpc)
        return forward(requests)

    with proxied(server.target, note) as address:
        done = conformance(address)
    assert done.returncode == 0, done.stdout
    assert called == {*SERVICE.methods_by_name, "Check"}


def changed(rpcs: set[str], change: Callable[[Any, Any], object]) -> Spoil:
    """Change each answer of some rpcs, knowing the last request."""

    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc not in rpcs:
            yield from forward(requests)
            return
        request_type, answer_type = (
            GetMessageClass(kind)
            for kind in (SERVICE.methods_by_name[rpc].input_type, SERVICE.methods_by_name[rpc].output_type)
        )
        seen: list[Any] = []

        def noted() -> Iterator[bytes]:
            for request in requests:
                seen.append(request_type.FromString(request))
                yield request

        for data in forward(noted()):
            answer = answer_type.FromString(data)
            change(seen[-1], answer)
            yield answer.SerializeToString()

    return spoil


def failing(change: Callable[[Any, str | None], grpc.RpcError]) -> Spoil:
    """Let calls fail in another way, knowing the reason."""

    def spoil(_rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        try:
            yield from forward(requests)
        except grpc.RpcError as error:
            raise change(error, reason_of(error)) from error

    return spoil


def too_large_k() -> Spoil:
    def enlarge(_request: Any, answer: Any) -> None:
        decision = answer.job.decision if hasattr(answer, "job") else answer.decision
        decision.k = decision.live_workers + 1

    showing = {"CreateJob", "GetJob", "WatchJob", "ImportJobState"}
    return changed({"EndIteration", "Coordinate", "GetDecision", *showing}, enlarge)


def lost_workers_that_are_waited_for() -> Spoil:
    def wait(_request: Any, answer: Any) -> None:
        answer.decision.k = max(answer.decision.k, 3)

    return changed({"EndIteration"}, wait)


def attaching_begins_anew() -> Spoil:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "CreateJob":
            return forward(requests)
        wanted = pb.CreateJobRequest.FromString(next(requests))
        wanted.iteration = wanted.iteration  # 0 where it was not set
        return forward(iter([wanted.SerializeToString()]))

    return spoil


def another_answer_when_asked_again() -> Spoil:
    asked = set[tuple[str, int]]()

    def forget(request: Any, answer: Any) -> None:
        key = (request.job, request.summary.iteration)
        answer.decision.k = 1 + answer.decision.k % 4 if key in asked else answer.decision.k
        asked.add(key)

    return changed({"EndIteration"}, forget)


def another_answer_on_the_stream() -> Spoil:
    def change(_request: Any, answer: Any) -> None:
        answer.decision.k = 1 + answer.decision.k % 4

    return changed({"Coordinate"}, change)


def no_session_check() -> Spoil:
    """Every report has the newest session of its job."""
    sessions: dict[str, str] = {}
    reports = {"EndIteration": pb.EndIterationRequest, "Report": pb.ReportRequest, "Coordinate": pb.CoordinateRequest}

    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        def renewed(request: Any) -> bytes:
            request.session = sessions.get(request.job, request.session)
            return bytes(request.SerializeToString())

        if rpc in reports:
            yield from forward(renewed(reports[rpc].FromString(data)) for data in requests)  # type: ignore[attr-defined]
        elif rpc == "CreateJob":
            for data in forward(requests):
                response = pb.CreateJobResponse.FromString(data)
                sessions[response.job.name] = response.session
                yield data
        else:
            yield from forward(requests)

    return spoil


def wrong_status() -> Spoil:
    def change(error: Any, reason: str | None) -> grpc.RpcError:
        if reason != "STALE_ITERATION":
            return error  # type: ignore[no-any-return]
        return RefusalError(grpc.StatusCode.INVALID_ARGUMENT, error.details(), error.trailing_metadata())

    return failing(change)


def no_details() -> Spoil:
    return failing(lambda error, _reason: RefusalError(error.code(), error.details()))


def streams_that_end_well_after_a_bad_message() -> Spoil:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        try:
            yield from forward(requests)
        except grpc.RpcError as error:
            if rpc != "Coordinate" or reason_of(error) != "INVALID_VALUE":
                raise

    return spoil


def nothing_is_ever_deleted() -> Spoil:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "DeleteJob":
            yield from forward(requests)
            return
        wanted = pb.DeleteJobRequest.FromString(next(requests))
        if wanted.allow_missing:  # or the jobs would stay
            yield from forward(iter([wanted.SerializeToString()]))
        else:
            yield pb.DeleteJobResponse().SerializeToString()

    return spoil


def jobs_in_any_order() -> Spoil:
    return changed({"ListJobs"}, lambda _request, answer: answer.jobs.reverse())


def a_list_without_end() -> Spoil:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "ListJobs":
            return forward(requests)
        return iter([pb.ListJobsResponse(next_page_token="more").SerializeToString()])  # noqa: S106

    return spoil


def late_arrivals_are_ignored() -> Spoil:
    begun: dict[str, int] = {}  # the iteration that each job is in

    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc == "EndIteration":
            ended = pb.EndIterationRequest.FromString(next(requests))
            begun[ended.job] = ended.summary.iteration + 1
            return forward(iter([ended.SerializeToString()]))
        if rpc == "Report":
            report = pb.ReportRequest.FromString(next(requests))
            in_time = [arrivals for arrivals in report.arrivals if arrivals.iteration >= begun.get(report.job, 0)]
            del report.arrivals[:]
            report.arrivals.extend(in_time)
            return forward(iter([report.SerializeToString()]))
        return forward(requests)

    return spoil


def preceding_iterations_are_ignored() -> Spoil:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "EndIteration":
            return forward(requests)
        ended = pb.EndIterationRequest.FromString(next(requests))
        ended.ClearField("preceding")
        return forward(iter([ended.SerializeToString()]))

    return spoil


def a_damaged_export() -> Spoil:
    def damage(_request: Any, answer: Any) -> None:
        answer.data = answer.data[:-1] + b"?"

    return changed({"ExportJobState"}, damage)


def watchers_see_no_summary() -> Spoil:
    return changed({"WatchJob"}, lambda _request, answer: answer.ClearField("summary"))


def sick() -> Spoil:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc != "Check":
            return forward(requests)
        return iter([HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString()])

    return spoil


REFUSALS = {
    "another-specification",
    "bad-message-on-a-stream",
    "damaged-state",
    "decision-not-found",
    "delete-job",
    "delete-missing-job",
    "delete-with-session",
    "go-back",
    "invalid-job",
    "invalid-report",
    "one-job-a-stream",
    "replaced-session",
    "stale-iteration",
    "unknown-job",
    "unknown-session",
    "unknown-state-format",
}
BROKEN: list[tuple[Callable[[], Spoil], set[str]]] = [
    (too_large_k, {"create-job", "static-policy", "bounds", "next-decision", "fewer-workers"}),
    (lost_workers_that_are_waited_for, {"bounds", "late-arrivals", "fewer-workers", "no-worker"}),
    (attaching_begins_anew, {"attach"}),
    (another_answer_when_asked_again, {"repeated-summary"}),
    (another_answer_on_the_stream, {"stream-and-single-calls"}),
    (no_session_check, {"unknown-session", "replaced-session"}),
    (wrong_status, {"stale-iteration"}),
    (no_details, REFUSALS),
    (streams_that_end_well_after_a_bad_message, {"bad-message-on-a-stream", "one-job-a-stream"}),
    (nothing_is_ever_deleted, {"delete-job", "delete-missing-job", "watch-job"}),
    (jobs_in_any_order, {"list-jobs"}),
    (a_list_without_end, {"list-jobs"}),
    (late_arrivals_are_ignored, {"late-arrivals"}),
    (preceding_iterations_are_ignored, {"preceding-iterations"}),
    (a_damaged_export, {"export-state", "import-state"}),
    (watchers_see_no_summary, {"watch-job"}),
    (sick, {"health"}),
]


@pytest.mark.parametrize(("breakage", "expected"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_controller_fails_the_checks_of_what_is_broken(
    server: Controller, breakage: Callable[[], Spoil], expected: set[str]
) -> None:
    with proxied(server.target, breakage()) as address:
        done = conformance(address, "--timeout", SOON if breakage is nothing_is_ever_deleted else str(PATIENCE))
    assert done.returncode == 1
    assert names(done, "FAILED") == expected, done.stdout
    assert f"{len(CHECKS) - len(expected)} passed, {len(expected)} failed" in done.stdout
    assert jobs_left(server) == []


def test_a_call_that_hangs_fails_its_own_check_only(server: Controller) -> None:
    released = threading.Event()

    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc == "DiagnoseJob":
            released.wait(PATIENCE)
        yield from forward(requests)

    with proxied(server.target, spoil) as address:
        done = conformance(address, "--timeout", SOON)
        released.set()
    assert names(done, "FAILED") == {"diagnose-job", "unknown-job"}, done.stdout
    assert "DEADLINE_EXCEEDED" in done.stdout


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND])
def test_a_controller_without_a_health_service_may_conform(server: Controller, code: grpc.StatusCode) -> None:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc == "Check":
            raise RefusalError(code, "there is no such service")
        yield from forward(requests)

    with proxied(server.target, spoil) as address:
        done = conformance(address)
    assert done.returncode == 0
    assert names(done, "SKIPPED") == {"health"}
    assert done.stdout.endswith(f"{len(CHECKS) - 1} passed, 0 failed, 1 skipped\n")


def test_jobs_that_cannot_be_deleted_are_named(server: Controller) -> None:
    def spoil(rpc: str, requests: Iterator[bytes], forward: Forward) -> Iterator[bytes]:
        if rpc == "DeleteJob":
            raise RefusalError(grpc.StatusCode.PERMISSION_DENIED, "not here")
        yield from forward(requests)

    with proxied(server.target, spoil) as address:
        done = conformance(address)
    left = jobs_left(server)
    try:
        assert left
        assert all(name in done.stdout for name in left)
    finally:
        with server.stub() as stub:
            for name in left:
                stub.DeleteJob(pb.DeleteJobRequest(job=name))
