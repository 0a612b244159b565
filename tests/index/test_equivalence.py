"""Any history of a gallery, of every kind and on Milvus, decides as a comparison with all surviving photos does."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from index import segments
from index.ann.kinds import IVF, KINDS
from index.gallery import Gallery
from index.milvus.gallery import MilvusGallery
from index.search.distance import plain_distance

from ..gallery_contents import contents
from .vectors import DIM

THRESHOLD, SHOWN = 0.35, 5
numbers, seeds = st.integers(0, 700), st.integers(0, 2**32 - 1)


class Killed(BaseException):
    """Simulates the end of a process in the middle of a change."""


class Histories(RuleBasedStateMachine):
    """A gallery beside a dictionary of what should be in it."""

    kind = "flat"
    start = 600

    @initialize(seed=seeds)
    def fill(self, seed: int) -> None:
        self.photos: dict[str, tuple[str, str, np.ndarray]] = {}
        self.expected = self.found = 0
        self.folder = Path(tempfile.mkdtemp())
        self.gallery = self.create()
        self.add(seed, 0, self.start)
        self.rebuild()

    def create(self) -> Gallery | MilvusGallery:
        return Gallery.create(self.folder / "g", dim=DIM, embedding_id="e", columns={"brand": "text"})

    def open(self) -> Gallery | MilvusGallery:
        return Gallery.open(self.folder / "g")

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.gallery.close()
            shutil.rmtree(self.folder)
            least = 0.99 if self.kind == IVF else 1.0  # what `rebuild` accepts at least
            assert self.found >= least * self.expected

    @rule(seed=seeds, first=numbers, count=st.integers(1, 90))
    def add(self, seed: int, first: int, count: int) -> None:
        """Add photos, or replace those that are there."""
        change, after = self.addition(seed, first, count)
        change()
        self.photos = after

    def addition(self, seed: int, first: int, count: int) -> tuple[Callable[[], object], dict]:
        generator = np.random.default_rng(seed)
        ids, items = [f"p{i}" for i in range(first, first + count)], [f"i{i // 4}" for i in range(first, first + count)]
        centres = np.random.default_rng(7).normal(size=(700, DIM))[[i // 4 for i in range(first, first + count)]]
        vectors = centres + 0.25 * generator.normal(size=(count, DIM))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        brands = [("a", "b")[int(b)] for b in generator.integers(2, size=count)]
        after = self.photos | dict(zip(ids, zip(items, brands, vectors, strict=True), strict=True))
        gallery, metadata = self.gallery, [{"brand": brand} for brand in brands]
        return lambda: gallery.add(ids, items, vectors, metadata=metadata, upsert=True), after

    @rule(first=numbers, count=st.integers(1, 90))
    def remove_photos(self, first: int, count: int) -> None:
        ids = {f"p{i}" for i in range(first, first + count)}
        assert self.gallery.remove(photo_ids=sorted(ids)) == len(ids & self.photos.keys())
        self.photos = {name: photo for name, photo in self.photos.items() if name not in ids}

    @rule(first=numbers, count=st.integers(1, 20))
    def remove_items(self, first: int, count: int) -> None:
        items = [f"i{i // 4}" for i in range(first, first + count)]
        self.gallery.remove(item_ids=items)
        self.photos = {name: photo for name, photo in self.photos.items() if photo[0] not in items}

    @rule()
    def rebuild(self) -> None:
        if isinstance(self.gallery, Gallery):
            self.gallery.rebuild(kind=self.kind, threads=1)

    @rule()
    def reopen(self) -> None:
        self.gallery.close()
        self.gallery = self.open()

    @rule(seed=seeds, first=numbers, count=st.integers(1, 90), rebuilds=st.booleans(), moment=st.integers(0, 12))
    def killed(self, seed: int, first: int, count: int, rebuilds: bool, moment: int) -> None:
        """Die at one of the moments at which a change reaches the disk: all of it is there then, or nothing."""
        change, after = self.addition(seed, first, count)
        if rebuilds:
            change, after = self.rebuild, self.photos
        ticks = itertools.count()

        def dying(work: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                if next(ticks) == moment:
                    raise Killed
                return work(*args, **more)

            return call

        with (
            patch.object(os, "fsync", dying(os.fsync)),
            patch.object(Path, "replace", dying(Path.replace)),
            patch.object(segments, "sha256", dying(segments.sha256)),
            contextlib.suppress(Killed),
        ):
            change()
        self.reopen()
        ids, _, vectors = contents(self.gallery)
        there = {name: vector.tobytes() for name, vector in zip(ids, vectors, strict=True)}
        (self.photos,) = [
            photos
            for photos in ((after, self.photos) if after is not self.photos else (after,))
            if {name: photo[2].tobytes() for name, photo in photos.items()} == there
        ][:1]

    @invariant()
    def decides_as_brute_force(self) -> None:
        if not hasattr(self, "photos"):
            return
        assert len(self.gallery) == len(self.photos)
        assert {photo[0] for photo in self.gallery.photos()} == self.photos.keys()
        if not self.photos:
            return
        vectors = np.array([vector for _, _, vector in self.photos.values()])
        queries = vectors[:: max(1, len(vectors) // 6)][:6]
        queries = queries + 0.05 * np.random.default_rng(len(vectors)).normal(size=queries.shape)
        queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
        for where, allowed in ((None, "ab"), ("brand = 'a'", "a")):
            answers = self.gallery.search(queries, SHOWN, where=where)
            for query, answer in zip(queries, answers, strict=True):
                best: dict[str, float] = {}
                distances = plain_distance(query[None], vectors)
                for (item, brand, _), distance in zip(self.photos.values(), distances.tolist(), strict=True):
                    if brand in allowed:
                        best[item] = min(best.get(item, 9.0), distance)
                right = sorted((d, item) for item, d in best.items() if d <= THRESHOLD)[:SHOWN]
                got = {n.item_id: n.distance for n in answer if n.distance <= THRESHOLD}
                assert all(best[item] <= distance + 1e-12 for item, distance in got.items())
                self.expected += len(right)
                self.found += len(got.keys() & {item for _, item in right})


class MilvusHistories(Histories):
    """The same on Milvus Lite, which promises nothing about being killed."""

    kind, start = "milvus", 60
    killed = None  # type: ignore[assignment]

    def create(self) -> MilvusGallery:
        return MilvusGallery.create(self.address, dim=DIM, embedding_id="e", columns={"brand": "text"})

    def open(self) -> MilvusGallery:
        return MilvusGallery.open(self.address)

    @property
    def address(self) -> str:
        return f"milvus+{self.folder}/lite.db/shop"


def histories(kind: str) -> type[Histories]:
    return type(f"Histories_{kind}", (Histories,), {"kind": kind})


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS)
def test_any_history_decides_as_brute_force(kind: str) -> None:
    run_state_machine_as_test(
        histories(kind),
        settings=settings(
            max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_any_history_on_milvus_decides_as_brute_force() -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    run_state_machine_as_test(
        MilvusHistories,
        settings=settings(
            max_examples=3, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
