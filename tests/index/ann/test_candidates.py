from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from index.ann.candidates import Candidates

from ..vectors import unit


def test_candidates_are_the_largest_cosines_and_never_padding() -> None:
    vectors = unit(20)
    rows, cosines = Candidates.flat(vectors).search(vectors[3:5], 50)
    want = vectors[3:5].astype(np.float64) @ vectors.astype(np.float64).T
    assert rows.tolist() == np.argsort(-want, axis=1).tolist()
    assert np.allclose(cosines, np.take_along_axis(want, rows, axis=1), atol=1e-6)


def test_nothing_is_found_in_nothing() -> None:
    rows, cosines = Candidates.flat(unit(0)).search(unit(1), 3)
    assert rows.shape == cosines.shape == (1, 0)


def test_slack_covers_float32() -> None:
    for dim in (8, 512, 2048):
        vectors = unit(500, 1, dim)
        candidates = Candidates.flat(vectors)
        (rows,), cosines = candidates.search(vectors[:1], 500)
        exact = vectors[rows].astype(np.float64) @ vectors[0].astype(np.float64)
        assert np.abs(cosines - exact).max() < candidates.slack


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


def test_importing_the_package_does_not_import_faiss() -> None:
    code = "import sys, index.gallery; sys.exit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
