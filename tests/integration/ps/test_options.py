"""How a parameter server is told what to do, what it says of itself, and how it says what it was told wrong."""

import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from dbw.v1 import parameter_server_pb2 as pb
from dbw.v1.sync_mode_pb2 import SYNC_MODE_PUSH_INTERRUPT
from dbw_ps.app import main
from dbw_ps.training_log import read
from tests.reports import failure
from tests.servers import parameter_server, wait_until
from tests.workers import Rogue, working

SERVICE = "dbw.v1.ParameterServerService"


MODEL = "--model tests.models:tiny"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("", r"--model is needed: mlp, mnist-cnn, mnist-cnn-small, .*resnet18, package"),
        ("--model nowhere:build", r"--model is 'nowhere:build'|model is 'nowhere:build'"),
        ("--model tests.models:none", r"tests\.models has no none, but .*tiny"),
        (f"{MODEL} --optimizer best", r"optimizer is 'best'"),
        (f"{MODEL} --optimizer sgd:lr=fast", r"optimizer is 'sgd:lr=fast'"),
        (f"{MODEL} --schedule soon", r"schedule is 'soon'"),
        (
            f"{MODEL} --policy best",
            r"--policy is 'best'; it must be one of adasync, b-dbw, dbw, dbw-plus, static, sync",
        ),
        (f"{MODEL} --job a/b", r"--job is 'a/b'; it must be"),
        (f"{MODEL} --resume", r"--resume needs --checkpoint-dir"),
        (f"{MODEL} --fresh", r"--fresh needs --resume"),
        (f"{MODEL} --max-wait 0", r"--max-wait is 0\.0; it must be finite and more than 0"),
        *[
            (f"{MODEL} --clip-norm={norm}", r"--clip-norm is .*; it must be finite and more than 0")
            for norm in ("0", "-1", "nan", "inf")
        ],
        (f"{MODEL} --controller 127.0.0.1:1", r"--job is needed with .* as --job tests-models-tiny-alice"),
        (f"{MODEL} --job a --controller nowhere", r"the controller cannot be used: .*must be HOST:PORT"),
        (f"{MODEL} --sync-mode async", r"--sync-mode is 'async'; it must be one of push-wait, push-interrupt, pull"),
        (f"{MODEL} --listen 0.0.0.0:0", r"other machines can reach 0\.0\.0\.0:0"),
        (f"{MODEL} --min-workers 9 --max-workers 8", r"--min-workers is 9; it must be between 1 and 8"),
        (f"{MODEL} --worker-identities ,", r"--worker-identities is ','; it must be identities, separated by commas"),
        (f"{MODEL} --worker-identities alice", r"--worker-identities needs --token-file or --tls-client-ca"),
        (f"{MODEL} --staged-gradients 0", r"--staged-gradients is 0; it must be between 1"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_expected(
    flags: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", *flags.split()])
    assert ended.value.code == 2
    assert re.search(text, capsys.readouterr().err)


def test_what_an_earlier_training_left_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    flags = ["--model", "tests.models:tiny", "--iterations", "3", "--checkpoint-dir", str(folder)]
    with parameter_server(*flags, "--training-log", str(log)) as server, working(server.target, 1) as (worker,):
        worker.join()
        assert server.wait() == 0
    addresses = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    with pytest.raises(SystemExit):
        main([*addresses, *flags])
    assert "has checkpoints of an earlier training: go on from them with --resume" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*addresses, "--model", "tests.models:tiny", "--training-log", str(log)])
    assert "is of an earlier training: give another path" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*addresses, "--model", "tests.models:large", "--checkpoint-dir", str(folder), "--resume"])
    assert "does not fit: the state is of another model" in capsys.readouterr().err
    assert [entry["iteration"] for entry in read(log)] == [0, 1, 2]


def test_a_parameter_server_says_how_it_is() -> None:
    flags = ("--model", "tests.models:tiny", "--job", "shown", "--sync-mode", "push-interrupt", "--min-workers", "2")
    with parameter_server(*flags, "--policy", "sync") as server, server.stub() as stub:
        with grpc.insecure_channel(server.target) as channel:
            health: Any = HealthStub(channel)
            assert health.Check(HealthCheckRequest(service=SERVICE)).status == HealthCheckResponse.SERVING
        status = stub.GetStatus(pb.GetStatusRequest(include_workers=True))
        waiting = pb.TRAINING_PHASE_WAITING_FOR_WORKERS
        assert status == pb.GetStatusResponse(
            job="shown", phase=waiting, sync_mode=SYNC_MODE_PUSH_INTERRUPT, missing_workers=2
        )
        with working(server.target, 2) as workers:
            for worker in workers:
                worker.wait_for(5)
            status = stub.GetStatus(pb.GetStatusRequest(include_workers=True))
            assert (status.phase, status.k, status.live_workers) == (pb.TRAINING_PHASE_TRAINING, 2, 2)
            assert status.decision_source == pb.DECISION_SOURCE_EMBEDDED
            assert [(w.worker_id, w.live) for w in status.workers if w.used_gradients >= 4] == [
                (w.worker_id, True) for w in status.workers
            ]
        wait_until(lambda: stub.GetStatus(pb.GetStatusRequest()).live_workers == 0)
        metrics = dict(line.rsplit(" ", 1) for line in server.metrics().splitlines() if not line.startswith("#"))
        assert float(metrics["dbw_ps_received_bytes_total"]) >= 2 * 4 * 39 * 4
        assert float(metrics['dbw_ps_gradients_total{outcome="used"}']) >= 8
        assert float(metrics['dbw_ps_iterations_total{cause="k_reached"}']) >= 4
        for phase in ("wait", "aggregate", "update", "publish"):
            assert float(metrics[f'dbw_ps_iteration_phase_seconds_count{{phase="{phase}"}}']) >= 4
        assert {"dbw_ps_loss", "dbw_ps_iteration", "dbw_ps_k", "dbw_ps_fallback", "dbw_ps_live_workers"} <= set(metrics)


def test_an_observer_pulls_parameters_in_any_mode_and_workers_obey_theirs() -> None:
    flags = ("--model", "tests.models:tiny", "--policy", "sync")
    with parameter_server(*flags) as server, working(server.target, 1) as (worker,), server.stub() as stub:
        worker.wait_for(3)
        pulled = list(stub.PullParameters(pb.PullParametersRequest()))
        assert pulled[0].header.version >= 3
        assert len(b"".join(piece.data for piece in pulled)) == pulled[0].header.total_bytes == 4 * 39
        with Rogue(server.target) as rogue, pytest.raises(grpc.RpcError) as caught:
            next(stub.PullParameters(pb.PullParametersRequest(session=rogue.session)))
        assert failure(caught.value)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_SUPPORTED")


@pytest.mark.parametrize("goal", ["--target-loss 1.5", "--max-seconds 0.05"])
def test_training_ends_when_its_goal_is_reached(goal: str, tmp_path: Path) -> None:
    flags = ("--model", "tests.models:tiny", "--training-log", str(tmp_path / "log"), *goal.split())
    with parameter_server(*flags) as server, working(server.target, 1) as (worker,):
        worker.join()  # its loss is always 1
        assert server.wait() == 0
    entries = list(read(tmp_path / "log"))
    if "loss" in goal:
        assert len(entries) == 10
    else:
        assert entries[-1]["seconds"] >= 0.05 > ([0.0, *(entry["seconds"] for entry in entries)])[-2]
