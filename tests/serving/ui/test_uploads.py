from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from serving.errors import NoSuchThing
from serving.http.limits import Busy
from serving.ui.uploads import LEAST, PREFIX, Uploads

MB = 2**20


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uploads(clock: Clock) -> Iterator[Uploads]:
    made = Uploads(client_bytes=2 * MB, total_bytes=3 * MB, kept_s=60, clock=clock)
    yield made
    made.close()


def files(uploads: Uploads) -> set[str]:
    return {path.name for path in uploads.folder.iterdir()}


def test_only_this_user_may_enter_the_folder(uploads: Uploads) -> None:
    token = uploads.store("a", b"photo")
    assert stat.S_IMODE(uploads.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((uploads.folder / token).stat().st_mode) == 0o600
    uploads.close()
    assert not uploads.folder.exists()


def test_a_photo_is_for_the_client_and_session_that_used_it_first(uploads: Uploads) -> None:
    token = uploads.store("a", b"photo")
    for client in ("b", "", "A"):
        with pytest.raises(NoSuchThing, match="no longer stored"):
            uploads.claim(token, client, "one")
        with pytest.raises(NoSuchThing, match="no longer stored"):
            uploads.read(token, client)
    uploads.claim(token, "a", "one")
    with pytest.raises(NoSuchThing, match="no longer stored"):
        uploads.claim(token, "a", "two")
    uploads.claim(token, "a", "one")
    assert uploads.read(token, "a") == b"photo"


def test_an_example_is_for_everybody_and_stays(uploads: Uploads, clock: Clock) -> None:
    token = uploads.store(None, b"example")
    clock.now = 1e6
    uploads.sweep()
    for client in ("a", "b"):
        uploads.claim(token, client, "one")
        assert uploads.read(token, client) == b"example"


def test_a_name_is_looked_up_and_never_a_path(uploads: Uploads, temporary: Path) -> None:
    (temporary / "secret").write_bytes(b"secret")
    (uploads.folder / "planted").write_bytes(b"planted")
    token = uploads.store("a", b"photo")
    for name in ("../secret", str(temporary / "secret"), f"{token}/../../secret", f"./{token}", "planted", "", "."):
        with pytest.raises(NoSuchThing, match="no longer stored"):
            uploads.read(name, "a")
        with pytest.raises(NoSuchThing, match="no longer stored"):
            uploads.claim(name, "a", "one")


@pytest.mark.timeout(20)
def test_a_file_that_was_replaced_by_a_link_or_a_pipe_is_not_read(uploads: Uploads, temporary: Path) -> None:
    (temporary / "secret").write_bytes(b"secret")
    token = uploads.store("a", b"photo")
    path = uploads.folder / token
    path.unlink()
    path.symlink_to(temporary / "secret")
    with pytest.raises(NoSuchThing, match="no longer stored"):
        uploads.read(token, "a")
    path.unlink()
    with pytest.raises(NoSuchThing, match="no longer stored"):
        uploads.read(token, "a")
    os.mkfifo(path)
    with pytest.raises(NoSuchThing, match="no longer stored") as refused:
        uploads.read(token, "a")
    assert str(temporary) not in str(refused.value)


def test_the_photo_before_goes_when_a_session_uses_another(uploads: Uploads) -> None:
    first, second, other = (uploads.store("a", b"photo") for _ in range(3))
    uploads.claim(first, "a", "one")
    uploads.claim(other, "a", "two")
    uploads.claim(second, "a", "one")
    assert files(uploads) == {second, other}
    assert uploads.clear("b", "one") is None
    assert files(uploads) == {second, other}
    assert uploads.clear("a", "one") is None
    assert files(uploads) == {other}


def test_what_was_not_used_for_long_goes(uploads: Uploads, clock: Clock) -> None:
    idle, used = uploads.store("a", b"photo"), uploads.store("a", b"photo")
    clock.now = 50
    uploads.claim(used, "a", "one")
    clock.now = 61
    uploads.sweep()
    assert files(uploads) == {used}
    with pytest.raises(NoSuchThing, match="no longer stored"):
        uploads.read(idle, "a")


def test_a_client_has_a_share_and_loses_its_own_oldest(uploads: Uploads) -> None:
    foreign = uploads.store("b", bytes(MB))
    first, second = uploads.store("a", bytes(MB)), uploads.store("a", bytes(MB))
    uploads.claim(first, "a", "one")  # used later than the second
    third = uploads.store("a", bytes(MB))
    assert files(uploads) == {foreign, first, third}
    assert second not in files(uploads)


def test_all_clients_together_stay_within_a_limit(uploads: Uploads) -> None:
    tokens = [uploads.store(f"client-{number}", bytes(MB)) for number in range(10)]
    assert files(uploads) == set(tokens[-3:])


def test_small_files_count_so_that_their_number_is_limited(uploads: Uploads) -> None:
    for _ in range(200):
        uploads.store("a", b"")
    assert len(uploads) == len(files(uploads)) == 2 * MB // LEAST


def test_room_is_made_before_an_upload_arrives_and_no_more_arrive_than_fit(uploads: Uploads) -> None:
    held = uploads.store("a", bytes(MB))
    with uploads.arriving("a", MB), uploads.arriving("a", MB):
        assert files(uploads) == set()
        with pytest.raises(Busy, match="at once"), uploads.arriving("a", 1):
            pass
        with uploads.arriving("b", MB), pytest.raises(Busy, match="at once"), uploads.arriving("c", 1):
            pass
    with uploads.arriving("a", 2 * MB):
        assert held not in files(uploads)
    with pytest.raises(RuntimeError, match="cut off"), uploads.arriving("a", 2 * MB):
        raise RuntimeError("cut off")
    with uploads.arriving("a", 2 * MB):  # what was cut off takes no room
        pass


def test_small_uploads_that_arrive_count_too(uploads: Uploads) -> None:
    with ExitStack() as stack:
        for _ in range(2 * MB // LEAST):
            stack.enter_context(uploads.arriving("a", 1))
        with pytest.raises(Busy, match="at once"), uploads.arriving("a", 1):
            pass


def test_a_full_disk_leaves_nothing_behind(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full(io.BytesIO):
        write = full  # type: ignore[assignment]

    monkeypatch.setattr("serving.ui.uploads.os.fdopen", lambda descriptor, _: os.close(descriptor) or Full())
    with pytest.raises(Busy, match="no room"):
        uploads.store("a", b"photo")
    assert files(uploads) == set()
    assert len(uploads) == 0


def test_a_killed_process_leaves_its_folder_for_the_next_to_delete(temporary: Path, clock: Clock) -> None:
    program = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from serving.ui.uploads import Uploads\n"
        "Uploads(client_bytes=9**9, total_bytes=9**9).store('a', b'photo')\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(temporary)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.glob(f"{PREFIX}*")
    assert len(list(left.iterdir())) == 1
    running = Uploads(client_bytes=MB, total_bytes=MB)
    assert set(temporary.glob(f"{PREFIX}*")) == {running.folder}
    beside = Uploads(client_bytes=MB, total_bytes=MB)
    assert running.folder.exists()  # one that runs is left alone
    running.close()
    running.close()  # twice does no harm
    beside.close()
    assert list(temporary.iterdir()) == []


def test_a_link_that_is_called_like_such_a_folder_is_left_alone(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x")
    (temporary / f"{PREFIX}link").symlink_to(precious)
    Uploads(client_bytes=MB, total_bytes=MB).close()
    assert (precious / "file").exists()
    shutil.rmtree(precious)


def test_a_preview_goes_with_its_photo(uploads: Uploads) -> None:
    token = uploads.store("a", b"photo", b"preview")
    assert (uploads.read(token, "a"), uploads.read(token, "a", preview=True)) == (b"photo", b"preview")
    assert uploads.read(uploads.store("a", b"plain"), "a", preview=True) == b"plain"
    with pytest.raises(NoSuchThing):
        uploads.read(token, "b", preview=True)
    uploads.claim(token, "a", "s")
    uploads.clear("a", "s")
    assert not list(uploads.folder.glob(f"{token}*"))
