"""Who may see what in training: the rules of `retrieval.catalogue.splits`, which `retrieval data check` applies too."""

from retrieval.catalogue.splits import (
    PARTS,
    Protocol,
    Splits,
    make_protocol,
    make_splits,
    protocol_photos,
    require_mates,
    scene_sides,
    side,
)

__all__ = [
    "PARTS",
    "Protocol",
    "Splits",
    "make_protocol",
    "make_splits",
    "protocol_photos",
    "require_mates",
    "scene_sides",
    "side",
]
