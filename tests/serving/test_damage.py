"""A gallery that is damaged while it is served: an error and no readiness, never a wrong answer."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from index import segments
from index.gallery import Gallery
from retrieval.retriever import Retriever
from serving.app import create_app

from ..world import draw, encode


def test_a_damaged_row_is_a_500_and_ends_readiness(world: Path, tmp_path: Path) -> None:
    bundle, gallery = world / "bundle", tmp_path / "gallery"
    shutil.copytree(world / "gallery", gallery)
    with Gallery.open(gallery) as opened:
        others = np.random.default_rng(0).normal(size=(1000, opened.dim))
        others /= np.linalg.norm(others, axis=1, keepdims=True)
        names = [f"other-{i}" for i in range(1000)]
        opened.add(names, names, others)
        opened.rebuild(kind="fp16")  # a row is read when it is a candidate first
    with TestClient(create_app(Retriever.open(bundle, gallery), page=False)) as client:
        image = encode(draw(3, 0))
        far = encode(draw(77, 0))
        assert client.post("/v1/search?top_k=1", content=far).status_code == 200
        assert client.get("/readyz").status_code == 200
        _turn_around(gallery, "item-03")
        response = client.post("/v1/search?top_k=1", content=image)
        assert response.status_code == 500
        assert response.json()["detail"] == "The server's log says why."
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert "damaged" in ready.json()["detail"]


def test_too_many_open_files_are_a_503_for_as_long_as_it_lasts(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world / "gallery", tmp_path / "gallery")
    with TestClient(create_app(Retriever.open(world / "bundle", tmp_path / "gallery"), page=False)) as client:
        image, load = encode(draw(3, 0)), segments.load_array
        with Gallery.open(tmp_path / "gallery") as opened:  # another process changes the gallery
            opened.add(["new"], ["new"], np.eye(1, opened.dim))

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(segments, "load_array", full)
        response = client.post("/v1/search", content=image)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        monkeypatch.setattr(segments, "load_array", load)
        assert client.post("/v1/search", content=image).status_code == 200
        assert client.get("/readyz").status_code == 200


def _turn_around(gallery: Path, item: str) -> None:
    """Write the opposite of every vector of an item in place, as the served gallery has it mapped."""
    with Gallery.open(gallery, read_only=True) as opened:
        for segment in opened.snapshot().segments:
            photos = segment.photos(np.arange(len(segment.seqs)))
            rows = [row for row, photo in enumerate(photos) if photo[1] == item]
            vectors = np.load(gallery / "segments" / f"{segment.name}.npy", mmap_mode="r+")
            vectors[rows] = -vectors[rows]
            vectors.flush()
