"""Detection of local features: SIFT key points with RootSIFT descriptors.

The image is the upright one, cropped to its bbox, that the embedder sees before its resize.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.errors import InvalidParameter

from .features import LARGEST_SIDE, MOST_POINTS, UNIT, LocalFeatures
from .opencv import import_opencv

SMALLEST_SIDE = 16  # pixels of a scaled photo; a smaller one has no key points


@dataclass(frozen=True)
class DetectorSettings:
    """Parameters that decide the local features of a photo."""

    points: int = 300  # maximum number of key points; the strongest are kept
    side: int = 480  # pixels of the longer side that the photo is scaled to
    enlargement: float = 2.0  # maximum enlargement of a small photo
    contrast: float = 0.02  # minimum contrast of a key point, OpenCV's contrastThreshold

    def __post_init__(self) -> None:
        if not 1 <= self.points <= MOST_POINTS:
            raise InvalidParameter("points", f"lie between 1 and {MOST_POINTS:,}", self.points)
        if not SMALLEST_SIDE <= self.side <= LARGEST_SIDE // 2:
            raise InvalidParameter("side", f"lie between {SMALLEST_SIDE} and {LARGEST_SIDE // 2:,}", self.side)
        if not 1 <= self.enlargement <= 8:
            raise InvalidParameter("enlargement", "lie between 1 and 8", self.enlargement)
        if not 0 <= self.contrast <= 1:
            raise InvalidParameter("contrast", "lie between 0 and 1", self.contrast)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DetectorSettings:
        """Create settings from the output of `to_dict`."""
        sizes = int(values["points"]), int(values["side"])
        return cls(*sizes, float(values["enlargement"]), float(values["contrast"]))


def detect(image: Image.Image, settings: DetectorSettings) -> LocalFeatures:
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


def _scaled(image: Image.Image, settings: DetectorSettings) -> NDArray[np.uint8]:
    """Return the image in gray at the scale of the settings."""
    scale = min(settings.enlargement, settings.side / max(image.size))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    small = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(small.convert("L"))


def _root_sift(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the square roots of SIFT descriptors (k, 128) that sum to one, as integers."""
    sums = np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-6)
    return np.asarray(np.minimum(np.rint(UNIT * np.sqrt(descriptors / sums)), 255), dtype=np.uint8)
