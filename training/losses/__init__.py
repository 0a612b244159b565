"""Losses: `forward(embeddings (n, d) raw, labels (n,) int64) -> scalar`. They normalise the embeddings themselves."""

from research.losses.comparison import ContextualCorrected, ContextualDetached, EuclideanNCA, FastAP, Margin, NTXent
from research.losses.comparison_rankings import BlackboxAP, Roadmap, RoadmapAP, RoadmapCalibration, SoftbinAP
from research.losses.pytorch_metric_learning import CosFace, MultiSimilarity, NormalizedSoftmax, Triplet

from .contextual import Contextual, ContextualSum
from .contrastive import ClassAveragedContrastive, Contrastive
from .mean_field import MeanFieldClassWiseMultiSimilarity, MeanFieldContrastive
from .multi_similarity import ClassWiseMultiSimilarity
from .proxies import ArcFace, ProxyAnchor, ProxyNCA
from .ranking import RecallAtK, SmoothAP
from .registry import LOSSES, Regularized, make_loss
from .similarity_regularizer import SimilarityRegularizer
from .tcm import ThresholdConsistentMargin
from .vmf_nca import VonMisesFisherNCA

__all__ = [
    "LOSSES",
    "ArcFace",
    "BlackboxAP",
    "ClassAveragedContrastive",
    "ClassWiseMultiSimilarity",
    "Contextual",
    "ContextualCorrected",
    "ContextualDetached",
    "ContextualSum",
    "Contrastive",
    "CosFace",
    "EuclideanNCA",
    "FastAP",
    "Margin",
    "MeanFieldClassWiseMultiSimilarity",
    "MeanFieldContrastive",
    "MultiSimilarity",
    "NTXent",
    "NormalizedSoftmax",
    "ProxyAnchor",
    "ProxyNCA",
    "RecallAtK",
    "Regularized",
    "Roadmap",
    "RoadmapAP",
    "RoadmapCalibration",
    "SimilarityRegularizer",
    "SmoothAP",
    "SoftbinAP",
    "ThresholdConsistentMargin",
    "Triplet",
    "VonMisesFisherNCA",
    "make_loss",
]
