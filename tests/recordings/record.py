"""Records what the controller answers, and keeps states that it wrote: `python -m tests.recordings.record PART …`.

The parts are `conversations`, `snapshots`, `exports` and `checkpoint`. Nothing that is there is replaced: recordings
tell what the code did when they were made, and a new one is only right if another behaviour is wanted. To record a
conversation again, delete its file first. Snapshots, exports and the checkpoint are of the first format, and stay:
later versions must read them.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dbw.v1 import controller_pb2 as pb
from dbw.v1.job_pb2 import JobSpec
from tests.recordings import conversations as talk
from tests.recordings.checkpoint import AFTER, CHECKPOINT, ITERATIONS, resumed, train
from tests.recordings.player import DATA, FLAGS, SUFFIX, Player, write
from tests.recordings.simulation import two_slow
from tests.recordings.training import Recorder, Training
from tests.servers import controller

# One job for each policy and mode, some with more to remember than others.
SNAPSHOTS = {
    "dbw-push-wait": talk.spec(talk.DBW),
    "dbw-push-interrupt": talk.spec(talk.DBW, talk.INTERRUPT, talk.SHORT),
    "dbw-pull": talk.spec(talk.DBW, talk.PULL, talk.LONG, k_min=2, k_max=4),
    "blind-dbw-push-wait": talk.spec(talk.BLIND),
    "blind-dbw-push-interrupt": talk.spec(talk.BLIND, talk.INTERRUPT),
    "blind-dbw-pull": talk.spec(talk.BLIND, talk.PULL),
    "dbw-plus-push-wait": talk.spec(talk.PLUS),
    "dbw-plus-push-interrupt": talk.spec(talk.PLUS, talk.INTERRUPT),
    "dbw-plus-pull": talk.spec(talk.PLUS, talk.PULL),
    "dbw-plus-without-deadlines-push-wait": talk.spec(talk.PLUS_WITHOUT_DEADLINES),
    "dbw-plus-without-deadlines-push-interrupt": talk.spec(talk.PLUS_WITHOUT_DEADLINES, talk.INTERRUPT),
    "static-push-wait": talk.spec(talk.STATIC),
    "static-push-interrupt": talk.spec(talk.STATIC, talk.INTERRUPT),
    "sync-pull": talk.spec(talk.SYNC, talk.PULL),
    "adasync-push-wait": talk.spec(talk.ADASYNC),
    "adasync-pull": talk.spec(talk.ADASYNC, talk.PULL),
}
EXPORTS = ("dbw-push-wait", "dbw-push-interrupt", "dbw-plus-push-wait", "dbw-plus-push-interrupt")
WORKERS = 6


def record_conversations() -> None:
    """Record the conversations that are not there yet."""
    folder = _folder("conversations")
    with tempfile.TemporaryDirectory() as state, ExitStack() as stack:
        server = stack.enter_context(controller("--state-dir", state, *FLAGS))
        for name, play in talk.CONVERSATIONS.items():
            if not (folder / f"{name}{SUFFIX}").exists():
                with Player(server) as player:
                    _record(folder, name, player, play, restarts=False)
    for name, play in talk.WITH_RESTARTS.items():
        if not (folder / f"{name}{SUFFIX}").exists():
            with tempfile.TemporaryDirectory() as state, Player(folder=Path(state)) as player:
                _record(folder, name, player, play, restarts=True)


def _record(folder: Path, name: str, player: Player, play: talk.Conversation, restarts: bool) -> None:
    wire = Recorder(player)
    play(wire, name)
    write(folder, name, {"about": play.__doc__, "restarts": restarts}, wire.steps)


def record_snapshots() -> None:
    """Keep the folder of a controller that was stopped in the middle of trainings, and record how they went on."""
    folder = _folder("snapshots")
    _require_empty(folder)
    with tempfile.TemporaryDirectory() as temporary:
        state = Path(temporary)
        with Player(folder=state) as player:
            begun = [_begun(Recorder(player), name, spec) for name, spec in SNAPSHOTS.items()]
            Recorder(player).do("restart")
            for path in state.glob("*.job"):  # just as they were written when the controller stopped
                shutil.copyfile(path, folder / path.name)
        for job, waiting in begun:
            with tempfile.TemporaryDirectory() as copy:
                shutil.copyfile(folder / f"{job.job}.job", Path(copy) / f"{job.job}.job")
                with Player(folder=Path(copy)) as player:
                    job.wire = Recorder(player)
                    _go_on(job, waiting)
            about = "How a training goes on with a controller that was started with this snapshot."
            write(folder, job.job, {"about": about}, job.wire.steps)


def _begun(wire: Recorder, name: str, spec: JobSpec) -> tuple[Training, pb.EndIterationRequest]:
    """A job in the middle of its training, and the report of an iteration of which it knows only arrivals."""
    job = Training(wire, name, spec, WORKERS, two_slow, seed=len(name), streaming=False)
    job.create()
    job.train(9)
    job.create(iteration=6)
    job.train(6)
    job.cluster.leave(2)
    job.train(4)
    job.cluster.join(2, 7)
    job.train(4)
    job.skip()
    request = job.observe()
    arrivals = pb.ReportRequest(arrivals=request.arrivals)
    job.address(arrivals)
    wire.call("Report", arrivals)
    return job, request


def _go_on(job: Training, waiting: pb.EndIterationRequest) -> None:
    job.wire.call("GetJob", pb.GetJobRequest(job=job.job))
    for iteration in (None, job.iteration - 4, 8):
        job.wire.call("GetDecision", job.get_decision(iteration))
    job.wire.refused("Report", pb.ReportRequest(job=job.job, session="of-before"))
    job.create(iteration=None)
    waiting.summary.previous_k = 3
    job.tell(waiting)
    job.train(10)
    job.cluster.leave(1)
    job.train(3)
    job.end()


def record_exports() -> None:
    """Keep states that were exported, and record how jobs go on that import them."""
    folder = _folder("exports")
    _require_empty(folder)
    with tempfile.TemporaryDirectory() as state, controller("--state-dir", state, *FLAGS) as server:
        for name in EXPORTS:
            with Player(server) as player:
                job, _ = _begun(Recorder(player), name, SNAPSHOTS[name])
                job.wire.call("ExportJobState", pb.ExportJobStateRequest(job=job.job), keep=name)
                job.wire.call("DeleteJob", pb.DeleteJobRequest(job=job.job))
                (folder / f"{name}.state").write_bytes(player.state(name))
            states = {name: (folder / f"{name}.state").read_bytes()}
            with Player(server, states=states) as player:
                wire = Recorder(player)
                for into in (name, *(other for other in EXPORTS if other != name)):
                    _import(wire, name, f"{name}-into-{into}", SNAPSHOTS[into])
            write(folder, name, {"about": "How jobs go on that import this state."}, wire.steps)


def _import(wire: Recorder, state: str, name: str, spec: JobSpec) -> None:
    job = Training(wire, name, spec, WORKERS, two_slow, seed=5, streaming=False)
    job.create(iteration=23)
    talk.import_state(job, state)
    assert job.wire.call("GetJob", pb.GetJobRequest(job=name)).job.learnt_iterations > 0
    job.train(8)
    job.end()


def record_checkpoint() -> None:
    """Keep a checkpoint of a parameter server that decides itself, and record how its training goes on."""
    folder = _folder("checkpoint")
    _require_empty(folder)
    with tempfile.TemporaryDirectory() as temporary:
        train(Path(temporary), ITERATIONS)
        shutil.copyfile(Path(temporary) / CHECKPOINT, folder / CHECKPOINT)
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copyfile(folder / CHECKPOINT, Path(temporary) / CHECKPOINT)
        after = resumed(Path(temporary))
    (folder / AFTER).write_text(json.dumps(after, indent=1) + "\n")


def _folder(name: str) -> Path:
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_empty(folder: Path) -> None:
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} has files of an earlier version, which are to stay")


PARTS: dict[str, Callable[[], None]] = {
    "conversations": record_conversations,
    "snapshots": record_snapshots,
    "exports": record_exports,
    "checkpoint": record_checkpoint,
}


def main() -> None:
    """Record what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    for part in parser.parse_args().parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
