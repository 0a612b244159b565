"""Comparison losses for the papers' tables; importing this package registers them by name."""

from training.losses.registry import CONTEXTUAL_PAPER, VMF_PAPER, Entry, register_comparison

from .comparison import ContextualCorrected, ContextualDetached, EuclideanNCA, FastAP, Margin, NTXent
from .comparison_rankings import BlackboxAP, Roadmap, RoadmapAP, RoadmapCalibration, SoftbinAP

register_comparison(
    {
        "blackbox_ap": Entry(BlackboxAP, "Rolínek et al., CVPR 2020", "n² (d + log n)", True),
        "contextual_corrected": Entry(ContextualCorrected, CONTEXTUAL_PAPER + ", Eq. 10", "n³", True),
        "contextual_detached": Entry(ContextualDetached, CONTEXTUAL_PAPER + ", Figure 17", "n³", True),
        "fast_ap": Entry(FastAP, "Cakir et al., CVPR 2019", "n² (d + bins)", True),
        "margin": Entry(Margin, "Wu et al., ICCV 2017", "n² d", True),
        "nca_l2": Entry(EuclideanNCA, VMF_PAPER + ", Section 3.3", "n C d", False),
        "ntxent": Entry(NTXent, "Chen et al., ICML 2020", "n² d", True),
        "roadmap": Entry(Roadmap, "Ramzi et al., NeurIPS 2021", "n² (d + m)", True),
        "roadmap_ap": Entry(RoadmapAP, "Ramzi et al., NeurIPS 2021", "n² (d + m)", True),
        "roadmap_calibration": Entry(RoadmapCalibration, "Ramzi et al., NeurIPS 2021", "n² d", True),
        "softbin_ap": Entry(SoftbinAP, "Revaud et al., ICCV 2019", "n² (d + bins)", True),
    }
)

__all__ = [
    "BlackboxAP",
    "ContextualCorrected",
    "ContextualDetached",
    "EuclideanNCA",
    "FastAP",
    "Margin",
    "NTXent",
    "Roadmap",
    "RoadmapAP",
    "RoadmapCalibration",
    "SoftbinAP",
]
