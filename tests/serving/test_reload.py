"""Reloads: checks before the switch, state that belongs to the old bundle, and links that lead elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from retrieval.bundle.bundle import CALIBRATION
from retrieval.errors import GalleryCorrupt
from retrieval.metrics.identification import SearchScores
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.reloads import Places

from ..world import draw, encode, make_bundle, pack_calibration

MINE = encode(draw(3, 5))


class Opens:
    """Opens what the test says; a server asks it at each reload."""

    def __init__(self, retriever: Retriever) -> None:
        self.next = retriever

        self.state = Places(retriever.bundle.path, retriever.gallery.path).state

    def open(self) -> Retriever:
        return self.next


@pytest.fixture
def opens(world: Path) -> Opens:
    return Opens(Retriever.open(world / "bundle", world / "gallery"))


@pytest.fixture
def client(opens: Opens) -> Iterator[TestClient]:
    with TestClient(create_app(opens.next, page=False, places=opens)) as client:
        yield client


def test_what_opens_but_does_not_answer_never_takes_over(
    client: TestClient, opens: Opens, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path, threshold=0.01, files={})
    opens.next = Retriever.open(tmp_path / "bundle", world / "gallery")

    def damaged(*_: Any, **__: Any) -> None:
        raise GalleryCorrupt("a segment is damaged")

    monkeypatch.setattr(opens.next.gallery, "search_version", damaged)
    assert client.post("/v1/admin/reload").status_code == 409
    answer = client.post("/v1/search", content=MINE).json()
    assert (answer["threshold"], answer["decision"]) == (0.5, "match")
    assert client.get("/v1/info").json()["threshold"] == 0.5
    monkeypatch.undo()
    assert client.post("/v1/admin/reload").status_code == 200
    assert client.get("/v1/info").json()["threshold"] == 0.01


def searches(norm: float) -> bytes:
    """Return the calibration of a bundle whose photos all had one norm."""
    own, impostor = np.full(4, 0.2), np.full(4, 0.9)
    scores = SearchScores(np.arange(4).astype(str), own, impostor, 4)
    return pack_calibration(scores, np.full(4, norm, np.float32))


def test_drift_is_told_of_the_bundle_that_serves(client: TestClient, opens: Opens, world: Path, tmp_path: Path) -> None:
    def norm() -> dict[str, Any]:
        drift = client.get("/v1/info").json()["drift"]["statistics"]
        (found,) = (one for one in drift if one["statistic"] == "norm")
        return dict(found)

    for number in (1, 2):
        make_bundle(tmp_path, name=f"of-{number}", files={CALIBRATION: searches(float(number))})
        opens.next = Retriever.open(tmp_path / f"of-{number}", world / "gallery")
        assert client.post("/v1/admin/reload").status_code == 200
        assert (norm()["calibration_median"], norm()["searches"]) == (number, 0)
        for _ in range(3):
            assert client.post("/v1/search", content=MINE).status_code == 200
        assert norm()["searches"] == 3
