"""Candidates for review, and p-values in answers: with a filter, in words, and without a threshold of the gallery."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from retrieval.galleries.points import GalleryPoint, pack_points
from retrieval.measuring.point import Perhaps
from retrieval.retriever import Retriever
from retrieval.search.result import p_value_words

from ..world import INDEPENDENT, draw


@pytest.fixture
def asking(filled_copy: Path) -> Path:
    """Return a folder with a bundle and a gallery in which three of ten unknown items are matches or questions."""
    bundle = Bundle.open(filled_copy / "bundle")
    with Gallery.open(filled_copy / "gallery") as gallery:
        measured, rates = GalleryPoint(bundle, gallery).measured()
        assert rates is not None
        within = rates.drawn.at_share(0.3)
        assert within > measured.threshold
        point = replace(measured, perhaps=Perhaps(within))
        gallery.keep({POINT: pack_points(gallery.kept(POINT), bundle, point)}, "ask")
    return filled_copy


@pytest.fixture
def retriever(asking: Path) -> Iterator[Retriever]:
    with Retriever.open(asking / "bundle", asking / "gallery") as opened:
        yield opened


def unknown(retriever: Retriever, **options: float) -> list[tuple[int, list[float]]]:
    """Return the number of matches and the p-values of the candidates for review of unknown items."""
    results = [retriever.search(draw(item, 0), **options) for item in range(100, 160)]  # type: ignore[arg-type]
    return [(len(result.matches), [match.p_value or 0 for match in result.review]) for result in results]


def test_review_starts_at_the_threshold_and_ends_where_no_question_is_worth_it(retriever: Retriever) -> None:
    perhaps = retriever.point.perhaps
    assert perhaps is not None
    results = [retriever.search(draw(item, 0)) for item in range(100, 160)]
    assert any(result.review for result in results)
    for result in results:
        distances = [match.distance for match in (*result.matches, *result.review)]
        assert distances == sorted(distances)
        assert all(match.distance > result.threshold for match in result.review)
        assert all(match.p_value is not None and match.distance <= perhaps.within for match in result.review)
        assert result.decision == ("match" if result.matches else "perhaps" if result.review else "no_match")
        assert result.review or result.matches or result.nearest is None or result.nearest.distance > perhaps.within


def test_the_limit_of_review_is_a_choice(retriever: Retriever) -> None:
    none, some, everything = (unknown(retriever, review=limit) for limit in (0.0, 0.5, 1.0))
    assert [matches for matches, _ in none] == [matches for matches, _ in some]  # the decision stays
    assert {len(values) for _, values in none} == {0, 1}  # a "perhaps" has its item
    assert (
        sum(len(values) for _, values in none)
        < sum(len(values) for _, values in some)
        < sum(len(values) for _, values in everything)
    )
    for limit in (-0.1, 1.1, float("nan"), "0.3"):
        with pytest.raises(InvalidParameter, match="review"):
            retriever.search(draw(1, 0), review=limit)  # type: ignore[arg-type]


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
        within = retriever.point.perhaps.within  # type: ignore[union-attr]
        item = next(i for i in range(100, 160) if retriever.search(draw(i, 0)).review)
    draw(item, 0).save(photo)
    arguments = ["search", str(asking / "bundle"), str(asking / "gallery"), str(photo)]
    told = CliRunner().invoke(group, arguments, catch_exceptions=False).output
    assert "For review, beyond the threshold:" in told
    assert "an unknown item comes this close in" in told
    assert "perhaps " in told
    found = json.loads(CliRunner().invoke(group, [*arguments, "--json"], catch_exceptions=False).output)
    assert found["review"]
    assert found["review"][0]["distance"] <= within
    filtered = CliRunner().invoke(group, [*arguments, "--where", "half = 1"], catch_exceptions=False).output
    assert "was measured without the filter" in filtered
