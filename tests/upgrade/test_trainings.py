"""Parameter servers train with workers and a controller of the other version, with certificates and tokens."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers import TINY_WORK
from tests.upgrade.conftest import Pair
from tests.upgrade.files import Files

ITERATIONS, WORKERS = 15, 2


@pytest.mark.parametrize("sync_mode", ["push-wait", "push-interrupt", "pull"])
def test_a_parameter_server_trains_with_workers_and_a_controller_of_the_other_version(
    sync_mode: str, pair: Pair, files: Files, tmp_path: Path
) -> None:
    log, own = tmp_path / "log", (*files.server(), "--token-file", files.identities)
    with ExitStack() as stack:
        controller = stack.enter_context(pair.before.controller(*own))
        decider = ("--controller", controller.target, *files.client("ps", "--controller-"), "--decision-share", "1000")
        what = ("--model", "tests.models:tiny", "--sync-mode", sync_mode, "--iterations", str(ITERATIONS))
        whom = ("--job", "mixed", "--min-workers", str(WORKERS), "--training-log", str(log))
        server = stack.enter_context(pair.after.parameter_server(*own, *decider, *what, *whom))
        work = (*TINY_WORK, *files.client("worker"))
        workers = [stack.enter_context(pair.before.worker(server.target, f"w-{i}", *work)) for i in range(WORKERS)]
        assert [process.wait() for process in (server, *workers)] == [0] * (1 + WORKERS), server.logs
        controller.wait_for_log("deleted", job="mixed", learnt_iterations=ITERATIONS)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(ITERATIONS))
