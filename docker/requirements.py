"""Print what the distribution and its extras of the given names depend on, one requirement a line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
needed = project["dependencies"] + [item for name in sys.argv[1:] for item in project["optional-dependencies"][name]]
print(*dict.fromkeys(needed), sep="\n")
