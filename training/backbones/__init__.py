"""Backbones: networks that turn a photo into features, trained from scratch or pretrained.

base                                   the base class
small lite0                            our own networks
transformers_backbone naflex           the image models of `transformers`
timm_backbone                          the image models of `timm`
load choice                            loading by name or from the record of a run; the choice of `auto`
published processor hub                the preprocessing that a pretrained model was published with, and its files
"""

from .base import Backbone
from .choice import choose_backbone
from .load import check_size, load_backbone, rebuild_backbone
from .published import backbone_preprocessing, published_preprocessing

__all__ = [
    "Backbone",
    "backbone_preprocessing",
    "check_size",
    "choose_backbone",
    "load_backbone",
    "published_preprocessing",
    "rebuild_backbone",
]
