from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from serving.errors import Busy, NotFound
from serving.page.uploads import LEAST, Uploads

MB = 2**20


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uploads(clock: Clock) -> Uploads:
    return Uploads(client_bytes=2 * MB, total_bytes=3 * MB, kept_s=60, clock=clock)


def held(uploads: Uploads) -> set[str]:
    return set(uploads._held)


def test_a_photo_is_for_the_client_and_session_that_used_it_first(uploads: Uploads) -> None:
    token = uploads.store("a", b"photo")
    for client in ("b", "", "A"):
        with pytest.raises(NotFound, match="no longer stored"):
            uploads.claim(token, client, "one")
        with pytest.raises(NotFound, match="no longer stored"):
            uploads.read(token, client)
    uploads.claim(token, "a", "one")
    with pytest.raises(NotFound, match="no longer stored"):
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


def test_a_name_is_looked_up_and_never_a_path(uploads: Uploads, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    token = uploads.store("a", b"photo")
    for name in ("../secret", str(tmp_path / "secret"), f"{token}/../../secret", f"./{token}", "", "."):
        with pytest.raises(NotFound, match="no longer stored"):
            uploads.read(name, "a")
        with pytest.raises(NotFound, match="no longer stored"):
            uploads.claim(name, "a", "one")


def test_the_photo_before_goes_when_a_session_uses_another(uploads: Uploads) -> None:
    first, second, other = (uploads.store("a", b"photo") for _ in range(3))
    uploads.claim(first, "a", "one")
    uploads.claim(other, "a", "two")
    uploads.claim(second, "a", "one")
    assert held(uploads) == {second, other}
    uploads.clear("b", "one")
    assert held(uploads) == {second, other}
    uploads.clear("a", "one")
    assert held(uploads) == {other}


def test_what_was_not_used_for_long_goes(uploads: Uploads, clock: Clock) -> None:
    idle, used = uploads.store("a", b"photo"), uploads.store("a", b"photo")
    clock.now = 50
    uploads.claim(used, "a", "one")
    clock.now = 61
    uploads.sweep()
    assert held(uploads) == {used}
    with pytest.raises(NotFound, match="no longer stored"):
        uploads.read(idle, "a")


def test_a_client_has_a_share_and_loses_its_own_oldest(uploads: Uploads) -> None:
    foreign = uploads.store("b", bytes(MB))
    first, second = uploads.store("a", bytes(MB)), uploads.store("a", bytes(MB))
    uploads.claim(first, "a", "one")  # used later than the second
    third = uploads.store("a", bytes(MB))
    assert held(uploads) == {foreign, first, third}
    assert second not in held(uploads)


def test_all_clients_together_stay_within_a_limit(uploads: Uploads) -> None:
    tokens = [uploads.store(f"client-{number}", bytes(MB)) for number in range(10)]
    assert held(uploads) == set(tokens[-3:])


def test_small_files_count_so_that_their_number_is_limited(uploads: Uploads) -> None:
    for _ in range(200):
        uploads.store("a", b"")
    assert len(uploads) == 2 * MB // LEAST


def test_room_is_made_before_an_upload_arrives_and_no_more_arrive_than_fit(uploads: Uploads) -> None:
    photo = uploads.store("a", bytes(MB))
    with uploads.arriving("a", MB), uploads.arriving("a", MB):
        assert held(uploads) == set()
        with pytest.raises(Busy, match="at once"), uploads.arriving("a", 1):
            pass
        with uploads.arriving("b", MB), pytest.raises(Busy, match="at once"), uploads.arriving("c", 1):
            pass
    with uploads.arriving("a", 2 * MB):
        assert photo not in held(uploads)
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
