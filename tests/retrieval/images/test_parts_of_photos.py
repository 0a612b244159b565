"""The block and the region of a photo: what is found on plain and shaded grounds, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from retrieval.images.block import find_block
from retrieval.images.parts import opened, parts_of
from retrieval.images.region import GRID, find_region

THING = np.random.default_rng(5).integers(0, 256, (6, 6, 3), dtype=np.uint8)


def thing(width: int, height: int) -> Image.Image:
    """Return a picture of coloured patches."""
    return Image.fromarray(THING).resize((width, height), Image.Resampling.NEAREST)


def on(ground: Image.Image, left: int, upper: int, width: int, height: int) -> Image.Image:
    """Return a ground with a thing on it."""
    ground.paste(thing(width, height), (left, upper))
    return ground


def shaded(width: int, height: int) -> Image.Image:
    """Return a brown surface on which light falls off to the right and down, with grain."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    light = (1.2 - 0.3 * x - 0.2 * y)[..., None]
    grain = np.random.default_rng(1).normal(0, 3, (height, width, 1))
    return Image.fromarray((np.array([120, 90, 64]) * light + grain).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("ground", ["white", "grey", "shaded", "dark"])
@pytest.mark.parametrize(
    ("left", "upper", "width", "height"), [(100, 60, 200, 150), (10, 12, 160, 160), (230, 90, 150, 90)]
)
def test_the_block_is_the_thing_on_an_even_ground(ground: str, left: int, upper: int, width: int, height: int) -> None:
    frame = (
        shaded(400, 300)
        if ground == "shaded"
        else Image.new("RGB", (400, 300), {"dark": "#101014"}.get(ground, ground))
    )
    block = find_block(on(frame, left, upper, width, height))
    assert block is not None
    expected = left / 400, upper / 300, (left + width) / 400, (upper + height) / 300
    assert np.abs(np.subtract(block, expected)).max() < 0.03


def test_the_block_of_a_screenshot_is_its_picture_and_not_its_text() -> None:
    page = Image.new("RGB", (400, 800), "white")
    draw = ImageDraw.Draw(page)
    for line in [40, 70, *range(500, 740, 30)]:
        for word in range(24, 340, 70):
            draw.rectangle((word, line, word + 52, line + 11), fill="black")
    block = find_block(on(page, 30, 150, 340, 300))
    assert block is not None
    assert np.abs(np.subtract(block, (30 / 400, 150 / 800, 370 / 400, 450 / 800))).max() < 0.03


@pytest.mark.parametrize(
    ("name", "photo"),
    [
        ("even", Image.new("RGB", (300, 200), "white")),
        ("patches everywhere", thing(300, 200)),
        ("a thing of more than half of the frame", on(Image.new("RGB", (300, 200), "white"), 30, 20, 240, 160)),
        ("a thing of a hundredth of the frame", on(Image.new("RGB", (300, 200), "white"), 150, 100, 24, 20)),
        ("noise", Image.fromarray(np.random.default_rng(2).integers(0, 256, (200, 300, 3), dtype=np.uint8))),
        ("of eight pixels", Image.new("RGB", (8, 8), "white")),
    ],
)
def test_a_photo_without_a_small_thing_on_an_even_ground_has_no_block(name: str, photo: Image.Image) -> None:
    assert find_block(photo) is None


def test_the_region_is_the_part_with_the_most_energy_and_not_the_largest() -> None:
    energy = np.ones((GRID, GRID), np.float32)
    energy[2:30, 2:14] = 2.0  # 336 cells
    energy[20:32, 24:36] = 9.0  # 144 cells
    assert find_region(energy) == (24 / GRID, 20 / GRID, 36 / GRID, 32 / GRID)


@pytest.mark.parametrize("high", [1.0, 0.0, np.nan])
def test_an_even_energy_has_no_region(high: float) -> None:
    assert find_region(np.full((GRID, GRID), high, np.float32)) is None


def test_a_region_narrower_than_a_fifth_is_none() -> None:
    energy = np.ones((GRID, GRID), np.float32)
    energy[5:35, 10:17] = 9.0
    assert find_region(energy) is None


def test_parts_touch_by_their_sides_and_not_by_corners() -> None:
    mask = np.array([[1, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 0]], bool)
    found = {box: int(cells.sum()) for box, cells in parts_of(mask)}
    assert found == {(0, 0, 1, 2): 2, (2, 0, 4, 2): 3, (0, 2, 3, 4): 4}


def test_parts_of_random_masks_are_those_of_a_flood() -> None:
    generator = np.random.default_rng(0)
    for share in (0.0, 0.3, 0.5, 0.6, 0.8, 1.0):
        mask = generator.random((17, 23)) < share
        assert sorted(box for box, _ in parts_of(mask)) == sorted(flooded(mask))


def flooded(mask: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return the bounding boxes of the parts of a mask, by walking from cell to cell."""
    left, boxes = {(row, column) for row, column in zip(*mask.nonzero(), strict=True)}, []
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            row, column = edge.pop()
            part.add((row, column))
            near = {(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)} & left
            left -= near
            edge |= near
        rows, columns = zip(*part, strict=True)
        boxes.append((int(min(columns)), int(min(rows)), int(max(columns)) + 1, int(max(rows)) + 1))
    return boxes


def test_opening_removes_specks_and_threads_and_keeps_blocks() -> None:
    mask = np.zeros((12, 12), bool)
    mask[1, 1] = mask[6, 0:12] = True
    mask[4:9, 4:9] = True
    kept = opened(mask)
    assert not kept[1, 1]
    assert not kept[6, 0]
    assert kept[5:8, 5:8].all()
