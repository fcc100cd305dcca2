"""Programs for Node.js, which tests run as clients in another language."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent / "integration/node"
needs_node = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not installed: no client in Node.js"
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
MISSING = [name for name in ("node", "npm") if not shutil.which(name)] + ([] if BROWSER else [" or ".join(BROWSERS)])
needs_browser = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)}: nothing is seen in a browser"
)


def install(folder: Path) -> None:
    """Install what a folder's programs need, unless that was done before."""
    installed, lock = folder / "node_modules/.package-lock.json", folder / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)


def run_node(program: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run a program with a request on its standard input; returns what it writes. Installs what it needs."""
    install(FOLDER)
    done = subprocess.run(["node", program], cwd=FOLDER, input=json.dumps(request), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result
