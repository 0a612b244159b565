"""Backbones: networks that turn a photo into features, trained from scratch or pretrained.

base                   the base class
lite0                  our own large network
transformers_backbone  the image models of `transformers`
text_tower             the text towers of CLIP and SigLIP
packaged               those of `timm` and `open_clip`, where they are installed
pair                   two backbones as one
load hub               loading by name or from the record of a run, our small network; the hub and the choice of `auto`
preprocessing          the preprocessing that a pretrained model was published with
"""

from .base import Backbone
from .hub import choose_backbone
from .load import check_size, load_backbone, rebuild_backbone
from .pair import PairBackbone, shared_size
from .preprocessing import backbone_preprocessing, published_preprocessing

__all__ = [
    "Backbone",
    "PairBackbone",
    "backbone_preprocessing",
    "check_size",
    "choose_backbone",
    "load_backbone",
    "published_preprocessing",
    "rebuild_backbone",
    "shared_size",
]
