"""The check on committed stubs, run as `make lint` runs it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract import PROTOS


def generate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROTOS / "generate.py"), "--protos", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """A copy of the contract and its stubs that a test may change."""
    return Path(shutil.copytree(PROTOS, tmp_path / "protos", ignore=shutil.ignore_patterns("__pycache__")))


def test_the_check_passes_on_what_is_committed(contract: Path) -> None:
    done = generate(contract, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_check_fails_and_names_the_stubs_when_a_proto_has_changed(contract: Path) -> None:
    proto = contract / "dbw/v1/error.proto"
    proto.write_text(proto.read_text().replace("ERROR_REASON_BUG", "ERROR_REASON_DEFECT"))
    before = (contract / "dbw/v1/error_pb2.py").read_bytes()
    done = generate(contract, "--check")
    assert done.returncode == 1
    assert "dbw/v1/error_pb2.py, dbw/v1/error_pb2.pyi; run `make protos`" in done.stderr
    assert (contract / "dbw/v1/error_pb2.py").read_bytes() == before


def test_generating_repairs_changed_missing_and_left_over_stubs(contract: Path) -> None:
    stubs = contract / "dbw/v1"
    stubs.joinpath("job_pb2.py").write_text("changed by hand")
    stubs.joinpath("job_pb2.pyi").unlink()
    stubs.joinpath("gone_pb2.py").write_text("of a .proto file that is gone")
    assert generate(contract, "--check").returncode == 1
    done = generate(contract).stdout.splitlines()
    assert done == ["removed dbw/v1/gone_pb2.py", "wrote dbw/v1/job_pb2.py", "wrote dbw/v1/job_pb2.pyi"]
    assert generate(contract, "--check").returncode == 0


def test_a_proto_that_does_not_compile_is_reported_and_changes_nothing(contract: Path) -> None:
    (contract / "dbw/v1/job.proto").write_text("not a proto file")
    before = (contract / "dbw/v1/job_pb2.py").read_bytes()
    done = generate(contract)
    assert done.returncode == 1
    assert "job.proto:1:1" in done.stderr
    assert done.stderr.endswith("the .proto files do not compile; no stub was written\n")
    assert (contract / "dbw/v1/job_pb2.py").read_bytes() == before
