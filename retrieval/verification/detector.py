"""Detection of local features: SIFT key points with RootSIFT descriptors.

The image is the upright one, cropped to its bbox, that the embedder sees before its resize.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.errors import importing

from .features import UNIT, LocalFeatures
from .settings import SMALLEST_SIDE, VerifierSettings


@functools.cache
def import_opencv() -> Any:
    """Import OpenCV and disable its threads, because requests and worker processes already use every core."""
    with importing("cv2", "verify", called="opencv-python-headless"):
        import cv2
    cv2.setNumThreads(0)
    return cv2


def detect(image: Image.Image, settings: VerifierSettings) -> LocalFeatures:
    """Return the strongest key points of an image, without visual words."""
    cv2 = import_opencv()
    pixels = _scaled(image, settings)
    height, width = pixels.shape
    if min(height, width) < SMALLEST_SIDE:
        return LocalFeatures.empty(width, height)
    sift = cv2.SIFT_create(nfeatures=settings.points, contrastThreshold=settings.contrast)
    points, descriptors = sift.detectAndCompute(pixels, None)
    if not points:
        return LocalFeatures.empty(width, height)
    strongest = np.argsort([-point.response for point in points], kind="stable")[: settings.points]
    positions = np.array([points[number].pt for number in strongest], dtype=np.float16)
    words = np.zeros(len(strongest), np.uint16)
    return LocalFeatures(_root_sift(descriptors[strongest]), positions, words, width, height)


def _scaled(image: Image.Image, settings: VerifierSettings) -> NDArray[np.uint8]:
    """Return the image in gray at the scale of the settings."""
    scale = min(settings.enlargement, settings.side / max(image.size))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0).convert("L"))


def _root_sift(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the square roots of SIFT descriptors (k, 128) that sum to one, as integers."""
    sums = np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-6)
    return np.asarray(np.minimum(np.rint(UNIT * np.sqrt(descriptors / sums)), 255), dtype=np.uint8)
