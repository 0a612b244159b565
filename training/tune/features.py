"""Features of a frozen backbone (`precompute`), made by the first trial that needs them and kept for the others."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from training.config import Settings
from training.data.sources import FEATURES

HEAD_ALONE = {  # what features do not depend on; everything else makes others
    *("dim", "projector", "loss", "loss_arguments", "regularizer", "regularizer_arguments", "regularizer_weight"),
    *("epochs", "epoch_steps", "items_per_batch", "photos_per_item", "sampler", "sampler_group", "proxy_sample"),
    *("initial_norm", "frozen", "frozen_epochs", "freeze_batch_norm", "compile"),
    *("learning_rate", "head_learning_rate", "proxy_learning_rate", "weight_decay", "warmup", "clip", "layer_decay"),
    *("ema", "patience", "select", "proxy_warmup", "loggers", "cache_gib", "cache_dir", "decoders", "target_fpir"),
}


def borrow_features(settings: Settings, place: Path, kept: Path) -> None:
    """Put features that another trial made on the same photos into a run's directory before it begins."""
    source = kept / _name(settings)
    if settings.precompute and source.exists():
        place.mkdir(parents=True, exist_ok=True)
        os.link(source, place / FEATURES)


def keep_features(settings: Settings, place: Path, kept: Path) -> None:
    """Keep the features of a run for the trials to come."""
    target = kept / _name(settings)
    if settings.precompute and (place / FEATURES).exists() and not target.exists():
        kept.mkdir(parents=True, exist_ok=True)
        (place / FEATURES).replace(target)


def _name(settings: Settings) -> str:
    deciding = {name: value for name, value in settings.to_dict().items() if name not in HEAD_ALONE}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16] + ".safetensors"
