"""Comparison losses for the papers' tables; importing this package registers them by name."""

from training.losses.registry import CONTEXTUAL_PAPER, MEAN_FIELD_PAPER, VMF_PAPER, Entry, register_comparison

from .comparison import ClassAveragedContrastive, FastAP, Margin, NTXent, Triplet
from .comparison_rankings import BlackboxAP, Roadmap, RoadmapAP, RoadmapCalibration, SoftbinAP
from .contextual import ContextualAblated, ContextualCorrected, ContextualDetached
from .multi_similarity import MultiSimilarity
from .open_set import OpenSet
from .proxies import ArcFace, CosFace, EuclideanNCA, NormalizedSoftmax, ProxyNCA

register_comparison(
    {
        "arcface": Entry(ArcFace, "Deng et al., CVPR 2019", "n C d", False),
        "blackbox_ap": Entry(BlackboxAP, "Rolínek et al., CVPR 2020", "n² (d + log n)", True),
        "class_averaged_contrastive": Entry(ClassAveragedContrastive, MEAN_FIELD_PAPER + ", Eq. 6", "n² d", True),
        "contextual_ablated": Entry(ContextualAblated, CONTEXTUAL_PAPER + ", Table 5", "n³", True),
        "contextual_corrected": Entry(ContextualCorrected, CONTEXTUAL_PAPER + ", Eq. 10", "n³", True),
        "contextual_detached": Entry(ContextualDetached, CONTEXTUAL_PAPER + ", Figure 17", "n³", True),
        "cosface": Entry(CosFace, "Wang et al., CVPR 2018", "n C d", False),
        "fast_ap": Entry(FastAP, "Cakir et al., CVPR 2019", "n² (d + bins)", True),
        "margin": Entry(Margin, "Wu et al., ICCV 2017", "n² d", True),
        "multi_similarity": Entry(MultiSimilarity, "Wang et al., CVPR 2019", "n² d", True),
        "nca_l2": Entry(EuclideanNCA, VMF_PAPER + ", Section 3.3", "n C d", False),
        "normalized_softmax": Entry(NormalizedSoftmax, "Zhai and Wu, BMVC 2019", "n C d", False),
        "ntxent": Entry(NTXent, "Chen et al., ICML 2020", "n² d", True),
        "open_set": Entry(OpenSet, "Su et al., ECCV 2024", "n² d", True),
        "proxy_nca": Entry(ProxyNCA, "Teh et al., ECCV 2020", "n C d", False),
        "roadmap": Entry(Roadmap, "Ramzi et al., NeurIPS 2021", "n² (d + m)", True),
        "roadmap_ap": Entry(RoadmapAP, "Ramzi et al., NeurIPS 2021", "n² (d + m)", True),
        "roadmap_calibration": Entry(RoadmapCalibration, "Ramzi et al., NeurIPS 2021", "n² d", True),
        "softbin_ap": Entry(SoftbinAP, "Revaud et al., ICCV 2019", "n² (d + bins)", True),
        "triplet": Entry(Triplet, "Schroff et al., CVPR 2015", "n² d", True),
    }
)

__all__ = [
    "ArcFace",
    "BlackboxAP",
    "ClassAveragedContrastive",
    "ContextualAblated",
    "ContextualCorrected",
    "ContextualDetached",
    "CosFace",
    "EuclideanNCA",
    "FastAP",
    "Margin",
    "MultiSimilarity",
    "NTXent",
    "NormalizedSoftmax",
    "OpenSet",
    "ProxyNCA",
    "Roadmap",
    "RoadmapAP",
    "RoadmapCalibration",
    "SoftbinAP",
    "Triplet",
]
