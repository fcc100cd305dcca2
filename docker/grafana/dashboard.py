"""Write the Grafana dashboard of DBW to dashboards/dbw.json, or check that it is up to date.

python docker/grafana/dashboard.py            write it
python docker/grafana/dashboard.py --check    exit with 1 if what is there differs from what would be written
"""

import argparse
import json
import sys
from pathlib import Path

from cluster_panels import PARAMETER_SERVER, STRAGGLERS
from controller_panels import CONTROLLER_PROCESS, DECISIONS, ESTIMATES, OVERVIEW, TRAINING
from grafana import choice, dashboard

FILE = Path(__file__).resolve().parent / "dashboards/dbw.json"

DASHBOARD = dashboard(
    "dbw",
    "DBW: dynamic backup workers",
    "How many gradients trainings wait for, why, and how the controller, parameter servers and workers are.",
    [
        choice("controller", "Controller", "label_values(dbw_jobs, instance)"),
        # Of parameter servers too, because there are some without a controller.
        choice("job", "Training job", 'label_values({__name__=~"dbw_selected_k|dbw_ps_build_info"}, dbw_job)'),
        choice("worker", "Worker", "label_values(dbw_worker_build_info, worker_id)"),
    ],
    [OVERVIEW, TRAINING, STRAGGLERS, DECISIONS, ESTIMATES, PARAMETER_SERVER, CONTROLLER_PROCESS],
)


def main() -> None:
    """Write or check the dashboard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the dashboard is stale")
    parser.add_argument("--file", type=Path, default=FILE, help="where it is (default: dashboards/dbw.json)")
    arguments = parser.parse_args()

    file: Path = arguments.file
    fresh = json.dumps(DASHBOARD, ensure_ascii=False, indent=2) + "\n"
    if file.exists() and file.read_text(encoding="utf-8") == fresh:
        return
    if arguments.check:
        sys.exit(f"stale dashboard: {file.name}; run `make dashboard` and commit what it writes")
    file.write_text(fresh, encoding="utf-8")
    print(f"wrote {file.name}")


if __name__ == "__main__":
    main()
