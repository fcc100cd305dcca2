"""What Prometheus gets to see of a worker, and where."""

import socket
from contextlib import suppress

from prometheus_client.parser import text_string_to_metric_families as families

from tests import servers
from tests.servers import TINY_WORK, Worker, parameter_server, wait_until, worker
from tests.workers import Pace, working


def test_a_worker_counts_what_it_does_and_how_long_that_takes() -> None:
    pace = Pace(5)
    with (
        parameter_server("--model", "tests.models:tiny", "--policy", "sync", "--min-workers", "2") as server,
        worker(server.target, "counted", *TINY_WORK, "--delay", "constant:0.001") as counted,
        working(server.target, 1, pace),
    ):
        wait_until(lambda: counted.outcomes().get("used") == 6)  # and waits for the other one
        found = {family.name: family for family in families(counted.metrics())}
    assert all(name.startswith(("dbw_worker_", "process_")) for name in found)
    values = {
        (sample.name, sample.labels.get("outcome")): sample.value
        for family in found.values()
        for sample in family.samples
    }
    assert values["dbw_worker_gradients_total", "used"] == 6
    assert values["dbw_worker_compute_seconds_count", None] == 6
    assert values["dbw_worker_compute_seconds_sum", None] >= values["dbw_worker_delay_seconds_total", None]
    assert values["dbw_worker_delay_seconds_total", None] > 0.005
    assert values["dbw_worker_version", None] == 5
    assert values["dbw_worker_wait_seconds_total", None] > 0
    assert found["dbw_worker_build_info"].samples[0].labels["worker_id"] == "counted"
    assert all(family.documentation for family in found.values())


class WithItsOwnPort(Worker):
    """A worker that is told no port for metrics."""

    usual_flags = ("--log-format", "json")


def test_without_a_port_of_its_own_a_worker_takes_a_free_one() -> None:
    with parameter_server("--model", "tests.models:tiny", "--min-workers", "3") as server, socket.socket() as taken:
        with suppress(OSError):  # somebody has it already
            taken.bind(("127.0.0.1", 9466))
            taken.listen()
        with servers.running(WithItsOwnPort(server.target, "falls-back", *TINY_WORK)) as one:
            assert "dbw_worker_wait_seconds_total" in one.metrics()
            assert one.metrics_port != 9466


def test_a_port_that_was_asked_for_and_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with worker("127.0.0.1:1", "one", *TINY_WORK, "--metrics-listen", address) as one:
            assert one.wait() == 1
            assert one.other_output == [f"dbw worker: cannot listen on {address}: [Errno 98] Address already in use\n"]
