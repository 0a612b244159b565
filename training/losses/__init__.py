"""The losses: `forward(embeddings (n, d) raw, labels (n,) int64) -> scalar`; each normalises itself."""

from .baselines import CosFace, MultiSimilarity, NormalizedSoftmax, Triplet
from .contextual import Contextual, ContextualSum
from .mean_field import MeanFieldClassWiseMultiSimilarity, MeanFieldContrastive
from .pairs import (
    ClassAveragedContrastive,
    ClassWiseMultiSimilarity,
    Contrastive,
    SimilarityRegularizer,
    ThresholdConsistentMargin,
)
from .probabilistic import VonMisesFisherNCA
from .proxies import ArcFace, ProxyAnchor, ProxyNCA
from .ranking import RecallAtK, SmoothAP
from .registry import LOSSES, Regularized, make_loss

__all__ = [
    "LOSSES",
    "ArcFace",
    "ClassAveragedContrastive",
    "ClassWiseMultiSimilarity",
    "Contextual",
    "ContextualSum",
    "Contrastive",
    "CosFace",
    "MeanFieldClassWiseMultiSimilarity",
    "MeanFieldContrastive",
    "MultiSimilarity",
    "NormalizedSoftmax",
    "ProxyAnchor",
    "ProxyNCA",
    "RecallAtK",
    "Regularized",
    "SimilarityRegularizer",
    "SmoothAP",
    "ThresholdConsistentMargin",
    "Triplet",
    "VonMisesFisherNCA",
    "make_loss",
]
