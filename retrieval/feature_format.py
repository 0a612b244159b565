"""Checks of local features before they are added to a gallery (`index.features.FeatureFormat`)."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.bundle.bundle import Bundle
from retrieval.errors import GalleryCorrupt
from retrieval.verification.features import unpack_words


@dataclass(frozen=True)
class PackedFeatures:
    """The format of `LocalFeatures.pack`, with the size of the vocabulary, `words`, if it is known."""

    words: int | None = None

    @classmethod
    def of(cls, bundle: Bundle) -> PackedFeatures | None:
        """Return the format of the features that a bundle computes, None if it computes none."""
        return None if bundle.verifier is None else cls(len(bundle.verifier.vocabulary.weights))

    def problem(self, features: bytes) -> str:
        """Return what is wrong with the features of a photo, "" if nothing is."""
        try:
            words = unpack_words(features)
        except GalleryCorrupt as error:
            return error.message
        largest = int(words.max(initial=0))
        if self.words is not None and largest >= self.words:
            return f"they have the visual word {largest}, but the words of the vocabulary are 0 to {self.words - 1}"
        return ""
