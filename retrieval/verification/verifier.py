"""The verifier of a verified distance: detects, packs, compares and fuses local features.

Shapes: m photos, n inliers, k key points, w visual words, a words per key point of a query.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from index.files import load_arrays
from index.search.distance import Floats
from index.search.verified import Points, Voting
from retrieval.errors import BundleCorrupt, InvalidParameter, RetrievalError

from .detector import DetectorSettings, detect
from .features import LocalFeatures, unpack_words
from .fusion import Fusion
from .matching import MatchingSettings, inlier_pairs
from .signatures import SignatureSettings, projected, signatures_of
from .vocabulary import WORDS, Vocabulary

FORMAT = 1  # of the detection and comparison; part of the keys
WITHOUT_SIGNATURES, WITH_SIGNATURES = FORMATS = 1, 2  # of a packed verifier


@dataclass(frozen=True)
class MatchedPoints:
    """Matching places in two photos, as fractions (n, 2) of the width and height of each."""

    query: Floats
    photo: Floats

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True, eq=False)
class GeometricVerifier:
    """A `Verifier` that counts the local features of a query that a photo shows in the same arrangement.

    Thread-safe and deterministic.

    Parameters
    ----------
    items, photos, voted:
        Size of the shortlist: number of nearest items, of nearest photos of each of these items, and of the photos
        with the most votes.
    signatures:
        How key points of the same visual word vote; with None, as in bundles without signatures, photos count the
        distinct words that they share with the query.
    """

    vocabulary: Vocabulary
    detector: DetectorSettings = field(default_factory=DetectorSettings)
    matching: MatchingSettings = field(default_factory=MatchingSettings)
    fusion: Fusion = field(default_factory=Fusion)
    items: int = 10
    photos: int = 3
    voted: int = 20
    signatures: SignatureSettings | None = field(default_factory=SignatureSettings)

    def __post_init__(self) -> None:
        for name in ("items", "photos", "voted"):
            value = getattr(self, name)
            least = 0 if name == "voted" else 1
            if not least <= value <= 1000:
                raise InvalidParameter(name, f"lie between {least} and 1,000", value)

    @classmethod
    def fit(
        cls,
        features: Sequence[LocalFeatures],
        *,
        detector: DetectorSettings | None = None,
        matching: MatchingSettings | None = None,
        fusion: Fusion | None = None,
        words: int = WORDS,
        seed: int = 0,
    ) -> GeometricVerifier:
        """Return a verifier whose vocabulary is fitted to the local features of training photos."""
        vocabulary = Vocabulary.fit([photo.descriptors for photo in features], words=words, seed=seed)
        return cls(vocabulary, detector or DetectorSettings(), matching or MatchingSettings(), fusion or Fusion())

    def with_fusion(self, fusion: Fusion) -> GeometricVerifier:
        """Return a verifier of the same features with another fusion; inliers stay the same."""
        return replace(self, fusion=fusion)

    @cached_property
    def key(self) -> str:
        """A key that identifies everything that decides a verified distance."""
        shortlist = [self.items, self.photos, self.voted]
        settings = [self.features_key, self.matching.to_dict(), self.fusion.to_dict(), shortlist, *self._signed]
        return _hash(settings, self.vocabulary.weights)

    @cached_property
    def features_key(self) -> str:
        """A key that identifies everything that decides the features of a photo."""
        return _hash([FORMAT, self.detector.to_dict()], self.vocabulary.centres)

    @cached_property
    def voting(self) -> Voting:
        """Return the parameters of the votes."""
        key = _hash([self.features_key, "votes", *self._signed], self.vocabulary.weights)
        settings = self.signatures or SignatureSettings(asked=1, bits=0)
        return Voting(key, self.vocabulary.weights, settings.agreement())

    @property
    def _signed(self) -> list[dict[str, Any]]:
        """The settings of the signatures in a list that is empty without them."""
        return [] if self.signatures is None else [self.signatures.to_dict()]

    def describe(self, image: Image.Image) -> bytes:
        """Return the packed local features of an upright image, cropped to its bbox."""
        return self.packed(detect(image, self.detector))

    def packed(self, features: LocalFeatures) -> bytes:
        """Return detected features with their visual words, packed."""
        return features.with_words(self.vocabulary.assign(features.descriptors)).pack()

    def points(self, features: bytes) -> Points:
        """Return the key points of a photo (k,), for which a query can vote."""
        if self.signatures is None:
            words = np.unique(unpack_words(features))
            return Points(words, np.zeros(words.shape, np.uint64))
        found = LocalFeatures.unpack(features)
        return Points(found.words, self._signatures(found, self._known(found)[:, None])[:, 0])

    def asked(self, features: bytes) -> Points:
        """Return the words that each key point of a query votes with (k, a), and its signature in each."""
        if self.signatures is None:
            distinct = self.points(features)
            return Points(distinct.words[:, None], distinct.signatures[:, None])
        found = LocalFeatures.unpack(features)
        words = self.vocabulary.nearest(found.descriptors, self._known(found), self.signatures.asked)
        return Points(words, self._signatures(found, words))

    def _known(self, found: LocalFeatures) -> NDArray[np.uint16]:
        """Return the words of features; a word beyond the vocabulary is replaced by its last word."""
        return np.minimum(found.words, np.uint16(len(self.vocabulary.centres) - 1))

    def _signatures(self, found: LocalFeatures, words: NDArray[np.uint16]) -> NDArray[np.uint64]:
        """Return the signatures of key points in each of their words (k, a)."""
        return signatures_of(projected(found.descriptors), self._projected[words])

    @cached_property
    def _projected(self) -> NDArray[np.float32]:
        """The projected centres (w, BITS)."""
        return projected(self.vocabulary.centres)

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        asked = LocalFeatures.unpack(query)
        counts = [len(inlier_pairs(asked, LocalFeatures.unpack(photo), self.matching)) for photo in photos]
        return np.array(counts, dtype=np.int64)

    def fused(self, distances: ArrayLike, inliers: ArrayLike) -> Floats:
        """Return distances (m,) lowered by inliers (m,); without inliers a distance stays as it is."""
        return self.fusion.fused(distances, inliers)

    def matches(self, query: bytes, photo: bytes) -> MatchedPoints:
        """Return the matching places of a query and a photo; none if there are too few inliers to count."""
        asked, other = LocalFeatures.unpack(query), LocalFeatures.unpack(photo)
        pairs = inlier_pairs(asked, other, self.matching)
        if len(pairs) < self.fusion.least:
            pairs = pairs[:0]
        return MatchedPoints(asked.relative(asked.positions[pairs[:, 0]]), other.relative(other.positions[pairs[:, 1]]))

    def to_dict(self) -> dict[str, Any]:
        """Return all parameters but the vocabulary as plain JSON values."""
        return {
            "format": WITHOUT_SIGNATURES if self.signatures is None else WITH_SIGNATURES,
            "detector": self.detector.to_dict(),
            "matching": self.matching.to_dict(),
            "fusion": self.fusion.to_dict(),
            **{name: getattr(self, name) for name in ("items", "photos", "voted")},
            **({} if self.signatures is None else {"signatures": self.signatures.to_dict()}),
        }

    def pack(self) -> bytes:
        """Return the verifier as npz for `unpack`."""
        file = io.BytesIO()
        settings = np.frombuffer(json.dumps(self.to_dict(), sort_keys=True).encode(), np.uint8)
        np.savez(file, settings=settings, centres=self.vocabulary.centres, weights=self.vocabulary.weights)
        return file.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> GeometricVerifier:
        """Return the verifier in npz from `pack`; raise BundleCorrupt if it cannot be read."""
        try:
            arrays = load_arrays(data)
            values: Mapping[str, Any] = json.loads(arrays["settings"].tobytes())
            if values["format"] not in FORMATS:
                known = " and ".join(map(str, FORMATS))
                raise BundleCorrupt(f"the verification has format {values['format']!r}, this version reads {known}")
            signed = values["format"] == WITH_SIGNATURES
            items, photos, voted = (int(values[name]) for name in ("items", "photos", "voted"))
            return cls(
                Vocabulary(arrays["centres"], arrays["weights"]),
                DetectorSettings.from_dict(values["detector"]),
                MatchingSettings.from_dict(values["matching"]),
                Fusion.from_dict(values["fusion"]),
                items,
                photos,
                voted,
                SignatureSettings.from_dict(values["signatures"]) if signed else None,
            )
        except BundleCorrupt:
            raise
        except (RetrievalError, KeyError, ValueError, TypeError, OSError, EOFError, BadZipFile) as error:
            raise BundleCorrupt(
                f"the verification cannot be read: {error}", remedy="Export the bundle again"
            ) from error


def _hash(settings: Any, array: NDArray[Any]) -> str:
    """Return the hash of settings and an array."""
    text = json.dumps(settings, sort_keys=True).encode()
    return hashlib.sha256(text + array.tobytes()).hexdigest()
