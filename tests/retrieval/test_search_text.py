"""Searches by words: draws of names, what they decide, and their places in the library and on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from index.gallery import Gallery
from index.groups import GROUP
from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from retrieval.bundle.text_embedder import TextEmbedder
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from retrieval.galleries.kept import read_draws
from retrieval.galleries.names import names_of, read_names
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.plan import SyncSettings
from retrieval.measuring.drawing import Drawing, NameVectors
from retrieval.measuring.draws import NAMES, OWN, AllDraws
from retrieval.measuring.measure import Material, measure
from retrieval.measuring.point import Point, Shift
from retrieval.measuring.rates import VersionRates
from retrieval.retriever import Retriever

from ..words import KNOWN, NAMED, looks, word_bundle, write_shop
from ..world import draw, make_bundle


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `photos`, a `bundle` with a text tower, and a `gallery` that was indexed with names."""
    folder = tmp_path_factory.mktemp("words")
    word_bundle(folder, looks())
    done = run("index", folder / "bundle", write_shop(folder / "photos"), "-o", folder / "gallery", "--names", "name")
    assert "Searches by words: an unknown name returns a match in" in done.output
    assert f"of {NAMED} names find their item." in done.output
    return folder


def run(*words: object) -> Result:
    return CliRunner().invoke(group, [*map(str, words)], catch_exceptions=False)


def indexed(folder: Path, table: Path, *, names: str | None = "name") -> None:
    bundle = word_bundle(folder, looks())
    index_catalogue(bundle, read_catalogue(table), folder / "gallery", progress=False, sync=SyncSettings(names=names))


def test_names_find_their_items_and_unknown_names_find_none(shop: Path) -> None:
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        known = [retriever.search_text(f"thing{item}", top_k=3) for item in range(NAMED)]
        unknown = [retriever.search_text(f"thing{item}") for item in range(NAMED, KNOWN)]
        photo = retriever.search(draw(3, 0))
    found = [answer.matches[0].item_id == f"item-{item}" for item, answer in enumerate(known) if answer.matches]
    assert sum(found) >= 0.9 * NAMED
    assert sum(answer.matched for answer in unknown) <= 0.2 * len(unknown)
    first = known[3]
    assert (first.decision, first.threshold_status, first.box, first.norm) == ("match", "estimated", None, None)
    assert (first.look, photo.look) == (None, "photo")
    assert first.threshold != photo.threshold
    assert 0 < first.matches[0].p_value < 0.2
    assert set(first.timings_ms) == {"embed", "search"}
    assert first.appearance is None


def test_the_options_are_those_of_photos(shop: Path) -> None:
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        even = retriever.search_text("thing3", where="half = 0")
        assert even.p_value_without_filter
        assert "item-3" not in [match.item_id for match in (*even.matches, *even.review)]
        assert retriever.search_text("thing3", where="half = 1", top_k=1).matches[0].item_id == "item-3"
        assert retriever.search_text("thing3", where="half = 7").reason == "filtered_out"
        every = retriever.search_text("thing3", review=1.0)
        assert len(every.matches) + len(every.review) == 10
        for invalid in ({"top_k": 0}, {"where": "half = = 1"}, {"review": 2}):
            with pytest.raises(InvalidParameter):
                retriever.search_text("thing3", **invalid)
        for text in ("", "  ", "a" * 1001):
            with pytest.raises(InvalidParameter, match="text must be a text of 1 to 1,000 characters"):
                retriever.search_text(text)


def test_without_names_words_rank(tmp_path: Path, shop: Path) -> None:
    indexed(tmp_path, shop / "photos" / "photos.csv", names=None)
    with Retriever.open(tmp_path / "bundle", tmp_path / "gallery") as retriever:
        answer = retriever.search_text("thing3", top_k=2)
        assert retriever.search(draw(3, 0)).matched
    assert (answer.decision, answer.reason, answer.threshold) == ("ranked", "uncalibrated", None)
    assert [len(answer.ranked), answer.ranked[0].item_id] == [2, "item-3"]


def test_a_name_of_several_items_is_not_drawn_unless_they_are_one_group(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=4, embedding_id="e") as gallery:
        rows = [  # photo, item, name, group
            ("a", "1", "red mug", ""),
            ("b", "1", "blue mug", ""),
            ("c", "1", "red mug", ""),
            ("d", "2", "Lamp", ""),
            ("e", "3", " lamp\n", ""),
            ("f", "4", "pan", "pans"),
            ("g", "5", "pan", "pans"),
            ("h", "6", "", ""),
            ("i", "7", "cafe\u0301", ""),
            ("j", "8", "x" * 1001, ""),
            ("k", "9", 5, ""),
        ]
        metadata = [{"name": name} | ({GROUP: of} if of else {}) for *_, name, of in rows]
        items = [item for _, item, *_ in rows]
        gallery.add([photo for photo, *_ in rows], items, np.eye(4, dtype=np.float32)[[0] * 11], metadata=metadata)
        assert names_of(gallery, "name") == {"1": "red mug", "4": "pan", "5": "pan", "7": "caf\u00e9"}
        assert names_of(gallery, "no such column") == {}


def test_changed_names_are_embedded_anew_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded: list[str] = []
    embed = TextEmbedder.embed

    def noted(self: TextEmbedder, texts: Sequence[str]) -> object:
        embedded.extend(texts)
        return embed(self, texts)

    indexed(tmp_path, write_shop(tmp_path / "photos", items=22))
    monkeypatch.setattr(TextEmbedder, "embed", noted)
    bundle = word_bundle(tmp_path, looks(), "again")
    names = [f"thing{item}" for item in range(22)]

    def again(column: str | None = None) -> list[str]:
        embedded.clear()
        table = read_catalogue(write_shop(tmp_path / "photos", names, items=22))
        sync = SyncSettings(names=column)
        index_catalogue(bundle, table, tmp_path / "gallery", progress=False, sync=sync)
        return embedded

    with Gallery.open(tmp_path / "gallery", read_only=True) as gallery:
        draws = gallery.kept("draws")
        assert again() == []  # the column is known
        assert gallery.kept("draws") == draws
        names[4] = "thing50"
        names[6] = names[5]
        assert again() == ["thing50"]
        kept = read_names(gallery, bundle.text_key)
        assert kept is not None
        assert set(kept.items.tolist()) == {f"item-{item}" for item in range(22)} - {"item-5", "item-6"}
        drawn = read_draws(gallery)
        assert drawn is not None
        assert set(drawn.get(NAMES).items.tolist()) == set(kept.items.tolist())
        assert read_names(gallery, "another tower") is None


def test_names_that_cannot_be_embedded_are_refused_before_any_photo(tmp_path: Path, shop: Path) -> None:
    photos, gallery = read_catalogue(shop / "photos" / "photos.csv"), tmp_path / "gallery"
    bundle, plain = word_bundle(tmp_path, looks()), make_bundle(tmp_path, name="plain")
    for column in ("title", "half", "name'); --", "$.name"):
        with pytest.raises(InvalidParameter, match="--names must be a column of the catalogue that holds texts"):
            index_catalogue(bundle, photos, gallery, progress=False, sync=SyncSettings(names=column))
    with pytest.raises(InvalidParameter, match="bundle must have a text tower"):
        index_catalogue(plain, photos, gallery, progress=False, sync=SyncSettings(names="name"))
    assert not gallery.exists()


def test_the_command_searches_by_words(shop: Path, world: Path) -> None:
    place = (shop / "bundle", shop / "gallery")
    assert "  1  " in run("search", *place, "--text", "thing3").output
    answer = json.loads(run("search", *place, "--text", "thing3", "--json", "--top-k", "1").output)
    assert answer["matches"][0]["item_id"] == "item-3"
    photo = shop / "photos" / "0-0.png"
    for words in (
        [],
        [photo, "--text", "thing3"],
        ["--text", "thing3", "--boxes", "windows"],
        ["--text", "thing3", "--explain"],
        ["--text", "thing3", "--truth", "item_id"],
    ):
        result = CliRunner().invoke(group, ["search", *map(str, (*place, *words))])
        assert isinstance(result.exception, InvalidParameter), words
        assert "--text in its place" in str(result.exception)
    result = CliRunner().invoke(group, ["search", str(world / "bundle"), str(world / "gallery"), "--text", "thing3"])
    assert "bundle must have a text tower" in str(result.exception)


@pytest.mark.parametrize("aligned", [False, True])
def test_unknown_names_match_at_most_at_the_target(aligned: bool) -> None:
    """In 20 divisions of 400 items, the names of those that are not there match in at most the promised share."""
    generator, target, dim, rates, hits = np.random.default_rng(3), 0.05, 32, [], []
    items = generator.normal(size=(400, dim))
    photos = unit(np.repeat(items, 3, axis=0) + generator.normal(size=(1200, dim)) / 2)
    gap = generator.normal(size=dim)  # between photos and texts, as two towers have it
    names = unit(
        items + gap + generator.normal(size=items.shape) / 2 if aligned else generator.normal(size=items.shape)
    )
    labels, distance = np.repeat(np.arange(400), 3).astype(str), ItemDistance.default()
    for _ in range(20):
        here = np.isin(np.arange(400), generator.permutation(400)[:200])
        among = ArrayPhotos(photos[np.repeat(here, 3)], labels[np.repeat(here, 3)])
        own = NameVectors("k", "name", np.flatnonzero(here).astype(str), names[here])
        draws = Drawing(among, distance).names(own)
        every = VersionRates.of(AllDraws("m", {OWN: draws, NAMES: draws}, frozenset()), Point.uncalibrated(target))
        assert every is not None
        kind, point = every.kinds[NAMES]
        search = ItemSearch(among, distance)
        distances = search.nearest(names[~here], 1).distances[:, 0]
        rates.append(float((distances <= point.threshold).mean()))
        nearest = search.nearest(names[here], 1)
        right = among.items[nearest.positions[:, 0]] == np.arange(200)[np.argsort(np.argsort(own.items))]
        hits.append(float((right & (nearest.distances[:, 0] <= point.threshold)).mean()))
        assert kind.p_values(distances).min() > 0
    assert np.mean(rates) <= target + 1.645 * np.std(rates) / np.sqrt(20)
    assert (np.mean(hits) > 0.5) if aligned else (np.mean(hits) < target)


def test_the_query_shift_of_photos_does_not_move_names() -> None:
    generator = np.random.default_rng(5)
    photos, names = unit(generator.normal(size=(60, 16))), unit(generator.normal(size=(60, 16)))
    own = NameVectors("k", "name", np.arange(60).astype(str), names)
    measured = measure(ArrayPhotos(photos, np.arange(60)), ItemDistance.default(), material=Material(names=own))
    before = VersionRates.of(measured.draws, measured.required)
    moved = VersionRates.of(measured.draws, replace(measured.required, shift=Shift(0.3, 0.1, 30)))
    assert before is not None
    assert moved is not None
    assert before.kinds[NAMES][1].threshold == moved.kinds[NAMES][1].threshold
    assert before.drawn.distances[0] != moved.drawn.distances[0]


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)
