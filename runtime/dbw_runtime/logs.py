"""Logs: for people on a terminal, or as one JSON object a line.

What a line is about goes into `extra`, such as `log.info("created", extra={"job": "resnet"})`.
"""

import atexit
import json
import logging
import os
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from dbw_runtime.configuration import Options, option

log = logging.getLogger(__name__)
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
ORDINARY = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in ORDINARY}


def _on_one_line(text: str) -> str:
    """Escape what a caller sent, so that it neither begins another line nor controls the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class TextFormatter(logging.Formatter):
    """`12:00:07 WARNING [resnet] what happened  iteration=7`."""

    def format(self, record: logging.LogRecord) -> str:
        """Make one line, and a traceback where there is one."""
        extra = _extra(record)
        job = f"[{extra.pop('job')}] " if "job" in extra else ""
        rest = "".join(f"  {name}={value}" for name, value in extra.items())
        text = _on_one_line(f"{job}{record.getMessage()}{rest}")
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {text}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One object a line, with the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Make one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, default=str, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(line, default=str)  # which escapes all but ASCII


@dataclass(frozen=True)
class LogOptions(Options):
    """Options of a program that logs."""

    log_format: LogFormat = option("text", "how to log to standard error")
    log_level: LogLevel = option("info", "how much to log")


def begin_log(program: str, options: LogOptions) -> None:
    """Write all logs of this process to standard error, beginning with the program's options."""
    as_json = options.log_format == "json"
    handler = logging.StreamHandler(_take_over_stderr() if as_json else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(handlers=[handler], level=options.log_level.upper(), force=True)
    logging.captureWarnings(True)
    log.info("starting", extra={"program": program, "options": options.described()})


def _take_over_stderr() -> TextIO:
    """Standard error; what C libraries write to it, as gRPC does when a handshake fails, is logged like all else."""
    stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    source, sink = os.pipe()
    os.set_blocking(sink, False)  # a library may hold the interpreter's lock, without which nobody would read
    os.dup2(sink, 2)
    os.close(sink)

    def log_lines() -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                log.warning("%s", line.rstrip())

    def give_back() -> None:
        os.dup2(stderr.fileno(), 2)  # closes the pipe
        reader.join(1.0)

    reader = threading.Thread(target=log_lines, name="stderr", daemon=True)
    reader.start()
    atexit.register(give_back)
    sys.stderr = stderr
    return stderr
