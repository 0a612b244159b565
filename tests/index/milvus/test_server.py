"""A gallery on a real Milvus server: requests of each operation, changes that are not finished, several processes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryCorrupt, GalleryError, GalleryLocked, GalleryUnavailable
from index.milvus.client import AGE, TIMEOUT, TOKEN_FILE, Access
from index.milvus.collections import Collections
from index.milvus.gallery import FACTS, MEASURING, UNFINISHED, MilvusGallery, measuring
from index.search.item_distance import ItemDistance
from retrieval.measuring.measure import measure
from tools.milvus_server import Server, running

from ..vectors import unit

pytestmark = pytest.mark.filterwarnings("ignore")  # pymilvus warns of its own dependencies
DIM = 8
STILL = Access(age_s=3600)  # facts are read once


@pytest.fixture(scope="module")
def gallery(server: Server) -> Iterator[MilvusGallery]:
    address = f"{server.address}/shop"
    with MilvusGallery.create(address, dim=DIM, embedding_id="e", columns={"brand": "text"}, access=STILL) as gallery:
        ids = np.random.default_rng(2).permutation(900).astype(str).tolist()
        items, metadata = [f"{row % 200}" for row in range(900)], [{"brand": "ab"[row % 2]} for row in range(900)]
        gallery.add(ids, items, unit(900), metadata=metadata)
        yield gallery


def requests(gallery: MilvusGallery, work: object) -> int:
    before = gallery._store.client.requests
    work()  # type: ignore[operator]
    return gallery._store.client.requests - before


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize(("where", "most"), [(None, 3), ("brand = 'a'", 4)])
def test_a_search_and_a_batch_make_at_most_three_requests_and_one_more_with_a_filter(
    gallery: MilvusGallery, queries: int, where: str | None, most: int
) -> None:
    vectors = unit(queries, 5)
    count = requests(gallery, lambda: gallery.search(vectors, 10, where=where, item_distance=ItemDistance()))
    assert 2 <= count <= most


def test_counts_and_a_photo_cost_the_same_requests_whatever_the_size(gallery: MilvusGallery) -> None:
    assert requests(gallery, lambda: (len(gallery), gallery.items, gallery.version, gallery.index())) == 0

    def put() -> None:
        gallery.add(["new"], ["7"], unit(1, 77), metadata=[{}], upsert=True)

    first = requests(gallery, put)
    gallery.add([f"more {row}" for row in range(700)], [f"i{row}" for row in range(700)], unit(700, 3))
    assert requests(gallery, put) == first <= 12
    gallery.remove(photo_ids=["new", *(f"more {row}" for row in range(700))])


@pytest.mark.parametrize("change", ["add", "remove", "update"])
def test_a_change_that_was_not_finished_is_named_and_finished_by_the_same_command(
    gallery: MilvusGallery, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.add(["one", "two"], ["x", "y"], unit(2, 30), upsert=True)
    commands = {
        "add": lambda: gallery.add(["one", "three"], ["z", "x"], unit(2, 31), upsert=True),
        "remove": lambda: gallery.remove(photo_ids=["one"]),
        "update": lambda: gallery.update(["one"], ["y"], [{}]),
    }
    for lost in range(2, 6):
        written = iter(range(100))
        ask = gallery._store.client.ask

        def dying(verb: str, *args: object, **more: object) -> object:
            if verb in ("upsert", "delete") and next(written) == lost:  # noqa: B023
                raise KeyboardInterrupt
            return ask(verb, *args, **more)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(gallery._store.client, "ask", dying)
            with contextlib.suppress(KeyboardInterrupt):
                commands[change]()
        named = gallery.verify(rows=False)
        assert named in ([], [UNFINISHED])
        if change != "remove" or named:
            commands[change]()
        assert gallery.verify() == []
        with MilvusGallery.open(gallery.path) as other:
            stored, items = other.photos(), {}
            for _, item, _ in stored:
                items[item] = items.get(item, 0) + 1
            rows = other._store.item_rows(sorted(items), {"consistency_level": "Strong"})
            assert {item: row["photos"] for item, row in rows.items()} == items
            assert (len(other), other.items) == (len(stored), len(items))
        gallery.add(["one", "two"], ["x", "y"], unit(2, 30), upsert=True)
        gallery.remove(photo_ids=["three"])
    gallery.remove(photo_ids=["one", "two"])


def test_what_one_process_writes_another_sees_when_its_facts_are_read_again(gallery: MilvusGallery) -> None:
    with MilvusGallery.open(gallery.path, access=Access(age_s=0)) as other:
        vector = unit(1, 99)
        gallery.add(["seen"], ["seen"], vector)
        version, _, ((found,),), _ = other.search_version(vector, 1)
        assert (version, found.photo_id) == (gallery.version, "seen")
        gallery.remove(photo_ids=["seen"])
        assert other.search(vector, 1)[0][0].photo_id != "seen"


def test_of_three_processes_that_measure_one_goes_on(gallery: MilvusGallery) -> None:
    others = [MilvusGallery.open(gallery.path) for _ in range(3)]
    begun, done, outcomes = threading.Barrier(3), threading.Event(), list[str]()

    def measure(other: MilvusGallery) -> None:
        begun.wait()
        try:
            with measuring(other):
                outcomes.append("measures")
                done.wait(10)
        except GalleryLocked:
            outcomes.append("waits")
        if len(outcomes) == 3:
            done.set()

    threads = [threading.Thread(target=measure, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes.count("measures") >= 1
    note = {MEASURING: json.dumps({"by": "another", "time": 0})}
    gallery._store.write_texts(note)  # of a process that was killed long ago
    with measuring(gallery), pytest.raises(GalleryLocked), measuring(others[0]):
        pass
    with measuring(others[0]):
        pass
    for other in others:
        other.close()


def test_galleries_of_another_format_are_refused_with_what_to_do(gallery: MilvusGallery) -> None:
    store = Collections(gallery._store.client)
    facts = json.loads(store.read_texts([FACTS])[FACTS])
    for number, told in ((5, "Index the photos into a new gallery"), (99, "later version")):
        store.write_texts({FACTS: json.dumps({**facts, "format": number})})
        with pytest.raises(GalleryError, match=told):
            MilvusGallery.open(gallery.path)
    store.delete(store.texts, [FACTS])
    with pytest.raises(GalleryCorrupt, match="facts"):
        MilvusGallery.open(gallery.path)
    store.write_texts({FACTS: json.dumps(facts)})


def test_a_server_that_is_not_there_is_told_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv(TIMEOUT, "0.5")
    with pytest.raises(GalleryUnavailable, match="does not answer"):
        MilvusGallery.open("milvus+http://127.0.0.1:1/shop")
    for name, value in ((AGE, "soon"), (TOKEN_FILE, f"{tmp_path}/none")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            with pytest.raises(ValueError, match=name):
                Access.of_environment()
    (tmp_path / "token").write_text("root:Milvus\n")  # type: ignore[operator]
    monkeypatch.setenv(TOKEN_FILE, f"{tmp_path}/token")
    assert Access.of_environment().token == "root:Milvus"  # noqa: S105


@pytest.mark.slow
def test_a_server_that_asks_for_a_token_gets_it_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with running(token=True) as guarded:
        address = f"{guarded.address}/shop"
        with pytest.raises(GalleryUnavailable, match="does not answer"):
            MilvusGallery.create(address, dim=DIM, embedding_id="e")
        (tmp_path / "token").write_text("root:Milvus\n")
        monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
        with MilvusGallery.create(address, dim=DIM, embedding_id="e") as made:
            made.add(["a"], ["x"], unit(1))
        monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
        with MilvusGallery.open(address) as opened:
            assert len(opened) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HNSW", "IVF_SQ8"])
def test_an_approximate_index_has_a_measured_recall_and_thresholds_that_are_not_looser(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.milvus.gallery.SCANNED", 500)
    items = np.random.default_rng(1).permutation(np.repeat(np.arange(500), 4))
    vectors = unit(500, 1, 32)[items] + 0.6 * unit(2000, 2, 32)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    ids = np.random.default_rng(2).permutation(2000).astype(str).tolist()
    with MilvusGallery.create(f"{server.address}/kind_{kind}", dim=32, embedding_id="e", index=kind) as gallery:
        gallery.add(ids, [f"i{item}" for item in items], vectors)
        exact = measure(gallery.snapshot(), ItemDistance()).required.threshold
        gallery.rebuild_if_due()
        told = gallery.index()
        assert told["kind"] == kind
        assert told["recall"]["value"] >= 0.99
        found = measure(gallery.snapshot(), ItemDistance()).required.threshold
        assert exact - 0.002 <= found <= exact + 1e-9 or abs(found - exact) < 0.002
        client = gallery._store.client
        monkeypatch.setattr(client, "access", replace(client.access, age_s=600.0))  # no slow search reads facts again
        before = client.requests
        gallery.search(vectors[:3], 5, item_distance=ItemDistance())
        assert client.requests - before <= 4
        gallery.rebuild_if_due()
        assert gallery.index() == told
