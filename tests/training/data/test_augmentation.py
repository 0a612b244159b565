import json
import subprocess
import sys
import threading
import tomllib
from typing import Any

import albumentations
import numpy as np
import pytest
from numpy.typing import NDArray

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.data.augmentation import Augmentation

NO_NETWORK = """
import socket
def refuse(*arguments, **named):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
from training.config import Settings
from training.data.augmentation import Augmentation
Augmentation(Settings(catalogue="", size=16))
"""


def augmentation(**changes: object) -> Augmentation:
    return Augmentation(Settings.from_dict({"catalogue": "", "size": 16, **changes}))


def photo(height: int = 40, width: int = 30) -> NDArray[np.uint8]:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    pixels.flags.writeable = False  # as the cache hands them out
    return pixels


def pipeline(*transforms: Any) -> dict[str, Any]:
    definition: dict[str, Any] = albumentations.to_dict(albumentations.Compose(transforms))
    return definition


def test_what_is_switched_off_does_nothing() -> None:
    square = photo(16, 16)
    still = augmentation(flip=False, colour=0.0, crop_area=1.0)
    seeds = [seed for seed in range(60) if np.array_equal(still.crop(square, seed), square)]
    assert seeds  # the aspect of the others does not fit, or makes them narrower
    mirrored = augmentation(flip=True, colour=0.0, crop_area=1.0)
    crops = [mirrored.crop(square, seed) for seed in range(60)]
    assert any(np.array_equal(crop, square[:, ::-1]) for crop in crops)
    assert not any(np.array_equal(still.crop(square, seed), square[:, ::-1]) for seed in range(60))


def test_a_crop_of_a_gray_photo_stays_within_the_jitter() -> None:
    gray = np.full((32, 32, 3), 100, np.uint8)
    levels = [int(augmentation(colour=0.2).crop(gray, seed).mean()) for seed in range(200)]
    assert min(levels) >= 79
    assert max(levels) <= 121
    assert 20 <= levels.count(100) <= 80  # a fifth keep their colour
    assert max(levels) - min(levels) > 25


def test_a_seed_decides_a_crop() -> None:
    augment = augmentation(colour=0.3)
    first = augment.crop(photo(), 1)
    assert (first.shape, first.dtype) == ((16, 16, 3), np.uint8)
    for seed in (5, 2**63 - 1):
        augment.crop(photo(), seed)  # what came before does not matter
    assert np.array_equal(first, augment.crop(photo(), 1))
    assert np.array_equal(first, augmentation(colour=0.3).crop(photo(), 1))
    assert len({augment.crop(photo(), seed).tobytes() for seed in range(40)}) == 40
    generated = [augment(photo(), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(generated[0], generated[1])
    assert not np.array_equal(generated[0], generated[2])


def test_threads_that_take_turns_see_what_one_would() -> None:
    augment = augmentation(
        augmentation=pipeline(
            albumentations.RandomResizedCrop(size=(16, 16)),
            albumentations.OneOf([albumentations.GaussNoise(p=1), albumentations.CoarseDropout(p=1)], p=0.9),
        )
    )
    expected = [augment.crop(photo(), seed) for seed in range(64)]
    results: dict[int, np.ndarray] = {}
    barrier = threading.Barrier(4)

    def work(first: int) -> None:
        barrier.wait()
        for seed in range(first, 64, 4):
            results[seed] = augment.crop(photo(), seed)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(results[seed], expected[seed]) for seed in range(64))


def test_a_pipeline_of_albumentations_replaces_the_built_in_one() -> None:
    definition = pipeline(albumentations.Resize(16, 16), albumentations.InvertImg(p=1))
    inverted = augmentation(augmentation=definition).crop(photo(16, 16), 3)
    assert np.array_equal(inverted, 255 - photo(16, 16))


def test_a_pipeline_is_read_from_toml_and_from_a_run() -> None:
    text = """
    [augmentation.transform]
    __class_fullname__ = "Compose"

    [[augmentation.transform.transforms]]
    __class_fullname__ = "RandomResizedCrop"
    size = [16, 16]
    scale = [0.5, 1.0]
    p = 1.0

    [[augmentation.transform.transforms]]
    __class_fullname__ = "Rotate"
    limit = [-15, 15]
    p = 0.5
    """
    settings = Settings.from_dict({"catalogue": "", "size": 16} | tomllib.loads(text))
    python = pipeline(
        albumentations.RandomResizedCrop(size=(16, 16), scale=(0.5, 1.0)), albumentations.Rotate(limit=(-15, 15), p=0.5)
    )
    stored = Settings.from_dict(json.loads(json.dumps(settings.to_dict())))
    expected = augmentation(augmentation=python)
    for read in (settings, stored):
        augment = Augmentation(read)
        assert all(np.array_equal(augment.crop(photo(), seed), expected.crop(photo(), seed)) for seed in range(20))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"transform": {"__class_fullname__": "NoSuchTransform"}}, "NoSuchTransform"),
        ({"transforms": []}, "transform"),
        (pipeline(albumentations.Resize(20, 16)), r"\(20, 16, 3\)"),
        (pipeline(albumentations.Resize(16, 16), albumentations.Normalize()), "float32"),
        ({"transform": {"__class_fullname__": "Resize", "p": 1.0, "height": 16, "width": 16, "siz": 3}}, "siz"),
    ],
)
def test_a_wrong_pipeline_is_refused_before_training(definition: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as error:
        augmentation(augmentation=definition)
    assert error.value.parameter == "augmentation"


@pytest.mark.slow
def test_the_network_is_not_asked() -> None:
    subprocess.run([sys.executable, "-c", NO_NETWORK], check=True, timeout=120)
