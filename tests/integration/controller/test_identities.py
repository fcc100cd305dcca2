"""Whom certificates make their holders, and what administrators may do, over real connections."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.x509 import GeneralName, IPAddress

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw_controller.client import DbwClient
from dbw_controller.server.store import SnapshotStore
from dbw_runtime.channel import Connection
from dbw_runtime.failure import reason_of
from tests.certificates import DNS, EMAIL, URI, issue
from tests.integration.controller.test_commands import DBW
from tests.reports import create, summary
from tests.servers import PATIENCE, Controller, controller, wait_until
from tests.states import changed

IDENTITIES = "# who calls\nvision DNS:ps-1.vision\nvision DNS:ps-2.vision\nops email:ops@example.org admin\n"


class Party:
    """An authority, a controller, and clients with certificates of any names."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.folder, self.authority, self.ca = folder, authority, folder / "ca.pem"
        self.identities = folder / "identities"
        self.identities.write_text(IDENTITIES)
        authority.cert_pem.write_to_path(self.ca)
        cert, key = self._write("server", [IPAddress(ip_address("127.0.0.1"))])
        self.flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(self.ca))
        self.server: Controller
        self.issued = 0

    def _write(self, name: str, names: Sequence[GeneralName]) -> tuple[Path, Path]:
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate = issue(self.authority, names)
        cert.write_bytes(certificate.cert)
        key.write_bytes(certificate.key)
        return cert, key

    def connection(self, *names: GeneralName) -> dict[str, Any]:
        """How a client with a new certificate connects."""
        self.issued += 1
        cert, key = self._write(f"client-{self.issued}", names)
        return {"tls_ca": self.ca, "tls_cert": cert, "tls_key": key}

    @contextmanager
    def connected(self, *names: GeneralName) -> Iterator[ControllerServiceStub]:
        """A client with a new certificate."""
        with Connection(f"127.0.0.1:{self.server.port}", **self.connection(*names)).open() as channel:
            yield ControllerServiceStub(channel)

    def reason(self, rpc: str, request: Any, *names: GeneralName) -> str | None:
        """Why a call of a client with a new certificate is refused; None if it is not."""
        with self.connected(*names) as stub:
            try:
                answer = getattr(stub, rpc)(request, timeout=PATIENCE)
                if rpc == "WatchJob":
                    next(answer)
                    answer.cancel()
            except grpc.RpcError as error:
                return reason_of(error)
        return None


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Party]:
    party = Party(tmp_path_factory.mktemp("identities"), trustme.CA())
    with controller(*party.flags, "--identity-file", str(party.identities)) as party.server:
        yield party


def owner(stub: ControllerServiceStub, job: str) -> str:
    return stub.GetJob(pb.GetJobRequest(job=job)).job.owner


def test_a_name_of_another_type_and_a_common_name_do_not_open_a_job(party: Party) -> None:
    with party.connected(DNS("alice")) as stub:
        create(stub, "of-alice")
        assert owner(stub, "of-alice") == "DNS:alice"
    get = pb.GetJobRequest(job="of-alice")
    assert party.reason("GetJob", get, EMAIL("alice")) == "JOB_NOT_FOUND"
    assert party.reason("GetJob", get, URI("alice")) == "JOB_NOT_FOUND"
    assert party.reason("GetJob", get, DNS("alice\0.example.org")) == "UNAUTHENTICATED"
    assert party.reason("GetJob", get) == "UNAUTHENTICATED", "the common name is alice"


def test_names_in_another_order_are_the_same_identity(party: Party) -> None:
    names = [DNS("dave"), EMAIL("dave@example.org"), URI("spiffe://example.org/dave"), DNS("localhost")]
    with party.connected(*names) as stub:
        create(stub, "of-dave")
        assert owner(stub, "of-dave") == "URI:spiffe://example.org/dave"
    assert party.reason("GetJob", pb.GetJobRequest(job="of-dave"), *names[::-1]) is None


def test_certificates_that_the_identity_file_gives_to_one_identity_share_its_jobs_at_once(party: Party) -> None:
    with party.connected(DNS("ps-1.vision")) as stub:
        create(stub, "of-vision")
        assert owner(stub, "of-vision") == "vision"
    get = pb.GetJobRequest(job="of-vision")
    assert party.reason("GetJob", get, DNS("ps-2.vision")) is None
    assert party.reason("GetJob", get, DNS("vision")) == "JOB_NOT_FOUND", "an identity of the file is nobody's name"
    with party.connected(DNS("ps-3.vision")) as stub:
        party.identities.write_text(f"{IDENTITIES}vision DNS:ps-3.vision\n")
        assert owner(stub, "of-vision") == "vision"
        party.identities.write_text(IDENTITIES)
        with pytest.raises(grpc.RpcError):
            owner(stub, "of-vision")


ADMIN = EMAIL("ops@example.org")


def test_an_administrator_looks_at_all_jobs_and_deletes_them_but_does_not_use_them(party: Party) -> None:
    with party.connected(DNS("erin")) as stub:
        session = create(stub, "of-erin")
    looks = {
        "GetJob": pb.GetJobRequest(job="of-erin"),
        "GetDecision": pb.GetDecisionRequest(job="of-erin"),
        "WatchJob": pb.WatchJobRequest(job="of-erin"),
        "DiagnoseJob": pb.DiagnoseJobRequest(job="of-erin"),
    }
    assert {rpc: party.reason(rpc, request, ADMIN) for rpc, request in looks.items()} == dict.fromkeys(looks)
    report = pb.ReportRequest(job="of-erin", session=session)
    end = pb.EndIterationRequest(job="of-erin", session=session, summary=summary(0))
    with party.connected(ADMIN) as stub:
        for refused in (
            lambda: stub.Report(report),
            lambda: stub.EndIteration(end),
            lambda: list(stub.Coordinate(iter([pb.CoordinateRequest(job="of-erin", session=session)]))),
            lambda: list(stub.ExportJobState(pb.ExportJobStateRequest(job="of-erin"))),
            lambda: stub.ImportJobState(
                iter([pb.ImportJobStateRequest(job="of-erin", session=session, header=pb.JobStateHeader())])
            ),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                refused()
            assert reason_of(caught.value) == "JOB_NOT_FOUND"
        with pytest.raises(grpc.RpcError) as caught:
            create(stub, "of-erin")
        assert reason_of(caught.value) == "NOT_OWNER"
        create(stub, "of-ops")
        owners = {job.name: job.owner for job in stub.ListJobs(pb.ListJobsRequest()).jobs}
        assert (owners["of-erin"], owners["of-ops"]) == ("DNS:erin", "ops")
        stub.DeleteJob(pb.DeleteJobRequest(job="of-erin"))
    party.server.wait_for_log("deleted by an administrator", job="of-erin")
    assert party.reason("GetJob", pb.GetJobRequest(job="of-erin"), DNS("erin")) == "JOB_NOT_FOUND"


def test_the_pages_of_somebody_s_jobs_tell_nothing_of_others(party: Party) -> None:
    for name, jobs in (("frank", ("page-1", "page-3")), ("grace", ("page-2", "page-4"))):
        with party.connected(DNS(name)) as stub:
            for job in jobs:
                create(stub, job)
    with party.connected(DNS("frank")) as stub:
        first = stub.ListJobs(pb.ListJobsRequest(page_size=1))
        last = stub.ListJobs(pb.ListJobsRequest(page_size=1, page_token=first.next_page_token))
    assert ([job.name for job in first.jobs], first.next_page_token) == (["page-1"], "page-1")
    assert ([job.name for job in last.jobs], last.next_page_token) == (["page-3"], "")


def test_dbw_jobs_shows_owners_where_there_are_several(party: Party) -> None:
    def header(*names: GeneralName) -> list[str]:
        own = party.connection(*names)
        flags = ["--tls-ca", own["tls_ca"], "--tls-cert", own["tls_cert"], "--tls-key", own["tls_key"]]
        command = [*DBW, "jobs", "--controller", f"127.0.0.1:{party.server.port}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[0].split()

    for name in ("heidi", "ivan"):
        with party.connected(DNS(name)) as stub:
            create(stub, f"of-{name}")
    assert header(ADMIN)[:3] == ["job", "owner", "policy"]
    assert header(DNS("heidi"))[:2] == ["job", "policy"]


def test_a_job_of_an_earlier_version_goes_to_the_first_certificate_with_its_owner_s_name(tmp_path: Path) -> None:
    def of_an_earlier_version(state: dict[str, Any]) -> None:
        state["owner"] = "alice"
        del state["is_owner_exact"]

    party, get = Party(tmp_path, trustme.CA()), pb.GetJobRequest(job="resnet")
    flags = (*party.flags, "--state-dir", str(tmp_path / "state"))
    with controller(*flags) as party.server, party.connected(DNS("alice")) as stub:
        create(stub)
        assert party.server.stop() == 0
    store = SnapshotStore(tmp_path / "state")
    store.write("resnet", changed(store.read("resnet"), of_an_earlier_version))
    store.close()
    names = [URI("spiffe://example.org/alice"), EMAIL("alice")]
    with controller(*flags) as party.server:
        assert party.reason("GetJob", get, DNS("bob")) == "JOB_NOT_FOUND"
        assert party.reason("GetJob", get, *names) is None
        assert party.reason("GetJob", get, DNS("alice")) == "JOB_NOT_FOUND"
        about = {"job": "resnet", "old_owner": "alice", "owner": "URI:spiffe://example.org/alice"}
        party.server.wait_for_log("its owner", level="warning", **about)
        assert party.server.stop() == 0
    with controller(*flags) as party.server, party.connected(*names) as stub:
        assert owner(stub, "resnet") == "URI:spiffe://example.org/alice"


def test_training_goes_on_without_decisions_as_long_as_the_name_of_its_job_is_taken(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    with party.connected(DNS("judy")) as stub:
        create(stub, "of-judy")
    often = {"silent_job_seconds": 0.1, **party.connection(DNS("mallory"))}
    client = DbwClient(f"127.0.0.1:{party.server.port}", **often)
    with caplog.at_level("INFO"), client.job("of-judy", workers=4) as job:
        wait_until(lambda: "choose another name" in caplog.text)
        job.arrived(1.0)
        assert job.end_iteration() == 4
        assert job.on_fallback
        assert job.replaced
        assert "the name 'of-judy' is taken; choose another name for the job" in str(job.problem)
        [complaint] = [record for record in caplog.records if record.levelname == "WARNING"]
        assert "choose another name" in complaint.getMessage()
        with party.connected(DNS("judy")) as stub:
            assert owner(stub, "of-judy") == "DNS:judy"
            stub.DeleteJob(pb.DeleteJobRequest(job="of-judy"))
        wait_until(lambda: not job.replaced)
