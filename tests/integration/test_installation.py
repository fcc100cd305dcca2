"""What a user gets who installs the distribution: built, installed and imported for real."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
CONSTRAINED = ["--constraint", str(ROOT / "constraints.txt")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob("dbw-*.whl"))


def test_the_wheel_has_stubs_types_and_the_proto_files_for_other_languages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    in_repository = {str(path.relative_to(ROOT / "protos")) for path in (ROOT / "protos/dbw").rglob("*.*")}
    assert {name for name in in_repository if "__pycache__" not in name} <= names
    assert {"dbw/py.typed", "dbw/v1/controller.proto", "dbw/v1/controller_pb2_grpc.pyi"} <= names
    assert {"dbw_controller/py.typed", "dbw_controller/core/job.py", "dbw_controller/core/policies/dbw.py"} <= names
    assert {"dbw_runtime/py.typed", "dbw_runtime/cli.py"} <= names
    assert {"dbw_ps/py.typed", "dbw_ps/rounds.py"} <= names
    assert {"dbw_worker/py.typed", "dbw_worker/work.py"} <= names
    assert {"dbw_experiments/py.typed", "dbw_experiments/demo/report.html"} <= names


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment that has the distribution without any extra."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin/python")
    subprocess.run([python, *PIP[1:], "install", *CONSTRAINED, str(wheel)], check=True)
    return python


def test_the_base_is_enough_for_the_contract_and_the_client_and_light(base: str, tmp_path: Path) -> None:
    code = """
import json, sys
from importlib.metadata import distributions
import dbw.v1.controller_pb2_grpc, dbw.v1.parameter_server_pb2_grpc, dbw_controller.client
print(json.dumps([sorted({d.name.lower() for d in distributions()}), sorted(sys.modules)]))
"""
    done = subprocess.run([base, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    installed, imported = json.loads(done.stdout)
    google = {"googleapis-common-protos", "grpcio", "grpcio-status", "protobuf", "typing_extensions"}
    assert set(installed) - {"pip", "setuptools"} == {"dbw", "msgspec", "numpy", *google}
    assert not {"torch", "cvxpy", "numpy"} & set(imported)


def test_the_base_decides_without_numba(base: str, tmp_path: Path) -> None:
    code = """
import numpy as np
from dbw_controller.core.kernels import COMPILED
from dbw_controller.core.reports import Arrivals, IterationSummary, Membership, Report
from dbw_controller.core.job import Job
from dbw_controller.core.policies import BlindDbw
from dbw_controller.core.spec import JobSpec
job = Job(JobSpec(policy=BlindDbw()), Membership(3))
decision = job.report(Report([Arrivals(0, np.array([1.0, 1.1, 9.0]))], IterationSummary(0, 3, 9.0)))
print(COMPILED, decision.k, decision.reason.name)
"""
    done = subprocess.run([base, "-W", "error", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "False 2 BEST_RATE\n"


def test_the_command_says_which_extra_is_missing(base: str, tmp_path: Path) -> None:
    done = subprocess.run([str(Path(base).parent / "dbw"), "controller"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'dbw[controller]'" in done.stderr


def test_the_controller_does_without_torch_and_cvxpy(wheel: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    resolve = ["install", "--dry-run", "--ignore-installed", "--report", str(report), *CONSTRAINED]
    subprocess.run([*PIP, *resolve, f"{wheel}[controller]"], check=True)
    names = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
    assert {"grpcio", "numba", "prometheus-client"} <= {name.replace("_", "-") for name in names}
    assert not {"torch", "cvxpy"} & names


def test_a_worker_imports_nothing_that_its_extra_lacks_or_that_takes_seconds(tmp_path: Path) -> None:
    code = "import sys, dbw_worker.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    lacking = {"numba", "uvloop", "rich", "grpc_health.v1", "jinja2", "matplotlib", "cvxpy"}
    assert not (lacking | {"sklearn", "torchvision"}) & set(done.stdout.split())
