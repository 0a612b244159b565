"""Features of a frozen backbone (`precompute`), shared by the trials of a study."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from training.config import Settings
from training.data.sources import FEATURES

HEAD_SETTINGS = {  # settings that features do not depend on
    *("dim", "projector", "loss", "loss_arguments", "regularizer", "regularizer_arguments", "epochs", "epoch_steps"),
    *("items_per_batch", "photos_per_item", "sampler", "initial_norm", "head_start", "freeze_batch_norm"),
    *("learning_rate", "head_learning_rate", "proxy_learning_rate", "weight_decay", "patience", "select", "loggers"),
    "target_fpir",
}


def borrow_features(settings: Settings, run: Path, store: Path) -> None:
    """Link features that another trial computed for the same photos into a run directory."""
    source = store / _name(settings)
    if settings.precompute and source.exists():
        run.mkdir(parents=True, exist_ok=True)
        os.link(source, run / FEATURES)


def keep_features(settings: Settings, run: Path, store: Path) -> None:
    """Move the features of a run to the store, for later trials."""
    target = store / _name(settings)
    if settings.precompute and (run / FEATURES).exists() and not target.exists():
        store.mkdir(parents=True, exist_ok=True)
        (run / FEATURES).replace(target)


def _name(settings: Settings) -> str:
    deciding = {name: value for name, value in settings.to_dict().items() if name not in HEAD_SETTINGS}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16] + ".safetensors"
