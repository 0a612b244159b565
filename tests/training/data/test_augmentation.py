import colorsys
import math

import numpy as np
import pytest
from PIL import Image

from training.config import Settings
from training.data.augmentation import NUMBERS, Augmentation, colour_matrix, luminance, random_box


def augmentation(**changes: object) -> Augmentation:
    return Augmentation(Settings.from_dict({"catalogue": "", "size": 16, **changes}))


def recoloured(pixel: tuple[int, int, int], matrix: tuple[float, ...]) -> list[float]:
    return [sum(matrix[4 * i + j] * pixel[j] for j in range(3)) + matrix[4 * i + 3] for i in range(3)]


def gray(pixel: tuple[float, ...] | list[float]) -> float:
    return 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]


def test_each_factor_alone_does_what_it_says() -> None:
    pixel = (100, 60, 20)
    assert recoloured(pixel, colour_matrix((1, 1, 1), 0.0, mean=50)) == pytest.approx(pixel)
    assert recoloured(pixel, colour_matrix((1.2, 1, 1), 0.0, mean=50)) == pytest.approx([120, 72, 24])
    assert recoloured(pixel, colour_matrix((1, 0.5, 1), 0.0, mean=50)) == pytest.approx([75, 55, 35])
    own = gray(pixel)
    assert recoloured(pixel, colour_matrix((1, 1, 0.5), 0.0, mean=50)) == pytest.approx([(v + own) / 2 for v in pixel])


def test_all_factors_together_are_one_after_the_other_in_any_order() -> None:
    pixel, mean = (130.0, 80.0, 40.0), 70.0

    def bright(p: list[float], m: float) -> tuple[list[float], float]:
        return [1.1 * v for v in p], 1.1 * m

    def contrast(p: list[float], m: float) -> tuple[list[float], float]:
        return [0.8 * v + 0.2 * m for v in p], m

    def saturation(p: list[float], m: float) -> tuple[list[float], float]:
        return [1.3 * v - 0.3 * gray(p) for v in p], m

    expected = recoloured(pixel, colour_matrix((1.1, 0.8, 1.3), 0.0, mean=mean))  # type: ignore[arg-type]
    for order in ((bright, contrast, saturation), (saturation, contrast, bright), (contrast, saturation, bright)):
        now, level = list(pixel), mean
        for step in order:
            now, level = step(now, level)
        assert expected == pytest.approx(now)


@pytest.mark.parametrize("degrees", [-7.2, 3.0, 7.2, 120.0])
def test_the_hue_turns_by_the_angle_and_grays_stay(degrees: float) -> None:
    matrix = colour_matrix((1, 1, 1), math.radians(degrees), mean=0)
    assert recoloured((90, 90, 90), matrix) == pytest.approx([90, 90, 90])
    for pixel in ((180, 60, 40), (40, 160, 90), (70, 60, 150)):
        before = colorsys.rgb_to_hsv(*pixel)[0]
        after = colorsys.rgb_to_hsv(*recoloured(pixel, matrix))[0]
        turned = ((after - before) * 360 - degrees + 180) % 360 - 180
        assert abs(turned) < 2.3  # the hexagon of HSV is no circle
    if degrees == 120.0:
        assert recoloured((180, 60, 40), matrix) == pytest.approx([40, 180, 60])


def test_the_luminance_is_the_mean_of_the_crop() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    expected = float((pixels.reshape(-1, 3) @ np.array([0.299, 0.587, 0.114])).mean())
    assert luminance(Image.fromarray(pixels)) == pytest.approx(expected, abs=0.6)


def test_crops_lie_within_the_photo_and_have_the_promised_area_and_aspect() -> None:
    generator = np.random.default_rng(0)
    whole = 0
    for _ in range(2000):
        numbers = generator.random(22).tolist()
        left, upper, right, lower = random_box((300, 200), 0.35, sides=numbers[:20], corner=(numbers[20], numbers[21]))
        assert 0 <= left < right <= 300
        assert 0 <= upper < lower <= 200
        area, aspect = (right - left) * (lower - upper), (right - left) / (lower - upper)
        assert 0.35 * 60_000 - 1e-6 <= area <= 60_000 + 1e-6
        assert 3 / 4 - 1e-9 <= aspect <= 4 / 3 + 1e-9
        whole += area > 0.6 * 60_000
    assert 200 < whole < 1200
    assert random_box((300, 100), 1.0, sides=[0.5] * 20, corner=(0.1, 0.9)) == (100, 0, 200, 100)  # none fits


def test_what_is_switched_off_does_nothing() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8))
    still = augmentation(flip=False, colour=0.0, crop_area=1.0)
    whole = np.full(NUMBERS, 0.5)  # aspect 1, area 1
    assert np.array_equal(still.crop(image, whole), np.asarray(image))
    mirrored = np.array([*whole[:22], 0.1, *whole[23:]])
    turned = augmentation(flip=True, colour=0.0, crop_area=1.0).crop(image, mirrored)
    assert np.array_equal(turned, np.asarray(image)[:, ::-1])


def test_numbers_decide_a_crop() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3)).astype(np.uint8))
    augment = augmentation(colour=0.3)
    first = augment(image, np.random.default_rng(1))
    assert first.shape == (16, 16, 3)
    assert np.array_equal(first, augment(image, np.random.default_rng(1)))
    assert not np.array_equal(first, augment(image, np.random.default_rng(2)))
