"""The losses: `forward(embeddings (n, d) raw, labels (n,) int64) -> scalar`; each normalises itself."""

from .pairs import ThresholdConsistentMargin
from .proxies import ArcFace, ProxyAnchor
from .ranking import SmoothAP
from .registry import LOSSES, Regularized, make_loss

__all__ = [
    "LOSSES",
    "ArcFace",
    "ProxyAnchor",
    "Regularized",
    "SmoothAP",
    "ThresholdConsistentMargin",
    "make_loss",
]
