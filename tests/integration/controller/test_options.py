"""How a controller is told what to do, and how it says what it was told wrong."""

import re
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import grpc
import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw_controller.core.policies import DbwPlus
from dbw_controller.core.spec import JobSpec
from dbw_controller.server.app import ControllerOptions, main
from dbw_runtime.configuration import variable
from tests.programs import ADDRESSES, Program, controller_program, dbw
from tests.reports import create, train
from tests.servers import PATIENCE, controller

Runs = dict[str, "subprocess.CompletedProcess[str]"]


def test_flags_come_before_variables_before_the_file_before_defaults(tmp_path: Path) -> None:
    config = tmp_path / "dbw.toml"
    config.write_text(
        '[controller]\nmax_jobs = 1\nmax_calls = 2\nmax_workers = 3\nreflection = false\n[ps]\nmodel = ""\n'
    )
    variables = {"DBW_CONTROLLER_MAX_JOBS": "10", "DBW_CONTROLLER_MAX_CALLS": "20", "DBW_CONTROLLER_STATE_DIR": ""}
    with controller("--config", str(config), "--max-jobs", "100", **variables) as server:
        options = server.wait_for_log("starting")["options"]
    expected = {"max_jobs": 100, "max_calls": 20, "max_workers": 3, "reflection": False, "save_iterations": 100}
    assert {name: options[name] for name in expected} == expected
    assert options["config"] == str(config)
    assert "state_dir" not in options


def test_dbw_plus_is_the_default() -> None:
    assert ControllerOptions().default_policy == "dbw-plus"
    assert isinstance(JobSpec().policy, DbwPlus)


@pytest.mark.parametrize(
    "flags",
    [
        "--max-calls 0",
        "--listen nowhere",
        "--listen 127.0.0.1:65536",
        "--max-message-bytes 2147483648",
        "--default-policy nonsense",
        "--drain-seconds nan",
        "--silent-days -1",
    ],
)
def test_a_value_out_of_range_is_refused_with_the_option_that_has_it(
    flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags.split())
    usage, *_, problem = capsys.readouterr().err.splitlines()
    assert usage == "usage: dbw controller [OPTIONS]"
    assert problem.startswith(f"dbw controller: error: {flags.split()[0]} is ")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What programs say that end by themselves."""
    state = tmp_path_factory.mktemp("options") / "state"
    with socket.create_server(("127.0.0.1", 0)) as taken, controller("--state-dir", str(state)):
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        programs = {
            "wrong value": controller_program("--max-jobs", "many"),
            "port taken": controller_program("--listen", address),
            "metrics port taken": controller_program("--metrics-listen", address),
            "state folder taken": controller_program("--state-dir", str(state)),
            "state folder is a file": controller_program("--state-dir", __file__),
            "dbw": dbw(),
            "dbw --help": dbw("--help"),
            "dbw nonsense": dbw("nonsense"),
            "dbw controller --help": dbw("controller", "--help", COLUMNS="200"),
            "python -m dbw_controller --help": Program("dbw_controller", ("--help",), {"COLUMNS": "200"}),
        }
        return {name: program.run() for name, program in programs.items()}


def test_a_program_with_a_wrong_value_ends_with_2(runs: Runs) -> None:
    done = runs["wrong value"]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("error: --max-jobs is 'many'; it must be an integer\n")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("port taken", r"cannot listen on 127\.0\.0\.1:\d+"),
        ("metrics port taken", r"cannot listen on 127\.0\.0\.1:\d+: .*Address already in use"),
        ("state folder taken", r"another controller uses \S+/state; give each one a folder of its own"),
        ("state folder is a file", r"\S+\.py cannot be used: "),
    ],
)
def test_what_another_program_has_taken_is_named(runs: Runs, case: str, text: str) -> None:
    done = runs[case]
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"^dbw controller: {text}", done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("case", ["dbw controller --help", "python -m dbw_controller --help"])
def test_help_explains_every_option_with_its_variable_and_its_default(runs: Runs, case: str) -> None:
    done = runs[case]
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for item in fields(ControllerOptions):
        default = "no default" if item.default is None else f"default: {item.default}"
        flag = f"--{item.name.replace('_', '-')} "
        explanation = f"{item.metadata['help']} [{variable('controller', item.name)}; {default}]"
        assert flag in text.replace(",", " ")
        assert explanation in text


@pytest.mark.parametrize("case", ["dbw", "dbw --help"])
def test_dbw_lists_its_commands(runs: Runs, case: str) -> None:
    done = runs[case]
    assert (done.returncode, done.stderr) == (0, "")
    assert {"controller", "jobs", "watch", "why"} <= set(re.findall(r"^  (\w+)", done.stdout, re.MULTILINE))


def test_dbw_knows_no_other_commands(runs: Runs) -> None:
    done = runs["dbw nonsense"]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dbw: there is no command 'nonsense'\n\nusage: dbw COMMAND")


def test_every_line_is_a_json_object_that_names_the_job_it_is_about(tmp_path: Path) -> None:
    with controller("--state-dir", str(tmp_path), "--log-level", "debug") as server, server.stub() as stub:
        session = create(stub, "resnet")
        train(stub, "resnet", session, range(3))
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            stub.GetDecision(pb.GetDecisionRequest(job="resnet", iteration=7))
        stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
        assert server.stop() == 0
        assert server.other_output == []
        for line in server.logs:
            assert {"time", "level", "logger", "message"} <= set(line)
        about = [line["message"] for line in server.logs if line.get("job") == "resnet"]
        assert about[0] == "created"
        assert about[-1] == "deleted"
        assert any(message.startswith("refused, NOT_FOUND: ") for message in about)
        assert [line["message"] for line in server.logs if line["message"] == "ready"] == ["ready"]


def test_a_text_log_is_for_people_and_no_caller_can_forge_a_line_of_it() -> None:
    forged = "x\n00:00:00 INFO    [resnet] deleted\x1b[2J"
    command = [sys.executable, "-m", "dbw_controller", *ADDRESSES, "--log-level", "debug"]
    lines: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not lines or not lines[-1].endswith("ready\n"):
            lines.append(process.stderr.readline())
        port = re.search(r"listening  program=controller  grpc_port=(\d+)", "".join(lines))
        assert port is not None
        with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
            stub = ControllerServiceStub(channel)
            create(stub, "resnet")
            with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                stub.GetJob(pb.GetJobRequest(job=forged))
        process.send_signal(signal.SIGINT)  # as Ctrl-C does
        lines += process.stderr
        assert process.wait(PATIENCE) == 0
    assert all(re.match(r"\d\d:\d\d:\d\d (DEBUG|INFO)  ", line) for line in lines), lines
    assert lines[-1].endswith("stopped\n")
    assert [line for line in lines if line.endswith(" INFO    [resnet] created  owner=  live_workers=4\n")]
    assert [line for line in lines if r"[x\n00:00:00 INFO    [resnet] deleted\x1b[2J] refused, NOT_FOUND: " in line]
