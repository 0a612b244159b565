from __future__ import annotations

import io
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from retrieval.errors import ImageTooLarge, ImageUnreadable, ImageUnsupported, InvalidParameter
from retrieval.images import (
    DAMAGED,
    MAX_BYTES,
    Preprocessing,
    center_crop_resize,
    check_sent,
    crop,
    decode,
    full_size,
    open_image,
    read_file,
    resize,
    to_tensor,
)
from retrieval.images.formats import FORMATS, PHONES, SENT, SUFFIXES, Format, format_of
from retrieval.images.thumbnails import thumbnail

from ...hostile import claimed_jpeg, saved
from ...world import draw, encode

KINDS = [form.name for form in FORMATS]
pillow_heif.register_heif_opener()  # so that Pillow can write it


def gradient(width: int = 96, height: int = 64) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=2).astype(np.uint8))


HEIC = encode(gradient(), "HEIF")


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_paths_and_pil_are_one(tmp_path: Path, kind: str) -> None:
    data = encode(gradient(), kind)
    (tmp_path / "photo").write_bytes(data)
    opened = [np.asarray(open_image(s)) for s in (data, tmp_path / "photo", str(tmp_path / "photo"))]
    opened.append(np.asarray(open_image(Image.open(io.BytesIO(data)))))
    for other in opened[1:]:
        assert np.array_equal(opened[0], other)


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(encode(gradient()))
    (tmp_path / "link.jpg").symlink_to("photo.jpg")
    assert open_image(tmp_path / "link.jpg").size == gradient().size
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to pipe").symlink_to("pipe")
    reader, writer = os.pipe()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        places: list[Path | str] = [tmp_path, *(tmp_path / name for name in ("pipe", "link to pipe", "socket"))]
        for path in [*places, "/dev/zero", "/dev/null", f"/proc/self/fd/{reader}", "a\0b.jpg"]:
            with pytest.raises(ImageUnreadable, match=r"regular file|cannot be read"):
                open_image(path)
    os.close(reader)
    os.close(writer)


@pytest.mark.timeout(20)
def test_a_file_that_is_replaced_while_it_is_looked_at_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(encode(gradient()))
    plain = Path.stat

    def stat_then_swap(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = plain(path, follow_symlinks=follow_symlinks)
        photo.unlink()
        os.mkfifo(photo)
        return status

    monkeypatch.setattr(Path, "stat", stat_then_swap)
    with pytest.raises(ImageUnreadable, match=r"regular file|cannot be read"):
        read_file(photo)


def test_no_more_is_read_than_the_limit_whatever_the_size_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, exact = tmp_path / "large.jpg", tmp_path / "exact.jpg"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with exact.open("wb") as file:
        file.truncate(MAX_BYTES)
    assert len(read_file(exact)) == MAX_BYTES
    plain = os.fstat
    for claimed in (0, 1, 2**60):

        def claim(descriptor: int, size: int = claimed) -> os.stat_result:
            status = list(plain(descriptor))
            status[stat.ST_SIZE] = size
            return os.stat_result(status)

        monkeypatch.setattr(os, "fstat", claim)
        read: list[int] = []
        monkeypatch.setattr(os, "fdopen", counting(read))
        with pytest.raises(ImageTooLarge, match="bytes, the limit is"):
            read_file(large)
        assert sum(read) == MAX_BYTES + 1


def counting(read: list[int]) -> Callable[..., io.FileIO]:
    """Return an `os.fdopen` whose files note how many bytes each read gave."""

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size) or b""
            read.append(len(data))
            return data

    return lambda descriptor, mode, buffering: Counted(descriptor, mode)


@pytest.mark.parametrize("form", FORMATS, ids=KINDS)
def test_each_format_is_known_by_its_beginning_and_opens_as_the_picture(form: Format) -> None:
    data = encode(gradient(), form.name)
    assert format_of(data) == form
    error = np.abs(np.asarray(open_image(data)).astype(float) - np.asarray(gradient()))
    assert error.mean() < 12  # a GIF has few colours
    assert set(form.suffixes) <= SUFFIXES


@pytest.mark.parametrize("form", FORMATS, ids=KINDS)
def test_jpeg_png_and_webp_are_taken_over_http_and_heic_and_avif_with_the_extra_sources(
    form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, limits = encode(gradient(), form.name), {"most_bytes": 2**20, "most_pixels": 10**6}
    if form in SENT:
        check_sent(data, **limits)
        return
    if form.name in PHONES:
        check_sent(data, **limits)
    monkeypatch.setattr(decode, "find_spec", lambda name: None)
    with pytest.raises(ImageUnsupported, match=f"JPEG, PNG or WebP, and this one is {form.shown}") as refused:
        check_sent(data, **limits)
    assert ("sources" in refused.value.remedy) == (form.name in PHONES)


def test_a_jpeg_beyond_the_limits_of_a_server_is_refused_with_its_true_size_and_a_remedy() -> None:
    data = claimed_jpeg(12_000, 9_000)
    check_sent(data, most_bytes=len(data), most_pixels=108_000_000)
    with pytest.raises(ImageTooLarge, match=r"12000×9000 pixels, the limit is 100,000,000") as pixels:
        check_sent(data, most_bytes=len(data), most_pixels=100_000_000)
    assert pixels.value.remedy == "Save it with at most 11,547 pixels on its longer side"
    with pytest.raises(ImageTooLarge, match=rf"has {len(data):,} bytes, the limit is {len(data) - 1:,}"):
        check_sent(data, most_bytes=len(data) - 1, most_pixels=108_000_000)


def test_a_jpeg_of_more_pixels_than_are_decoded_is_reduced_and_boxes_are_cut_at_its_full_size() -> None:
    left, right = Image.new("RGB", (2000, 3000), "red"), Image.new("RGB", (4000, 3000), "blue")
    photo = Image.new("RGB", (6000, 6000))
    photo.paste(left, (0, 0))
    photo.paste(right, (2000, 0))
    opened = open_image(encode(photo))
    assert (opened.size, full_size(opened)) == ((3000, 3000), (6000, 6000))
    part = crop(opened, (2400, 200, 5600, 2600))
    assert (part.size, full_size(part)) == ((1600, 1200), (1600, 1200))
    assert np.asarray(part)[..., 2].min() > 250
    with pytest.raises(ImageUnsupported, match="6000×6000"):
        crop(opened, (0, 0, 6001, 10))


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("TIFF", {"compression": "tiff_deflate"})])
def test_other_photos_of_more_pixels_than_are_decoded_are_halved(kind: str, options: dict[str, str]) -> None:
    photo = Image.new("RGBA", (6000, 5001), (10, 20, 30, 0))
    opened = open_image(saved(photo, kind, **options))
    assert (opened.size, full_size(opened)) == ((3000, 2501), (6000, 5001))
    assert np.asarray(opened).min() == 255  # on white


def test_a_webp_that_takes_much_memory_is_decoded_elsewhere() -> None:
    photo = gradient(4000, 3500)
    assert open_image(saved(photo, "WEBP", method=0)).size == photo.size


NOISE = np.random.default_rng(0).bytes(1000).replace(b"\xff", b"\0")
BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "a lost block": lambda data: data[: len(data) // 3] + bytes(1000) + data[len(data) // 3 + 1000 :],
    "noise": lambda data: data[: len(data) // 3] + NOISE + data[len(data) // 3 + 1000 :],
    "cut and closed": lambda data: data[: len(data) // 3] + b"\xff\xd9",
    "half of another file": lambda data: data[: len(data) // 2] + encode(draw(2, 2).resize((700, 500)))[-9000:],
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}], ids=["plain", "restarts"])
def test_a_jpeg_with_lost_or_noisy_blocks_opens_as_damaged(how: str, options: dict[str, int]) -> None:
    whole = saved(gradient(640, 480).effect_spread(20), "JPEG", **options)
    assert DAMAGED not in open_image(whole).info
    for min_side in (0, 64):
        assert DAMAGED in open_image(BREAKS[how](whole), min_side=min_side).info


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_without_its_end_marker_is_whole(mode: str, options: dict[str, int]) -> None:
    whole = saved(gradient(301, 203).convert(mode), "JPEG", **options)
    for missing in (2, 1):
        opened = open_image(whole[:-missing])
        assert DAMAGED not in opened.info
        assert np.array_equal(np.asarray(opened), np.asarray(open_image(whole)))
    with pytest.raises(ImageUnreadable, match="its end is missing"):
        open_image(whole[: len(whole) * 2 // 3])


def test_a_progressive_jpeg_that_lacks_scans_is_damaged() -> None:
    whole = saved(gradient(640, 480), "JPEG", progressive=True)
    assert DAMAGED in open_image(whole[: whole.rindex(b"\xff\xda")] + b"\xff\xd9").info


def test_a_progressive_jpeg_with_a_lost_block_is_damaged_and_a_flat_one_is_whole() -> None:
    whole = saved(gradient(640, 480).effect_spread(20), "JPEG", progressive=True)
    at = len(whole) * 2 // 5
    assert DAMAGED in open_image(whole[:at] + bytes(4096) + whole[at + 4096 :]).info
    flat = saved(Image.new("RGB", (2400, 1600), "white"), "JPEG", progressive=True)
    assert bytes(512) in flat
    assert DAMAGED not in open_image(flat).info


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}])
def test_a_restart_marker_before_the_end_of_a_jpeg_is_no_damage(options: dict[str, int]) -> None:
    whole = saved(gradient(301, 203), "JPEG", **options)
    opened = open_image(whole[:-2] + b"\xff\xd4" + whole[-2:])
    assert DAMAGED not in opened.info
    assert np.array_equal(np.asarray(opened), np.asarray(open_image(whole)))


def test_a_progressive_jpeg_that_keeps_too_much_in_memory_is_refused_with_the_remedy() -> None:
    large = saved(gradient(), "JPEG", progressive=True)
    at = large.index(b"\xff\xc2") + 5
    with pytest.raises(ImageTooLarge) as refused:
        open_image(large[:at] + struct.pack(">HH", 9_000, 9_000) + large[at + 4 :])
    assert "9000×9000" in refused.value.message
    assert "baseline" in refused.value.remedy


def test_the_first_frame_or_page_is_the_photo() -> None:
    first, second = gradient(), gradient().rotate(90)
    for kind in ("GIF", "TIFF"):
        data = saved(first, kind, save_all=True, append_images=[second] * 3)
        assert np.array_equal(np.asarray(open_image(data)), np.asarray(open_image(encode(first, kind))))
    with pytest.raises(ImageUnsupported, match="animated"):
        open_image(saved(first, "AVIF", save_all=True, append_images=[second]))


def test_a_heic_that_lies_about_its_size_is_refused_before_its_pixels_are_decoded() -> None:
    at = HEIC.index(b"ispe") + 8
    for width, height, error in (
        (8, 8, ImageUnreadable),
        (20_000, 20_000, ImageTooLarge),
        (65_535, 9, ImageUnsupported),
    ):
        with pytest.raises(error):
            open_image(HEIC[:at] + struct.pack(">II", width, height) + HEIC[at + 8 :])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_comes_out_upright(orientation: int) -> None:
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = gradient()
    stored = upright.transpose(turn[orientation]) if orientation in turn else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})):
        assert np.array_equal(np.asarray(open_image(saved(stored, kind, exif=exif, **options))), np.asarray(upright))
    for kind in ("JPEG", "AVIF"):
        assert np.abs(np.asarray(open_image(saved(stored, kind, exif=exif))).astype(float) - upright).mean() < 5


def test_the_orientation_of_xmp_data_counts_where_exif_data_has_none() -> None:
    for kind in ("JPEG", "WEBP"):
        data = saved(gradient(), kind, xmp=b'<x:xmpmeta tiff:Orientation="6"/>')
        assert open_image(data).size == gradient().size[::-1]


def test_the_orientation_in_the_text_of_a_png_counts() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    text = PngInfo()
    digits = exif.tobytes().hex()
    text.add_text("Raw profile type exif", f"\nexif\n{len(digits) // 2:8}\n{digits}\n", zip=True)
    assert open_image(saved(gradient(), "PNG", pnginfo=text)).size == gradient().size[::-1]


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = Image.fromarray(np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16))
    got = np.asarray(open_image(encode(deep, "PNG")))
    assert np.abs(got[..., 0].astype(float) - np.linspace(0, 255, 64 * 64).reshape(64, 64)).max() <= 1


def test_cmyk_gray_palette_and_alpha_become_rgb() -> None:
    plain = np.asarray(gradient()).astype(float)
    cmyk = np.asarray(open_image(encode(gradient().convert("CMYK"), "JPEG"))).astype(float)
    assert np.abs(cmyk - plain).mean() < 3
    assert open_image(encode(gradient().convert("L"), "PNG")).mode == "RGB"
    assert open_image(encode(gradient().convert("P"), "PNG")).mode == "RGB"
    glass = gradient().convert("RGBA")
    glass.putalpha(0)
    assert np.asarray(open_image(encode(glass, "PNG"))).min() == 255


def test_draft_decoding_moves_next_to_nothing() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    photo = noise.resize((1280, 960), Image.Resampling.BICUBIC)
    sight = Preprocessing(size=160)
    full = center_crop_resize(open_image(encode(photo)), sight).astype(float)
    draft = open_image(encode(photo), min_side=160)
    assert draft.width < photo.width
    assert min(draft.size) >= 320
    assert np.abs(center_crop_resize(draft, sight) - full).mean() < 1


def test_the_view_is_the_centred_square() -> None:
    whole = np.asarray(gradient(96, 64))
    assert np.array_equal(center_crop_resize(Image.fromarray(whole), Preprocessing(size=64)), whole[:, 16:80])
    half = center_crop_resize(Image.fromarray(whole), Preprocessing(size=32, view=0.5))
    assert np.array_equal(half, whole[16:48, 32:64])


@pytest.mark.parametrize("size", [(400, 4000), (4000, 400)])
def test_the_shorter_side_decides_the_reduced_scale(size: tuple[int, int]) -> None:
    large = encode(Image.new("RGB", size))
    assert open_image(large, min_side=100).size == (size[0] // 2, size[1] // 2)
    assert open_image(large).size == size


def test_the_tensor_is_scaled_and_channels_first() -> None:
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    pixels[..., 0] = 255
    made = to_tensor(pixels, Preprocessing(size=8))
    assert made.shape == (2, 3, 8, 8)
    assert made.dtype == np.float32
    assert made[:, 0] == pytest.approx(1.0)
    assert made[:, 1] == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("size", "small"),
    [((500, 375), (250, 188)), ((4000, 2250), (250, 141)), ((300, 30), (256, 26)), ((257, 100), (256, 100))],
)
def test_thumbnails_show_the_whole_photo(size: tuple[int, int], small: tuple[int, int]) -> None:
    shown = Image.open(io.BytesIO(thumbnail(gradient(*size))))
    assert shown.size == small
    expected = gradient(*size).resize(small, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(shown, dtype=float) - np.asarray(expected, dtype=float)).mean() < 3


def test_a_bbox_beyond_the_image_is_refused() -> None:
    assert crop(gradient(), (0, 0, 50, 40)).size == (50, 40)
    with pytest.raises(ImageUnsupported, match="beyond"):
        crop(gradient(), (0, 0, 500, 40))
    with pytest.raises(ImageUnsupported, match="reaches beyond"):
        crop(gradient(), (0, 0, 50, 5000))


def test_boxes_are_cut_by_the_resize() -> None:
    whole = np.asarray(gradient())
    assert np.array_equal(resize(gradient(), 32, box=(10, 5, 42, 37)), whole[5:37, 10:42])


@pytest.mark.parametrize("values", [{"size": 4}, {"view": 0.0}, {"std": (0.0, 1.0, 1.0)}])
def test_preprocessing_checks_itself(values: dict) -> None:
    with pytest.raises(InvalidParameter):
        Preprocessing(**values)


def test_a_phones_jpeg_with_a_second_picture_is_its_first() -> None:
    first, second = Image.new("RGB", (64, 48), "red"), Image.new("RGB", (16, 12), "blue")
    file = io.BytesIO()
    first.save(file, "MPO", save_all=True, append_images=[second])
    seen = open_image(file.getvalue(), min_side=8)
    assert seen.getpixel((5, 5))[0] > 200  # type: ignore[index]


def test_arrays_and_buffers_are_images_too() -> None:
    pixels = np.asarray(draw(3, 0))
    for array in (pixels, pixels[:, ::-1][:, ::-1], np.asfortranarray(pixels)):
        assert np.array_equal(np.asarray(open_image(array)), pixels)
    file = io.BytesIO()
    draw(3, 0).save(file, "PNG")  # and its position is at its end
    assert np.array_equal(np.asarray(open_image(file)), pixels)
    assert np.array_equal(np.asarray(open_image(io.BytesIO(file.getvalue()))), pixels)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (None, "got None"),
        (5, "<class 'int'>"),
        ([1, 2], "<class 'list'>"),
        (bytearray(b"x"), "<class 'bytearray'>"),
        (np.zeros((40, 40), np.uint8), "uint8 (40, 40)"),
        (np.zeros((40, 40, 4), np.uint8), "uint8 (40, 40, 4)"),
        (np.zeros((40, 40, 3), np.float32), "float32 (40, 40, 3)"),
        (np.zeros((0, 40, 3), np.uint8), "uint8 (0, 40, 3)"),
    ],
)
def test_what_is_no_image_is_told_what_is_accepted(source: object, told: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        open_image(source)  # type: ignore[arg-type]
    assert told in str(refused.value)
    for accepted in ("BytesIO", "a path", "a PIL image", "uint8 (height, width, 3)"):
        assert accepted in str(refused.value)


def test_limits_hold_for_arrays_and_opened_images() -> None:
    with pytest.raises(ImageUnsupported, match="needs at least"):
        open_image(np.zeros((4, 40, 3), np.uint8))
    whole = io.BytesIO()
    draw(3, 0).resize((400, 400)).save(whole, "JPEG")
    cut = Image.open(io.BytesIO(whole.getvalue()[:2000]))  # Pillow has read the header alone
    with pytest.raises(ImageUnreadable, match="damaged"):
        open_image(cut)
