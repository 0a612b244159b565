"""The image processor that a pretrained model was published with: its file, and the defaults of its class.

The file is preprocessor_config.json, or the entry `image_processor` of processor_config.json. Missing values are the
defaults of the processor's class in `transformers`. A model without such a file gets the usual processor of its family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import InvalidParameter

from .hub import model_file

PREPROCESSOR, PROCESSOR, CONFIG = "preprocessor_config.json", "processor_config.json", "config.json"


def read_processor(name: str) -> dict[str, Any]:
    """Return the values of the image processor of a local folder or of a model of the hub.

    Raises InvalidParameter if its file cannot be read, or if there is none and its family has no usual processor.
    """
    for file in (PREPROCESSOR, PROCESSOR):
        path = model_file(name, file)
        if path is not None:
            values = _read_json(name, path)
            values = values.get("image_processor", {}) if file == PROCESSOR else values
            if values:
                return _completed(name, values)
    return _completed(name, {})


def _read_json(name: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidParameter("backbone", f"have a readable {path.name} ({error})", name) from error
    if not isinstance(values, dict):
        raise InvalidParameter("backbone", f"have a JSON object in {path.name}", name)
    return values


def _completed(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of the processor's class to the values of a file."""
    processor = _class_of(name, values)
    if processor is not None:
        return dict(processor.from_dict(dict(values)).to_dict())
    if values:
        return dict(values)
    raise InvalidParameter(
        "backbone",
        f"have a {PREPROCESSOR}, because its family has no usual preprocessing",
        name,
        remedy="Add one with size, image_mean and image_std",
    )


def _class_of(name: str, values: Mapping[str, Any]) -> Any:
    """Return the class of a processor that runs on Pillow, or None if `transformers` has none."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    kind = values.get("image_processor_type") or values.get("feature_extractor_type")
    if kind is None:
        path = model_file(name, CONFIG)
        family = "" if path is None else str(_read_json(name, path).get("model_type", ""))
        classes = IMAGE_PROCESSOR_MAPPING_NAMES.get(family.removesuffix("_vision_model")) or {}
        return getattr(transformers, classes.get("pil") or "", None)
    base = str(kind).replace("FeatureExtractor", "ImageProcessor").removesuffix("Pil").removesuffix("Fast")
    return getattr(transformers, f"{base}Pil", None)
