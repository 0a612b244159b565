"""Training augmentation: an albumentations pipeline on decoded uint8 photos.

One seed decides one crop, so that threads, processes and resumed runs see the same crops.
"""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from retrieval.errors import InvalidParameter, MissingDependency, importing
from training.config import Settings

RECOLOURED = 0.8  # share of the crops whose colours change
SEEDS = 2**63  # seeds are integers below this
EXAMPLE = (96, 128, 3)  # shape of the photo that a pipeline is tried on


class Augmentation:
    """Turns decoded photos into training crops.

    The pipeline is `settings.augmentation`, as `albumentations.to_dict` returns it, or `default_pipeline` where that is
    empty. A pipeline holds the state of its random generators, so that every thread gets a copy of its own.

    Raises InvalidParameter for a pipeline that cannot be built, or that does not return uint8 (size, size, 3).
    """

    def __init__(self, settings: Settings) -> None:
        self.size = settings.input_size
        self._definition = settings.augmentation or default_pipeline(settings)
        self._threads = threading.local()
        self._check()

    def __call__(self, photo: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return uint8 (size, size, 3) of a photo (h, w, 3), decided by a generator."""
        return self.crop(photo, int(generator.integers(SEEDS)))

    def crop(self, photo: np.ndarray, seed: int) -> np.ndarray:
        """Return uint8 (size, size, 3) of a photo (h, w, 3), decided by a seed."""
        if not hasattr(self._threads, "pipeline"):
            self._threads.pipeline = build_pipeline(self._definition)
        pipeline = self._threads.pipeline
        pipeline.set_random_state(np.random.default_rng(seed), random.Random(seed))  # noqa: S311
        crop: np.ndarray = pipeline(image=photo)["image"]
        return crop

    def _check(self) -> None:
        """Build the pipeline and try it, so that a mistake is found before training begins."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # albumentations only warns of unknown arguments
                self._threads.pipeline = build_pipeline(self._definition)
            crop = self.crop(np.zeros(EXAMPLE, np.uint8), 0)
        except MissingDependency:
            raise
        except Exception as error:  # a transform may raise anything
            raise InvalidParameter(
                "augmentation",
                "be a pipeline of albumentations, as albumentations.to_dict returns it",
                f"{type(error).__name__}: {error}",
            ) from error
        if crop.shape != (self.size, self.size, 3) or crop.dtype != np.uint8:
            raise InvalidParameter(
                "augmentation",
                f"return uint8 crops of {self.size}×{self.size} pixels, the size of the model's input",
                f"{crop.dtype} {crop.shape}",
                remedy="Set the size of its crop or resize, and leave out normalisation and ToTensorV2",
            )


def default_pipeline(settings: Settings) -> Mapping[str, Any]:
    """Return the built-in pipeline: a random resized crop, a mirror image and mild colour jitter."""
    albumentations = import_albumentations()
    transforms = [
        albumentations.RandomResizedCrop(
            size=(settings.input_size, settings.input_size), scale=(settings.crop_area, 1.0), area_for_downscale="image"
        )
    ]
    if settings.flip:
        transforms.append(albumentations.HorizontalFlip(p=0.5))
    if settings.colour:
        factors, hue = (max(0.0, 1 - settings.colour), 1 + settings.colour), min(0.5, settings.colour / 10)
        jitter = albumentations.ColorJitter(
            brightness=factors, contrast=factors, saturation=factors, hue=(-hue, hue), p=RECOLOURED
        )
        transforms.append(jitter)
    definition: dict[str, Any] = albumentations.to_dict(albumentations.Compose(transforms))
    return definition


def build_pipeline(definition: Mapping[str, Any]) -> Any:
    """Return the `albumentations.Compose` of a definition from `albumentations.to_dict`."""
    albumentations = import_albumentations()
    return albumentations.Compose([albumentations.from_dict(definition)])


def import_albumentations() -> Any:
    """Import albumentations without its check for updates, and let OpenCV run in the calling thread."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network
    with importing("albumentations", "train"):
        import albumentations
    with importing("cv2", "train", called="opencv-python-headless"):
        import cv2
    cv2.setNumThreads(0)  # photos are already augmented in parallel
    return albumentations
