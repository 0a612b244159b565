"""The answer "perhaps": its rule, its texts, items under two ids, and that it never counts as a match."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.gallery import Gallery
from index.groups import GROUP
from index.photos import NONE
from index.search.item_distance import RIVALS
from index.snapshot import Neighbour
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.cli.main import group
from retrieval.cli.search import lines
from retrieval.galleries.measured import remeasure
from retrieval.measuring.draws import OWN, AllDraws, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import ESTIMATED, GALLERY, Perhaps, Point
from retrieval.measuring.rates import VersionRates
from retrieval.measuring.rule import set_threshold
from retrieval.measuring.sentences import describe
from retrieval.retriever import Retriever
from retrieval.search.answers import Listed
from retrieval.search.result import Match, SearchResult
from retrieval.search.true_rates import Known, TrueRates
from serving.app import create_app

from ..world import draw, encode, make_bundle


def own_draws(own: np.ndarray, other: np.ndarray) -> AllDraws:
    """Return one draw of each of n items, with the distances to the own item and to another one."""
    count = len(own)
    names, nothing = np.array([f"i{row}" for row in range(count)]), np.full(count, "")
    draws = Draws(
        ids=names,
        items=names,
        groups=names,
        distances=other,
        nearest=nothing,
        nearest_items=nothing,
        rivals=np.full((count, RIVALS), NONE),
        without=np.full((count, 1 + RIVALS), np.inf),
        plain=other,
        duplicates=nothing,
        own=own,
        own_plain=own,
        wrong=np.where(other <= own, other, np.inf),
    )
    return AllDraws("m", {OWN: draws}, frozenset())


def perhaps_of(draws: AllDraws, target: float) -> tuple[Point, Perhaps]:
    """Return the point of draws of 200 items, and when it answers "perhaps"."""
    point = set_threshold(draws, target, items=200)
    assert point.perhaps is not None
    return point, point.perhaps


# the rule


def test_perhaps_reaches_as_far_as_a_quarter_of_unknown_items_come() -> None:
    other = np.linspace(0.5, 1.5, 200)
    own = np.where(np.arange(200) % 2, 0.1, 1.4)  # beyond the threshold, hardly any first item is right
    draws = own_draws(own, other)
    point, told = perhaps_of(draws, 0.05)
    drawn = DrawnDistances.of(draws.sources)
    assert (drawn.distances <= told.within).tolist() == (drawn.p_values(drawn.distances) <= 0.25).tolist()
    assert told.within > point.threshold


def test_perhaps_reaches_farther_where_the_first_item_is_right_more_often_than_not() -> None:
    other = np.linspace(0.5, 1.5, 200)
    own = np.random.default_rng(0).permutation(np.linspace(0.1, 0.9, 200))
    own = np.minimum(own, other - 0.01)  # the own item is always first
    draws = own_draws(own, other)
    _, told = perhaps_of(draws, 0.02)
    assert told.within == pytest.approx(own.max())
    assert DrawnDistances.of(draws.sources).fpir(told.within) > 0.25
    assert told.right == 1


def test_the_evidence_counts_how_often_the_first_item_is_right_between_threshold_and_limit() -> None:
    other, own = np.linspace(0.5, 1.5, 200), np.full(200, 0.1)
    own[100:] = 0.62  # of these items, the own one is first from 0.62 on: the others are wrong below that
    draws = own_draws(own, np.random.default_rng(1).permutation(other))
    point, told = perhaps_of(draws, 0.05)
    drawn = draws.get(OWN)
    first = np.minimum(drawn.right, drawn.wrong)
    asked = (first > point.threshold) & (first <= told.within)
    assert told.searches == asked.sum() > 0
    assert told.right == pytest.approx(np.isinf(drawn.wrong)[asked].mean())


def test_perhaps_is_no_match_in_true_rates() -> None:
    unsure = result("perhaps", review=(Match("a", "p", 0.6),))
    answers = [Known(f"q{row}", "a", row < 4, unsure) for row in range(8)]
    rates = TrueRates.of([replace(answer, truth="a" if answer.in_gallery else "") for answer in answers])
    assert rates.tpir is not None
    assert rates.fpir is not None
    assert rates.misidentification is not None
    assert (rates.tpir.value, rates.fpir.value, rates.misidentification.value) == (0, 0, 0)


def result(decision: str, reason: str = "beyond_threshold", review: tuple[Match, ...] = ()) -> SearchResult:
    return SearchResult((), decision, reason, 0.5, 0.6, 1.0, review[0], "b", 1, review=review)  # type: ignore[arg-type]


def test_the_command_line_names_the_item_to_confirm_or_both_twins() -> None:
    review = tuple(Match(item, item, 0.6, {}, 0.1) for item in ("cup", "mug", "jar"))
    (told, *_) = lines(result("perhaps", review=review), filtered=False)
    assert told.startswith("perhaps cup, please confirm: it is 0.6000 away")
    (told, heading, *_) = lines(result("perhaps", "twins", review), filtered=False)
    assert told == "perhaps cup or mug, please confirm: the catalogue may have this item under two ids"
    assert heading == "For review:"  # twins may be within the threshold


# how it is decided


def divided(
    distances: tuple[float, ...], review: float, *, within: float | None, twins: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Return the items that match and those for review, of items a, b, c, ... at some distances.

    The threshold is 0.5, and an answer is "perhaps" up to `within`.
    """
    drawn = DrawnDistances.of_items(np.linspace(0.4, 1.4, 50), np.arange(50))
    rates = VersionRates(drawn, twins=frozenset([frozenset(twins)] if twins else []))
    point = Point(0.5, ESTIMATED, 0.05, GALLERY, perhaps=None if within is None else Perhaps(within))
    neighbours = [Neighbour("abc"[row], f"p{row}", distance) for row, distance in enumerate(distances)]
    matches, others = Listed.of(neighbours, point, rates).divided(review)
    return "".join(match.item_id for match in matches), "".join(match.item_id for match in others)


@pytest.mark.parametrize(
    ("distances", "matches", "review"),
    [
        ((0.45, 0.48, 0.49), "", "abc"),  # both within the threshold
        ((0.45, 1.2, 1.3), "", "ab"),  # the second is far away, and is asked for as well
        ((0.6, 1.2, 1.3), "", "ab"),  # within the limit of "perhaps"
        ((1.2, 1.25, 1.3), "", ""),  # an unknown item that happens to be nearest to both
    ],
)
def test_of_twins_both_are_for_review_where_the_first_is_near(
    distances: tuple[float, ...], matches: str, review: str
) -> None:
    for limit in (0.0, 0.25):
        assert divided(distances, limit, within=0.7, twins=("b", "a")) == (matches, review)


def test_twins_are_for_review_where_the_first_alone_is_within_the_threshold() -> None:
    assert divided((0.45, 0.6, 1.2), 0.0, within=None, twins=("b", "a")) == ("", "ab")


def test_items_that_are_no_twins_match_and_are_for_review_by_their_p_value() -> None:
    assert divided((0.45, 0.55, 1.2), 0.25, within=0.7, twins=("a", "c")) == ("a", "b")
    assert divided((0.65, 1.2), 0.0, within=0.7) == ("", "a")  # worth a question, whatever is for review


# through a gallery: two ids of one product


@pytest.fixture(scope="module", params=["", "cups"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with a bundle and a gallery, in which `z` and `a` are one product, and the group of these two.

    Its three views are unlike each other, and each was taken once for either id.
    """
    folder, shared = tmp_path_factory.mktemp("twins"), request.param
    point = Point.uncalibrated(0.1)
    bundle = make_bundle(folder, point=point, files={FITTED: Fitted.of([], []).pack()})
    embedder = bundle.embedder()
    with Gallery.create(folder / "gallery", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        for item in np.random.default_rng(0).permutation(30).tolist():
            name = {7: "z", 8: "a"}.get(item, f"item-{item:02d}")
            twin = name in ("z", "a")
            pictures = [draw(200 + view, 3 * (name == "a")) if twin else draw(item, 3 * view) for view in range(3)]
            vectors = embedder.embed([encode(picture, "PNG") for picture in pictures]).vectors
            metadata = [{GROUP: shared} if twin and shared else {}] * 3
            gallery.add([f"{name}/{view}" for view in range(3)], [name] * 3, vectors, metadata=metadata)
        remeasure(bundle, gallery)
    return folder, shared


def test_twins_give_perhaps_with_both_and_match_in_one_group(shop: tuple[Path, str]) -> None:
    folder, shared = shop
    with Retriever.open(folder / "bundle", folder / "gallery") as retriever:
        assert retriever.point.basis.twins == (() if shared else (("a", "z"),))
        asked = encode(draw(201, 6), "PNG")
        for top_k in (1, 10):
            found = retriever.search(asked, top_k=top_k)
            if shared:
                assert (found.decision, found.reason) == ("match", "")
                assert {match.item_id for match in found.matches[:2]} <= {"a", "z"}
            else:
                assert (found.decision, found.reason, found.matches) == ("perhaps", "twins", ())
                assert {match.item_id for match in found.review[:2]} == {"a", "z"}
        other = retriever.search(encode(draw(5, 1), "PNG"))
        assert (other.decision, other.matches[0].item_id) == ("match", "item-05")


def test_twins_are_told_over_http_by_the_command_and_by_calibrate_before_the_promise(shop: tuple[Path, str]) -> None:
    folder, shared = shop
    photo = folder / "asked.png"
    photo.write_bytes(encode(draw(201, 6), "PNG"))
    places = [str(folder / "bundle"), str(folder / "gallery")]
    with TestClient(create_app(Retriever.open(*places), page=False)) as client:
        headers = {"content-type": "image/png"}
        answer = client.post("/v1/search", content=photo.read_bytes(), headers=headers).json()
    assert (answer["decision"], answer["reason"]) == (("match", "") if shared else ("perhaps", "twins"))
    assert len(answer["review"]) >= (0 if shared else 2)
    shown = CliRunner().invoke(group, ["search", *places, str(photo)], catch_exceptions=False).output
    assert ("please confirm: the catalogue may have this item under two ids" in shown) == (not shared)
    told = CliRunner().invoke(group, ["calibrate", *places, "--dry-run"], catch_exceptions=False).output
    sentence = "1 pair of items looks like one item under two ids: a and z."
    assert (sentence in told) == (not shared)
    assert shared or told.index(sentence) < told.index("An unknown item")
    audited = json.loads(CliRunner().invoke(group, ["audit", *places, "--json"], catch_exceptions=False).output)
    assert audited["twins"] == ([] if shared else [["a", "z"]])


def test_a_long_list_of_twins_is_counted_and_cut(shop: tuple[Path, str]) -> None:
    folder, _ = shop
    with Retriever.open(folder / "bundle", folder / "gallery") as retriever:
        point = retriever.point
    pairs = tuple((f"a{row}", f"b{row}") for row in range(7))
    first, *_ = describe(replace(point, basis=replace(point.basis, twins=pairs)))
    assert first.startswith("7 pairs of items look like one item under two ids: a0 and b0, ")
    assert "a4 and b4 and 2 more." in first


def test_sentences_say_the_expected_rate_and_its_bound_and_never_an_observed_zero(shop: tuple[Path, str]) -> None:
    folder, _ = shop
    with Gallery.open(folder / "gallery", read_only=True) as gallery:
        bundle = Bundle.open(folder / "bundle")
        point = Retriever(bundle, gallery).point
    told = "\n".join(describe(replace(point, rates=replace(point.rates, fpir=0.0))))
    rates = point.rates
    assert rates.fpir_expected is not None
    assert rates.precision is not None
    assert f"about {rates.fpir_expected:.1%} of searches" in told
    assert f"at most {rates.fpir_upper:.1%} with 95 % confidence" in told
    assert rates.fpir_expected > 0
    assert (rates.precision["0.9"] or 1) < 1
    assert "100% if 90%" not in told
