import errno
import os
import shutil
from pathlib import Path

import pytest

from dbw_controller.core.errors import StateDamagedError
from dbw_controller.server.store import SnapshotStore
from dbw_runtime.durable import FolderError


def test_a_snapshot_is_read_as_it_was_written_and_replaces_the_one_before(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for data in (b"old", b"new"):
        store.write("resnet", data)
        assert store.read("resnet") == data
    assert list(store.names()) == ["resnet"]
    store.delete("resnet")
    store.delete("resnet")  # which is no mistake
    assert list(store.names()) == []
    store.close()


@pytest.mark.parametrize("position", [0, 8, 40, -1])
def test_a_byte_that_has_changed_is_noticed(tmp_path: Path, position: int) -> None:
    store = SnapshotStore(tmp_path)
    store.write("resnet", b"a state")
    path = tmp_path / "resnet.job"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateDamagedError):
        store.read("resnet")
    store.close()


def test_snapshots_that_are_set_aside_keep_each_other_s_names(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for data in (b"first", b"second"):
        store.write("resnet", data)
        store.set_aside("resnet", StateDamagedError("of a test"))
    assert list(store.names()) == []
    assert sorted(path.name for path in tmp_path.glob("resnet*")) == ["resnet.job.damaged-1", "resnet.job.damaged-2"]
    store.close()


def test_a_folder_belongs_to_one_store_at_a_time(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    with pytest.raises(FolderError):
        SnapshotStore(tmp_path)
    store.close()
    SnapshotStore(tmp_path).close()


def test_a_folder_that_was_made_again_belongs_to_its_new_controller_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = SnapshotStore(folder)
    shutil.rmtree(folder)
    with pytest.raises(FolderError, match="was removed or replaced"):
        first.write("resnet", b"of the first")
    second = SnapshotStore(folder)
    second.write("resnet", b"of the second")
    with pytest.raises(FolderError):
        first.write("resnet", b"of the first")
    with pytest.raises(FolderError):
        first.delete("resnet")
    assert second.read("resnet") == b"of the second"
    first.close()
    second.close()


def test_what_a_write_that_failed_has_left_goes_with_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = SnapshotStore(tmp_path)
    monkeypatch.setattr(Path, "replace", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OSError, match="Input/output error"):
        store.write("resnet", b"state")
    monkeypatch.undo()
    store.delete("resnet")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    store.close()


def test_leftovers_that_cannot_be_removed_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "resnet.job.tmp").mkdir()
    store = SnapshotStore(tmp_path)
    store.write("vgg", b"state")
    assert store.names() == ["vgg"]
    store.close()
