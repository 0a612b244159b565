"""Estimated time of a configuration on one GPU, from the photos that its trainings see; nothing of it was measured."""

from __future__ import annotations

from pathlib import Path

from training.config import Settings

from .configuration import MODERN, TRAINED, Configuration
from .modern import FOLDS, TRIALS
from .runs import Options, settings_of

PHOTOS = {"cub": 5_864, "cars": 8_054, "sop": 59_551, "inshop": 25_882, "inat": 325_846}  # of the training items
RATES = {  # assumed, photos of 224 px a second
    "microsoft/resnet-50": 400, "microsoft/resnet-101": 240, "WinKawaks/vit-small": 400, "google/vit-base": 150,
    "facebook/dino": 150, "google/vit-large": 50,
}  # fmt: skip
SIDE = 224
HOUR, DAY = 3_600, 86_400


def estimated_time(entry: Configuration) -> str:
    """Return the time of all trainings of a configuration on one GPU in words; "" if it trains nothing large."""
    seconds = 0.0
    for dataset in entry.datasets if entry.protocol in (TRAINED, MODERN) else ():
        for variant in entry.variants.values():
            settings = settings_of(entry, variant, dataset, Options(Path(), Path()))
            runs: float = entry.seeds
            if entry.protocol == MODERN:  # each of them on three of four folds
                runs = (FOLDS - 1) * (entry.seeds + (TRIALS if variant.space else 0))
            seconds += runs * _photos(settings, dataset) / _rate(settings)
    if seconds < HOUR:
        return "under an hour" if seconds else ""
    return f"about {seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"about {seconds / DAY:,.0f} days"


def _photos(settings: Settings, dataset: str) -> float:
    """Return how many photos a run sees."""
    if settings.epoch_steps:
        return settings.epochs * settings.epoch_steps * settings.items_per_batch * settings.photos_per_item
    return settings.epochs * PHOTOS.get(dataset, 0)


def _rate(settings: Settings) -> float:
    """Return the photos that a GPU trains on in a second."""
    rate = next((rate for name, rate in RATES.items() if settings.backbone.startswith(name)), max(RATES.values()))
    return rate * (SIDE / settings.input_size) ** 2
