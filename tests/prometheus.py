"""A real Prometheus, with our rules, for tests that look at what it makes of real services."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.servers import PATIENCE, wait_until

FOLDER = Path(__file__).resolve().parents[1] / "docker/prometheus"
RULES = FOLDER / "dbw-rules.yml"
Targets = Mapping[str, Sequence[int]]

INSTALL = "is not installed (apt-get install prometheus): rules and metrics are NOT TESTED against the real program"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=f"promtool {INSTALL}")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"prometheus {INSTALL}")


class Prometheus:
    """A Prometheus server that scrapes services all the time: ports of this machine, by name of the scrape job."""

    def __init__(self, folder: Path, targets: Targets) -> None:
        self._log = folder / "log"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
                for name, ports in targets.items()
            ],
        }
        (folder / "config.json").write_text(json.dumps(config))  # which is YAML as well
        paths = [f"--config.file={folder / 'config.json'}", f"--storage.tsdb.path={folder / 'data'}"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", *paths, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=subprocess.STDOUT
            )

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(PATIENCE)

    def address(self) -> str:
        """Where it serves: the port that it was given."""
        assert self.process.poll() is None, self._log.read_text()
        found = re.search(r'"Listening on" address=(\S+)', self._log.read_text())
        return found[1] if found else ""

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return bool(self.address()) and self._get("/-/ready") != ""
        except URLError:  # still reading what it has on disk
            return False

    def _get(self, path: str) -> str:
        with urlopen(f"http://{self.address()}{path}", timeout=PATIENCE) as response:
            content: str = response.read().decode()
        return content

    def api(self, path: str, **parameters: str) -> Any:
        """What it answers to a request to its HTTP API."""
        answer = json.loads(self._get(f"/api/v1/{path}?{urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def series(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and values of all series that an expression gives at this time."""
        result = self.api("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def query(self, expression: str) -> list[float]:
        """The values of all series that an expression gives at this time."""
        return [value for _, value in self.series(expression)]

    def rules(self) -> list[dict[str, Any]]:
        """All rules, as it has read them."""
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]

    def wait_for(self, expression: str, value: float) -> None:
        """Wait until an expression gives one series, with this value."""
        wait_until(lambda: self.query(expression) == [value])


@contextmanager
def prometheus(folder: Path, targets: Targets) -> Iterator[Prometheus]:
    """A Prometheus server that is ready, and is gone afterwards."""
    server = Prometheus(folder, targets)
    try:
        wait_until(server.is_ready)
        yield server
    finally:
        server.stop()
