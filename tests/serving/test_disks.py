"""Full disks: of the temporary files, and of the gallery."""

from __future__ import annotations

import errno
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import index.gallery
from index.database import Database
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.problems import MEDIA_TYPE

from ..world import draw, encode

MINE = encode(draw(3, 5))


@pytest.fixture
def client(shop: Path) -> Iterator[TestClient]:
    app = create_app(Retriever.open(shop / "bundle", shop / "gallery"), page=False)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_a_form_is_searched_without_a_temporary_file(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files above 1 MB were written to TMPDIR, and a full one was a 500."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    large = encode(Image.fromarray(noise), "PNG")
    assert len(large) > 2 * 2**20
    assert client.post("/v1/search", files={"image": ("a.png", large)}).status_code == 200
    batch = client.post("/v1/search/batch", files=[("images", ("a.png", large)), ("images", ("b.jpg", MINE))])
    assert [answer["decision"] for answer in batch.json()["answers"]][1] == "match"


def full_segment(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "/srv/secret")


def full_database(*_: Any, **__: Any) -> Any:
    raise sqlite3.OperationalError("database or disk is full: /srv/secret")


@pytest.mark.parametrize(
    ("place", "name", "fail"),
    [(index.gallery, "write_segment", full_segment), (Database, "add_photos", full_database)],
    ids=["vectors", "database"],
)
def test_a_put_on_a_full_disk_says_so_changes_nothing_and_works_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, fail: Callable[..., Any]
) -> None:
    version = client.get("/v1/info").json()["gallery"]["version"]
    with monkeypatch.context() as full:
        full.setattr(place, name, fail)
        answer = client.put("/v1/photos/new?item_id=x", content=MINE)
    assert (answer.status_code, answer.headers["content-type"]) == (507, MEDIA_TYPE)
    assert "disk is full" in answer.json()["title"]
    assert "secret" not in answer.text
    assert client.get("/v1/info").json()["gallery"]["version"] == version
    assert client.get("/v1/photos/new").status_code == 404
    assert client.put("/v1/photos/new?item_id=x", content=MINE).status_code == 200
