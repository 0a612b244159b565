"""Causes of misses, with made photos whose cause is known, and the comparison of two explanations."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image, ImageFilter
from torch import Tensor, nn

from retrieval.catalogue.photos import UploadedPhoto
from retrieval.cli.main import group
from retrieval.errors import DataError
from retrieval.images import Preprocessing
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import EvaluationSplit
from training.explain.appearance import GalleryLook, measure
from training.explain.before_after import Before, Comparison
from training.explain.causes import BLUR, CAUSES, CROP, DOMAIN, SIBLING, UNEXPLAINED, VIEW, Siblings
from training.explain.crops import CROPS, crops_of
from training.explain.item_search import ItemSearch
from training.explain.misses import find_misses
from training.explain.outcomes import explain
from training.explain.page import explain_page
from training.explain.run import explain_run
from training.loop.run import Run

from .explain_world import Page, changed_run

SIDE, SIZE, PATCHES = 96, 32, 4
PREPROCESSING = Preprocessing(size=SIZE)
THRESHOLD = 0.35
ITEMS, SHOWN = 14, 3
TWINS = (12, 13)


class Colours(nn.Module):
    """Embeds the mean colours of 4×4 patches, less the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = 3 * PATCHES**2
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, pixels: Tensor) -> Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(pixels, PATCHES)
        return (pooled - pooled.mean(dim=(1, 2, 3), keepdim=True)).flatten(1)


def pattern(seed: int) -> np.ndarray:
    """Return the colours of an item; the twins differ a little."""
    colours = np.random.default_rng(min(seed, 12) if seed in TWINS else seed).uniform(40, 215, (PATCHES, PATCHES, 3))
    return colours + (np.random.default_rng(99).normal(0, 12, colours.shape) if seed == TWINS[1] else 0)


def drawn(colours: np.ndarray, number: int, side: int = SIDE) -> np.ndarray:
    noise = np.random.default_rng((number, side)).normal(0, 10, (side, side, 3))
    return np.clip(np.kron(colours, np.ones((side // PATCHES, side // PATCHES, 1))) + noise, 0, 255)


def small_in_the_middle(item: int) -> np.ndarray:
    """Return a photo in which an item fills the central 60 % of the sides."""
    photo, side = drawn(pattern(500), 7), 60
    start = (SIDE - side) // 2
    photo[start : start + side, start : start + side] = drawn(pattern(item), 8, side)
    return photo


def blurred(item: int) -> np.ndarray:
    image = Image.fromarray(drawn(pattern(item), 9).astype(np.uint8)).filter(ImageFilter.GaussianBlur(16))
    return np.asarray(image, dtype=np.float64)


QUERIES = {  # item, photo
    BLUR: (0, blurred(0)),
    DOMAIN: (1, 250 - 0.1 * drawn(pattern(1), 9)),
    CROP: (2, small_in_the_middle(2)),
    SIBLING: (TWINS[0], drawn(0.3 * pattern(TWINS[0]) + 0.7 * pattern(TWINS[1]), 9)),
    VIEW: (3, drawn(pattern(705), 9)),
    UNEXPLAINED: (4, drawn(0.6 * pattern(4) + 0.4 * pattern(612), 9)),
}


def photo_of(name: str, item: int, pixels: np.ndarray, group: str = "") -> UploadedPhoto:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return UploadedPhoto(name, Path(name), f"item-{item:02d}", group, content=file.getvalue())


@pytest.fixture(scope="module")
def scene() -> tuple[list[UploadedPhoto], np.ndarray, ItemSearch]:
    """Return gallery photos and the queries, their vectors, and their search."""
    photos = [photo_of(f"{i}-{n}", i, drawn(pattern(i), n)) for i in range(ITEMS) for n in range(SHOWN)]
    labels = [i for i in range(ITEMS) for _ in range(SHOWN)]
    for cause, (item, pixels) in QUERIES.items():
        photos.append(photo_of(cause, item, pixels))
        labels.append(item)
    photos.append(photo_of("found", 5, drawn(pattern(5), 9)))
    reader = SimpleNamespace(
        size=SIZE, publish=lambda: None, pixels=lambda at: np.stack([shown(photos[i]) for i in at])
    )
    vectors = embed_photos(Colours(), reader, len(photos), PREPROCESSING)  # type: ignore[arg-type]
    count = ITEMS * SHOWN
    split = EvaluationSplit("unseen", np.arange(count, len(photos)), np.arange(count))
    return photos, vectors, ItemSearch(split, vectors, np.array([*labels, 5]), threshold=THRESHOLD)


def shown(photo: UploadedPhoto) -> np.ndarray:
    with Image.open(io.BytesIO(photo.content)) as image:
        return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def test_each_made_photo_has_the_cause_that_it_was_made_for(
    scene: tuple[list[UploadedPhoto], np.ndarray, ItemSearch],
) -> None:
    photos, vectors, search = scene
    outcomes = explain(search.split, vectors, search.labels, threshold=THRESHOLD).outcomes
    misses = find_misses(search, outcomes, photos, Colours(), PREPROCESSING)  # type: ignore[arg-type]
    assert {photos[miss.photo].photo_id: miss.cause for miss in misses} == {cause: cause for cause in QUERIES}
    by_cause = {miss.cause: miss for miss in misses}
    assert by_cause[CROP].crop == "the central 60%"
    assert by_cause[BLUR].deviations[0] < -3
    assert by_cause[DOMAIN].deviations[1] > 3
    assert (by_cause[SIBLING].item, by_cause[SIBLING].rival, by_cause[SIBLING].outcome) == (*TWINS, "misidentified")
    assert by_cause[VIEW].outcome == by_cause[UNEXPLAINED].outcome == "missed"


def test_items_of_a_group_are_siblings_and_so_are_the_nearest_to_each_other(
    scene: tuple[list[UploadedPhoto], np.ndarray, ItemSearch],
) -> None:
    search = scene[2]
    alone = Siblings(search, [""] * len(search.labels))
    first = {item: item * SHOWN for item in range(ITEMS)}
    assert alone(first[TWINS[0]], TWINS[1])
    assert alone(first[TWINS[1]], TWINS[0])
    other = next(item for item in range(1, 5) if alone.nearest(0) != item or alone.nearest(item) != 0)
    assert not alone(first[0], other)
    grouped = Siblings(search, ["a" if label in (0, other) else "b" for label in search.labels])
    assert grouped(first[0], other)


def test_sharpness_does_not_depend_on_contrast_and_falls_with_blur() -> None:
    photo = drawn(pattern(1), 1)
    softer = np.asarray(Image.fromarray(photo.astype(np.uint8)).filter(ImageFilter.GaussianBlur(2)))
    pale = 128 + (photo - 128) / 2
    plain, soft, faint = measure(np.stack([photo, softer, pale]).astype(np.uint8))
    assert plain[0] - soft[0] > 0.5
    assert faint[0] == pytest.approx(plain[0], abs=0.05)
    assert faint[2] == pytest.approx(plain[2] / 2, rel=0.05)
    look = GalleryLook.of(np.stack([photo] * 3).astype(np.uint8))
    np.testing.assert_allclose(look.deviations(photo.astype(np.uint8)[None]), 0, atol=1e-9)


def test_crops_are_closer_and_wider() -> None:
    pixels = np.zeros((80, 120, 3))
    pixels[20:60, 40:80] = 200  # a square in the middle of the photo
    photo = photo_of("a", 0, pixels)
    closer, closest, wider = crops_of(photo, PREPROCESSING)
    assert len(CROPS) == 3
    assert closest.mean() > closer.mean() > wider.mean()
    boxed = UploadedPhoto("a", Path("a"), "x", bbox=(40, 20, 80, 60), content=photo.content)
    assert crops_of(boxed, PREPROCESSING)[0].min() == 200  # inside of the box
    assert crops_of(boxed, PREPROCESSING)[2].min() == 0  # its surroundings


def test_misses_are_compared_with_those_of_another_run(tmp_path: Path) -> None:
    told = {"run": "old", "searched": ["a", "b", "c"], "misses": [{"photo_id": p, "cause": BLUR} for p in "ab"]}
    (tmp_path / "old.json").write_text(json.dumps(told))
    found = Comparison.of(Before.read(tmp_path / "old.json"), ["a", "b", "c", "d"], {"b": CROP, "c": VIEW, "d": VIEW})
    assert (found.fixed, found.new, found.remaining) == ({"a": BLUR}, {"c": VIEW}, {"b": CROP})
    assert found.lines() == [
        "Compared with old on 3 queries:",
        "  1 fixed: 1 blur",
        "  1 new: 1 view",
        "  1 remaining: 1 crop",
    ]
    with pytest.raises(DataError, match="none of these queries"):
        Comparison.of(Before.read(tmp_path / "old.json"), ["x"], {})
    (tmp_path / "old.json").write_text('{"run": "old"}')
    with pytest.raises(DataError, match="is not an explanation"):
        Before.read(tmp_path / "old.json")


@pytest.mark.slow
def test_the_command_shows_causes_and_compares_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    odd = changed_run(run, tmp_path / "one")
    spoilt = odd.splits.test[0]
    for photo in odd.photos():
        if photo.item_id == spoilt and photo.photo_id.endswith("_1.png"):
            with Image.open(photo.path) as image:
                dark = image.convert("RGB").point(lambda value: value // 12)
            dark.save(tmp_path / "one" / "dark.png")
            swapped = photo.photo_id
    table = tmp_path / "one" / "photos.csv"
    table.write_text(table.read_text().replace(swapped, str(tmp_path / "one" / "dark.png")))
    before = CliRunner().invoke(group, ["explain", str(odd.path), "--json"], catch_exceptions=False)
    told = json.loads(before.output[before.output.index("{") :])
    assert sum(told["causes"].values()) == len(told["misses"]) > 0
    assert set(told["causes"]) == set(CAUSES)
    (tmp_path / "before.json").write_text(json.dumps(told))
    words = ["explain", str(odd.path), "--compare", str(tmp_path / "before.json")]
    after = CliRunner().invoke(group, words, catch_exceptions=False)
    assert f"Compared with run on {len(told['searched'])} queries:" in after.output
    assert "  0 new" in after.output
    assert f"  {len(told['misses'])} remaining" in after.output
    page = Page((odd.path / "explain.html").read_text())
    assert any("Why searches miss" in text for text in page.text)
    explained = explain_run(odd, progress=False)
    assert [miss.cause for miss in explained.misses] == [miss["cause"] for miss in told["misses"]]
    assert Page(explain_page(explained)).open == []
