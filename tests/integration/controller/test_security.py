"""Who may talk to a controller: TLS, mTLS and tokens, over real connections with real certificates."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import trustme

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.iteration_pb2 import Membership
from dbw_controller.client import AsyncDbwClient, DbwClient, TrainingJob
from dbw_controller.client.training import Training
from dbw_runtime.channel import Connection
from tests.ports import lasting_address
from tests.programs import controller_program
from tests.reports import create, failure, summary
from tests.servers import PATIENCE, Controller, controller, wait_until

TOKENS = {"alice": "alice-s3cret#1", "bob": "bob-s3cret"}  # one with the sign that begins comments elsewhere
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


class Files(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


def replace(path: Path, content: bytes) -> None:
    """Change a file in one step, as programs that renew certificates do."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def write(leaf: trustme.LeafCert, folder: Path, name: str) -> Files:
    files = Files(folder / f"{name}.pem", folder / f"{name}.key")
    replace(files.cert, b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    replace(files.key, leaf.private_key_pem.bytes())
    return files


def write_authority(authority: trustme.CA, path: Path) -> Path:
    path.write_bytes(authority.cert_pem.bytes())
    return path


@contextmanager
def connected(server: Controller, host: str = "127.0.0.1", **how: Any) -> Iterator[ControllerServiceStub]:
    """A new connection."""
    with Connection(f"{host}:{server.port}", **how).open() as channel:
        yield ControllerServiceStub(channel)


def names(stub: ControllerServiceStub, authorization: str | None = None) -> list[str]:
    """The caller's jobs: an rpc that anybody may use who may use any."""
    metadata = None if authorization is None else (("authorization", authorization),)
    return [job.name for job in stub.ListJobs(pb.ListJobsRequest(), timeout=PATIENCE, metadata=metadata).jobs]


def cannot_connect(server: Controller, host: str = "127.0.0.1", **how: Any) -> bool:
    """Whether a new connection is refused, by either side."""
    with connected(server, host, **how) as stub, pytest.raises(grpc.RpcError) as caught:
        names(stub)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code() is grpc.StatusCode.UNAVAILABLE


# mTLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def ca(authority: trustme.CA, folder: Path) -> Path:
    return write_authority(authority, folder / "ca.pem")


@pytest.fixture(scope="module")
def client_ca(authority: trustme.CA, folder: Path) -> Path:
    """Whose certificates the controller accepts, which a test replaces."""
    return write_authority(authority, folder / "client-ca.pem")


@pytest.fixture(scope="module")
def mutual(authority: trustme.CA, folder: Path, client_ca: Path) -> Iterator[Controller]:
    """A controller that wants certificates."""
    own = write(authority.issue_cert("127.0.0.1"), folder, "mutual")
    tls = ("--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-client-ca", str(client_ca))
    with controller(*tls, "--log-level", "debug") as server:
        yield server


@pytest.fixture(scope="module")
def carol(authority: trustme.CA, folder: Path, ca: Path) -> dict[str, Any]:
    """How a client with a certificate connects."""
    own = write(authority.issue_cert("carol@example.org"), folder, "carol")
    return {"tls_ca": ca, "tls_cert": own.cert, "tls_key": own.key}


def test_the_name_in_a_client_s_certificate_owns_its_jobs(
    mutual: Controller, carol: dict[str, Any], authority: trustme.CA, folder: Path
) -> None:
    dave = write(authority.issue_cert("dave@example.org"), folder, "dave")
    with connected(mutual, **carol) as stub:
        create(stub, "of-carol")
        assert stub.GetJob(pb.GetJobRequest(job="of-carol")).job.owner == "email:carol@example.org"
        assert names(stub) == ["of-carol"]
    with connected(mutual, tls_ca=carol["tls_ca"], tls_cert=dave.cert, tls_key=dave.key) as stub:
        assert names(stub) == []
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetJob(pb.GetJobRequest(job="of-carol"))
        assert failure(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")


def expired(authority: trustme.CA, folder: Path) -> Files:
    return write(authority.issue_cert("carol@example.org", not_after=YESTERDAY), folder, "expired")


def of_another_authority(authority: trustme.CA, folder: Path) -> Files:  # noqa: ARG001 (as the one above)
    return write(trustme.CA().issue_cert("carol@example.org"), folder, "foreign")


@pytest.mark.parametrize("certificate", [None, expired, of_another_authority])
def test_a_client_without_a_valid_certificate_is_refused_and_others_are_still_served(
    certificate: Callable[[trustme.CA, Path], Files] | None,
    mutual: Controller,
    carol: dict[str, Any],
    authority: trustme.CA,
    folder: Path,
) -> None:
    own: dict[str, Any] = {}
    if certificate is not None:
        own["tls_cert"], own["tls_key"] = certificate(authority, folder)
    with connected(mutual, **carol) as stub:
        names(stub)
        assert cannot_connect(mutual, tls_ca=carol["tls_ca"], **own)
        names(stub)
    with connected(mutual, **carol) as stub:
        names(stub)


def test_clients_are_judged_by_the_authorities_that_the_file_names_now(
    mutual: Controller, carol: dict[str, Any], ca: Path, client_ca: Path, folder: Path
) -> None:
    before, another = client_ca.read_bytes(), trustme.CA()
    own = write(another.issue_cert("erin@example.org"), folder, "erin")
    erin: dict[str, Any] = {"tls_ca": ca, "tls_cert": own.cert, "tls_key": own.key}
    assert cannot_connect(mutual, **erin)
    replace(client_ca, another.cert_pem.bytes())
    with connected(mutual, **erin) as stub:
        assert names(stub) == []
    assert cannot_connect(mutual, **carol)
    replace(client_ca, before)
    with connected(mutual, **carol) as stub:
        names(stub)


def test_a_failed_handshake_is_in_the_log_as_json_as_everything_else(mutual: Controller) -> None:
    assert cannot_connect(mutual)
    mutual.wait_for_log("", logger="dbw_runtime.logs", level="warning")
    assert mutual.other_output == []


# TLS with tokens


@pytest.fixture(scope="module")
def token_file(folder: Path) -> Path:
    path = folder / "tokens"
    lines = [f"{identity} {token}  # of {identity}" for identity, token in TOKENS.items()]
    path.write_text("\n".join(["# who may call", "", *lines]))
    return path


@pytest.fixture(scope="module")
def own(authority: trustme.CA, folder: Path) -> Files:
    """The server's certificate, which tests replace."""
    return write(authority.issue_cert("127.0.0.1"), folder, "server")


@pytest.fixture(scope="module")
def server(own: Files, token_file: Path) -> Iterator[Controller]:
    """A controller with TLS that wants tokens."""
    tls = ("--tls-cert", str(own.cert), "--tls-key", str(own.key))
    with controller(*tls, "--token-file", str(token_file), "--log-level", "debug") as running:
        yield running


def bearer(identity: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKENS[identity]}"),)


@pytest.mark.parametrize("authorization", [f"Bearer {TOKENS['alice']}", f"bearer   {TOKENS['alice']} "])
def test_a_token_over_tls_opens_the_door(server: Controller, ca: Path, authorization: str) -> None:
    with connected(server, tls_ca=ca) as stub:
        names(stub, authorization)


@pytest.mark.parametrize(
    ("authorization", "problem"),
    [
        (None, "there is no token"),
        ("", "there is no token"),
        ("Bearer wrong-s3cret", "the token is not known"),
        ("Bearer ", "the token is not known"),
        (f"Bearer {TOKENS['alice'].partition('#')[0]}", "the token is not known"),
        (f"Basic {TOKENS['alice']}", "the token is not known"),
        (TOKENS["alice"], "the token is not known"),
    ],
)
def test_a_call_without_a_token_of_the_file_is_refused(
    server: Controller, ca: Path, authorization: str | None, problem: str
) -> None:
    with connected(server, tls_ca=ca) as stub:
        with pytest.raises(grpc.RpcError, match=problem) as caught:
            names(stub, authorization)
        assert failure(caught.value)[:2] == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        names(stub, f"Bearer {TOKENS['bob']}")


def test_plaintext_to_a_tls_port_and_a_name_that_is_not_the_certificate_s_fail(server: Controller, ca: Path) -> None:
    assert cannot_connect(server)
    assert cannot_connect(server, "localhost", tls_ca=ca)
    assert cannot_connect(server, tls=True), "the system's authorities know nothing of this one"
    with connected(server, tls_ca=ca) as stub:
        names(stub, f"Bearer {TOKENS['alice']}")


def test_tokens_that_are_added_or_removed_count_at_once(server: Controller, ca: Path, token_file: Path) -> None:
    before = token_file.read_bytes()
    with connected(server, tls_ca=ca) as stub:
        replace(token_file, before + b"\ncarol carol-s3cret\n")
        names(stub, "Bearer carol-s3cret")
        replace(token_file, before)
        with pytest.raises(grpc.RpcError) as caught:
            names(stub, "Bearer carol-s3cret")
        assert failure(caught.value)[0] is grpc.StatusCode.UNAUTHENTICATED
        names(stub, f"Bearer {TOKENS['alice']}")


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_training_survives_that_its_token_is_rotated_on_the_server_first(
    own: Files, ca: Path, folder: Path, kind: str
) -> None:
    tokens, token, address = folder / "rotated", folder / "rotated-client", lasting_address()
    settings: Any = {"deadline": PATIENCE, "token_file": token, "tls_ca": ca}
    replace(tokens, b"alice first-s3cret")
    replace(token, b"first-s3cret")
    flags = ("--tls-cert", str(own.cert), "--tls-key", str(own.key), "--token-file", str(tokens), "--listen", address)

    def rotate() -> Iterator[Callable[[Training], bool]]:
        """Step by step; gives what becomes of a training then."""
        with controller(*flags) as first:
            yield lambda job: not job.on_fallback
            first.kill()
        replace(tokens, b"alice second-s3cret")
        with controller(*flags):
            yield lambda job: job.on_fallback and "UNAUTHENTICATED" in (job.problem or "")
            replace(token, b"second-s3cret")
            yield lambda job: not job.on_fallback

    def train(job: TrainingJob, becomes: Callable[[Training], bool]) -> bool:
        job.end_iteration(duration_seconds=0.1)
        return becomes(job)

    def run() -> None:
        job = DbwClient(address, **settings).job("rotated", workers=1)
        for becomes in rotate():
            wait_until(partial(train, job, becomes))
        job.close()

    async def run_asyncio() -> None:
        job = AsyncDbwClient(address, **settings).job("rotated", workers=1)
        await job.open()
        for becomes in rotate():
            async with asyncio.timeout(PATIENCE):
                while not becomes(job):
                    await job.end_iteration(duration_seconds=0.1)
                    await asyncio.sleep(0.01)
        await job.close()

    asyncio.run(run_asyncio()) if kind == "asyncio" else run()


def test_a_token_file_that_makes_no_sense_or_is_gone_leaves_the_old_tokens_in_use_and_is_complained_of_once(
    server: Controller, ca: Path, token_file: Path
) -> None:
    before = token_file.read_bytes()
    with connected(server, tls_ca=ca) as stub:
        for content in (b"alice\n", None):
            token_file.unlink()
            if content is not None:
                token_file.write_bytes(content)
            for _ in range(3):
                names(stub, f"Bearer {TOKENS['alice']}")
        replace(token_file, before)
        names(stub, f"Bearer {TOKENS['alice']}")

    def complaints() -> list[str]:
        lines = [line["message"] for line in server.logs]
        return [line for line in lines if line.startswith("a file cannot be read again") and str(token_file) in line]

    wait_until(lambda: len(complaints()) >= 2)  # the log comes by another way than answers
    about_tokens = complaints()
    assert len(about_tokens) == 2
    assert f"line 1 of {token_file} must be an identity and its token" in about_tokens[0]
    assert "No such file" in about_tokens[1]


def test_new_connections_use_certificates_that_were_replaced_and_never_half_written_ones(
    server: Controller, ca: Path, authority: trustme.CA, own: Files, folder: Path
) -> None:
    another_authority = trustme.CA()
    another_ca = write_authority(another_authority, folder / "another-ca.pem")
    token = f"Bearer {TOKENS['alice']}"
    with connected(server, tls_ca=ca) as old:
        names(old, token)
        renewed = another_authority.issue_cert("127.0.0.1")
        write(renewed, folder, "server")
        with connected(server, tls_ca=another_ca) as stub:
            names(stub, token)
        assert cannot_connect(server, tls_ca=ca)

        chain = renewed.cert_chain_pems[0].bytes()
        of_another_key = authority.issue_cert("127.0.0.1").cert_chain_pems[0].bytes()
        for garbage in (b"", b"garbage", chain[: len(chain) // 2], of_another_key):
            complaints = len(errors(server))
            replace(own.cert, garbage)
            for _ in range(2):
                with connected(server, tls_ca=another_ca) as stub:
                    names(stub, token)
            wait_until(lambda: len(errors(server)) == complaints + 1)  # noqa: B023 (it is called here)
            assert f"{own.cert} and {own.key} are not a certificate" in errors(server)[-1]

        write(authority.issue_cert("127.0.0.1"), folder, "server")
        with connected(server, tls_ca=ca) as stub:
            names(stub, token)
        names(old, token)


def errors(server: Controller) -> list[str]:
    return [line["message"] for line in server.logs if line["level"] == "error"]


def test_clients_refuse_a_server_whose_certificate_has_expired(
    server: Controller, ca: Path, authority: trustme.CA, folder: Path
) -> None:
    write(authority.issue_cert("127.0.0.1", not_after=YESTERDAY), folder, "server")
    assert cannot_connect(server, tls_ca=ca)
    write(authority.issue_cert("127.0.0.1"), folder, "server")
    with connected(server, tls_ca=ca) as stub:
        names(stub, f"Bearer {TOKENS['alice']}")


# Whose job it is

BY_JOB: dict[str, Callable[[str, str], Any]] = {
    "CreateJob": lambda job, _: pb.CreateJobRequest(job=job, membership=Membership(live_workers=4)),
    "Coordinate": lambda job, session: pb.CoordinateRequest(job=job, session=session, summary=summary(0)),
    "Report": lambda job, session: pb.ReportRequest(job=job, session=session),
    "EndIteration": lambda job, session: pb.EndIterationRequest(job=job, session=session, summary=summary(0)),
    "GetDecision": lambda job, _: pb.GetDecisionRequest(job=job),
    "GetJob": lambda job, _: pb.GetJobRequest(job=job),
    "DeleteJob": lambda job, _: pb.DeleteJobRequest(job=job),
    "WatchJob": lambda job, _: pb.WatchJobRequest(job=job),
    "DiagnoseJob": lambda job, _: pb.DiagnoseJobRequest(job=job),
    "ExportJobState": lambda job, _: pb.ExportJobStateRequest(job=job),
    "ImportJobState": lambda job, session: pb.ImportJobStateRequest(
        job=job, session=session, header=pb.JobStateHeader(job=job)
    ),
}
METHODS = pb.DESCRIPTOR.services_by_name["ControllerService"].methods_by_name


def test_these_are_all_rpcs_that_name_a_job() -> None:
    assert set(BY_JOB) == {name for name, rpc in METHODS.items() if "job" in rpc.input_type.fields_by_name}


@pytest.fixture(scope="module")
def job_of_alice(server: Controller, ca: Path) -> str:
    """The session of a job; its name is `of-alice`."""
    request = pb.CreateJobRequest(job="of-alice", membership=Membership(live_workers=4))
    with connected(server, tls_ca=ca) as stub:
        return stub.CreateJob(request, metadata=bearer("alice")).session


def refusal(server: Controller, ca: Path, rpc: str, request: Any) -> tuple[grpc.StatusCode, str, bytes]:
    """All that bob learns: status, text and details."""
    sent = iter([request]) if METHODS[rpc].client_streaming else request
    with connected(server, tls_ca=ca) as stub, pytest.raises(grpc.RpcError) as caught:
        list(getattr(stub, rpc)(sent, timeout=PATIENCE, metadata=bearer("bob")))
    assert isinstance(caught.value, grpc.Call)
    trailers: dict[str, Any] = dict(caught.value.trailing_metadata())
    return caught.value.code(), str(caught.value.details()), trailers["grpc-status-details-bin"]


@pytest.mark.parametrize("rpc", sorted(BY_JOB.keys() - {"CreateJob"}))
def test_the_job_of_somebody_else_looks_like_one_that_does_not_exist(
    server: Controller, ca: Path, job_of_alice: str, rpc: str
) -> None:
    of_alice = refusal(server, ca, rpc, BY_JOB[rpc]("of-alice", job_of_alice))
    code, text, details = refusal(server, ca, rpc, BY_JOB[rpc]("of-bobby", job_of_alice))  # as long a name
    assert of_alice == (code, text.replace("of-bobby", "of-alice"), details.replace(b"of-bobby", b"of-alice"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert b"JOB_NOT_FOUND" in details
    with connected(server, tls_ca=ca) as stub:
        if rpc == "DeleteJob":
            request = pb.DeleteJobRequest(job="of-alice", allow_missing=True)
            stub.DeleteJob(request, timeout=PATIENCE, metadata=bearer("bob"))
        job = stub.GetJob(pb.GetJobRequest(job="of-alice"), metadata=bearer("alice")).job
        assert (job.owner, job.learnt_iterations) == ("alice", 0)


def test_a_name_that_is_taken_is_refused_without_saying_by_whom(
    server: Controller,
    ca: Path,
    job_of_alice: str,  # noqa: ARG001 (it has the name)
) -> None:
    for workers in (4, 1):  # a request that would differ from the job, too
        request = pb.CreateJobRequest(job="of-alice", membership=Membership(live_workers=workers))
        code, text, details = refusal(server, ca, "CreateJob", request)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert text == "the name 'of-alice' is taken; choose another name for the job"
        assert b"NOT_OWNER" in details


def test_everybody_sees_only_their_own_jobs(server: Controller, ca: Path, job_of_alice: str) -> None:  # noqa: ARG001
    with connected(server, tls_ca=ca) as stub:
        request = pb.CreateJobRequest(job="of-bob", membership=Membership(live_workers=4))
        stub.CreateJob(request, metadata=bearer("bob"))
        assert names(stub, f"Bearer {TOKENS['alice']}") == ["of-alice"]
        assert names(stub, f"Bearer {TOKENS['bob']}") == ["of-bob"]


def test_no_secret_is_ever_logged(server: Controller, mutual: Controller, ca: Path, folder: Path) -> None:
    with connected(server, tls_ca=ca) as stub:
        names(stub, f"Bearer {TOKENS['alice']}")
        with pytest.raises(grpc.RpcError):
            names(stub, "Bearer wrong-s3cret")
    keys = [line for path in folder.glob("*.key") for line in path.read_text().splitlines() if "-----" not in line]
    assert keys
    for running in (server, mutual):
        assert running.stop() == 0
        output = "\n".join([*map(str, running.logs), *running.other_output])
        assert "UNAUTHENTICATED" in output or running is mutual, "this is not all of it"
        assert not [secret for secret in ["s3cret", *keys] if secret in output]


# Refusing to start


@pytest.fixture(scope="module")
def good(authority: trustme.CA, folder: Path) -> Files:
    return write(authority.issue_cert("127.0.0.1"), folder, "good")


def test_a_controller_that_would_be_unsafe_or_unusable_does_not_start(good: Files, folder: Path) -> None:
    wrong = folder / "wrong-tokens"
    wrong.write_text("alice\n")
    cases = {
        "other machines can reach 0.0.0.0:0: give --tls-cert and --tls-key, or --insecure if the network is safe": (
            ("--listen", "0.0.0.0:0")
        ),
        f"the TLS files cannot be used: {good.cert} and {good.cert} are not a certificate": (
            ("--tls-cert", str(good.cert), "--tls-key", str(good.cert))
        ),
        f"the token file cannot be used: line 1 of {wrong}": ("--token-file", str(wrong)),
    }
    for text, flags in cases.items():
        done = controller_program(*flags).run()
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1].startswith(f"dbw controller: error: {text}")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("protection", ["tls", "insecure"])
def test_other_machines_can_be_served_with_tls_or_if_that_is_asked_for(protection: str, good: Files, ca: Path) -> None:
    tls = ("--tls-cert", str(good.cert), "--tls-key", str(good.key))
    flags = {"tls": tls, "insecure": ("--insecure",)}[protection]
    with (
        controller("--listen", "0.0.0.0:0", *flags) as running,
        connected(running, tls_ca=ca if protection == "tls" else None) as stub,
    ):
        assert names(stub) == []
