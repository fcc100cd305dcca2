import json
import logging
import re
import subprocess
import sys

import pytest

from dbw_runtime.logs import JsonFormatter, LogOptions, TextFormatter


def record(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    made = logging.LogRecord("dbw.test", logging.WARNING, "file.py", 7, message, arguments, info)
    vars(made).update(extra)
    return made


def test_a_line_for_people_has_the_job_first_and_the_rest_after_the_message() -> None:
    line = TextFormatter().format(record("k is %d", 3, job="resnet", iteration=7))
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING \[resnet\] k is 3  iteration=7", line)


@pytest.mark.parametrize("sent", ["a\nb", "a\rb", "\x1b[2J", "\x00", "\u2028", "\x9b"])
def test_what_a_caller_sent_neither_begins_a_line_nor_controls_the_terminal(sent: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        for line in (formatter.format(record("from %s", sent)), formatter.format(record("from", job=sent))):
            assert line.isprintable()
    assert json.loads(JsonFormatter().format(record("für %s", sent)))["message"] == f"für {sent}"


def test_a_line_of_json_has_everything_by_name() -> None:
    line = json.loads(JsonFormatter().format(record("k is %d\n", 3, job="resnet", path=ValueError("odd"))))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line == {"level": "warning", "logger": "dbw.test", "message": "k is 3\n", "job": "resnet", "path": "odd"}


def test_an_error_comes_with_its_traceback() -> None:
    failed = record("it failed", error=ValueError("out of clay"))
    assert TextFormatter().format(failed).splitlines()[-1] == "ValueError: out of clay"
    assert json.loads(JsonFormatter().format(failed))["traceback"].endswith("ValueError: out of clay")


SCRIPT = """
import os, sys, warnings
from dbw_runtime.logs import LogOptions, begin_log
begin_log("kettle", LogOptions(log_format=sys.argv[1]))
os.write(2, b"from a library in C\\n")
warnings.warn("from a library in Python")
"""


def run(log_format: str) -> list[str]:
    command = [sys.executable, "-c", SCRIPT, log_format]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True).stderr.splitlines()


def test_in_a_log_of_json_what_libraries_write_to_standard_error_is_json_as_well() -> None:
    messages = [json.loads(line)["message"] for line in run("json")]
    assert "from a library in C" in messages
    assert any("from a library in Python" in message for message in messages)


def test_a_log_begins_with_the_options() -> None:
    assert json.loads(run("json")[0])["options"] == {"log_format": "json", "log_level": "info"}
    assert re.search(r"INFO +starting  program=kettle  options=\{.*'log_format': 'text'", run("text")[0])
    assert LogOptions().described() == {"log_format": "text", "log_level": "info"}
