"""A change that was refused is never made later."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import serving.service
from index.gallery import Gallery
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.settings import ServeSettings

from ..world import draw, encode

DEADLINE_S = 0.15
ROUNDS = 12


@pytest.mark.parametrize("seed", range(3))
def test_after_a_refusal_a_photo_never_changes_once_a_later_write_was_acknowledged(
    shop: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A PUT that had passed its deadline was written all the same, over a later one that was acknowledged."""
    generator = np.random.default_rng(seed)
    delays = generator.choice([0, 0, 0.5 * DEADLINE_S, 3 * DEADLINE_S], size=(ROUNDS, 2)).tolist()
    delays += [[0, 0]] * ROUNDS
    waits = {"embed_batch": 0.0, "write_batch": 0.0}

    def delayed(name: str) -> Any:
        work = getattr(serving.service, name)

        def run(*arguments: Any, **options: Any) -> Any:
            time.sleep(waits[name])
            return work(*arguments, **options)

        return run

    for name in waits:
        monkeypatch.setattr(serving.service, name, delayed(name))
    settings = ServeSettings(threads=2, queue=4, deadline_s=DEADLINE_S)
    app = create_app(Retriever.open(shop / "bundle", shop / "gallery"), settings=settings, page=False)
    image, statuses, acknowledged = encode(draw(60, 1)), [], ""
    with TestClient(app) as client:
        for number, (embed, write) in enumerate(delays):
            waits.update(embed_batch=embed, write_batch=write)
            answer = client.put(f"/v1/photos/p?item_id=item-{number}", content=image)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                acknowledged = f"item-{number}"
                time.sleep(4 * DEADLINE_S if 503 in statuses[-3:-1] else 0)  # what was refused had time to be written
            if acknowledged:
                assert client.get("/v1/photos/p").json()["item_id"] == acknowledged, statuses
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        assert gallery.photo("p")[1] == acknowledged
    assert {200, 503} <= set(statuses) <= {200, 503}


def test_a_photo_that_waits_to_be_written_keeps_no_search_waiting(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on, write = threading.Event(), threading.Event(), serving.service.write_batch

    def waits(*arguments: Any, **options: Any) -> int:
        writing.set()
        go_on.wait(30)
        return write(*arguments, **options)

    monkeypatch.setattr(serving.service, "write_batch", waits)
    settings, image = ServeSettings(threads=1, deadline_s=5), encode(draw(60, 1))
    app = create_app(Retriever.open(shop / "bundle", shop / "gallery"), settings=settings, page=False)
    with TestClient(app) as client, ThreadPoolExecutor(1) as other:
        put = other.submit(client.put, "/v1/photos/p?item_id=item-60", content=image)
        assert writing.wait(30)
        assert client.post("/v1/search", content=image).status_code == 200
        go_on.set()
        assert put.result().status_code == 200
