"""The preprocessing that a pretrained model was published with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval.encoders.processor import FILES, translated
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from training.config import LITE0, SMALL

from . import lite0
from .hub import is_local, resolved, unreadable
from .packaged import is_packaged, load_packaged


def published_preprocessing(name: str, *, size: int | None = None) -> Preprocessing:
    """Return the preprocessing that a pretrained backbone was published with, at another `size` if one is given."""
    name = resolved(name)
    if name == SMALL:
        raise InvalidParameter("backbone", f"be pretrained, and {SMALL!r} is not", name, remedy=f"Use {LITE0}")
    if name == LITE0:
        published = lite0.PREPROCESSING
    elif is_packaged(name):
        published = load_packaged(name, weights=False)[1]
    else:
        published = translated(name, read_processor(name))
    return published if size is None else replace(published, size=size)


def read_processor(name: str) -> dict[str, Any]:
    """Return the values of the image processor of a local folder or of a model of the hub.

    Missing values are the defaults of the processor's class, or of the usual one of its family, if `transformers`
    has it without torchvision.
    Raises InvalidParameter if there is no processor, or if it cannot be read.
    """
    import transformers
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    local = is_local(name)
    try:
        config, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=local)
        family = str(config.get("model_type", "")).removesuffix("_vision_model")
        usual = IMAGE_PROCESSOR_MAPPING_NAMES.get(family) or {}
        bare = Path(name).is_dir() and not any((Path(name) / file).exists() for file in FILES)
        values: dict[str, Any] = {}
        if not (bare and usual):  # a folder without a processor gets the usual one of its family
            values, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=local)
    except (OSError, ValueError) as error:
        raise unreadable(name, error, what="have a readable preprocessor_config.json") from error
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or usual.get("pil") or "")
    base = kind.replace("FeatureExtractor", "ImageProcessor").removesuffix("Pil").removesuffix("Fast")
    processor = getattr(transformers, f"{base}Pil", None)
    return dict(values if processor is None else processor.from_dict(values).to_dict())


def backbone_preprocessing(name: str, *, size: int, crop_ratio: float) -> Preprocessing:
    """Return the preprocessing to train a backbone with: its published mean and std, with our size and crop."""
    if name == SMALL:
        return Preprocessing(size=size, view=crop_ratio)
    return replace(published_preprocessing(name, size=size), view=crop_ratio, squash=False)
