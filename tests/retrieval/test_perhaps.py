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
from index.search.neighbours import Neighbour
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.cli.main import group
from retrieval.cli.search import lines
from retrieval.measuring.draws import LABELLED, OWN, PROBE, AllDraws, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import ESTIMATED, GALLERY, Perhaps, Point
from retrieval.measuring.rates import VersionRates, perhaps_of
from retrieval.measuring.rule import set_threshold
from retrieval.measuring.sentences import describe
from retrieval.retriever import Retriever
from retrieval.search.answers import Ranking
from retrieval.search.result import Match, SearchResult
from retrieval.search.true_rates import Known, TrueRates
from serving.app import create_app
from tests.retrieval.galleries.writing import remeasure

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


def own_first(count: int, near: int, *, band: np.ndarray | None = None) -> AllDraws:
    """Return draws of which the own item is the first: of `near` items at 0.1, of the others at `band` or far away.

    The other items are at distances of 0.5 to 1.5, in no order.
    """
    other = np.random.default_rng(1).permutation(np.linspace(0.5, 1.5, count))
    own = np.r_[np.full(near, 0.1), np.full(count - near, 1.49) if band is None else band]
    return own_draws(own, np.where(own < 1.49, np.maximum(other, own + 0.01), other))


# the rule


def test_perhaps_is_asked_up_to_a_p_value_of_twice_the_expected_fpir_of_the_point_itself() -> None:
    draws = own_first(200, 100, band=np.linspace(0.5, 0.7, 100))
    drawn = DrawnDistances.of(draws.sources)
    for target, cap in ((0.05, np.inf), (0.1, np.inf), (0.1, 0.56)):
        point = set_threshold(draws, target, items=200, cap=cap)
        assert point.perhaps is not None
        most = 2 * drawn.expected(point.threshold)
        assert point.threshold < point.perhaps.within
        assert drawn.p_values(np.array([point.perhaps.within]))[0] <= most
        assert drawn.p_values(np.array([point.perhaps.within + 0.01]))[0] > most  # the next draw is as near
        matched = drawn.fpir(point.threshold)
        assert point.perhaps.unknown == pytest.approx(drawn.fpir(point.perhaps.within) - matched)
        assert 0 < point.perhaps.unknown <= matched + 2 / 200  # asked about at most about as often as they match


def test_the_point_has_both_rates_and_what_they_were_measured_on_also_as_json() -> None:
    point = set_threshold(own_first(200, 100, band=np.linspace(0.5, 0.7, 100)), 0.1, items=200)
    told, draws = point.perhaps, own_first(200, 100, band=np.linspace(0.5, 0.7, 100)).get(OWN)
    assert told is not None
    first = np.minimum(draws.right, draws.wrong)
    asked = (first > point.threshold) & (first <= told.within)
    is_right = float((asked & np.isinf(draws.wrong)).mean())
    assert told.searches == asked.sum() > 0
    assert told.known == asked.mean()
    assert told.unknown is not None
    assert told.right == pytest.approx(is_right / (told.known + told.unknown))  # as many known as unknown
    assert 0.6 <= told.right < 1
    values = json.loads(json.dumps(point.to_dict()))
    assert values["evidence"]["perhaps"] == {
        "within": told.within,
        "right": told.right,
        "searches": told.searches,
        "known": told.known,
        "unknown": told.unknown,
        "measured_on": "catalogue photos",
    }
    assert Point.from_dict(values).perhaps == told


def half_right(right: float, *, count: int = 400, items: int | None = None) -> Draws:
    """Return draws of which a tenth is asked about, and whose item is right in a share as if as many were unknown.

    A threshold for an FPIR of 10 % accepts others up to 0.6, and others up to 0.7 are as near as a perhaps.
    """
    other = np.random.default_rng(2).permutation(np.linspace(0.5, 1.5, count))
    far = np.flatnonzero(other > 0.75)
    asked = round(right / (1 - right) * count / 10)  # all of these are right
    own = np.where(other < 0.75, 0.1, 1.49)
    own[far[:asked]] = 0.65
    drawn = own_draws(own, other).get(OWN)
    if items is None:
        return drawn
    names = np.array([f"i{row % items}" for row in range(count)])
    return replace(drawn, items=names, groups=names)


@pytest.mark.parametrize(("right", "is_asked"), [(0.57, False), (0.63, True)])
def test_photos_of_the_catalogue_must_be_right_in_six_of_ten_questions(right: float, is_asked: bool) -> None:
    point = set_threshold(AllDraws("m", {OWN: half_right(right)}, frozenset()), 0.1, items=400)
    assert (point.perhaps is not None) == is_asked
    if point.perhaps is not None:
        assert point.perhaps.right == pytest.approx(right, abs=0.02)
        assert point.perhaps.measured_on == "catalogue photos"


@pytest.mark.parametrize(
    ("right", "items", "asked_on"),
    [(0.47, 20, ""), (0.55, 20, "labelled queries"), (0.55, 19, ""), (0.63, 19, "catalogue photos")],
)
def test_labelled_photos_of_20_items_must_be_right_in_half_of_the_questions(
    right: float, items: int, asked_on: str
) -> None:
    """They count instead of photos of the catalogue, which flatter, as soon as they show 20 items."""
    sources = {OWN: half_right(right), LABELLED: half_right(right, items=items)}
    point = set_threshold(AllDraws("m", sources, frozenset()), 0.1, items=400)
    assert ("" if point.perhaps is None else point.perhaps.measured_on) == asked_on


def test_calibration_photos_of_a_bundle_are_held_to_what_catalogue_photos_are() -> None:
    for right, measured_on in ((0.57, None), (0.63, "calibration photos")):
        draws = AllDraws("m", {PROBE: half_right(right)}, frozenset())
        rates = VersionRates.of(draws, Point(0.6, ESTIMATED, 0.1))
        assert rates is not None
        asked = perhaps_of(rates.drawn, rates.mated, 0.6)
        assert (None if asked is None else asked.measured_on) == measured_on


def test_without_mated_draws_nothing_is_asked() -> None:
    other = np.linspace(0.5, 1.5, 200)
    point = set_threshold(own_draws(np.full(200, np.inf), other), 0.1, items=200)
    assert point.decides
    assert point.perhaps is None
    assert "perhaps" not in point.evidence


def test_perhaps_is_no_match_in_true_rates() -> None:
    unsure = result("perhaps", review=(Match("a", "p", 0.6),))
    answers = [Known(f"q{row}", "a", row < 4, unsure) for row in range(8)]
    rates = TrueRates.of([replace(answer, truth="a" if answer.in_gallery else "") for answer in answers])
    assert rates.tpir is not None
    assert rates.fpir is not None
    assert rates.misidentification is not None
    assert (rates.tpir.value, rates.fpir.value, rates.misidentification.value) == (0, 0, 0)


def result(decision: str, reason: str = "beyond_threshold", review: tuple[Match, ...] = ()) -> SearchResult:
    return SearchResult((), decision, reason, 0.5, 0.6, review[0], "b", 1, review=review)  # type: ignore[arg-type]


def test_the_command_line_names_the_item_to_confirm_or_both_twins() -> None:
    review = tuple(Match(item, item, 0.6, {}, 0.1) for item in ("cup", "mug", "jar"))
    (told, *_) = lines(result("perhaps", review=review), filtered=False)
    assert told.startswith("perhaps cup, please confirm: it is 0.6000 away")
    (told, heading, *_) = lines(result("perhaps", "twins", review), filtered=False)
    assert told == "perhaps cup or mug, please confirm: the catalogue may have this item under two ids"
    assert heading == "For review:"  # twins may be within the threshold


# how it is decided


def divided(
    distances: tuple[float, ...], review: float | None, *, within: float | None, twins: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Return the items that match and those for review, of items a, b, c, ... at some distances.

    The threshold is 0.5, and an answer is "perhaps" up to `within`.
    """
    drawn = DrawnDistances.of_items(np.linspace(0.4, 1.4, 50), np.arange(50))
    rates = VersionRates(drawn, twins=frozenset([frozenset(twins)] if twins else []))
    point = Point(0.5, ESTIMATED, 0.05, GALLERY, perhaps=None if within is None else Perhaps(within))
    neighbours = [Neighbour("abcd"[row], f"p{row}", distance) for row, distance in enumerate(distances)]
    matches, others = Ranking.of(neighbours, point, rates).divided(review)
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


def test_without_a_number_items_as_near_as_a_question_are_for_review() -> None:
    assert divided((0.45, 0.55, 0.7, 0.71), None, within=0.7) == ("a", "bc")
    assert divided((0.65, 0.69, 0.8), None, within=0.7) == ("", "ab")
    assert divided((0.65, 0.69, 0.8), None, within=None) == ("", "")  # nothing is worth a question
    assert divided((0.65, 0.69, 0.8), 0.5, within=None) == ("", "abc")


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
