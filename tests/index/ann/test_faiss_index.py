from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.ann import faiss_index
from index.ann.faiss_index import Candidates
from index.ann.kinds import KINDS
from index.errors import GalleryCorrupt, InvalidParameter

from ..vectors import unit

MANY = unit(600, 6, 16)


def built(kind: str, threads: int = 1) -> Candidates:
    """Return an index over all of `MANY`, which come in blocks."""

    def blocks() -> Iterator[np.ndarray]:
        yield from (MANY[start : start + 250] for start in range(0, 600, 250))

    return Candidates.build(kind, blocks, 600, 16, threads=threads)


def test_nothing_is_found_in_nothing() -> None:
    rows, cosines = Candidates.flat(unit(0)).search(unit(1), 3)
    assert rows.shape == cosines.shape == (1, 0)


def test_a_search_stays_on_one_thread_in_every_thread() -> None:
    """OpenMP keeps the number by thread: setting it where the index is built would not do for a server."""
    import faiss

    candidates, seen = Candidates.flat(unit(20)), []

    def search() -> None:
        faiss.omp_set_num_threads(4)
        candidates.search(unit(1), 3)
        seen.append(faiss.omp_get_max_threads())

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert seen == [1]


def test_a_gpu_finds_what_the_cores_find() -> None:
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        pytest.skip("there is no GPU, or faiss was built without it")
    vectors = unit(30_000, 3, 64)
    there = Candidates.flat(vectors)
    assert there._gpu is not None
    for query in unit(50, 4, 64):
        want = np.argsort(-(vectors.astype(np.float64) @ query), kind="stable")[:20]
        (rows,), cosines = there.search(query[None], 20)
        assert set(rows.tolist()) == set(want.tolist())
        assert np.abs(cosines - vectors[rows] @ query).max() < there.slack


def test_a_flat_index_is_copied_to_the_gpu_if_it_fits_and_others_stay_on_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import faiss

    class Copy:
        def __init__(self, _resources: object, _device: int, index: Any) -> None:
            if index.ntotal > 600:
                raise RuntimeError("out of memory")
            self.index, self.asked = index, 0

        def search(self, vectors: np.ndarray, k: int) -> Any:
            self.asked += len(vectors)
            return self.index.search(vectors, k)

    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", Copy, raising=False)
    monkeypatch.setattr(faiss_index, "GPU_FROM", 600)
    here = built("flat")
    assert here._gpu is not None
    plain = here.search(MANY[:7], 5, here.selection(np.ones(600, bool)))  # a filter is searched on the cores
    for one, other in zip(here.search(MANY[:7], 5), plain, strict=True):
        np.testing.assert_array_equal(one, other)
    assert here._gpu._index.asked == 7
    assert built("fp16")._gpu is built("ivf")._gpu is Candidates.flat(unit(599))._gpu is None
    too_large = Candidates.flat(unit(601))
    assert too_large._gpu is None
    assert too_large.search(unit(1), 3)[0].shape == (1, 3)
    here.write(tmp_path / "index")
    settings = {"slack": here.slack, "probes": 0}
    assert Candidates.read(tmp_path / "index", "flat", settings, count=600)._gpu is not None
    assert Candidates.read(tmp_path / "index", "flat", settings, count=600, mapped=True)._gpu is None


@pytest.mark.parametrize(
    ("kind", "probes", "most", "slack"), [("flat", 0, 0, 1.1e-5), ("fp16", 0, 0, 5e-4), ("ivf", 8, 15, 5e-4)]
)
def test_an_index_of_each_kind(
    kind: str, probes: int, most: int, slack: float, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It holds every photo once, searches as widely as its kind does, and tells how far its cosines may be off."""
    index = built(kind)
    assert (len(index), index.dim, index.probes, index.most_probes) == (600, 16, probes, most)
    rows, cosines = index.with_probes(most).search(MANY[:40], 600)
    assert [sorted(row) for row in rows.tolist()] == [list(range(600))] * 40
    exact = np.take_along_axis(MANY[:40].astype(float) @ MANY.T.astype(float), rows, axis=1)
    off = np.abs(cosines - exact)
    assert np.quantile(off, 0.99) <= index.slack
    assert off.max() <= index.slack == pytest.approx(slack, rel=0.1)
    index.write(tmp_path / "index")
    again = Candidates.read(tmp_path / "index", kind, {"slack": index.slack, "probes": probes}, count=600)
    assert (again.slack, again.probes) == (index.slack, probes)
    for one, other in zip(again.search(MANY[:5], 9), index.search(MANY[:5], 9), strict=True):
        np.testing.assert_array_equal(one, other)
    assert capfd.readouterr().err == ""  # faiss warns of small galleries: nobody can do anything about it


@pytest.mark.parametrize(("kind", "dim"), [("ivf", 1024), ("ivf", 8192), ("ivf", 128)])
def test_a_batch_finds_what_each_query_finds_alone(kind: str, dim: int) -> None:
    """Faiss compares a large batch by BLAS, which may select other lists because it rounds differently."""
    vectors, queries = unit(600, 6, dim), unit(150, 7, dim)
    index = Candidates.build(kind, lambda: iter([vectors]), 600, dim, threads=1).with_probes(3)
    alone = [index.search(query[None], 30) for query in queries]
    for found, each in zip(index.search(queries, 30), zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(found, np.concatenate(each))


@pytest.mark.parametrize("kind", KINDS)
def test_a_selection_restricts_a_search(kind: str) -> None:
    index, allowed = built(kind), np.arange(600) % 7 == 3
    wide = index.with_probes(index.most_probes)
    rows, _ = wide.search(MANY[:10], 600, wide.selection(allowed))
    for found in rows.tolist():
        assert sorted(row for row in found if row >= 0) == np.flatnonzero(allowed).tolist()
        assert found.count(-1) == 600 - allowed.sum()


def test_few_lists_are_searched_at_first() -> None:
    index = built("ivf")
    narrow, wide = (index.with_probes(probes).search(MANY[:20], 600)[0] for probes in (1, 15))
    assert 0 < (narrow >= 0).sum() < 20 * 200
    assert (wide >= 0).all()
    assert (index.with_probes(0).search(MANY[:20], 600)[0] == narrow).all()


def test_what_is_no_index_or_another_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="kind must be one of flat"):
        Candidates.build("round", lambda: iter([MANY]), 600, 16, threads=1)
    built("fp16").write(tmp_path / "index")
    settings = {"slack": 0.1, "probes": 0}
    with pytest.raises(GalleryCorrupt, match="holds 600 vectors, not 599") as told:
        Candidates.read(tmp_path / "index", "fp16", settings, count=599)
    assert told.value.remedy == "Rebuild the gallery"
    (tmp_path / "index").write_bytes(b"no index")
    with pytest.raises(GalleryCorrupt, match="cannot be read"):
        Candidates.read(tmp_path / "index", "fp16", settings, count=600)
    with pytest.raises(OSError, match="could not be written"):
        built("flat").write(tmp_path / "none" / "index")
