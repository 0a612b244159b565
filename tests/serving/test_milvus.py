"""A server on a gallery on a real Milvus server: counts do not grow, and 503 while Milvus is away."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from index.milvus.client import AGE, TIMEOUT
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever
from serving.app import create_app
from tools.milvus_server import running

from ..retrieval.galleries.test_measured import bundle_of
from ..world import draw, write_folder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # pymilvus warns of its own dependencies


def test_a_server_answers_503_while_milvus_is_away_and_200_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("milvus", reason="milvus, the server, is not installed")
    monkeypatch.setenv(TIMEOUT, "5")
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(24), photos=range(2)))
    file = io.BytesIO()
    draw(3, 5).save(file, "PNG")
    with running() as server:
        address = f"{server.address}/shop"
        index_catalogue(bundle, photos, address, progress=False)
        monkeypatch.setenv(AGE, "2")
        with Retriever.open(bundle.path, address) as retriever:
            app = create_app(retriever, page=False)
            with TestClient(app) as client:
                assert client.get("/readyz").status_code == 200
                client.get("/v1/info")  # reads the draws, once
                before = retriever.gallery._store.client.requests  # type: ignore[union-attr]
                assert client.get("/v1/info").json()["gallery"]["items"] == 24
                assert client.get("/metrics").status_code == 200
                assert retriever.gallery._store.client.requests - before <= 4  # type: ignore[union-attr]
                server.kill()
                time.sleep(2.5)  # the facts that are known are too old now
                caplog.clear()
                with caplog.at_level(logging.INFO):
                    found = client.post("/v1/search", content=file.getvalue(), headers={"Content-Type": "image/png"})
                    ready = client.get("/readyz")
                assert found.status_code == ready.status_code == 503
                assert found.headers["Retry-After"] == "1"
                assert "does not answer" in found.text
                assert not [record for record in caplog.records if record.exc_info]
                assert len([r for r in caplog.records if r.levelno >= logging.ERROR and "answer" in r.message]) <= 2
                server.start()
                for _ in range(60):
                    found = client.post("/v1/search", content=file.getvalue(), headers={"Content-Type": "image/png"})
                    if found.status_code == 200:
                        break
                    time.sleep(1)
                assert found.json()["matches"][0]["item_id"] == "item-03"
                assert client.get("/readyz").status_code == 200
