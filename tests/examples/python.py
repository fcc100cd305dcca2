"""The Python that runs examples whose frameworks are not among this project's own dependencies."""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PYTHON = os.environ.get("DBW_EXAMPLES_PYTHON", str(ROOT / ".venv-examples/bin/python"))


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test unless a package is installed there."""
    return pytest.mark.skipif(not _has(package), reason=f"{package} is not installed: see `make test-examples`")


@cache
def _has(package: str) -> bool:
    find = f"import sys, importlib.util as u; sys.exit(u.find_spec({package!r}) is None)"
    return Path(PYTHON).exists() and subprocess.run([PYTHON, "-c", find]).returncode == 0
