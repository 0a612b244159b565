"""Class-disjoint parts and evaluation protocol: the rules of `retrieval.catalogue.splits`, shared with `data check`."""

from retrieval.catalogue.splits import (
    PARTS,
    EvaluationProtocol,
    Splits,
    make_evaluation_protocol,
    make_splits,
    photos_in_protocol,
    query_and_gallery,
    require_mates,
    side,
)

__all__ = [
    "PARTS",
    "EvaluationProtocol",
    "Splits",
    "make_evaluation_protocol",
    "make_splits",
    "photos_in_protocol",
    "query_and_gallery",
    "require_mates",
    "side",
]
