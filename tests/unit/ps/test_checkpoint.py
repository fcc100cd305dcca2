"""Whatever happens to a process or its disk, the newest complete checkpoint is found again and is what was saved."""

import errno
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from dbw_ps import checkpoint
from dbw_ps.checkpoint import RETRY_SECONDS, CheckpointFolder, CheckpointWriter
from dbw_ps.retention import MIN_LOSSES
from dbw_runtime import durable
from dbw_runtime.durable import FolderError
from tests.forks import PROCESSES
from tests.servers import PATIENCE


def state(iteration: int, parameters: int = 1000) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((parameters,), float(iteration)), "bias": torch.arange(3.0)},
        "optimiser": {"momentum": torch.full((parameters,), float(iteration)), "steps": [iteration, 0.5, None, "sgd"]},
        "bytes": bytes(range(256)),
    }


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def name(iteration: int) -> str:
    return f"checkpoint-{iteration:012}.pt"


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir() if file.name != "lock")


def newest_iteration(folder: CheckpointFolder, parameters: int = 1000) -> int:
    found = folder.newest()
    assert found is not None
    assert same(found[1], state(found[0], parameters))
    return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CheckpointFolder]:
    folder = CheckpointFolder(tmp_path)
    yield folder
    folder.close()


def test_an_empty_folder_has_no_checkpoint(folder: CheckpointFolder) -> None:
    assert folder.newest() is None


def test_the_newest_checkpoint_comes_back_as_it_was_saved(folder: CheckpointFolder, tmp_path: Path) -> None:
    for iteration in (9, 10):
        assert folder.write(iteration, state(iteration)) == tmp_path / name(iteration)
    assert newest_iteration(folder) == 10


def test_torch_alone_can_load_a_checkpoint(folder: CheckpointFolder) -> None:
    loaded = torch.load(folder.write(7, state(7)), weights_only=True)
    assert same(loaded, {"format_version": 1, **state(7)})


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for iteration in (1, 5, 20, 100):
        folder.write(iteration, state(iteration))
    assert names(tmp_path) == [name(20), name(100)]
    folder.write(100, state(100))
    assert names(tmp_path) == [name(20), name(100)]
    folder.close()


def test_the_best_one_and_one_of_each_hour_are_kept_over_restarts(tmp_path: Path) -> None:
    for iteration, (loss, hour) in enumerate([(0.5, 1), (0.1, 1), (0.7, 2), (0.6, 2), (0.8, 3), (0.9, 3)]):
        folder = CheckpointFolder(tmp_path, keep=1, keep_hours=3)
        path = folder.write(iteration, state(iteration) | {"losses": [loss] * MIN_LOSSES})
        os.utime(path, (3600 * hour, 3600 * hour))
        folder.close()
    assert names(tmp_path) == [name(1), name(3), name(4), name(5)]  # the best, two of other hours, the newest


def test_a_folder_has_one_user(folder: CheckpointFolder, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"another parameter server uses .*; give each one a folder"):
        CheckpointFolder(tmp_path)
    folder.write(1, state(1))
    other = CheckpointFolder(tmp_path / "another" / "one")
    assert other.newest() is None
    other.close()


def test_a_folder_that_was_closed_can_be_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        CheckpointFolder(tmp_path).close()


def test_a_folder_that_cannot_be_used_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=r"File exists.*; give a folder that this program may write to"):
        CheckpointFolder(tmp_path / "file")
    with pytest.raises(FolderError, match="give a folder that this program may write to"):
        CheckpointFolder(Path("/proc/checkpoints"))


def test_what_a_crash_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / (name(3) + ".tmp")).write_bytes(b"half")
    (tmp_path / "thesis.tmp").touch()
    CheckpointFolder(tmp_path).close()
    assert names(tmp_path) == ["thesis.tmp"]


@pytest.mark.parametrize("version", [2, 100])
def test_a_checkpoint_of_a_newer_version_is_set_aside(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    folder.write(1, state(1))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT_VERSION", version)
        folder.write(2, state(2))
    assert newest_iteration(folder) == 1
    assert names(tmp_path) == [name(1), name(2) + ".newer-1"]


@pytest.mark.parametrize("content", [{"iteration": 2}, [2], None])
def test_what_is_no_checkpoint_though_it_is_undamaged_is_set_aside(
    folder: CheckpointFolder, tmp_path: Path, content: object
) -> None:
    folder.write(1, state(1))
    with (tmp_path / name(2)).open("w+b") as file:
        checkpoint._write(file, content)  # type: ignore[arg-type]
    assert newest_iteration(folder) == 1
    assert names(tmp_path) == [name(1), name(2) + ".newer-1"]


def test_a_checkpoint_of_an_older_format_is_read(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(1, state(1))
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 2)
    assert newest_iteration(folder) == 1


def test_a_truncated_checkpoint_is_set_aside_and_the_one_before_is_used(
    folder: CheckpointFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write(1, state(1))
    path = folder.write(2, state(2))
    content = path.read_bytes()
    sizes = {0, 1, 63, 64, 65, 128, *range(0, len(content), 211), *(len(content) - i for i in (1, 2, 63, 64, 65, 86))}
    for number, size in enumerate(sorted(sizes), 1):
        path.write_bytes(content[:size])
        assert newest_iteration(folder) == 1
        assert (tmp_path / f"{name(2)}.damaged-{number}").stat().st_size == size
        assert f"its digest does not match its {size} bytes" in caplog.messages[-1]
    assert names(tmp_path)[0] == name(1)


def test_a_changed_byte_is_noticed_wherever_it_is(folder: CheckpointFolder) -> None:
    folder.write(1, state(1))
    path = folder.write(2, state(2))
    content = bytearray(path.read_bytes())
    tensor = content.index(np.full(1000, 2.0, np.float32).tobytes())
    for position in {tensor, tensor + 2000, *range(0, len(content), 211), *range(len(content) - 90, len(content))}:
        content[position] ^= 0x10
        path.write_bytes(content)
        content[position] ^= 0x10
        assert newest_iteration(folder) == 1
    path.write_bytes(content)
    assert newest_iteration(folder) == 2


def test_a_folder_of_damaged_checkpoints_is_one_without(folder: CheckpointFolder, tmp_path: Path) -> None:
    for iteration in (1, 2):
        folder.write(iteration, state(iteration)).write_bytes(b"damaged")
    assert folder.newest() is None
    assert names(tmp_path) == [name(1) + ".damaged-1", name(2) + ".damaged-1"]


def test_an_undamaged_checkpoint_that_cannot_be_loaded_is_left_for_somebody_to_decide(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise RuntimeError("you tried to allocate 10 bytes")

    for iteration in (1, 2):
        folder.write(iteration, state(iteration))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", load)
        with pytest.raises(FolderError, match=r"2\.pt is undamaged, but torch .* tried to allocate 10 bytes"):
            folder.newest()
    assert newest_iteration(folder) == 2
    assert names(tmp_path) == [name(1), name(2)]


def test_a_state_that_could_not_be_loaded_is_refused_while_there_is_still_a_good_one(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    folder.write(1, state(1))
    with pytest.raises(TypeError, match=r"numpy.* could not be loaded; use plain types and tensors"):
        folder.write(2, {"loss": np.float64(1.0)})
    assert names(tmp_path) == [name(1)]


def test_checkpoints_of_a_training_that_was_given_up_are_not_taken_for_newer_ones(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    for iteration in (100, 200, 300):
        folder.write(iteration, state(iteration))
    folder.write(150, state(150))
    assert newest_iteration(folder) == 150
    assert names(tmp_path) == [name(100), name(150), name(200) + ".abandoned-1", name(300) + ".abandoned-1"]


def run(function: Callable[..., None], *arguments: object) -> tuple[Any, Connection]:
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=function, args=(*arguments, sender))
    process.start()
    sender.close()
    return process, receiver


def receive_all(receiver: Connection) -> list[Any]:
    received = []
    try:
        while receiver.poll(PATIENCE):
            received.append(receiver.recv())
    except EOFError:
        receiver.close()
    return received


def write_for_ever(path: Path, parameters: int, sender: Connection) -> None:
    folder = CheckpointFolder(path, keep=2)
    found = folder.newest()
    iteration = 0 if found is None else found[0] + 1
    while True:
        folder.write(iteration, state(iteration, parameters))
        sender.send(iteration)
        iteration += 1


def test_a_process_that_is_killed_at_any_time_leaves_its_newest_checkpoint(tmp_path: Path) -> None:
    moments, parameters, interrupted = random.Random(1), 100_000, 0
    for _ in range(50):
        process, receiver = run(write_for_ever, tmp_path, parameters)
        assert receiver.poll(PATIENCE)
        process.join(moments.uniform(0, 0.02))  # the test does not depend on where this gets it
        process.kill()
        process.join()
        announced = receive_all(receiver)[-1]
        interrupted += any(file.endswith(".tmp") for file in names(tmp_path))
        folder = CheckpointFolder(tmp_path)
        assert newest_iteration(folder, parameters) in (announced, announced + 1)
        folder.close()
        assert all(checkpoint.NAME.fullmatch(file) for file in names(tmp_path))
    assert interrupted > 0


def write_until_line(path: Path, last: int, sender: Connection) -> None:
    folder, lines = CheckpointFolder(path, keep=1), 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in (checkpoint.__file__, durable.__file__):
            return None
        lines += event == "line"
        if lines == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    folder.write(2, state(2))
    sys.settrace(None)
    sender.send("complete")


def test_a_process_that_is_killed_at_any_line_leaves_its_newest_checkpoint(tmp_path: Path) -> None:
    found = []
    for line in range(1, 1000):
        folder = CheckpointFolder(tmp_path / str(line))
        folder.write(1, state(1))
        folder.close()
        process, receiver = run(write_until_line, tmp_path / str(line), line)
        complete = receive_all(receiver) == ["complete"]
        process.join()
        assert process.exitcode == (0 if complete else -signal.SIGKILL)
        folder = CheckpointFolder(tmp_path / str(line))
        found.append(newest_iteration(folder))
        folder.close()
        if complete:
            break
    assert complete
    assert found == sorted(found)
    assert {found[0], found[-1]} == {1, 2}


def write_with_limits(path: Path, limits: range, sender: Connection) -> None:
    folder = CheckpointFolder(path)
    for limit in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            folder.write(2, state(2))
        except OSError as error:
            sender.send((error.errno, names(path)))


def test_a_file_that_cannot_be_finished_is_an_oserror_wherever_it_stops(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    limits = range(0, folder.write(1, state(1)).stat().st_size, 97)
    folder.close()
    process, receiver = run(write_with_limits, tmp_path, limits)
    assert receive_all(receiver) == [(errno.EFBIG, [name(1)])] * len(limits)
    process.join()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"NOT TESTED: a disk that is really full, because none can be mounted here: {mount.stderr}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_after_a_full_disk_training_goes_on_and_saves_again(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, clock = CheckpointFolder(small_disk), Clock()
    writer = CheckpointWriter(folder, every_iterations=1, every_seconds=0, clock=clock)
    assert writer.write(1, state(1))
    filler = small_disk / "filler"
    filler.write_bytes(bytes(230 * 1024))
    assert not writer.write(2, state(2, 10_000))
    assert "the checkpoint of iteration 2 cannot be written: [Errno 28] No space left on device" in caplog.messages
    assert (writer.failures, writer.last_iteration) == (1, 1)
    assert names(small_disk) == [name(1), "filler"]
    filler.unlink()
    assert not writer.due(3, clock.now + RETRY_SECONDS / 2)
    assert writer.due(4, clock.now + RETRY_SECONDS)
    assert writer.write(4, state(4))
    assert newest_iteration(folder) == 4
    folder.close()


def test_a_disk_without_room_for_checkpoints_of_earlier_hours_still_takes_new_ones(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(small_disk, keep=1, keep_hours=24)
    for iteration in range(5):  # two of which fit
        os.utime(folder.write(iteration, state(iteration, 15_000)), (3600 * iteration, 3600 * iteration))
    assert newest_iteration(folder, 15_000) == 4
    assert "the oldest checkpoint of an earlier hour was deleted" in caplog.text
    folder.close()


def test_on_a_full_disk_no_more_checkpoints_of_earlier_hours_are_deleted_than_is_needed(small_disk: Path) -> None:
    folder = CheckpointFolder(small_disk, keep=1, keep_hours=24)
    for iteration in range(4):
        os.utime(folder.write(iteration, state(iteration)), (3600 * iteration, 3600 * iteration))
    with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(1024))
    folder.write(4, state(4))
    assert names(small_disk) == [*(name(iteration) for iteration in (1, 2, 3, 4)), "filler"]
    folder.close()


def test_a_folder_that_was_replaced_while_it_was_used_is_left_to_its_new_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "checkpoints"
    first = CheckpointFolder(path)
    first.write(50, state(50))
    shutil.rmtree(path)
    writer = CheckpointWriter(first, every_iterations=1, every_seconds=0)
    assert not writer.write(51, state(51))
    second = CheckpointFolder(path)
    second.write(100, state(100))
    assert not writer.write(60, state(60))
    assert names(path) == [name(100)]
    assert writer.failures == 2
    assert [record.exc_info for record in caplog.records if record.levelno == logging.ERROR] == [None, None]
    first.close()
    second.close()


def test_a_disk_that_fails_to_read_is_no_reason_to_set_a_checkpoint_aside(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system says so when its server is away for a moment."""

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    folder.write(1, state(1))
    with monkeypatch.context() as patches:
        patches.setattr(checkpoint, "_digest", fail)
        with pytest.raises(FolderError, match="Input/output error"):
            folder.newest()
    assert names(tmp_path) == [name(1)]
    assert newest_iteration(folder) == 1


def test_what_is_known_of_deleted_checkpoints_is_forgotten(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2, keep_hours=0)
    for iteration in range(50):
        folder.write(iteration, state(iteration))
    assert len(folder._losses) == 2
    folder.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_checkpoint_is_due_every_so_many_iterations(folder: CheckpointFolder, clock: Clock) -> None:
    writer = CheckpointWriter(folder, every_iterations=10, every_seconds=0, iteration=5, clock=clock)
    assert [iteration for iteration in range(5, 18) if writer.due(iteration, 1e9)] == [15, 16, 17]
    assert writer.write(16, state(16))
    assert [iteration for iteration in range(16, 28) if writer.due(iteration, 1e9)] == [26, 27]


def test_a_checkpoint_is_due_every_so_many_seconds_if_there_is_something_new(
    folder: CheckpointFolder, clock: Clock
) -> None:
    writer = CheckpointWriter(folder, every_iterations=0, every_seconds=30.0, clock=clock)
    assert [writer.due(1, now) for now in (100.0, 129.0, 130.0)] == [False, False, True]
    assert not writer.due(0, 130.0)
    clock.now = 140.0
    assert writer.write(2, state(2))
    assert [writer.due(3, now) for now in (169.0, 170.0)] == [False, True]


def test_no_checkpoint_is_due_where_both_are_off(folder: CheckpointFolder) -> None:
    writer = CheckpointWriter(folder, every_iterations=0, every_seconds=0)
    assert not writer.due(10**9, 1e12)


def test_a_writer_says_when_the_newest_checkpoint_was_complete_and_how_long_it_took(
    folder: CheckpointFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_time(_: int) -> None:
        clock.now = 102.5

    writer = CheckpointWriter(folder, 10, 0, clock=clock)
    monkeypatch.setattr(os, "fsync", take_time)
    assert (writer.last_iteration, writer.last_time, writer.last_seconds) == (None, None, None)
    assert writer.write(4, state(4))
    assert (writer.last_iteration, writer.last_time, writer.last_seconds) == (4, 102.5, 2.5)


def test_a_write_that_fails_is_logged_and_counted_and_tried_again_later(
    folder: CheckpointFolder, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [OSError(errno.EIO, "Input/output error"), ValueError("a bug")]

    def fail(_: int) -> None:
        if errors:
            raise errors.pop(0)

    writer = CheckpointWriter(folder, every_iterations=100, every_seconds=0, clock=clock)
    monkeypatch.setattr(os, "fsync", fail)
    for failures, reason in ((1, "[Errno 5] Input/output error"), (2, "a bug")):
        assert not writer.write(100 + failures, state(1))
        assert writer.failures == failures
        assert caplog.record_tuples[-1][1] == logging.ERROR
        assert caplog.messages[-1] == f"the checkpoint of iteration {100 + failures} cannot be written: {reason}"
        assert not writer.due(200, clock.now + RETRY_SECONDS - 1)
        assert writer.due(200, clock.now + RETRY_SECONDS)
        clock.now += RETRY_SECONDS
    assert writer.write(103, state(103))
    assert not writer.due(200, clock.now + RETRY_SECONDS)
    assert writer.due(203, clock.now)
    assert newest_iteration(folder) == 103
