"""A parameter server whose job another process takes over, under the same name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbw_controller.client import DbwClient
from dbw_ps.checkpoint import CheckpointFolder
from tests.servers import PATIENCE, Controller, ParameterServer, controller, parameter_server, wait_until
from tests.workers import TINY, Pace, working


@contextmanager
def replaced(decider: Controller, *flags: str) -> Iterator[ParameterServer]:
    """A training that has come to iteration 5, and whose job was taken over in the middle of it."""
    own = ("--controller", decider.target, "--decision-deadline", str(PATIENCE))
    with parameter_server(*TINY, *own, *flags) as server, working(server.target, 2, Pace(5)):
        wait_until(lambda: server.status().iteration == 5)
        assert "dbw_ps_session_replaced 0.0" in server.metrics()
        successor = DbwClient(decider.target, deadline=PATIENCE).job("training", workers=1)
        try:
            yield server
        finally:
            successor.close()


def test_it_says_so_and_trains_on() -> None:
    with controller() as decider, replaced(decider) as server:
        server.wait_for_log("another process has taken the job training over")
        wait_until(lambda: "dbw_ps_session_replaced 1.0" in server.metrics())
        assert server.stop() == 0


def test_it_saves_what_it_has_and_ends_if_told_to(tmp_path: Path) -> None:
    """Also in the middle of an iteration: its workers may be its successor's by now."""
    kept = ("--checkpoint-dir", str(tmp_path), "--checkpoint-seconds", "0")
    with controller() as decider, replaced(decider, *kept, "--on-replaced", "exit") as server:
        assert server.wait() == 1
    assert any(
        line.startswith("dbw ps: another process has taken the job training over") for line in server.other_output
    )
    folder = CheckpointFolder(tmp_path)
    found = folder.newest()
    folder.close()
    assert found is not None
    assert found[0] == 5
