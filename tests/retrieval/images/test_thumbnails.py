from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval.images import open_image
from retrieval.images.thumbnails import thumbnail, without_metadata

from ...world import draw, encode


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


def test_colours_that_only_the_names_of_components_tell_are_encoded_again() -> None:
    photo = draw(1, 1)
    for odd in (jpeg(photo, keep_rgb=True), jpeg(photo.convert("CMYK"))):
        start = odd.index(b"\xff\xee")  # the segment of Adobe
        bare = odd[:start] + odd[start + 2 + int.from_bytes(odd[start + 2 : start + 4]) :]
        assert b"Adobe" not in bare
        assert without_metadata(bare) is None
        seen, shown = open_image(bare), open_image(thumbnail(open_image(bare), bare))
        assert np.allclose(*(np.asarray(image).mean(axis=(0, 1)) for image in (seen, shown)), atol=4)


def test_text_after_the_last_pixels_goes() -> None:
    data = jpeg(draw(1, 1))
    odd = data[:-2] + b"<script>alert('a secret place')</script>" + data[-2:]
    assert open_image(odd).size == open_image(data).size
    assert without_metadata(odd) is None
    assert b"secret" not in thumbnail(open_image(odd), odd)


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
