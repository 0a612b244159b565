import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from training.data import cache as cache_module
from training.data.cache import ORPHAN_SECONDS, Decoded, PixelCache, photo_key

from ...world import draw

WRITER = """
import sys
from training.data.cache import Decoded, PixelCache
from tests.world import draw
import numpy as np
cache = PixelCache(sys.argv[1], min_side=32, pack_bytes=40_000)
first, last = int(sys.argv[2]), int(sys.argv[3])
for number in range(first, last):
    cache.put(number.to_bytes(16, "big"), Decoded(np.asarray(draw(number, 0)), True))
print("written", flush=True)
if sys.argv[4] == "wait":
    sys.stdin.read()
"""


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def same(found: Decoded | None, number: int) -> bool:
    return found is not None and found.exact and np.array_equal(found.pixels, np.asarray(draw(number, 0)))


def filled(folder: Path, numbers: range) -> PixelCache:
    cache = PixelCache(folder, min_side=32)
    for number in numbers:
        cache.put(key(number), Decoded(np.asarray(draw(number, 0)), True))
    cache.publish()
    return cache


def test_what_is_published_is_read_by_this_and_other_caches(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(10))
    cache.put(key(99), Decoded(np.full((5, 7, 3), (1, 2, 3), np.uint8), False))
    for reader in (cache, PixelCache(tmp_path, min_side=32)):
        assert all(same(reader.get(key(number)), number) for number in range(10))
        assert reader.get(key(99)) is None  # not yet published
    cache.publish()
    found = PixelCache(tmp_path, min_side=32).get(key(99))
    assert found is not None
    assert (found.pixels.shape, found.pixels[4, 6].tolist(), found.exact) == ((5, 7, 3), [1, 2, 3], False)
    assert PixelCache(tmp_path, min_side=33).get(key(0)) is None  # decoded otherwise


def test_keys_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path, min_side=32)
    keys = [b"8 bytes." + number.to_bytes(8, "big") for number in range(3)]
    for number in (0, 1):
        cache.put(keys[number], Decoded(np.asarray(draw(number, 0)), True))
    cache.publish()
    assert same(cache.get(keys[0]), 0)
    assert same(cache.get(keys[1]), 1)
    assert cache.get(keys[2]) is None


def test_a_full_pack_is_published_and_nothing_is_written_twice(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path, min_side=32, pack_bytes=3 * 4_800)
    for number in (0, 0, 1, 2, 3):
        cache.put(key(number), Decoded(np.asarray(draw(number, 0)), True))
    assert len(list(cache.folder.glob("*.pack"))) == 1
    assert same(cache.get(key(2)), 2)
    assert cache.get(key(3)) is None
    cache.publish()
    assert sum(pack.stat().st_size for pack in cache.folder.glob("*.pack")) < 4.2 * 4_800


def test_a_cache_that_goes_out_of_use_publishes(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path, min_side=32)
    cache.put(key(1), Decoded(np.asarray(draw(1, 0)), True))
    del cache
    assert same(PixelCache(tmp_path, min_side=32).get(key(1)), 1)


def test_the_key_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    draw(0, 0).save(path)
    photo = Photo("a", path, "x")
    keys = {photo_key(photo), photo_key(Photo("b", path, "y"))}
    assert len(keys) == 1  # ids and labels do not decide pixels
    keys |= {photo_key(Photo("a", path, "x", bbox=(0, 0, 9, 9))), photo_key(Photo("a", path, "x", span=(0, 9)))}
    os.utime(path, ns=(1, 1))
    keys.add(photo_key(photo))
    path.write_bytes(path.read_bytes() + b"more")
    os.utime(path, ns=(1, 1))
    keys.add(photo_key(photo))
    assert len(keys) == 5


def test_what_is_no_whole_pack_is_not_read(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(3))
    (pack,) = cache.folder.glob("*.pack")
    whole = pack.read_bytes()
    for number, spoilt in enumerate((whole[:-1], whole[:-30], whole[5000:], b"", b"short", whole[:-16] + b"\xff" * 16)):
        (cache.folder / f"{number}.pack").write_bytes(spoilt)
    pack.unlink()
    assert PixelCache(tmp_path, min_side=32).get(key(0)) is None


def test_a_pack_that_is_deleted_is_forgotten_and_written_again(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(3))
    assert same(cache.get(key(0)), 0)
    for pack in cache.folder.glob("*.pack"):
        pack.unlink()
    assert cache.get(key(0)) is None
    cache.put(key(0), Decoded(np.asarray(draw(0, 0)), True))
    cache.publish()
    assert same(cache.get(key(0)), 0)
    assert cache.get(key(1)) is None


def test_unfinished_packs_of_the_past_are_removed(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(1))
    old, fresh = cache.folder / "old.partial", cache.folder / "fresh.partial"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (1, fresh.stat().st_mtime - ORPHAN_SECONDS - 60))
    PixelCache(tmp_path, min_side=32)
    assert not old.exists()
    assert fresh.exists()


def test_a_full_disk_ends_the_writing_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = filled(tmp_path, range(2))
    monkeypatch.setattr(cache_module, "FREE_BYTES", 2**62)
    with caplog.at_level(logging.WARNING):
        for number in range(2, 5):
            cache.put(key(number), Decoded(np.asarray(draw(number, 0)), True))
        cache.publish()
    assert [record.getMessage().count("cannot cache more photos") for record in caplog.records] == [1]
    assert same(cache.get(key(1)), 1)
    assert cache.get(key(3)) is None
    assert not list(cache.folder.glob("*.partial"))


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameter, match="cache_dir"):
        PixelCache(tmp_path / "file", min_side=32)


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path, min_side=32, pack_bytes=20_000)
    wrong: list[int] = []

    def work(start: int) -> None:
        for step in range(60):
            number = (start + step) % 40
            found = cache.get(key(number))
            if found is None:
                cache.put(key(number), Decoded(np.asarray(draw(number, 0)), True))
            elif not same(found, number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.publish()
    assert not wrong
    assert all(same(PixelCache(tmp_path, min_side=32).get(key(number)), number) for number in range(40))


def writer(folder: Path, first: int, last: int, then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(first), str(last), then]
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_write_at_once_and_one_that_is_killed_spoils_nothing(tmp_path: Path) -> None:
    ends = [writer(tmp_path, 0, 30, "end"), writer(tmp_path, 20, 60, "end")]
    killed = writer(tmp_path, 60, 100, "wait")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "written\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    for process in ends:
        process.communicate()
        assert process.returncode == 0
    cache = PixelCache(tmp_path, min_side=32)
    assert all(same(cache.get(key(number)), number) for number in range(60))
    found = [cache.get(key(number)) for number in range(60, 100)]
    published = [place for place, photo in enumerate(found, 60) if photo is not None]
    assert 0 < len(published) < 40  # whole packs of the killed one, not its last
    assert all(same(cache.get(key(number)), number) for number in published)
    assert len(list(cache.folder.glob("*.partial"))) == 1
