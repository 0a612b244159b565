"""The losses: `forward(embeddings (n, d) raw, labels (n,) int64) -> scalar`; each normalises itself."""

from typing import TYPE_CHECKING

from torch import nn

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
from .pytorch_metric_learning import CosFace, MultiSimilarity, NormalizedSoftmax, Triplet
from .ranking import RecallAtK, SmoothAP
from .registry import COMPARED, LOSSES, Regularized, load_comparison_losses, make_loss

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

load_comparison_losses()


if not TYPE_CHECKING:  # a type checker would take any name for a loss

    def __getattr__(name: str) -> type[nn.Module]:
        """Return a comparison loss of `research.losses` by the name of its class, in a checkout."""
        for entry in COMPARED.values():
            if entry.loss.__name__ == name:
                return entry.loss
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
