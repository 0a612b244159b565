"""A gallery, its restored backup and arrays of the same photos are measured alike, to the last bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.gallery import Gallery
from index.groups import GROUP, group_key
from index.photos import CONTENT
from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from index.upkeep.transfer import copy_gallery, export_gallery
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.galleries.kept import Kept, pack_draws, pack_queries, read_draws
from retrieval.galleries.measured import draw_gallery, measure_gallery
from retrieval.measuring.draws import LABELLED, OWN, UNKNOWN, AllDraws, Probes
from retrieval.measuring.labelled import by_source
from retrieval.measuring.measure import Material, measure
from retrieval.measuring.point import Point
from retrieval.measuring.rates import VersionRates
from tests.retrieval.galleries.writing import remeasure

from ...world import DIM, make_bundle, shuffled

ITEMS, PHOTOS, REMOVED = 60, 200, slice(40, 43)
DISTANCES = np.linspace(0, 2, 41)


def photos_of(seed: int) -> tuple[list[str], list[str], np.ndarray, list[dict[str, Any]]]:
    """Return ids, items, vectors and metadata of photos: items of uneven sizes in no order, some in groups, copies."""
    generator = np.random.default_rng(seed)
    names = [str(number) for number in generator.permutation(1000)[:ITEMS]]
    places = np.r_[np.arange(ITEMS), generator.zipf(1.8, PHOTOS - ITEMS) % ITEMS]
    places = generator.permutation(places)
    vectors = generator.normal(size=(ITEMS, DIM))[places] + 0.8 * generator.normal(size=(PHOTOS, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[30] = vectors[170]  # a copy under another item
    groups = dict.fromkeys(names[:3], "red") | dict.fromkeys(names[7:9], "blue")
    items = [names[place] for place in places.tolist()]
    metadata = [{CONTENT: f"file {row}"} | ({GROUP: groups[n]} if n in groups else {}) for row, n in enumerate(items)]
    metadata[30][CONTENT] = metadata[170][CONTENT]
    return [str(n) for n in generator.permutation(5000)[:PHOTOS]], items, vectors.astype(np.float32), metadata


def queries(items: list[str]) -> Probes:
    """Return labelled photos of 30 items and of 25 unknown ones."""
    there = sorted(set(items[: REMOVED.start]) | set(items[REMOVED.stop :]))
    names = [*shuffled(there)[:30], *[""] * 25]
    vectors = np.random.default_rng(9).normal(size=(55, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Probes(vectors.astype(np.float32), [f"q{row}" for row in range(55)], names)


def bundle_of(folder: Path, fitted: list[str]) -> Bundle:
    files = {FITTED: Fitted.of(fitted, ()).pack()}
    return make_bundle(folder, point=Point.uncalibrated(0.2), files=files, item_distance=ItemDistance())


def gallery_of(folder: Path, bundle: Bundle, labelled: Probes, seed: int) -> Gallery:
    """Return a gallery in two segments, with removed and updated photos and with labelled queries."""
    ids, items, vectors, metadata = photos_of(seed)
    gallery = Gallery.create(folder / "g", dim=DIM, embedding_id=bundle.embedding_id)
    for rows in (slice(0, 150), slice(150, PHOTOS)):
        gallery.add(ids[rows], items[rows], vectors[rows], metadata=metadata[rows])
    gallery.remove(photo_ids=ids[REMOVED])
    gallery.update(ids[:9], items[:9], [values | {"price": 3} for values in metadata[:9]])
    gallery.keep({Kept.QUERIES: pack_queries(labelled, "")}, "label")
    return gallery


def assert_same(first: AllDraws, second: AllDraws) -> None:
    assert first.sources.keys() == second.sources.keys()
    assert first.fitted == second.fitted
    for source, draws in first.sources.items():
        for name, values in draws.arrays().items():
            np.testing.assert_array_equal(values, second.sources[source].arrays()[name], err_msg=f"{source} {name}")


@pytest.mark.parametrize("fitted", [0, 12])
def test_arrays_are_measured_as_a_gallery_with_the_same_photos(tmp_path: Path, fitted: int) -> None:
    _, items, _, _ = photos_of(5)
    seen, labelled = shuffled(sorted(set(items)), 7)[:fitted], queries(items)
    bundle = bundle_of(tmp_path, seen)
    with gallery_of(tmp_path, bundle, labelled, 5) as gallery:
        measured = measure_gallery(bundle, gallery, rule="set")
        stored = [photo for some in gallery.walk(1000) for photo in some]
    groups = [str(photo.metadata.get(GROUP, "")) for photo in stored]
    arrays = ArrayPhotos(
        np.stack([photo.vector for photo in stored]),
        [photo.item_id for photo in stored],
        photo_ids=[photo.photo_id for photo in stored],
        groups=groups,
    )
    of_groups = {group for group, photo in zip(groups, stored, strict=True) if group and photo.item_id in seen}
    fitted_items = {
        p.item_id for p, group in zip(stored, groups, strict=True) if p.item_id in seen or group in of_groups
    }
    material = Material(
        probes=by_source(labelled),
        fitted=frozenset(fitted_items),
        fitted_groups=frozenset(group_key("", group) for group in of_groups),
    )
    alike = measure(arrays, bundle.item_distance, material=material, target_fpir=0.2)
    assert {OWN, LABELLED, UNKNOWN, "2 photos"} <= alike.draws.sources.keys() == measured.draws.sources.keys()
    for source, draws in measured.draws.sources.items():
        here = alike.draws.sources[source]
        for name, values in draws.arrays().items():
            np.testing.assert_array_equal(values, here.arrays()[name], err_msg=f"{source} {name}")
    basis = replace(alike.required.basis, gallery_version=measured.after.basis.gallery_version)
    assert measured.after == replace(alike.required, basis=basis)
    assert measured.draws.get(OWN).is_copied.any()
    assert measured.measured.rates is not None
    assert alike.rates is not None
    np.testing.assert_array_equal(measured.measured.rates.p_values(DISTANCES), alike.rates.p_values(DISTANCES))


def test_a_restored_backup_is_measured_as_the_gallery_is(tmp_path: Path) -> None:
    _, items, _, _ = photos_of(6)
    bundle = bundle_of(tmp_path, sorted(set(items))[:9])
    with gallery_of(tmp_path, bundle, queries(items), 6) as gallery:
        kept = remeasure(bundle, gallery).draws
        export_gallery(gallery, tmp_path / "backup")
        with Gallery.open(tmp_path / "backup") as backup:
            copy_gallery(backup, tmp_path / "restored")
        with Gallery.open(tmp_path / "restored") as restored:
            read = read_draws(restored)
            assert read is not None
            assert_same(read, kept)
            assert (read.mark, read.version, read.model) == (kept.mark, kept.version, kept.model)
            anew = draw_gallery(bundle, restored)[1]
            assert_same(anew, kept)
            assert_same(draw_gallery(bundle, gallery)[1], kept)
            first, second = (measure_gallery(bundle, place, rule="keep") for place in (gallery, restored))
            assert not first.is_new
            assert not second.is_new
            assert first.after == second.after
            rates = [VersionRates.of(each.draws, each.after) for each in (first, second)]
            assert rates[0] is not None
            assert rates[1] is not None
            np.testing.assert_array_equal(rates[0].p_values(DISTANCES), rates[1].p_values(DISTANCES))


def test_draws_are_made_alike_before_and_after_a_rebuild(tmp_path: Path) -> None:
    """A purge drops removed photos for good, and nothing is renumbered."""
    _, items, _, _ = photos_of(7)
    bundle = bundle_of(tmp_path, [])
    with gallery_of(tmp_path, bundle, queries(items), 7) as gallery:
        before = draw_gallery(bundle, gallery)[1]
        gallery.keep({Kept.DRAWS: pack_draws(before)}, "measure")
        gallery.rebuild(purge=True)
        read = read_draws(gallery)
        assert read is not None
        assert gallery.snapshot().changes_since(read.mark) == 0
        assert_same(read, before)
        assert_same(draw_gallery(bundle, gallery)[1], before)
        assert math.isfinite(measure_gallery(bundle, gallery, rule="keep").after.threshold)
