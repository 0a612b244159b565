"""The verifier of a bundle: detects, packs and compares local features.

Shapes: m photos, k key points, w visual words, a words per key point of a query.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.files import load_arrays
from index.search.details import Points, Voting
from retrieval.errors import BundleCorrupt, RetrievalError

from .detector import detect
from .features import LocalFeatures
from .matching import inlier_pairs
from .settings import DETECTION, VOTES, VerifierSettings
from .vocabulary import WORDS, Vocabulary

FORMAT = 4  # of a packed verifier, and part of the keys


@dataclass(frozen=True, eq=False)
class GeometricVerifier:
    """A `Verifier` that counts the local features of a query that a photo shows in the same arrangement.

    Thread-safe and deterministic.
    """

    vocabulary: Vocabulary
    settings: VerifierSettings = field(default_factory=VerifierSettings)

    @classmethod
    def fit(
        cls,
        features: Sequence[LocalFeatures],
        settings: VerifierSettings | None = None,
        *,
        words: int = WORDS,
        seed: int = 0,
    ) -> GeometricVerifier:
        """Return a verifier whose vocabulary is fitted to the local features of training photos."""
        vocabulary = Vocabulary.fit([photo.descriptors for photo in features], words=words, seed=seed)
        return cls(vocabulary, settings or VerifierSettings())

    @property
    def items(self) -> int:
        """How many of the nearest items are verified."""
        return self.settings.items

    @property
    def photos(self) -> int:
        """How many photos of each of these items are verified."""
        return self.settings.photos

    @property
    def voted(self) -> int:
        """The number of photos on the shortlist by votes."""
        return self.settings.voted

    @cached_property
    def key(self) -> str:
        """A key that identifies everything that decides the inliers."""
        return _hash([self.features_key, self.settings.to_dict()], self.vocabulary.weights)

    @cached_property
    def features_key(self) -> str:
        """A key that identifies everything that decides the features of a photo."""
        return _hash([FORMAT, self.settings.to_dict(*DETECTION)], self.vocabulary.centres)

    @cached_property
    def voting(self) -> Voting:
        """Return the parameters of the votes."""
        key = _hash([self.features_key, "votes", self.settings.to_dict(*VOTES)], self.vocabulary.weights)
        return Voting(key, self.vocabulary.weights, self.settings.agreement())

    def describe(self, image: Image.Image) -> bytes:
        """Return the packed local features of an upright image, cropped to its bbox."""
        return self.packed(detect(image, self.settings))

    def packed(self, features: LocalFeatures) -> bytes:
        """Return detected features with their visual words, packed."""
        return features.with_words(self.vocabulary.assign(features.descriptors)).pack()

    def points(self, features: bytes) -> Points:
        """Return the key points of a photo (k,), for which a query can vote."""
        found = LocalFeatures.unpack(features)
        return Points(found.words, self.vocabulary.signatures(found.descriptors, self._known(found)[:, None])[:, 0])

    def asked(self, features: bytes) -> Points:
        """Return the words that each key point of a query votes with (k, a), and its signature in each."""
        found = LocalFeatures.unpack(features)
        words = self.vocabulary.nearest(found.descriptors, self._known(found), self.settings.asked)
        return Points(words, self.vocabulary.signatures(found.descriptors, words))

    def _known(self, found: LocalFeatures) -> NDArray[np.uint16]:
        """Return the words of features; a word beyond the vocabulary is replaced by its last word."""
        return np.minimum(found.words, np.uint16(len(self.vocabulary.centres) - 1))

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        asked = LocalFeatures.unpack(query)
        counts = [len(inlier_pairs(asked, LocalFeatures.unpack(photo), self.settings)) for photo in photos]
        return np.array(counts, dtype=np.int64)

    def places(self, query: bytes, photo: bytes) -> list[tuple[float, float, float, float]]:
        """Return x and y in a query and x and y in a photo of their inliers, in shares of width and height."""
        asked, shown = LocalFeatures.unpack(query), LocalFeatures.unpack(photo)
        ours, theirs = inlier_pairs(asked, shown, self.settings).T
        both = asked.relative(asked.positions[ours]), shown.relative(shown.positions[theirs])
        return [(x, y, u, v) for x, y, u, v in np.hstack(both).round(4).tolist()]

    def pack(self) -> bytes:
        """Return the verifier as npz for `unpack`."""
        file = io.BytesIO()
        text = json.dumps({"format": FORMAT, **self.settings.to_dict()}, sort_keys=True)
        settings = np.frombuffer(text.encode(), np.uint8)
        np.savez(file, settings=settings, centres=self.vocabulary.centres, weights=self.vocabulary.weights)
        return file.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> GeometricVerifier:
        """Return the verifier in npz from `pack`; raise BundleCorrupt if it cannot be read."""
        try:
            arrays = load_arrays(data)
            values: Mapping[str, Any] = json.loads(arrays["settings"].tobytes())
            if values["format"] != FORMAT:
                found = f"the verification has format {values['format']!r}, this program reads {FORMAT}"
                raise BundleCorrupt(found, remedy="Export the bundle again")
            return cls(Vocabulary(arrays["centres"], arrays["weights"]), VerifierSettings.from_dict(values))
        except BundleCorrupt:
            raise
        except (RetrievalError, KeyError, ValueError, TypeError) as error:
            raise BundleCorrupt(
                f"the verification cannot be read: {error}", remedy="Export the bundle again"
            ) from error


def _hash(settings: Any, array: NDArray[Any]) -> str:
    """Return the hash of settings and an array."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode() + array.tobytes()).hexdigest()
