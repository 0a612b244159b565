"""Losses: `forward(embeddings (n, d) raw, labels (n,) int64) -> scalar`. They normalise the embeddings themselves."""

from .contextual import Contextual, ContextualSum, SimilarityRegularizer
from .contrastive import Contrastive
from .mean_field import ClassWiseMultiSimilarity, MeanFieldClassWiseMultiSimilarity, MeanFieldContrastive
from .proxies import ProxyAnchor
from .ranking import RecallAtK, SmoothAP
from .registry import LOSSES, Regularized, load_comparison_losses, make_loss
from .tcm import ThresholdConsistentMargin
from .vmf_nca import VonMisesFisherNCA

__all__ = [
    "LOSSES",
    "ClassWiseMultiSimilarity",
    "Contextual",
    "ContextualSum",
    "Contrastive",
    "MeanFieldClassWiseMultiSimilarity",
    "MeanFieldContrastive",
    "ProxyAnchor",
    "RecallAtK",
    "Regularized",
    "SimilarityRegularizer",
    "SmoothAP",
    "ThresholdConsistentMargin",
    "VonMisesFisherNCA",
    "make_loss",
]

load_comparison_losses()
