"""The version that this tree declares."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# As Helm and tags of images write it; the Python distribution calls 0.2.0-dev 0.2.0.dev0, which means the same.
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
