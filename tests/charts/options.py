"""The options of programs as the chart's schema has them, so that Helm refuses a wrong one at once.

`python -m tests.charts.options` writes them into helm/dbw/values.schema.json, after options have changed.
"""

import json
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dbw_controller.server.app import ControllerOptions
from dbw_ps.options import PsOptions
from dbw_runtime.configuration import Options
from dbw_worker.options import WorkerOptions

CHART = Path(__file__).resolve().parents[2] / "helm/dbw"
SCHEMA = CHART / "values.schema.json"
PROGRAMS: dict[str, type[Options]] = {"controller": ControllerOptions, "ps": PsOptions, "worker": WorkerOptions}
TYPES = {bool: "boolean", int: "integer", str: "string", Path: "string"}
NUMBER = r"^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"

# What the chart says itself, to make Services, volumes and certificates fit: values of its own stand for these.
SERVERS = {"config", "listen", "metrics_listen", "tls_cert", "tls_key", "tls_client_ca", "token_file", "insecure"}
OWN: dict[str, Collection[str]] = {
    "controller": SERVERS | {"state_dir"},
    "ps": SERVERS | {"job", "model", "controller", "checkpoint_dir", "resume"},
    "worker": {
        "config",
        "server",
        "id",
        "model",
        "metrics_listen",
        "tls",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "token_file",
    },
}


def schema_of(program: str) -> dict[str, Any]:
    """What `PROGRAM.options` may hold."""
    kind = PROGRAMS[program]
    hints = get_type_hints(kind)
    names = sorted(item.name for item in fields(kind) if item.name not in OWN[program])
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _schema_of_type(hints[name]) for name in names},
    }


def _schema_of_type(hint: Any) -> dict[str, Any]:
    """An option of this type; null leaves it to the program."""
    if isinstance(hint, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is Literal:
        return {"enum": [*get_args(hint), None]}
    if hint is float:
        return {"type": ["number", "string", "null"], "pattern": NUMBER}  # of `--set x=0.5` Helm makes text
    return {"type": [TYPES[hint], "null"]}


def write() -> None:
    """Bring the schema up to date."""
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"] |= {f"{program}Options": schema_of(program) for program in PROGRAMS}
    SCHEMA.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
