"""Photos with a bounding box, and photos that are embedded again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo
from retrieval.images import center_crop_resize, open_image
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.worker import embed_batch

from ..gallery_contents import contents
from ..world import draw, make_bundle

LEFT, RIGHT = (0.0, 0.0, 640.0, 640.0), (640.0, 0.0, 1280.0, 640.0)


@pytest.fixture
def photo(tmp_path: Path) -> Photo:
    """Return a large JPEG of two items side by side, the right one of which is in the box."""
    image = Image.new("RGB", (1280, 640))
    image.paste(draw(1, 0).resize((640, 640)), (0, 0))
    image.paste(draw(2, 0).resize((640, 640)), (640, 0))
    image.save(tmp_path / "two.jpg", quality=95)
    return Photo("two.jpg", tmp_path / "two.jpg", "item-2", bbox=RIGHT)


def test_a_box_is_in_pixels_of_the_photo_as_it_was_taken(tmp_path: Path, photo: Photo) -> None:
    """A JPEG is decoded at a smaller scale where that is enough; a box counts pixels of the full one."""
    embedder = make_bundle(tmp_path).embedder(threads=1)
    batch = embed_batch(embedder, [photo, replace(photo, photo_id="left", bbox=LEFT)], {})
    assert batch.refused == []
    with Image.open(photo.path) as image:
        assert image.size == (1280, 640)
        halves = [image.convert("RGB").crop(tuple(map(int, box))) for box in (RIGHT, LEFT)]
    expected = embedder.embed_pixels(
        np.stack([center_crop_resize(half, embedder.preprocessing) for half in halves])
    ).vectors
    assert np.array_equal(batch.vectors, expected)
    assert open_image(photo.read(), min_side=32).size != (1280, 640)  # without a box it is


def test_another_box_is_another_content(tmp_path: Path, photo: Photo) -> None:
    make_bundle(tmp_path)
    bundle = Bundle.open(tmp_path / "bundle")
    reports = [
        index_catalogue(bundle, [one], tmp_path / "g", progress=False)
        for one in (photo, photo, replace(photo, bbox=LEFT), replace(photo, bbox=None))
    ]
    assert [(report.added, report.replaced, report.skipped) for report in reports] == [
        (1, 0, 0),
        (0, 0, 1),
        (1, 1, 0),
        (1, 1, 0),
    ]
    vectors = []
    for box in (RIGHT, LEFT, None):
        index_catalogue(bundle, [replace(photo, bbox=box)], tmp_path / "g", progress=False)
        with Gallery.open(tmp_path / "g") as gallery:
            vectors.append(contents(gallery)[2].tobytes())
    assert len(set(vectors)) == 3
