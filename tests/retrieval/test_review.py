"""Candidates for review, and p-values in answers: with a filter, in words, and without a threshold of the gallery."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from retrieval.galleries.points import pack_points, stored_point
from retrieval.measuring.point import Perhaps
from retrieval.retriever import Retriever
from retrieval.search.result import SearchResult, p_value_words
from serving.app import create_app
from serving.service import Service
from serving.settings import ServeSettings

from ..world import INDEPENDENT, draw, encode

WITHIN = 1.2  # up to which distance the gallery asks


@pytest.fixture(scope="module")
def asking(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the filled gallery and its bundle, whose point answers "perhaps"."""
    folder = tmp_path_factory.mktemp("asking")
    for name in ("bundle", "gallery"):
        shutil.copytree(filled / name, folder / name)
    bundle = Bundle.open(folder / "bundle")
    with Gallery.open(folder / "gallery") as gallery:
        point = stored_point(gallery.kept(POINT), bundle)
        assert point is not None
        assert point.perhaps is None  # every photo finds its item as a match
        point = replace(point, perhaps=Perhaps(WITHIN, 0.7, 20, 0.1, 0.05, "catalogue photos"))
        gallery.keep({POINT: pack_points(None, bundle, point)}, "calibrate")
    return folder


@pytest.fixture
def retriever(asking: Path) -> Iterator[Retriever]:
    with Retriever.open(asking / "bundle", asking / "gallery") as opened:
        yield opened


def unknown(retriever: Retriever, **options: float | None) -> list[SearchResult]:
    """Return the answers to photos of unknown items."""
    return [retriever.search(draw(item, 0), **options) for item in range(100, 160)]  # type: ignore[arg-type]


def test_review_starts_at_the_threshold_and_ends_where_a_question_is_worth_it(retriever: Retriever) -> None:
    results, everything = unknown(retriever), unknown(retriever, review=1.0)
    assert {result.decision for result in results} == {"match", "perhaps", "no_match"}
    for result, all_items in zip(results, everything, strict=True):
        assert result.threshold is not None
        assert result.nearest is not None
        matches = tuple(match for match in all_items.matches + all_items.review if match.distance <= result.threshold)
        assert result.matches == matches
        beyond = [match for match in all_items.review if match.distance <= WITHIN]
        assert list(result.review) == beyond[: 10 - len(matches)]
        near = result.nearest.distance <= WITHIN
        assert result.decision == ("match" if matches else "perhaps" if near else "no_match")


def test_a_number_overrides_the_limit_of_review_and_not_the_decision(retriever: Retriever) -> None:
    usual = unknown(retriever, review=None)
    for limit in (0.0, 0.3, 1.0):
        for result, default in zip(unknown(retriever, review=limit), usual, strict=True):
            assert (result.decision, result.matches) == (default.decision, default.matches)
            within = [match for match in result.review if (match.p_value or 0) <= limit]
            to_confirm = result.decision == "perhaps" and not within
            assert list(result.review) == (within or list(result.review[:to_confirm]))
            assert len(result.review) >= (result.decision == "perhaps")
    none, some, everything = ([len(r.review) for r in unknown(retriever, review=p)] for p in (0.0, 0.5, 1.0))
    assert set(none) == {0, 1}
    assert sum(none) < sum(some) < sum(everything)
    for wrong in (-0.1, 1.1, float("nan"), "0.3"):
        with pytest.raises(InvalidParameter, match="review"):
            retriever.search(draw(1, 0), review=wrong)  # type: ignore[arg-type]


def test_without_a_question_to_ask_nothing_is_for_review_but_by_a_number(filled: Path) -> None:
    with Retriever.open(filled / "bundle", filled / "gallery") as retriever:
        assert retriever.point.perhaps is None
        assert all(not result.review and result.decision != "perhaps" for result in unknown(retriever))
        assert any(result.review for result in unknown(retriever, review=0.5))


def test_the_endpoint_reviews_as_the_gallery_asks_unless_its_setting_is_a_number(retriever: Retriever) -> None:
    numbers = {None: None, 0.0: 0.0, 0.5: 0.5}
    for setting, limit in numbers.items():
        app = create_app(retriever, settings=ServeSettings(review=setting), page=False)
        with TestClient(app) as client:
            for item in range(100, 130):
                photo, expected = encode(draw(item, 0), "PNG"), retriever.search(draw(item, 0), review=limit)
                answer = client.post("/v1/search", content=photo, headers={"content-type": "image/png"}).json()
                assert answer["decision"] == expected.decision
                assert [match["item_id"] for match in answer["review"]] == [match.item_id for match in expected.review]
                address, headers = "/v1/search/boxes?bbox=0,0,40,40", {"content-type": "image/png"}
                (box,) = client.post(address, content=photo, headers=headers).json()["answers"]
                assert len(box["review"]) >= (box["decision"] == "perhaps")
                if setting is None:
                    assert all(match["distance"] <= WITHIN for match in box["review"])


def test_a_search_asks_as_the_gallery_does_and_lists_items_up_to_a_p_value_within_that_of_the_server(
    retriever: Retriever,
) -> None:
    photos, usual = [encode(draw(item, 0), "PNG") for item in range(100, 130)], unknown(retriever)[:30]

    async def searched(service: Service) -> list[SearchResult]:
        return [await service.search(photo, review=1.0) for photo in photos]

    for setting, expected in ((None, 1.0), (0.3, 0.3), (0.0, 0.0)):
        service = Service(retriever, ServeSettings(review=setting))
        for result, default, photo in zip(asyncio.run(searched(service)), usual, photos, strict=True):
            assert result.decision == default.decision
            assert result.review == retriever.search(photo, review=expected).review


def test_matches_and_review_together_are_at_most_top_k(retriever: Retriever) -> None:
    result = retriever.search(draw(3, 0), top_k=1, review=1.0)
    assert (len(result.matches), result.review) == (1, ())
    assert len(retriever.search(draw(3, 0), top_k=4, review=1.0).review) <= 3


def test_a_filtered_search_says_that_its_p_value_was_measured_without_one(filled: Path) -> None:
    with Retriever.open(filled / "bundle", filled / "gallery") as retriever:
        plain, filtered = (retriever.search(draw(3, 0), where=where) for where in (None, "half = 1"))
        assert filtered.nearest.p_value == plain.nearest.p_value == pytest.approx(1 / (INDEPENDENT + 1))
        assert (plain.p_value_without_filter, filtered.p_value_without_filter) == (False, True)
        assert retriever.search(draw(3, 0), where="half = 0").matches == ()


def test_without_a_threshold_of_the_gallery_nothing_is_for_review(world: Path) -> None:
    with Retriever.open(world / "bundle", world / "gallery") as retriever:
        result = retriever.search(draw(77, 0), review=1.0)
    assert (result.review, result.p_value_without_filter) == ((), False)
    assert result.nearest.p_value is None


def test_words_of_a_p_value() -> None:
    shown = {p: p_value_words(p) for p in (0.0001, 0.004, 0.0994, 0.0996, 1.0)}
    assert [text.removeprefix("an unknown item comes this close in ") for text in shown.values()] == [
        "less than 0.1% of searches",
        "0.4% of searches",
        "9.9% of searches",
        "10% of searches",
        "100% of searches",
    ]


def test_the_command_lists_candidates_in_words(asking: Path, tmp_path: Path) -> None:
    photo = tmp_path / "unknown.png"
    with Retriever.open(asking / "bundle", asking / "gallery") as retriever:
        item = next(i for i in range(100, 160) if len(retriever.search(draw(i, 0)).review) > 1)
    draw(item, 0).save(photo)
    arguments = ["search", str(asking / "bundle"), str(asking / "gallery"), str(photo)]
    told = CliRunner().invoke(group, arguments, catch_exceptions=False).output
    assert "For review, beyond the threshold:" in told
    assert "an unknown item comes this close in" in told
    assert "perhaps " in told
    found = json.loads(CliRunner().invoke(group, [*arguments, "--json"], catch_exceptions=False).output)
    assert len(found["review"]) > 1
    assert all(match["distance"] <= WITHIN for match in found["review"])
    confirmed = CliRunner().invoke(group, [*arguments, "--json", "--review", "0"], catch_exceptions=False).output
    assert json.loads(confirmed)["review"] == found["review"][:1]
    filtered = CliRunner().invoke(group, [*arguments, "--where", "half = 1"], catch_exceptions=False).output
    assert "was measured without the filter" in filtered
