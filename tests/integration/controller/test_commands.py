"""What operators see: `dbw jobs`, `dbw watch` and `dbw why` against a real controller."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dbw.v1 import controller_pb2 as pb
from dbw.v1.controller_pb2_grpc import ControllerServiceStub
from dbw.v1.job_pb2 import JobSpec, Policy, StaticPolicy
from tests import programs
from tests.reports import create, train
from tests.servers import PATIENCE, Controller

DBW = [sys.executable, "-m", "dbw_runtime.cli"]


def dbw(server: Controller, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return programs.dbw(*arguments, "--controller", server.target).run()


def test_no_jobs_are_said_to_be_none(server: Controller) -> None:
    assert dbw(server, "jobs").stdout == "There are no jobs.\n"


def test_jobs_lists_all_jobs(server: Controller, stub: ControllerServiceStub) -> None:
    train(stub, "resnet", create(stub), range(10))
    create(stub, "a-job-with-a-rather-long-name", spec=JobSpec(policy=Policy(static=StaticPolicy(k=2))))
    done = dbw(server, "jobs")
    assert done.returncode == 0, done.stderr
    header, first, second = done.stdout.splitlines()
    assert header.split()[:5] == ["job", "policy", "iteration", "k", "workers"]
    assert first.split()[:5] == ["a-job-with-a-rather-long-name", "static", "0", "2", "4"]
    assert second.split()[:3] == ["resnet", "dbw", "10"]
    assert "UTC" in second


def test_jobs_goes_through_all_pages(server: Controller, stub: ControllerServiceStub) -> None:
    for number in range(120):
        create(stub, f"job-{number}")
    assert len(dbw(server, "jobs").stdout.splitlines()) == 121


def test_why_shows_gain_and_duration_of_every_k_and_the_rule(server: Controller, stub: ControllerServiceStub) -> None:
    decisions = train(stub, "resnet", create(stub), range(10))
    done = dbw(server, "why", "resnet", "9")
    assert done.returncode == 0, done.stderr
    k = decisions[8].k
    assert f"resnet, iteration 9: wait for {k} of 4 workers" in done.stdout
    assert "Rule: " in done.stdout
    table = done.stdout[done.stdout.index("gain per second   ") :].splitlines()
    assert [line.split()[0] for line in table[1:]] == ["1", "2", "3", "4"]
    assert [line.split()[0] for line in table if "◀" in line] == [str(k)]


def test_why_without_an_iteration_explains_the_newest_decision(server: Controller, stub: ControllerServiceStub) -> None:
    train(stub, "resnet", create(stub), range(10))
    assert "resnet, iteration 10: wait for" in dbw(server, "why", "resnet").stdout


def test_delete_deletes(server: Controller, stub: ControllerServiceStub) -> None:
    create(stub)
    assert dbw(server, "delete", "resnet").stdout == "The job resnet was deleted.\n"
    assert not stub.ListJobs(pb.ListJobsRequest()).jobs


def test_refused_calls_are_counted_and_logged(server: Controller) -> None:
    dbw(server, "watch", "nobody")
    server.wait_for_log("refused, NOT_FOUND", job="nobody", rpc="WatchJob")
    assert 'dbw_refused_calls_total{reason="job_not_found"}' in server.metrics()


def test_watch_in_a_pipe_writes_a_line_an_iteration_until_the_job_is_deleted(
    server: Controller, stub: ControllerServiceStub
) -> None:
    session = create(stub)
    command = [*DBW, "watch", "resnet", "--controller", server.target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("iteration\tk\tworkers\tloss")
        server.wait_for_log("created", job="resnet")
        seen = []
        for iteration in range(3):
            train(stub, "resnet", session, range(iteration, iteration + 1))
            seen.append(watch.stdout.readline().split("\t")[0])
        assert seen == ["0", "1", "2"]
        stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
        assert watch.stdout.read() == "The job resnet was deleted.\n"
        assert watch.wait(PATIENCE) == 0


def test_watch_on_a_terminal_shows_k_loss_reason_and_estimates(server: Controller, stub: ControllerServiceStub) -> None:
    session = create(stub)
    terminal, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    command = [*DBW, "watch", "resnet", "--controller", server.target]
    with subprocess.Popen(command, stdout=inside, env=environment) as watch:
        os.close(inside)
        screen = ""

        def read_until(text: str) -> str:
            nonlocal screen
            while text not in screen:
                screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode())
            return screen

        read_until("resnet: k = 4 of 4 for iteration 0")
        train(stub, "resnet", session, range(5))
        read_until("for iteration 5")
        assert "gain per second" in read_until("‖∇F‖² 1.")
        stub.DeleteJob(pb.DeleteJobRequest(job="resnet"))
        read_until("The job resnet was deleted.")
        assert watch.wait(PATIENCE) == 0
    os.close(terminal)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("why", "nobody", "1"), 1, "NOT_FOUND"),
        (("watch", "nobody"), 1, "NOT_FOUND"),
        (("why", "resnet", "99"), 1, "NOT_FOUND"),
        (("why", "resnet", "-1"), 2, "iteration"),
        (("why", "resnet", "many"), 2, "invalid int value: 'many'"),
        (("why",), 2, "required: JOB"),
        (("jobs", "--tls-cert", "only.pem"), 2, ""),
        (("delete", "nobody"), 1, "NOT_FOUND"),
        (("jobs", "--tls-ca", "nowhere.pem"), 1, "nowhere.pem"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    server: Controller, stub: ControllerServiceStub, arguments: tuple[str, ...], code: int, text: str
) -> None:
    create(stub)
    done = dbw(server, *arguments)
    assert (done.returncode, text in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


def test_a_controller_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = programs.dbw("jobs", "--controller", f"unix:{tmp_path}/none").run()
    assert done.returncode == 1
    assert "UNAVAILABLE" in done.stderr
