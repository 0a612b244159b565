"""The check that a bundle supports searches by regions."""

from __future__ import annotations

from index.verified import VerifiedDistance
from retrieval.bundle.bundle import Bundle
from retrieval.errors import InvalidParameter


def check_regions(bundle: Bundle) -> None:
    """Raise InvalidParameter if a bundle verifies matches, which would compare local features of every region."""
    if isinstance(bundle.distance_form, VerifiedDistance):
        raise InvalidParameter(
            "regions",
            "be bounding boxes with a bundle that verifies matches by local features",
            bundle.path.name,
            remedy="Send the bounding boxes of the items, or export a bundle with --verify off",
        )
