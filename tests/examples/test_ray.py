import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.claims import assert_all_reported, assert_integrated, assert_times_are_since_publication
from tests.examples.hanging import HUNG, assert_went_on, deciding, descendants, stopped, wait_until_gone_on
from tests.examples.python import EXAMPLES, PYTHON, needs
from tests.examples.recorder import Recorder, recorded
from tests.examples.running import started, wait_for_line
from tests.servers import PATIENCE, controller

pytestmark = needs("ray")
WORKERS = 8


@dataclass(frozen=True)
class Comparison:
    """What the example told the controller, and what it printed."""

    seen: Recorder
    output: str

    def iterations(self, rule: str) -> int:
        """How many it says to have needed with a policy."""
        found = re.search(rf"^{rule}: .* after (\d+) iterations", self.output, re.MULTILINE)
        assert found, self.output
        return int(found[1])


def run_example(*flags: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run it on a Ray cluster of its own, with a home of its own for what Ray keeps there."""
    command = [PYTHON, str(EXAMPLES / "ray/train.py"), "--address", "local", *flags]
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    with controller() as server, recorded(server.target) as seen:
        flags = ("--controller", seen.target, "--job", "example", "--workers", str(WORKERS))
        done = run_example(*flags, home=tmp_path_factory.mktemp("home"))
        assert done.returncode == 0, done.stderr
        yield Comparison(seen, done.stdout)


def test_it_trains_with_as_many_gradients_as_dbw_decides(comparison: Comparison) -> None:
    assert_integrated(comparison.seen.job("example-dbw"), WORKERS, comparison.iterations("dbw"))


def test_it_trains_with_all_gradients_for_comparison(comparison: Comparison) -> None:
    job = comparison.seen.job("example-sync")
    assert_all_reported(job, comparison.iterations("sync"))
    assert {summary.k for summary in job.summaries} == {WORKERS}
    assert job.decisions == job.replay()
    assert not job.late
    assert_times_are_since_publication(job)


def test_no_iteration_was_on_fallback(comparison: Comparison) -> None:
    jobs = comparison.seen.jobs.values()
    assert not any(summary.fallback for job in jobs for summary in job.summaries)


def test_both_trainings_see_the_same_examples(comparison: Comparison) -> None:
    dbw, sync = (comparison.seen.job(f"example-{rule}").summaries[0].moments for rule in ("dbw", "sync"))
    assert dbw.mean_squared_norm == pytest.approx(sync.mean_squared_norm)  # added up in the order of arrival
    assert dbw.sum_squared_norms == pytest.approx(sync.sum_squared_norms)


def test_it_says_how_much_faster_it_was(comparison: Comparison) -> None:
    assert comparison.output.splitlines()[-1].startswith("speed-up by dbw: ")


def test_no_workers_are_wrong_usage(tmp_path: Path) -> None:
    done = run_example("--workers", "0", home=tmp_path)
    assert done.returncode == 2
    assert "--workers" in done.stderr


def actors(process: int) -> list[int]:
    """The processes of its workers."""
    return [child for child in descendants(process) if Path(f"/proc/{child}/cmdline").read_text()[:11] == "ray::Worker"]


def test_it_goes_on_and_ends_while_workers_hang_one_of_them_for_good(tmp_path: Path) -> None:
    with controller() as server, deciding(server.target, HUNG + 1, 0.3) as target, recorded(target) as seen:
        flags = ("--controller", seen.target, "--job", "example", "--workers", str(HUNG + 1), "--target-loss", "0")
        command = (PYTHON, "-u", str(EXAMPLES / "ray/train.py"), "--address", "local", "--iterations", "100", *flags)
        with started(*command, patience=3 * PATIENCE, HOME=str(tmp_path)) as process:
            wait_for_line(process, "example-dbw: iteration 10,")
            for_good, *others = hanging = actors(process.pid)[1:]
            assert len(hanging) == HUNG
            with stopped([for_good], signal.SIGKILL):
                with stopped(others):
                    wait_until_gone_on(seen.job("example-dbw"))
                wait_for_line(process, "no speed-up to tell")
                assert process.wait(PATIENCE) == 0
        assert_went_on(seen.job("example-dbw"))
