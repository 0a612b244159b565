"""Geometric verification of a bundle: a vocabulary fitted to local features of photos (`retrieval.verification`)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from index.features import MOST_PHOTOS
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from retrieval.process import threads_of_share
from retrieval.verification.detector import detect
from retrieval.verification.features import LocalFeatures
from retrieval.verification.settings import VerifierSettings
from retrieval.verification.verifier import GeometricVerifier
from training.data.reader import PhotoReader

MOST_FITTED = 1000  # photos that the vocabulary is fitted to


def fit_verifier(
    photos: Sequence[Photo], preprocessing: Preprocessing, *, catalogue_photos: int, seed: int = 0
) -> GeometricVerifier:
    """Return a verifier whose vocabulary is fitted to some of the photos.

    Parameters
    ----------
    catalogue_photos:
        Number of photos that will be in the gallery.

    Raises
    ------
    InvalidParameter
        If that is more than a gallery with local features holds.
    DataError
        If too few photos have key points.
    """
    if catalogue_photos > MOST_PHOTOS:
        raise InvalidParameter(
            "verify",
            f"be left out for more than {MOST_PHOTOS:,} photos, because a gallery with local features holds no more",
            f"{catalogue_photos:,} photos",
            remedy="Use fewer photos, or export without --verify",
        )
    order = np.random.default_rng(seed).permutation(len(photos))[:MOST_FITTED]
    chosen = [photos[place] for place in np.sort(order).tolist()]
    return GeometricVerifier.fit(detect_features(chosen, preprocessing), seed=seed)


def detect_features(photos: Sequence[Photo], preprocessing: Preprocessing) -> list[LocalFeatures]:
    """Return the local features of photos, without visual words."""
    reader, settings = PhotoReader(photos, preprocessing, cache_bytes=0), VerifierSettings()
    with ThreadPoolExecutor(threads_of_share()) as pool:
        found = pool.map(lambda position: detect(reader.image(position), settings), range(len(photos)))
        return list(tqdm(found, desc="finding key points", unit="photo", total=len(photos)))
