"""Second looks: which photos get one, what it finds, which look is told, and draws by the same rule."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.gallery import Gallery
from index.search.distance import plain_distance
from retrieval.bundle.bundle import FITTED, MANIFEST, SEAL, Bundle, _bundle_id, _canonical, _hash
from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.read import read_catalogue
from retrieval.galleries.kept import Kept, read_draws, read_parts
from retrieval.galleries.measured import measure_gallery
from retrieval.images import Preprocessing
from retrieval.images.region import GRID
from retrieval.indexing import draw_vectors
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring import drawing
from retrieval.measuring.draws import OWN
from retrieval.measuring.point import Point
from retrieval.retriever import Retriever
from retrieval.search.second_look import reduced

from ..world import SIDE, draw, encode, make_bundle, shuffled, write_folder

ITEMS = 60
FRAME, LEFT, UPPER = (120, 100), 30, 42
FROM_AFAR = {4: "red", 40: "blue", 52: "lime"}


def far(item: int, number: int = 9, ground: str | tuple[int, int, int] = "white") -> Image.Image:
    """Return a photo in which an item fills an eighth of the frame."""
    frame = Image.new("RGB", FRAME, ground)
    frame.paste(draw(item, number), (LEFT, UPPER))
    return frame


def write_catalogue(folder: Path) -> Path:
    """Write a folder of photos; a few items are photographed from afar, too, on grounds of other colours."""
    write_folder(folder, items=range(ITEMS), photos=range(3))
    for item, ground in FROM_AFAR.items():
        far(item, 7, ground=ground).save(folder / f"item-{item:02d}" / "far.png")
    return folder


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    folder = tmp_path_factory.mktemp("looks")
    bundle = make_bundle(folder, point=Point.uncalibrated(0.04), files={FITTED: Fitted.of([], []).pack()})
    photos = shuffled(read_catalogue(write_catalogue(folder / "photos")))
    index_catalogue(bundle, photos, folder / "gallery", progress=False)
    return bundle, folder / "gallery"


@pytest.fixture
def retriever(indexed: tuple[Bundle, Path]) -> Any:
    bundle, gallery = indexed
    with Retriever.open(bundle.path, gallery) as opened:
        yield opened


def counted(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of photos of each pass of the model."""
    passes, embed = list[int](), retriever.embedder.embed_pixels

    def counting(pixels: np.ndarray) -> Embeddings:
        passes.append(len(pixels))
        return embed(pixels)

    monkeypatch.setattr(retriever.embedder, "embed_pixels", counting)
    return passes


@pytest.mark.parametrize("ground", ["white", "grey", (94, 70, 50)])
def test_a_thing_that_fills_an_eighth_of_the_frame_matches_by_its_block(
    retriever: Retriever, ground: str | tuple[int, int, int]
) -> None:
    answer = retriever.search(encode(far(17, ground=ground), "PNG"))
    assert answer.decision == "match"
    assert answer.matches[0].item_id == "item-17"
    assert answer.look == "block"
    assert answer.box is not None
    assert np.abs(np.subtract(answer.box, (LEFT, UPPER, LEFT + SIDE, UPPER + SIDE))).max() <= 3


def test_the_box_of_a_look_is_in_pixels_of_the_whole_photo_whatever_it_was_decoded_at(retriever: Retriever) -> None:
    large = far(17).resize((FRAME[0] * 20, FRAME[1] * 20), Image.Resampling.NEAREST)
    for kind in ("JPEG", "PNG"):
        answer = retriever.search(encode(large, kind))
        assert answer.look == "block"
        assert answer.box is not None
        assert np.abs(np.subtract(answer.box, 20 * np.array((LEFT, UPPER, LEFT + SIDE, UPPER + SIDE)))).max() <= 60


def test_the_box_of_a_look_at_a_turned_photo_is_upright(retriever: Retriever) -> None:
    lying = far(17).resize((1200, 1000), Image.Resampling.NEAREST).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    file = encode_with(lying, exif)
    answer = retriever.search(file)
    assert answer.matches[0].item_id == "item-17"
    assert answer.box is not None
    assert np.abs(np.subtract(answer.box, 10 * np.array((LEFT, UPPER, LEFT + SIDE, UPPER + SIDE)))).max() <= 30


def encode_with(image: Image.Image, exif: Image.Exif) -> bytes:
    import io

    file = io.BytesIO()
    image.save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue()


def test_only_photos_that_do_not_match_are_looked_at_again(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = counted(retriever, monkeypatch)
    answer = retriever.search(
        encode(far(4, ground=FROM_AFAR[4]), "PNG")
    )  # it has a block, and is like one of the gallery
    assert (answer.decision, answer.look) == ("match", "photo")
    assert passes == [1]
    retriever.search_batch([encode(draw(4, 9), "PNG"), encode(far(17), "PNG"), encode(draw(200, 1), "PNG")])
    assert passes == [1, 3, 1]  # the picture of the unknown item fills the frame


def test_a_given_box_is_not_looked_at_again(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = counted(retriever, monkeypatch)
    answer = retriever.search(encode(far(17), "PNG"), bbox=(0, 0, *FRAME))
    assert (answer.look, answer.decision) == ("photo", "no_match")
    assert passes == [1]


def test_a_batch_and_single_searches_look_the_same(retriever: Retriever) -> None:
    photos = [encode(image, "PNG") for image in (far(17), draw(4, 9), far(300), draw(200, 1), far(5))]
    assert retriever.search_batch(photos) == [retriever.search(photo) for photo in photos]


def test_an_unknown_thing_is_no_match_by_either_look(retriever: Retriever) -> None:
    decisions = [retriever.search(encode(far(item), "PNG")).decision for item in range(100, 160)]
    assert decisions.count("match") <= 0.1 * len(decisions)  # of a target of 4 %


def test_each_item_is_told_once_with_its_nearer_look(retriever: Retriever) -> None:
    answer = retriever.search(encode(far(300), "PNG"), top_k=50, review=1.0)
    items = [match.item_id for match in (*answer.matches, *answer.review)]
    distances = [match.distance for match in (*answer.matches, *answer.review)]
    assert len(items) == len(set(items)) > 10
    assert distances == sorted(distances)


def test_the_region_is_looked_at_where_there_is_no_block(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Image.fromarray(np.random.default_rng(3).integers(0, 256, (100, 100, 3), dtype=np.uint8))
    frame.paste(draw(17, 9), (10, 50))
    energy = np.ones((1, GRID, GRID), np.float32)
    energy[0, 20:36, 4:20] = 9.0
    embed = retriever.embedder.embed_pixels
    monkeypatch.setattr(retriever.embedder, "embed_pixels", lambda pixels: replace(embed(pixels), energies=energy))
    answer = retriever.search(encode(frame, "PNG"))
    assert (answer.look, answer.decision) == ("region", "match")
    assert answer.matches[0].item_id == "item-17"
    assert answer.box == (10.0, 50.0, 50.0, 90.0)


def test_draws_are_by_the_smaller_distance_of_both_looks(indexed: tuple[Bundle, Path]) -> None:
    with Gallery.open(indexed[1], read_only=True) as gallery:
        draws, looks, now = read_draws(gallery), read_parts(gallery, Kept.LOOKS), gallery.snapshot()
        assert draws is not None
        assert looks is not None
        assert draws.looks
        own, second = draws.sources[OWN], dict(zip(looks.ids.tolist(), looks.vectors[:, 0], strict=True))
        assert sorted(own.ids.tolist()) == sorted(photo_id for photo_id, *_ in now.photos_at(np.flatnonzero(now.live)))
        every = np.flatnonzero(now.live)
        items, vectors = now.items[every], now.vectors(every)
        for photo_id, distance in zip(own.ids.tolist(), own.distances.tolist(), strict=True):
            (position,) = now.positions([photo_id])
            others = items != now.items[position]
            seen = [now.vectors(np.array([position]))[0], *([second[photo_id]] if second[photo_id].any() else [])]
            nearest = min(plain_distance(np.asarray(look[None], np.float32), vectors[others]).min() for look in seen)
            assert abs(distance - nearest) < 2e-3
        assert sum(vector.any() for vector in second.values()) == len(FROM_AFAR)


@pytest.mark.parametrize("fitted", [40, 60])
def test_each_photo_that_is_drawn_was_looked_at_twice_whatever_the_model_was_fitted_on(
    indexed: tuple[Bundle, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitted: int
) -> None:
    monkeypatch.setattr(drawing, "MOST_DRAWS", 50)  # of 183 photos, 63 of them of items that 40 leave
    items = [f"item-{number:02d}" for number in range(fitted)]
    bundle = make_bundle(tmp_path, point=Point.uncalibrated(0.04), files={FITTED: Fitted.of(items, []).pack()})
    photos = shuffled(read_catalogue(indexed[1].parent / "photos"))
    index_catalogue(bundle, photos, tmp_path / "gallery", progress=False)
    with Gallery.open(tmp_path / "gallery") as gallery:
        draws, looks = measure_gallery(bundle, gallery, rule="set").draws, read_parts(gallery, Kept.LOOKS)
    assert draws.looks
    assert looks is not None
    assert len(draws.sources[OWN]) == (50 if fitted < ITEMS else 0)
    assert {*draws.sources[OWN].ids.tolist()} == {*looks.ids.tolist()}


@pytest.mark.parametrize("size", [(127, 6000), (6000, 127), (2000, 2000), (300, 300)])
def test_few_pixels_of_a_photo_are_kept_until_it_is_looked_at_again(size: tuple[int, int]) -> None:
    kept = reduced(Image.new("RGB", size), Preprocessing(size=32))
    assert kept.width * kept.height <= (4 * 64) ** 2
    assert min(kept.size) >= 64 or max(size) > 16 * min(size)


def test_a_threshold_for_one_look_that_is_set_between_the_looks_decides_by_no_second_look(
    indexed: tuple[Bundle, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(indexed[1], tmp_path / "gallery")
    with Retriever.open(indexed[0].path, place) as retriever:
        embed = retriever.embedder.embed_pixels
        passes = list[int]()

        def changing(pixels: np.ndarray) -> Embeddings:
            passes.append(len(pixels))
            if len(passes) == 2:  # of the second look
                with Gallery.open(place) as gallery:
                    gallery.keep({Kept.LOOKS: None, Kept.DRAWS: None}, "lost")
                    measure_gallery(indexed[0], gallery, rule="set").set_in(gallery)
            return embed(pixels)

        monkeypatch.setattr(retriever.embedder, "embed_pixels", changing)
        answer = retriever.search(encode(far(17), "PNG"))
        assert retriever.point.basis.looks is None
        assert (passes, answer.look, answer.decision) == ([1, 1], "photo", "no_match")


def test_the_point_says_how_many_looks_its_draws_took(indexed: tuple[Bundle, Path]) -> None:
    with Retriever.open(indexed[0].path, indexed[1]) as retriever:
        assert retriever.point.basis.looks == 2
        assert retriever.point.evidence["looks"] == 2


def test_indexing_again_makes_the_second_looks_of_new_photos_alone(
    indexed: tuple[Bundle, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, place = indexed
    gallery = shutil.copytree(place, tmp_path / "gallery")
    folder = shutil.copytree(place.parent / "photos", tmp_path / "photos")
    with Gallery.open(gallery, read_only=True) as opened:
        before = read_parts(opened, Kept.LOOKS)
    far(61, 7).save(folder / "item-01" / "far.png")
    embedded = list[str]()
    monkeypatch.setattr(draw_vectors, "embed_batch", lambda _, some, *rest, **more: embedded.extend(some))
    index_catalogue(bundle, read_catalogue(folder), gallery, progress=False)
    with Gallery.open(gallery, read_only=True) as opened:
        after = read_parts(opened, Kept.LOOKS)
    assert embedded == []  # the new photo was looked at twice while it was indexed
    assert before is not None
    assert after is not None
    assert {*after.ids.tolist()} - {*before.ids.tolist()} == {"item-01/far.png"}


def test_looks_that_an_interrupted_run_did_not_keep_are_made_by_the_next(
    indexed: tuple[Bundle, Path], tmp_path: Path
) -> None:
    bundle, place = indexed
    gallery = shutil.copytree(place, tmp_path / "gallery")
    with Gallery.open(gallery) as opened:
        expected = read_parts(opened, Kept.LOOKS)
        opened.keep({Kept.LOOKS: None, Kept.DRAWS: None}, "lost")
    index_catalogue(bundle, read_catalogue(place.parent / "photos"), gallery, progress=False)
    with Gallery.open(gallery, read_only=True) as opened:
        made = read_parts(opened, Kept.LOOKS)
    assert expected is not None
    assert made is not None
    np.testing.assert_array_equal(made.ids, expected.ids)
    np.testing.assert_allclose(made.vectors, expected.vectors, atol=2e-3)


def without_looks(bundle: Bundle, path: Path) -> Bundle:
    """Return a copy of a bundle as programs without second looks wrote it."""
    shutil.copytree(bundle.path, path)
    manifest = {key: value for key, value in bundle.manifest.items() if key not in ("looks", "bundle_id", SEAL)}
    manifest["bundle_id"] = _bundle_id(manifest)
    (path / MANIFEST).write_text(json.dumps({**manifest, SEAL: _hash(_canonical(manifest))}))
    return Bundle.open(path)


def test_a_bundle_of_an_earlier_program_looks_once(
    indexed: tuple[Bundle, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = without_looks(indexed[0], tmp_path / "bundle")
    index_catalogue(bundle, read_catalogue(indexed[1].parent / "photos"), tmp_path / "g", progress=False)
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        assert retriever.gallery.kept(Kept.LOOKS) is None
        assert retriever.point.basis.looks is None
        passes = counted(retriever, monkeypatch)
        assert retriever.search(encode(far(17), "PNG")).decision != "match"
        assert passes == [1]


def test_a_threshold_of_one_look_stays_one_until_it_is_set_anew(indexed: tuple[Bundle, Path], tmp_path: Path) -> None:
    bundle, place = indexed
    with Gallery.open(shutil.copytree(place, tmp_path / "gallery")) as gallery:
        looks = gallery.kept(Kept.LOOKS)
        gallery.keep({Kept.LOOKS: None}, "before second looks")
        measure_gallery(bundle, gallery, rule="set").set_in(gallery)
        gallery.keep({Kept.LOOKS: looks, Kept.DRAWS: None}, "keep second looks")
        kept = measure_gallery(bundle, gallery, rule="keep")
        assert (kept.after.basis.looks, kept.draws.looks) == (None, False)
        assert kept.after.threshold == kept.served.threshold
        anew = measure_gallery(bundle, gallery, rule="set")
        assert (anew.after.basis.looks, anew.draws.looks) == (2, True)


def test_a_photo_with_a_copy_under_another_item_is_drawn_with_one_look(
    indexed: tuple[Bundle, Path], tmp_path: Path
) -> None:
    """A part of the photo would find the copy, which the draw leaves out."""
    bundle = indexed[0]
    folder = write_catalogue(tmp_path / "photos")
    for item in (10, 20):
        far(10, 7, ground="yellow").save(folder / f"item-{item}" / "same.png")
    index_catalogue(bundle, read_catalogue(folder), tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        draws = read_draws(gallery)
    assert draws is not None
    own = draws.sources[OWN]
    (row,) = np.flatnonzero(own.ids == "item-20/same.png")
    assert own.is_copied[row]
    assert own.nearest_items[row] != "item-10"


def test_new_photos_without_a_second_look_are_drawn_with_one(indexed: tuple[Bundle, Path], tmp_path: Path) -> None:
    bundle, place = indexed
    with Gallery.open(shutil.copytree(place, tmp_path / "gallery")) as gallery:
        vectors = np.eye(bundle.dim, dtype=np.float32)[:20]
        gallery.add([f"p{row}" for row in range(20)], [f"new-{row // 2}" for row in range(20)], vectors)
        draws = measure_gallery(bundle, gallery, rule="set").draws
    assert draws.looks
    assert {f"p{row}" for row in range(20)} <= {*draws.sources[OWN].ids.tolist()}


def test_a_gallery_with_the_looks_of_few_photos_is_measured_by_one(
    indexed: tuple[Bundle, Path], tmp_path: Path
) -> None:
    bundle, place = indexed
    with Gallery.open(shutil.copytree(place, tmp_path / "gallery")) as gallery:
        vectors = np.random.default_rng(0).normal(size=(300, bundle.dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        gallery.add([f"p{row}" for row in range(300)], [f"other-{row // 3}" for row in range(300)], vectors)
        assert not measure_gallery(bundle, gallery, rule="set").draws.looks


def test_labelled_photos_are_looked_at_twice(indexed: tuple[Bundle, Path], tmp_path: Path) -> None:
    bundle, place = indexed
    folder = tmp_path / "users"
    for item in range(0, 50, 2):
        (folder / f"item-{item:02d}").mkdir(parents=True)
        far(item, 11).save(folder / f"item-{item:02d}" / "user.png")
    with Gallery.open(shutil.copytree(place, tmp_path / "gallery")) as gallery:
        measured = measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(folder))
        measured.set_in(gallery)
        assert measured.draws.sources["labelled"].right.max() < 0.5  # by the second look
        again = measure_gallery(bundle, gallery, rule="set")
    np.testing.assert_array_equal(again.draws.sources["labelled"].own, measured.draws.sources["labelled"].own)


def test_the_embedder_gives_energies_only_of_a_model_that_tells_them(indexed: tuple[Bundle, Path]) -> None:
    embedder: Embedder = indexed[0].embedder()
    assert embedder.embed_pixels(np.zeros((2, 32, 32, 3), np.uint8) + np.uint8(9)).energies is None
