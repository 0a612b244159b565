"""Appearance of photos as the model sees them, compared with the gallery's: sharpness, brightness and contrast.

Shapes: n photos, s = side of the model's input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHARPNESS, BRIGHTNESS, CONTRAST = MEASURES = ("sharpness", "brightness", "contrast")
LEAST_SPREAD = (0.1, 0.02, 0.02)  # of each measure: galleries of nearly equal photos count as spread this much
MAD = 1.4826  # standard deviations of a normal distribution in a median absolute deviation

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GalleryLook:
    """The median and the spread of each measure over gallery photos; both (3,)."""

    median: Floats
    spread: Floats

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> GalleryLook:
        """Return the look of gallery photos, uint8 (n, s, s, 3)."""
        measured = measure(pixels)
        median = np.median(measured, axis=0)
        return cls(median, np.maximum(MAD * np.median(np.abs(measured - median), axis=0), LEAST_SPREAD))

    def deviations(self, pixels: NDArray[np.uint8]) -> Floats:
        """Return by how many spreads photos (n, s, s, 3) differ from the gallery's median; (n, 3)."""
        return np.asarray((measure(pixels) - self.median) / self.spread)


def measure(pixels: NDArray[np.uint8]) -> Floats:
    """Return sharpness, brightness and contrast (n, 3) of photos, uint8 (n, s, s, 3).

    Brightness and contrast are the mean and the standard deviation of the grey values, from 0 to 1. Sharpness is the
    logarithm of the mean absolute Laplacian relative to the contrast, so that it does not depend on the contrast.
    """
    grey = pixels.astype(np.float64).mean(axis=3) / 255
    inner = grey[:, 1:-1, 1:-1]
    around = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
    laplacian = np.abs(4 * inner - around).mean(axis=(1, 2))
    contrast = grey.std(axis=(1, 2))
    sharpness = np.log((laplacian + 1e-4) / (contrast + 1e-3))
    return np.stack([sharpness, grey.mean(axis=(1, 2)), contrast], axis=1)
