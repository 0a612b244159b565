"""Cross-fitting in a gallery: fold vectors are kept beside the photos, and draw the items that the model was fitted on.

The bundle has two fold models. The first one sees photos as the served model does; to the second all photos are alike.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from index.errors import GalleryCorrupt
from index.gallery import Gallery
from index.upkeep.transfer import export_gallery
from retrieval.bundle.bundle import FITTED, FOLDS, Bundle
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import CalibrationError
from retrieval.galleries.kept import Kept, read_folds
from retrieval.galleries.measured import draw_gallery, measure_gallery
from retrieval.indexing import draw_vectors as keeping
from retrieval.indexing.draw_vectors import keep_fold_vectors
from retrieval.indexing.pipeline import IndexReport, index_catalogue
from retrieval.indexing.worker import embed_batch, write_batch
from retrieval.measuring import folds
from retrieval.measuring.draws import LABELLED, OWN
from retrieval.measuring.point import Point
from retrieval.measuring.sentences import describe
from tests.retrieval.measuring.samples import sample, set_point

from ...world import DIM, draw, make_bundle, write_folder, write_model

ITEMS = [f"item-{number:02d}" for number in range(25)]
FOLD_OF = {item: number % 2 for number, item in enumerate(ITEMS[:20])}  # the last five items were not fitted
TARGET = Point.uncalibrated(0.05)


def fold_models(folder: Path) -> bytes:
    """Return an ONNX model: the tiny model's vector, then a constant one, scaled to length one together."""
    model = onnx.load(write_model(folder / "single.onnx"))
    graph = model.graph
    (last,) = [node for node in graph.node if "embedding" in node.output]
    last.output[0] = "first"
    constants = {"none": np.zeros(1), "east": np.eye(1, DIM), "scale": np.array([math.sqrt(0.5)])}
    graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), name) for name, v in constants.items())
    graph.node.extend(
        [
            helper.make_node("Mul", ["first", "none"], ["empty"]),
            helper.make_node("Add", ["empty", "east"], ["second"]),
            helper.make_node("Concat", ["first", "second"], ["both"], axis=1),
            helper.make_node("Mul", ["both", "scale"], ["embedding"]),
        ]
    )
    graph.output[0].CopyFrom(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 2 * DIM]))
    return bytes(model.SerializeToString())


def fitted(fold_of: Mapping[str, int], photos: Mapping[str, str] | None = None, both: Collection[str] = ()) -> bytes:
    """Return the list of items that two fold models were fitted on, and of photos, given with their items.

    `both` fold models were fitted on some photos.
    """
    given = photos or {}
    every, *parts = (
        Fitted.of(
            [item for item in fold_of if fold_of[item] != fold],
            [photo for photo in given if photo in both or fold_of[given[photo]] != fold],
        )
        for fold in (2, 0, 1)
    )
    return every.with_folds(parts).pack()


def bundle_of(folder: Path, photos: Mapping[str, str] | None = None, both: Collection[str] = ()) -> Bundle:
    """Return a bundle that was cross-fitted on twenty items, and on photos, given with their items."""
    folder.mkdir(parents=True, exist_ok=True)
    return make_bundle(folder, point=TARGET, files={FITTED: fitted(FOLD_OF, photos, both), FOLDS: fold_models(folder)})


def fill(bundle: Bundle, folder: Path, photos: Path) -> IndexReport:
    return index_catalogue(bundle, read_catalogue(photos), folder / "g", progress=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", items=range(25))


def test_each_fitted_item_is_drawn_by_the_model_that_was_fitted_without_it(tmp_path: Path, photos: Path) -> None:
    bundle, plain = bundle_of(tmp_path), make_bundle(tmp_path / "plain", files={FITTED: Fitted.of([], []).pack()})
    fill(bundle, tmp_path, photos)
    fill(plain, tmp_path / "plain", photos)
    with Gallery.open(tmp_path / "g") as gallery, Gallery.open(tmp_path / "plain" / "g") as unfitted:
        own, expected = draw_gallery(bundle, gallery)[1].sources[OWN], draw_gallery(plain, unfitted)[1].sources[OWN]
        assert sorted(own.ids) == sorted(expected.ids)
        distance = dict(zip(expected.ids, expected.distances, strict=True))
        for row, item in enumerate(own.items.tolist()):
            alike = FOLD_OF.get(item) == 1
            assert own.distances[row] == pytest.approx(0 if alike else distance[own.ids[row]], abs=2e-3)
        item_of = {photo_id: item for photo_id, item, _ in gallery.photos()}
        assert [item_of[photo_id] for photo_id in own.ids.tolist()] == own.items.tolist()
        assert [item_of[photo_id] for photo_id in own.nearest.tolist()] == own.nearest_items.tolist()


def test_second_looks_are_drawn_by_the_fold_models_too(tmp_path: Path, photos: Path) -> None:
    for item, ground in ((4, "red"), (21, "lime")):  # one that a fold model was fitted on, and one that none was
        frame = Image.new("RGB", (120, 100), ground)
        frame.paste(draw(6, 9), (30, 40))  # a part that looks like another item
        frame.save(photos / f"item-{item:02d}" / "far.png")
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        once, twice = (draw_gallery(bundle, gallery, twice=twice)[1].sources[OWN] for twice in (False, True))
    for item in ("item-04", "item-21"):
        row, again = (int(np.flatnonzero(draws.ids == f"{item}/far.png")[0]) for draws in (once, twice))
        assert once.nearest_items[row] != "item-06"
        assert twice.nearest_items[again] == "item-06"
        assert twice.distances[again] < 0.3 < once.distances[row]


def test_each_fold_makes_its_share_of_the_draws(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    monkeypatch.setattr(folds, "MOST_DRAWS", 15)
    monkeypatch.setattr(folds, "MOST_SEVERAL", 9)
    with Gallery.open(tmp_path / "g") as gallery:
        vectors = read_folds(gallery, bundle.folds_key)
        assert vectors is not None
        found = folds.fold_draws(gallery.snapshot(), vectors, FOLD_OF, bundle.item_distance)
    assert {OWN, "2 photos"} <= found.keys()
    for kind, draws in found.items():
        made = Counter(FOLD_OF[item] for item in draws.items.tolist())
        assert made == ({0: 7, 1: 7} if kind == OWN else {0: 4, 1: 4} if len(draws) else {})


def test_indexing_the_catalogue_that_the_model_was_fitted_on_sets_an_estimated_threshold(
    tmp_path: Path, photos: Path
) -> None:
    every = dict.fromkeys(ITEMS, 0)
    files = {FITTED: fitted(every), FOLDS: fold_models(tmp_path)}
    target = Point.uncalibrated(0.1)
    point = fill(make_bundle(tmp_path, point=target, files=files), tmp_path, photos).point
    assert point is not None
    assert (point.status, point.basis.items_drawn, point.basis.cross_fitted) == ("estimated", 25, 25)
    assert any("fitted without a fifth of the items" in sentence for sentence in point.basis.assumptions)
    assert any("Models that were fitted without the item found these" in line for line in describe(point))


def test_a_threshold_serves_where_the_fold_models_find_no_photo_of_items_that_they_were_not_fitted_on(
    tmp_path: Path, photos: Path
) -> None:
    """Fine-tuned models do so: unknown items come nearer to fitted ones than their own photos come to each other."""
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        own = draw_gallery(bundle, gallery)[1].sources[OWN]
    unknown = np.linspace(0.5, 1, len(own))
    far = {OWN: replace(own, distances=unknown, own=unknown + 1, wrong=np.full(len(own), np.inf))}
    point = set_point(far, 0.1, items=25, fitted=ITEMS)
    assert (point.status, point.rates.tpir) == ("estimated", None)
    assert "The share of photos that find their item was not measured" in describe(point)[2]
    with pytest.raises(CalibrationError, match="finds a single item"):
        set_point(far, 0.1, items=25)


def test_only_new_photos_are_embedded_again_and_removed_ones_drop_out(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    listed, asked = read_catalogue(photos), []
    with Gallery.open(tmp_path / "g") as gallery:
        before, version = gallery.kept(Kept.FOLDS), gallery.version
        keep_fold_vectors(bundle, gallery, listed, progress=False)
        assert (gallery.version, gallery.kept(Kept.FOLDS)) == (version, before)
        gallery.remove(item_ids=["item-03"])
        new = write_folder(tmp_path / "new", items=range(30, 31))
        write_batch(gallery, embed_batch(bundle.embedder(), read_catalogue(new), {}))
        opened = keeping.open_image
        monkeypatch.setattr(keeping, "open_image", lambda data: asked.append(1) or opened(data))
        keep_fold_vectors(bundle, gallery, [*listed, *read_catalogue(new)], progress=False)
        kept = read_folds(gallery, bundle.folds_key)
        assert kept is not None
        assert kept.ids.tolist() == [photo_id for photo_id, *_ in gallery.photos()]
        assert len(asked) == 3
        own = draw_gallery(bundle, gallery)[1].sources[OWN]
        assert "item-03" not in {*own.items, *own.nearest_items}


def test_photos_without_fold_vectors_are_no_rivals_of_fold_draws(tmp_path: Path, photos: Path) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        before = draw_gallery(bundle, gallery)[1].sources[OWN]
        new = write_folder(tmp_path / "new", items=range(30, 31))
        write_batch(gallery, embed_batch(bundle.embedder(), read_catalogue(new), {}))
        after = draw_gallery(bundle, gallery)[1].sources[OWN]
    assert set(after.items) - set(before.items) == {"item-30"}
    assert "item-30" not in set(after.nearest_items[np.isin(after.items, list(FOLD_OF))])


def test_items_whose_photos_were_fitted_in_several_folds_are_not_drawn(tmp_path: Path, photos: Path) -> None:
    """Every fold model was fitted on some photos of a merged item, and finds them too far from other items."""
    listed = read_catalogue(photos)
    bundle = bundle_of(tmp_path, {content_hash(p.read(), None): p.item_id for p in listed if p.item_id in FOLD_OF})
    same, other = ("item-00", "item-02"), ("item-05", "item-06")
    merged = {same[1]: same[0], other[1]: other[0]}
    photos_now = [replace(photo, item_id=merged.get(photo.item_id, photo.item_id)) for photo in listed]
    index_catalogue(bundle, photos_now, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g") as gallery:
        draws = draw_gallery(bundle, gallery)[1]
    drawn, rivals = set(draws.sources[OWN].items), set(draws.sources[OWN].nearest_items)
    assert drawn == set(ITEMS) - {same[1], *other}
    assert other[0] in rivals
    assert other[0] in draws.fitted


def test_items_of_which_every_fold_model_has_seen_a_photo_are_not_drawn(tmp_path: Path, photos: Path) -> None:
    """Such as a product that was there under two ids, of which one was removed after the training."""
    listed = read_catalogue(photos)
    contents = {content_hash(p.read(), None): p.item_id for p in listed if p.item_id in FOLD_OF}
    twice = [content for content, item in contents.items() if item in ("item-02", "item-05")][1::2]
    index_catalogue(bundle_of(tmp_path, contents, twice), listed, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g") as gallery:
        drawn = set(draw_gallery(Bundle.open(tmp_path / "bundle"), gallery)[1].sources[OWN].items)
    assert drawn == set(ITEMS) - {contents[content] for content in twice}


def test_items_whose_group_was_fitted_in_several_folds_are_not_drawn(tmp_path: Path, photos: Path) -> None:
    """Such as a product under two ids that got a group after the training. A fold may have left out all of another."""
    listed = read_catalogue(photos)
    bundle = bundle_of(tmp_path, {content_hash(p.read(), None): p.item_id for p in listed if p.item_id in FOLD_OF})
    fitted_items = sorted(FOLD_OF)
    one = fitted_items[0]
    other = next(item for item in fitted_items if FOLD_OF[item] != FOLD_OF[one])
    same, mate = [item for item in fitted_items if FOLD_OF[item] == FOLD_OF[one]][1:3]
    free = next(item for item in ITEMS if item not in FOLD_OF)
    group_of = {one: "twins", other: "twins", same: "pair", mate: "pair", free: "pair"}
    rows = [replace(photo, group=group_of.get(photo.item_id, "")) for photo in listed]
    index_catalogue(bundle, rows, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g") as gallery:
        drawn = set(draw_gallery(bundle, gallery)[1].sources[OWN].items)
    assert drawn == set(ITEMS) - {one, other}


def test_the_query_shift_is_not_measured_between_the_model_that_serves_and_fold_models(
    tmp_path: Path, photos: Path
) -> None:
    files = {FITTED: fitted(dict.fromkeys(ITEMS, 0)), FOLDS: fold_models(tmp_path)}
    bundle = make_bundle(tmp_path, point=Point.uncalibrated(0.1), files=files)
    fill(bundle, tmp_path, photos)
    labelled = read_catalogue(write_folder(tmp_path / "labelled", items=range(25), photos=range(5, 7)))
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        measurement = measure_gallery(bundle, gallery, rule="set", photos=labelled)
    assert len(set(measurement.draws.sources[LABELLED].items)) == 25
    assert measurement.after.basis.cross_fitted == 25
    assert measurement.after.shift.items == 0


def test_photos_whose_item_or_metadata_changes_keep_their_fold_vectors(tmp_path: Path, photos: Path) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        before = draw_gallery(bundle, gallery)[1].sources[OWN]
        stored = {photo_id: (item, values) for photo_id, item, values in gallery.photos()}
        for price in (1, 2):  # twice, and some photos once
            names = sorted(stored)[price :: price + 1]
            gallery.update(
                names, [stored[name][0] for name in names], [stored[name][1] | {"p": price} for name in names]
            )
        after = draw_gallery(bundle, gallery)[1].sources[OWN]
        assert sorted(zip(after.ids, after.distances, strict=True)) == sorted(
            zip(before.ids, before.distances, strict=True)
        )
        export_gallery(gallery, tmp_path / "copy")
        gallery.add(["item-00/0.png"], ["item-00"], np.eye(1, DIM, 3), upsert=True)  # another photo of this name
        replaced = draw_gallery(bundle, gallery)[1].sources[OWN]
    assert set(before.ids) - set(replaced.ids) == {"item-00/0.png"}
    with Gallery.open(tmp_path / "copy") as copy:
        assert sorted(draw_gallery(bundle, copy)[1].sources[OWN].ids) == sorted(before.ids)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        kept = read_folds(gallery, bundle.folds_key)
        assert kept is not None
        assert sorted(kept.ids.tolist()) == sorted(before.ids)


def test_a_photo_whose_file_changes_gets_new_fold_vectors(tmp_path: Path, photos: Path) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)

    def vectors() -> dict[str, list[float]]:
        with Gallery.open(tmp_path / "g") as gallery:
            folds = read_folds(gallery, bundle.folds_key)
        assert folds is not None
        return dict(zip(folds.ids.tolist(), folds.vectors.tolist(), strict=True))

    before = vectors()
    shutil.copy(photos / "item-09" / "2.png", photos / "item-01" / "0.png")
    fill(bundle, tmp_path, photos)
    assert vectors() == before | {"item-01/0.png": before["item-09/2.png"]}


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive"])
def test_damaged_fold_vectors_are_made_anew(tmp_path: Path, photos: Path, damage: bytes) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        whole = gallery.kept(Kept.FOLDS)
        gallery.keep({Kept.FOLDS: damage}, "damage")
        with pytest.raises(GalleryCorrupt, match=r"the fold vectors of .* cannot be read") as caught:
            draw_gallery(bundle, gallery)  # fitted items would set no threshold
        assert "Index the photos again" in caught.value.remedy
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.kept(Kept.FOLDS) == whole


def test_a_large_gallery_keeps_vectors_of_whole_items_and_of_fitted_ones_first(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FOLD_PHOTOS", 32)
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        kept, now = read_folds(gallery, bundle.folds_key), gallery.snapshot()
        assert kept is not None
        items, counts = np.unique([item for _, item, _ in now.photos_at(now.positions(kept.ids))], return_counts=True)
        assert len(kept.vectors) == len(kept.ids) == 30
        assert counts.tolist() == [3] * 10
        assert set(items) <= set(FOLD_OF)
        assert set(items) | set(ITEMS[20:]) == set(draw_gallery(bundle, gallery)[1].sources[OWN].items)


def test_a_bundle_without_fold_models_keeps_no_fold_vectors(tmp_path: Path, photos: Path) -> None:
    files = {FITTED: Fitted.of(ITEMS[:5], []).pack()}
    fill(make_bundle(tmp_path, point=TARGET, files=files), tmp_path, photos)
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.kept(Kept.FOLDS) is None


def test_a_bundle_that_does_not_say_what_it_was_fitted_on_makes_no_draws_with_the_fold_models_of_another(
    tmp_path: Path, photos: Path
) -> None:
    fill(bundle_of(tmp_path), tmp_path, photos)
    older = make_bundle(tmp_path, name="older", point=TARGET)
    assert older.fitted is None
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.kept(Kept.FOLDS) is not None
        assert len(draw_gallery(older, gallery)[1].sources[OWN]) == 0


def test_cross_fitted_draws_estimate_a_threshold_and_certify_none() -> None:
    generator = np.random.default_rng(0)
    names = np.array([f"i{number}" for number in range(400)])
    far = generator.uniform(0.5, 1, 400)
    own = sample(names, far, nearest=names, nearest_items=np.roll(names, 1), own=far / 4, own_plain=far / 4)
    assert set_point({OWN: own}, 0.05, items=400, certify=True).status == "certified"
    assert set_point({OWN: own}, 0.05, items=400, fitted=names[:9].tolist()).status == "estimated"
    with pytest.raises(CalibrationError, match="9 items are drawn by models that were fitted without them"):
        set_point({OWN: own}, 0.05, items=400, fitted=names[:9].tolist(), certify=True)
