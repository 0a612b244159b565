"""Comparison of the local features of two photos: matched key points that agree on one transformation.

Shapes: k and l key points, m pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .detector import import_opencv
from .features import UNIT, LocalFeatures
from .settings import VerifierSettings

SAMPLE = 4  # pairs that determine a homography
MOST_ZOOM = 10.0  # between two photos; beyond it a transformation maps unrelated key points to one place
CONFIDENCE = 0.999  # confidence that the best transformation is found
Pairs = NDArray[np.int64]


def inlier_pairs(query: LocalFeatures, photo: LocalFeatures, settings: VerifierSettings) -> Pairs:
    """Return the rows (m, 2) of the key points of a query and a photo that agree on one transformation.

    Each place counts once: of several key points at one place, only the first pair remains.
    """
    pairs = tentative_pairs(query, photo, settings.ratio)
    places = query.positions[pairs[:, 0]], photo.positions[pairs[:, 1]]
    first = _first_of_each(places[0]) & _first_of_each(places[1])
    if np.count_nonzero(first) <= SAMPLE:
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


def _agreeing(query: NDArray[np.float16], photo: NDArray[np.float16], settings: VerifierSettings) -> NDArray[np.bool_]:
    """Return which pairs of places (m, 2) are inliers of the best transformation; none if that is implausible."""
    cv2 = import_opencv()
    source, target = query.astype(np.float32), photo.astype(np.float32)
    parameters = cv2.UsacParams()
    parameters.threshold, parameters.maxIterations = settings.error, settings.iterations
    parameters.confidence, parameters.randomGeneratorState = CONFIDENCE, 0
    parameters.score = cv2.SCORE_METHOD_MSAC
    matrix, mask = cv2.findHomography(source, target, parameters)
    none = np.zeros(len(query), dtype=bool)
    if matrix is None or mask is None or not np.isfinite(matrix).all():
        return none
    inliers = mask.ravel().astype(bool)
    return inliers if _plausible(matrix, source[inliers]) else none


def _plausible(matrix: NDArray[np.float64], places: NDArray[np.float32]) -> bool:
    """Return whether a homography (3, 3) keeps the orientation and zooms little around places (m, 2)."""
    if not len(places):
        return False
    depth = places @ matrix[2, :2] + matrix[2, 2]
    if not (depth > 0).all():
        return False
    area = np.linalg.det(matrix) / depth**3  # how much areas grow around each place
    return bool((area > MOST_ZOOM**-2).all() and (area < MOST_ZOOM**2).all())
