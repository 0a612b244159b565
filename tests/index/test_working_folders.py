"""Folders that are worked in: gone at the end, and after a kill as soon as anybody works again."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from index.files import working_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from index.files import working_folder
with working_folder({beside}) as folder:
    (folder / "half").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(beside: str, temporary: Path) -> None:
    code = KILLED.format(beside=beside)
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("is_beside", [True, False], ids=["beside", "temporary"])
def test_what_a_killed_process_left_is_deleted_by_the_next_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_beside: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    beside = tmp_path / "bundle" if is_beside else None
    killed(f"Path({str(beside)!r})" if beside else "None", tmp_path)
    (left,) = tmp_path.iterdir()
    others = [".bundle.kept", ".other.x.partial", "retrieval-of-mine", "bundle"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".bundle.0.partial").write_text("a file")
    with working_folder(beside) as outer, working_folder(beside) as inner:  # the first one lives
        assert not left.exists()
        assert outer.is_dir()
        assert inner.is_dir()
        assert outer != inner
    assert {path.name for path in tmp_path.iterdir()} == {*others, ".bundle.0.partial"}


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), working_folder(tmp_path / "new" / "bundle") as folder:
        folder.read_bytes()
    assert [*(tmp_path / "new").iterdir()] == []
