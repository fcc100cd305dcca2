import subprocess
import sys
from pathlib import Path

import pytest

from dbw_runtime.compiled_kernels import prepare


@pytest.mark.parametrize("environment", [{}, {"DBW_CONTROLLER_COMPILE": "1"}, {"DBW_KERNELS": ""}])
def test_without_our_settings_those_of_numba_stay_as_they_are(environment: dict[str, str]) -> None:
    before = {**environment, "NUMBA_CACHE_DIR": "/somewhere"}
    after = dict(before)
    prepare(after)
    assert after == before


def test_kernels_can_run_as_plain_python() -> None:
    environment = {"DBW_CONTROLLER_COMPILE": "0", "DBW_KERNELS": "/nowhere"}
    prepare(environment)
    assert environment["NUMBA_DISABLE_JIT"] == "1"
    assert "NUMBA_CACHE_DIR" not in environment


def test_ready_made_machine_code_is_copied_to_where_numba_can_write_until_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "kernel.nbc").write_text("machine code")
    script = """
import sys
from pathlib import Path
from dbw_runtime.compiled_kernels import prepare
environment = {"DBW_KERNELS": sys.argv[1]}
prepare(environment)
copy = Path(environment["NUMBA_CACHE_DIR"])
assert (copy / "deep" / "kernel.nbc").read_text() == "machine code"
(copy / "deep" / "more.nbc").touch()
print(copy)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["kernel.nbc"]
