"""The private folder of workers: removed at the end, or by the next server if its processes were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving.workers.folder import ALIVE, PREFIX, hold_folder, private_folder, remove_left_folders

KILLED = """
import os, signal
from serving.workers.folder import private_folder
with private_folder() as folder:
    (folder / "counter_worker0.db").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_server_is_removed_by_the_next(place: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], env={"TMPDIR": str(place)}, cwd=Path.cwd(), check=False)
    (left,) = place.iterdir()
    with private_folder() as own:
        assert list(place.iterdir()) == [own]
    assert not left.exists()
    assert not list(place.iterdir())


def test_folders_in_use_and_those_of_others_stay(place: Path) -> None:
    (place / f"{PREFIX}older").mkdir()  # without a lock, it may be in use
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / ALIVE).touch()
    (place / f"{PREFIX}link").symlink_to(place / "elsewhere")
    with private_folder() as first, private_folder() as second:
        remove_left_folders()
        assert first.exists()
        assert second.exists()
    held = place / f"{PREFIX}held"
    held.mkdir()
    (held / ALIVE).touch()
    hold_folder(held)  # by a worker that still runs
    remove_left_folders()
    assert {path.name for path in place.iterdir()} == {held.name, f"{PREFIX}older", "elsewhere", f"{PREFIX}link"}
    assert (place / "elsewhere" / ALIVE).exists()


def test_a_folder_stays_in_use_after_its_old_files_were_tidied_up(place: Path) -> None:
    with private_folder() as folder:
        (folder / ALIVE).unlink()
        hold_folder(folder)  # by a worker that is started now
        remove_left_folders()
        assert folder.exists()
