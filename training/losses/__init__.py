"""Losses: `forward(embeddings (n, d) raw, labels (n,) int64) -> scalar`. They normalise the embeddings themselves."""

from .contextual import Contextual, ContextualSum, SimilarityRegularizer
from .contrastive import ClassAveragedContrastive, Contrastive
from .mean_field import ClassWiseMultiSimilarity, MeanFieldClassWiseMultiSimilarity, MeanFieldContrastive
from .open_set import OpenSet
from .proxies import ArcFace, ProxyAnchor, ProxyNCA
from .pytorch_metric_learning import CosFace, MultiSimilarity, NormalizedSoftmax, Triplet
from .ranking import RecallAtK, SmoothAP
from .registry import LOSSES, Regularized, load_comparison_losses, make_loss
from .tcm import ThresholdConsistentMargin
from .vmf_nca import VonMisesFisherNCA

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
    "OpenSet",
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

load_comparison_losses()
