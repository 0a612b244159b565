from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval.images import open_image
from retrieval.plain_jpeg import without_metadata
from retrieval.thumbnails import thumbnail

from ..world import draw, encode


def jpeg(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"quality": 20, "subsampling": 2}])
def test_the_pixels_remain_and_everything_else_goes(mode: str, options: dict[str, Any]) -> None:
    secret = b"a secret place"
    data = jpeg(draw(1, 1).convert(mode), comment=secret, icc_profile=secret, **options) + secret
    assert data.count(secret) == 3
    plain = without_metadata(data)
    assert plain is not None
    assert secret not in plain
    with Image.open(io.BytesIO(plain)) as image:
        assert set(image.info) == {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(data))))
    assert without_metadata(plain) == plain


def test_others_are_to_be_encoded_again() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = draw(1, 1)
    for data in (
        jpeg(photo, progressive=True),
        jpeg(photo, exif=exif),
        jpeg(photo.convert("CMYK")),
        encode(photo, "PNG"),
        b"\xff\xd8",
        b"",
    ):
        assert without_metadata(data) is None


def test_a_file_that_is_cut_off_is_refused() -> None:
    data = jpeg(draw(1, 1))
    assert all(without_metadata(data[:size]) is None for size in range(len(data)))


def test_a_small_jpeg_is_its_own_thumbnail() -> None:
    small, large = jpeg(draw(1, 1), comment=b"secret"), jpeg(draw(1, 1).resize((300, 200)))
    assert thumbnail(open_image(small), small) == without_metadata(small)
    again = thumbnail(open_image(large), large)
    assert Image.open(io.BytesIO(again)).size == (256, 171)
    assert b"secret" not in thumbnail(open_image(small))
    reduced = open_image(large, min_side=16)  # decoded at a reduced scale
    assert max(reduced.size) < 256
    assert thumbnail(reduced, large) == thumbnail(reduced)
