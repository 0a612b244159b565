"""Selection of the geometric verification of a bundle on validation items (`retrieval.verification`).

The vocabulary is fitted to photos of the fit items. The photos of the validation items are searched in a gallery of fit
and validation items, and the strength with the highest TPIR at the target FPIR is selected. The verification is kept if
its gain is significant: greater than CONFIDENCE standard errors, clustered by group. One family of items can gain much
where another loses as much, so a gain over a few families says little about others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from index.features import MOST_PHOTOS
from index.search.distance import DistanceForm
from index.search.leave_one_out import every_item_once
from index.search.verified import VerifiedDistance
from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter
from retrieval.images import Preprocessing
from retrieval.metrics.consistency import search_curves
from retrieval.metrics.identification import SearchScores, threshold_at_fpir
from retrieval.metrics.verified_scores import RememberedInliers, verified_scores
from retrieval.process import threads_of_share
from retrieval.verification.detector import detect
from retrieval.verification.features import LocalFeatures
from retrieval.verification.settings import VerifierSettings
from retrieval.verification.verifier import GeometricVerifier
from training.data.reader import PhotoReader
from training.evaluation.evaluate import EvaluationSplit, score_split, search_sides

from .projection import CONFIDENCE

AUTO, ON, OFF = CHOICES = ("auto", "on", "off")  # of the option --verify
STRENGTHS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
MOST_QUERIES = 500  # validation photos that are searched, every item once before any twice
MOST_GALLERY = 5000  # photos of fit and validation items that are searched
MOST_FITTED = 1000  # photos that the vocabulary is fitted to


@dataclass(frozen=True)
class VerificationChoice:
    """The selected verifier, and what it gains and costs."""

    verifier: GeometricVerifier | None
    reason: str = ""  # why there is none
    evidence: dict[str, Any] = field(default_factory=dict)

    def form(self, base: DistanceForm) -> DistanceForm:
        """Return the distance form that follows from a base form."""
        return base if self.verifier is None else VerifiedDistance(base, self.verifier)

    def searched(
        self, base: DistanceForm, photos: Sequence[Photo], preprocessing: Preprocessing
    ) -> tuple[DistanceForm, list[bytes]]:
        """Return the distance form for searches among photos, and the packed local features of each, if it is verified.

        The form remembers the agreements of pairs of photos.
        """
        if self.verifier is None:
            return base, []
        features = [self.verifier.packed(found) for found in detect_features(photos, preprocessing)]
        return VerifiedDistance(base, RememberedInliers(self.verifier)), features

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain JSON values."""
        told = self.describe()
        return {"used": self.verifier is not None, "reason": self.reason, "told": told, **self.evidence}

    def describe(self) -> str:
        """Return a sentence about the choice, "" if there was none to make."""
        if not self.evidence:
            return f"Without verification: {self.reason}." if self.reason else ""
        gain, error, plain = (self.evidence[name] for name in ("gain", "standard_error", "tpir_without"))
        rates = (
            f"{plain + gain:.0%} of the validation photos find their item at an FPIR of "
            f"{self.evidence['target_fpir']:g}, {plain:.0%} without it (gain {gain:+.3f}, standard error {error:.3f})"
        )
        if self.verifier is None:
            return f"Without verification: {self.reason}. With it, {rates}."
        return f"With verification, {rates}."


NOT_VERIFIED = VerificationChoice(None)


def check_verify(verify: str) -> None:
    """Raise InvalidParameter unless this is a value of the option `verify`."""
    if verify not in CHOICES:
        raise InvalidParameter("verify", f"be one of {', '.join(CHOICES)}", verify)


def not_verified(verify: str, reason: str, remedy: str) -> VerificationChoice:
    """Return the choice where nothing can be chosen; raise InvalidParameter if verification was asked for."""
    if verify == ON:
        raise InvalidParameter("verify", f"be {AUTO} or {OFF} here, because {reason}", verify, remedy=remedy)
    return VerificationChoice(None, reason)


@dataclass(frozen=True)
class ValidationPhotos:
    """Photos of fit and validation items, their unit vectors (n, d) and labels (n,)."""

    photos: Sequence[Photo]
    vectors: np.ndarray
    labels: np.ndarray
    split: EvaluationSplit  # searches for the validation items
    fit: np.ndarray  # positions of the photos that the vocabulary is fitted to

    def sampled(self, *, seed: int) -> ValidationPhotos:
        """Return at most MOST_QUERIES queries, MOST_GALLERY photos of the gallery and MOST_FITTED photos to fit to.

        Every item is a query once before any is twice. The photos of the items of the queries stay in the gallery.
        """
        generator, split, labels = np.random.default_rng(seed), self.split, self.labels
        order = every_item_once(labels[split.queries], generator.permutation(len(split.queries)))
        queries = split.queries[order[:MOST_QUERIES]]
        wanted = np.isin(labels[split.gallery], labels[queries])
        others = generator.permutation(split.gallery[~wanted])[: max(0, MOST_GALLERY - int(wanted.sum()))]
        gallery = np.sort(np.concatenate([split.gallery[wanted], others]))
        fit = np.sort(generator.permutation(self.fit)[:MOST_FITTED])
        return replace(self, split=EvaluationSplit(split.name, np.sort(queries), gallery), fit=fit)

    @property
    def used(self) -> np.ndarray:
        """The positions of the photos whose local features are needed, ascending."""
        return np.unique(np.concatenate([self.split.queries, self.split.gallery, self.fit]))


def choose_verification(
    data: ValidationPhotos,
    *,
    preprocessing: Preprocessing,
    base: DistanceForm,
    target_fpir: float,
    verify: str = AUTO,
    catalogue_photos: int = 0,
    seed: int = 0,
) -> VerificationChoice:
    """Return the verification that finds the most items at the target, or none where it gains too little.

    Parameters
    ----------
    verify:
        "auto", "on" to keep the verification whatever it gains, or "off".
    catalogue_photos:
        Number of photos that will be in the gallery.
    """
    check_verify(verify)
    if verify == OFF:
        return NOT_VERIFIED
    if catalogue_photos > MOST_PHOTOS:
        reason = f"a gallery with verification holds {MOST_PHOTOS:,} photos, and there are {catalogue_photos:,}"
        return not_verified(verify, reason, "Use fewer photos, or export without verification")
    data = data.sampled(seed=seed)
    detected = dict(
        zip(data.used.tolist(), detect_features([data.photos[i] for i in data.used], preprocessing), strict=True)
    )
    try:
        verifier = GeometricVerifier.fit([detected[i] for i in data.fit.tolist()], seed=seed)
    except DataError as error:
        return not_verified(verify, error.message, "Export without verification")
    packed = {i: verifier.packed(features) for i, features in detected.items()}
    verifier, evidence = _strongest(data, packed, base, verifier, target_fpir)
    if verify == AUTO and not evidence["gain"] > CONFIDENCE * evidence["standard_error"]:
        return VerificationChoice(None, "its gain may be chance", evidence)
    return VerificationChoice(verifier, "", evidence)


def _strongest(
    data: ValidationPhotos,
    packed: Mapping[int, bytes],
    base: DistanceForm,
    verifier: GeometricVerifier,
    target_fpir: float,
) -> tuple[GeometricVerifier, dict[str, Any]]:
    """Return the verifier with the strength of the highest TPIR at the target, and the evidence for it.

    `packed` holds the local features of the photos by position.
    """
    features = [packed.get(i, b"") for i in range(len(data.photos))]
    candidates = [verifier.with_strength(strength) for strength in STRENGTHS]
    known: dict[tuple[bytes, bytes], int] = {}
    compared = [RememberedInliers(candidate, known) for candidate in candidates]
    sides = search_sides(data.split, data.vectors, data.labels, features)
    scores = verified_scores(*sides, [VerifiedDistance(base, each) for each in compared])
    plain = _tpir(score_split(data.split, data.vectors, data.labels, distance_form=base), target_fpir)
    gains = [_tpir(each, target_fpir) - plain for each in scores]
    best = int(np.argmax([gain.mean() for gain in gains]))
    asked = np.unique(data.labels[data.split.queries], return_index=True)[1]
    groups = [data.photos[i].group or data.photos[i].item_id for i in data.split.queries[asked].tolist()]
    return candidates[best], {
        "strength": STRENGTHS[best],
        "tpir_without": float(plain.mean()),
        "gain": float(gains[best].mean()),
        "standard_error": clustered_error(gains[best], groups),
        "target_fpir": target_fpir,
        "queries": len(data.split.queries),
        "items": len(plain),
        "groups": len(set(groups)),
        "tried": {f"{strength:g}": float(gain.mean()) for strength, gain in zip(STRENGTHS, gains, strict=True)},
    }


def clustered_error(values: np.ndarray, groups: Sequence[str]) -> float:
    """Return the standard error of the mean of values (n,), clustered by group; inf with a single group."""
    _, codes = np.unique(groups, return_inverse=True)
    sums = np.bincount(codes, weights=values - values.mean())
    if len(sums) < 2:
        return float("inf")
    return float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1)) / len(values))


def detect_features(photos: Sequence[Photo], preprocessing: Preprocessing) -> list[LocalFeatures]:
    """Return the local features of photos, without visual words."""
    reader, settings = PhotoReader(photos, preprocessing, cache_bytes=0), VerifierSettings()
    with ThreadPoolExecutor(threads_of_share()) as pool:
        found = pool.map(lambda position: detect(reader.image(position), settings), range(len(photos)))
        return list(tqdm(found, desc="finding key points", unit="photo", total=len(photos)))


def _tpir(scores: SearchScores, target_fpir: float) -> np.ndarray:
    """Return the TPIR of each item (T,) at the threshold that meets the target on these searches."""
    return search_curves(scores, [threshold_at_fpir(scores, target_fpir)]).sensitivity[:, 0]
