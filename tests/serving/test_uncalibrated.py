"""Serving a gallery without a threshold: answers rank items, and nothing is decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import CalibrationError
from retrieval.galleries.measured import measure_gallery
from retrieval.indexing.pipeline import index_catalogue
from retrieval.inspect.audit import audit
from retrieval.measuring.point import Point
from retrieval.retriever import Retriever
from retrieval.search.result import RESULT
from serving.app import create_app
from serving.page.examples import gallery_examples
from serving.page.page import header_of
from serving.settings import ServeSettings

from ..world import draw, encode, make_bundle, write_folder

JPEG = {"content-type": "image/jpeg"}


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("uncalibrated")
    bundle = make_bundle(folder, point=Point.uncalibrated(0.05))
    photos = write_folder(folder / "photos", items=range(6), photos=range(2))
    index_catalogue(bundle, read_catalogue(photos), folder / "gallery", progress=False)
    with Retriever.open(bundle.path, folder / "gallery") as opened:
        yield opened


def test_even_a_photo_of_the_gallery_is_no_match(retriever: Retriever, tmp_path: Path) -> None:
    (result,) = retriever.search_batch([draw(2, 0)], top_k=4)
    assert not isinstance(result, Exception)
    assert (result.decision, result.reason, result.matches) == ("ranked", "uncalibrated", ())
    assert (result.threshold, result.margin, result.threshold_status) == (None, None, "uncalibrated")
    assert result.ranked[0].item_id == "item-02"
    assert len(result.ranked) == 4
    assert [m.distance for m in result.ranked] == sorted(m.distance for m in result.ranked)
    assert "uncalibrated" in repr(retriever)


def test_the_endpoint_ranks(retriever: Retriever, tmp_path: Path) -> None:
    settings = ServeSettings(feedback=tmp_path / "feedback.jsonl")
    with TestClient(create_app(retriever, settings=settings, page=False)) as client:
        response = client.post("/v1/search?top_k=2", content=encode(draw(3, 5)), headers=JPEG)
        info = client.get("/v1/info").json()
        metrics = client.get("/metrics").text
        verdict = {"request_id": response.json()["request_id"], "verdict": "right"}
        recorded = client.post("/v1/feedback", json=verdict)
    answer = response.json()
    assert (answer["decision"], answer["reason"], answer["matches"]) == ("ranked", "uncalibrated", [])
    assert (answer["threshold"], answer["margin"]) == (None, None)
    assert (answer["ranked"][0]["item_id"], answer["ranked"][0]["metadata"]) == ("item-03", {})
    assert len(answer["ranked"]) == 2
    decoded = RESULT.validate_json(response.content)
    assert (decoded.matched, decoded.threshold, decoded.ranked[0].item_id) == (False, None, "item-03")
    assert (info["threshold"], info["status"]) == (None, "uncalibrated")
    assert 'retrieval_decisions_total{decision="ranked",reason="uncalibrated"} 1.0' in metrics
    assert "retrieval_threshold " not in metrics
    assert recorded.json() == {"recorded": True}  # that the first item is right


def test_the_page_says_that_nothing_is_decided_and_claims_nothing(retriever: Retriever) -> None:
    assert "cannot tell yet whether an item is in the catalogue" in header_of(retriever)["rates"]
    assert gallery_examples(retriever) == []  # nothing would be right


def test_an_audit_needs_a_decision(retriever: Retriever) -> None:
    with pytest.raises(CalibrationError, match="neither the gallery nor the bundle"):
        audit(retriever.bundle, retriever.gallery)  # type: ignore[arg-type]


def test_commands_say_that_nothing_is_decided(retriever: Retriever, tmp_path: Path) -> None:
    draw(4, 5).save(tmp_path / "query.png")
    gallery = str(retriever.gallery.path)
    found = CliRunner().invoke(group, ["search", str(retriever.bundle.path), gallery, str(tmp_path / "query.png")])
    assert "1  " in found.output
    assert "item-04" in found.output.splitlines()[0]
    assert "There is no threshold to decide whether any of them is right" in found.output
    checked = CliRunner().invoke(group, ["doctor", str(retriever.bundle.path)])
    assert "FPIR 0.05 uncalibrated" in checked.output
    assert "inf" not in checked.output.replace("info", "")
    photos = write_folder(tmp_path / "photos", items=range(3), photos=range(1))
    indexed = CliRunner().invoke(
        group, ["index", str(retriever.bundle.path), str(photos), "-o", str(tmp_path / "g")], catch_exceptions=False
    )
    assert "This gallery has no threshold, so searches only rank items: " in indexed.output


def test_the_first_threshold_of_a_gallery_has_none_to_compare_with(tmp_path: Path) -> None:
    from index.gallery import Gallery
    from retrieval.bundle.bundle import FITTED
    from retrieval.bundle.fitted import Fitted

    fitted = {FITTED: Fitted.of([], []).pack()}
    bundle = make_bundle(tmp_path, point=Point.uncalibrated(0.1), files=fitted)
    with Gallery.create(tmp_path / "gallery", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        vectors = bundle.embedder().embed([draw(item, 0) for item in range(24)]).vectors
        gallery.add([str(i) for i in range(24)], [f"item-{i}" for i in range(24)], vectors)
        proposal = measure_gallery(bundle, gallery, rule="set")
        (line,) = proposal.change.lines()
        assert line.startswith("The gallery gets its first threshold, ")
        proposal.write(gallery)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        assert retriever.search(draw(5, 0)).decision == "match"
