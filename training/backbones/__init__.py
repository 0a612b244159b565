"""Backbones: networks that turn a photo into features, trained from scratch or pretrained.

base                                   what every backbone has
small lite0 transformers_backbone      our own networks, and the image models of `transformers`
load choice                            from a name, or from the record that a run keeps; the choice of `auto`
published processor hub                the preprocessing that a pretrained model was published with, and its files
"""

from .base import Backbone
from .choice import choose_backbone
from .load import load_backbone, rebuild_backbone
from .published import backbone_preprocessing, published_preprocessing

__all__ = [
    "Backbone",
    "backbone_preprocessing",
    "choose_backbone",
    "load_backbone",
    "published_preprocessing",
    "rebuild_backbone",
]
