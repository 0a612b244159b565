"""Comparison of the local features of two photos: matched key points that agree on one transformation.

Shapes: k and l key points, m pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import InvalidParameter

from .features import UNIT, LocalFeatures
from .opencv import import_opencv

SIMILARITY, AFFINE, HOMOGRAPHY = "similarity", "affine", "homography"
SAMPLE = {SIMILARITY: 2, AFFINE: 3, HOMOGRAPHY: 4}  # pairs that determine a transformation
MOST_ZOOM = 10.0  # between two photos; beyond it a transformation maps unrelated key points to one place
CONFIDENCE = 0.999  # confidence that the best transformation is found
Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class MatchingSettings:
    """Parameters that decide which key points of two photos are inliers."""

    ratio: float = 0.8  # maximum ratio of the distances to the nearest and the second nearest descriptor
    model: str = HOMOGRAPHY
    error: float = 6.0  # maximum distance in pixels between a key point and its transformed counterpart
    iterations: int = 1000  # maximum number of samples

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise InvalidParameter("ratio", "be above 0 and at most 1", self.ratio)
        if self.model not in SAMPLE:
            raise InvalidParameter("model", f"be one of {', '.join(SAMPLE)}", self.model)
        if not 0 < self.error <= 100:
            raise InvalidParameter("error", "be above 0 and at most 100 pixels", self.error)
        if not 1 <= self.iterations <= 100_000:
            raise InvalidParameter("iterations", "lie between 1 and 100,000", self.iterations)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MatchingSettings:
        """Create settings from the output of `to_dict`."""
        error, iterations = float(values["error"]), int(values["iterations"])
        return cls(float(values["ratio"]), str(values["model"]), error, iterations)


def inlier_pairs(query: LocalFeatures, photo: LocalFeatures, settings: MatchingSettings) -> Pairs:
    """Return the rows (m, 2) of the key points of a query and a photo that agree on one transformation.

    Each place counts once: of several key points at one place, only the first pair remains.
    """
    pairs = tentative_pairs(query, photo, settings.ratio)
    places = query.positions[pairs[:, 0]], photo.positions[pairs[:, 1]]
    first = _first_of_each(places[0]) & _first_of_each(places[1])
    if np.count_nonzero(first) <= SAMPLE[settings.model]:
        return pairs[:0]
    pairs = pairs[first]
    return pairs[_agreeing(places[0][first], places[1][first], settings)]


def tentative_pairs(query: LocalFeatures, photo: LocalFeatures, ratio: float) -> Pairs:
    """Return the rows (m, 2) of descriptors that are mutually nearest, and clearly nearer than the second nearest."""
    if not len(query) or not len(photo):
        return np.zeros((0, 2), np.int64)
    a, b = query.descriptors.astype(np.float32), photo.descriptors.astype(np.float32)
    products = a @ b.T  # (k, l), exact; descriptors have one length: the greatest product is the nearest one
    rows, nearest = np.arange(len(a)), products.argmax(axis=1)
    mutual = products.argmax(axis=0)[nearest] == rows
    closest = np.maximum(0, UNIT**2 - products[rows, nearest])
    products[rows, nearest] = -np.inf
    second = np.maximum(0, UNIT**2 - products.max(axis=1))
    chosen = mutual & (closest < ratio**2 * second)
    return np.stack([rows[chosen], nearest[chosen]], axis=1).astype(np.int64)


def _first_of_each(places: NDArray[np.float16]) -> NDArray[np.bool_]:
    """Return which of the places (m, 2) have not occurred before."""
    first = np.zeros(len(places), dtype=bool)
    whole = np.ascontiguousarray(places).view(np.uint32).ravel()  # both numbers as one
    first[np.unique(whole, return_index=True)[1]] = True
    return first


def _agreeing(query: NDArray[np.float16], photo: NDArray[np.float16], settings: MatchingSettings) -> NDArray[np.bool_]:
    """Return which pairs of places (m, 2) are inliers of the best transformation; none if that is implausible."""
    cv2 = import_opencv()
    source, target = query.astype(np.float32), photo.astype(np.float32)
    if settings.model == SIMILARITY:
        matrix, mask = cv2.estimateAffinePartial2D(
            source, target, ransacReprojThreshold=settings.error, maxIters=settings.iterations, confidence=CONFIDENCE
        )
    else:
        parameters = cv2.UsacParams()
        parameters.threshold, parameters.maxIterations = settings.error, settings.iterations
        parameters.confidence, parameters.randomGeneratorState = CONFIDENCE, 0
        parameters.score = cv2.SCORE_METHOD_MSAC
        estimate = cv2.findHomography if settings.model == HOMOGRAPHY else cv2.estimateAffine2D
        matrix, mask = estimate(source, target, parameters)
    none = np.zeros(len(query), dtype=bool)
    if matrix is None or mask is None or not np.isfinite(matrix).all():
        return none
    inliers = mask.ravel().astype(bool)
    return inliers if _plausible(matrix, source[inliers]) else none


def _plausible(matrix: NDArray[np.float64], places: NDArray[np.float32]) -> bool:
    """Return whether a transformation (2, 3) or (3, 3) keeps the orientation and zooms little around places (m, 2)."""
    if not len(places):
        return False
    last = matrix[2] if len(matrix) == 3 else np.array([0.0, 0.0, 1.0])
    depth = places @ last[:2] + last[2]
    if not (depth > 0).all():
        return False
    area = np.linalg.det(np.vstack([matrix[:2], last])) / depth**3  # how much areas grow around each place
    return bool((area > MOST_ZOOM**-2).all() and (area < MOST_ZOOM**2).all())
