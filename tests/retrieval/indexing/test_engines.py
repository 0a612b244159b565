"""Other engines and other galleries give the records and the answers of the local ones."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever

from ...gallery_contents import contents
from ...world import draw, make_bundle, write_folder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what other libraries say of each other


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    make_bundle(tmp_path)
    folder = write_folder(tmp_path / "photos", items=range(5))
    (folder / "item-00" / "bad.jpg").write_bytes(b"no image")
    index_catalogue(Bundle.open(tmp_path / "bundle"), read_catalogue(folder), tmp_path / "local", progress=False)
    return tmp_path


def test_ray_makes_the_records_of_the_local_engine(shop: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    bundle, photos = Bundle.open(shop / "bundle"), read_catalogue(shop / "photos")
    report = index_catalogue(bundle, photos, shop / "ray", engine="ray", batch_size=4, progress=False)
    assert [photo_id for photo_id, _ in report.refused] == ["item-00/bad.jpg"]
    with Gallery.open(shop / "local") as one, Gallery.open(shop / "ray") as other:
        assert contents(one)[:2] == contents(other)[:2]
        assert contents(one)[2].tobytes() == contents(other)[2].tobytes()
        assert sorted(one.values("_content_sha256")) == sorted(other.values("_content_sha256"))
        assert all(one.thumbnail(photo) == other.thumbnail(photo) for photo in {photo[0] for photo in one.photos()})
    again = index_catalogue(bundle, photos, shop / "ray", engine="ray", batch_size=4, progress=False)
    assert (again.added, again.skipped, len(again.refused)) == (0, len(photos) - 1, 1)
    with pytest.raises(InvalidParameter, match="engine must be one of local, ray"):
        index_catalogue(bundle, photos, shop / "never", engine="spark", progress=False)


def test_ray_completes_the_gallery_after_one_of_two_workers_is_killed(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    make_bundle(tmp_path)
    bundle = Bundle.open(tmp_path / "bundle")
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(90)))
    index_catalogue(bundle, photos, tmp_path / "local", progress=False)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")  # one CPU reads
    killed = list[int]()
    killer = Thread(target=_kill_a_worker, args=(killed,), daemon=True)
    killer.start()
    try:
        report = index_catalogue(bundle, photos, tmp_path / "ray", engine="ray", batch_size=9, progress=False)
    finally:
        ray.shutdown()
    killer.join()
    assert len(killed) == 1, "no worker was killed in the middle of a task"
    assert (report.added, report.refused) == (len(photos), [])
    with Gallery.open(tmp_path / "local") as one, Gallery.open(tmp_path / "ray") as other:
        assert contents(one)[:2] == contents(other)[:2]
        assert contents(one)[2].tobytes() == contents(other)[2].tobytes()
        assert other.verify() == []


def _kill_a_worker(killed: list[int]) -> None:
    """Kill one of two workers of this process's Ray in the middle of a task, and note its id."""
    until = time.monotonic() + 60
    while not killed and time.monotonic() < until:
        workers = _workers()
        busy = [pid for pid, title in workers.items() if title.endswith(".submit")]
        if len(workers) == 2 and busy:
            os.kill(busy[0], signal.SIGSTOP)
            if _workers().get(busy[0], "").endswith(".submit"):  # still: it had not finished before it stopped
                os.kill(busy[0], signal.SIGKILL)
                killed.append(busy[0])
            else:
                os.kill(busy[0], signal.SIGCONT)
        time.sleep(0.002)


def _workers() -> dict[int, str]:
    """Return the titles of the processes that embed for this one, whose parents are its children, by id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_text().strip("\0 ")
            if title.startswith("ray::MapWorker") and _parent(_parent(int(folder.name))) == os.getpid():
                found[int(folder.name)] = title
        except OSError:
            continue  # it ended
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_milvus_answers_as_the_local_gallery(shop: Path) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    address = f"milvus+{shop}/lite.db/shop"
    words = ["index", str(shop / "bundle"), str(shop / "photos"), "-o", address]
    told = CliRunner().invoke(group, words)
    assert told.exit_code == 0, told.output
    assert "15 photos added" in told.output
    told = CliRunner().invoke(group, ["gallery", "remove", address, "--photo", "item-00/0.png"])
    assert told.output == "1 photo removed.\n", "Milvus galleries have no `rebuild` to send anybody to"
    assert CliRunner().invoke(group, words).exit_code == 0
    local = Retriever.open(shop / "bundle", shop / "local")
    there = Retriever.open(shop / "bundle", address)
    for item in range(8):  # three of them unknown
        draw(item, 5).save(shop / "query.png")
        one, other = (retriever.search(shop / "query.png") for retriever in (local, there))
        assert one.decision == other.decision
        assert [(m.item_id, m.distance) for m in one.matches] == [(m.item_id, m.distance) for m in other.matches]
    there.gallery.close()
