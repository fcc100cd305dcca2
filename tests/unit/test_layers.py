"""The contracts of import-linter find an import that breaks the architecture. `make lint` checks the code itself."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("protos", "runtime", "controller", "ps", "worker", "experiments")
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command(['--no-cache']))"
# For each contract an import that it forbids, and the module to plant it in.
PLANTED = {
    "Packages depend in one direction": ("runtime/dbw_runtime/backoff.py", "import dbw_controller.contract"),
    "Layers of the controller": ("controller/dbw_controller/wire/state.py", "import dbw_controller.server.jobs"),
    "Layers of the core": ("controller/dbw_controller/core/reports.py", "import dbw_controller.core.job"),
    "The core is pure": ("controller/dbw_controller/core/estimators/gain.py", "import os"),
    "Rounds, members and conversations are pure": ("ps/dbw_ps/rounds.py", "import torch"),
    "The client knows the contract and runtime only": (
        "controller/dbw_controller/client/sync.py",
        "import dbw_controller.core.decision",
    ),
    "Commands load nothing heavy": ("controller/dbw_controller/cli/doctor.py", "import dbw_controller.core.diagnosis"),
    "Layers of the laboratory": (
        "experiments/dbw_experiments/laboratory/scenario.py",
        "import dbw_experiments.laboratory.runner",
    ),
    "Analysis does not draw": ("experiments/dbw_experiments/demo/analysis.py", "import matplotlib"),
    "No folder imports another that imports it": ("worker/dbw_worker/delays.py", "import dbw_worker.app"),
}


def test_every_contract_is_broken_by_an_import_that_it_forbids(tmp_path: Path) -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert sorted(PLANTED) == sorted(contract["name"] for contract in configuration["contracts"])
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for module, line in PLANTED.values():
        with (tmp_path / module).open("a") as file:
            file.write(f"{line}\n")
    path = os.pathsep.join(str(tmp_path / folder) for folder in FOLDERS)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", LINT], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert sorted(re.findall(r"^(.+) BROKEN", done.stdout, re.MULTILINE)) == sorted(PLANTED)
