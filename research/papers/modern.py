"""The modern protocol (Musgrave et al., "A Metric Learning Reality Check", ECCV 2020), as used in the mean-field paper.

The training classes are divided into four class-disjoint folds. Fifty Bayesian trials choose the arguments of the loss
by the mean validation MAP@R over the folds; the best arguments are then trained on each fold ten times. The *separated*
figure of a repetition is the mean over its four models; the *concatenated* figure uses their four vectors side by side.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from retrieval.catalogue.splits import Splits
from training.config import Settings
from training.data.folds import Fold, item_folds
from training.tune.study import Plan, run_study

from .configuration import Configuration, Variant
from .metrics import Embedded, find_metric
from .runs import Options, PhotoSets, embedded, settings_of

FOLDS, TRIALS = 4, 50
SMALL_FOLDS, SMALL_TRIALS = 2, 2
CONCATENATED = "concatenated "


def modern(
    configuration: Configuration, dataset: str, photo_sets: PhotoSets, options: Options
) -> dict[str, dict[str, list[float]]]:
    """Return the values of each metric, one per repetition, for each variant."""
    labelled = photo_sets.get(dataset, configuration.split)
    folds = item_folds(labelled.photos, labelled.train, folds=SMALL_FOLDS if options.smoke_test else FOLDS, seed=0)
    rows = {}
    for name, variant in configuration.variants.items():
        settings = settings_of(configuration, variant, dataset, options)
        best = _tuned(settings, variant, dataset, folds, photo_sets, options)
        row: dict[str, list[float]] = {metric: [] for metric in configuration.metrics}
        for seed in range(options.seeds_of(configuration)):
            models = []
            for fit, validation in folds:
                splits = Splits(fit=fit, validation=validation, calibration=(), test=labelled.test)
                models.append(
                    embedded(photo_sets.prepare(dataset, labelled, splits, best, seed, about=configuration.split))
                )
            for metric in configuration.metrics:
                row[metric].append(_value(metric, models))
        rows[name] = row
    return rows


def concatenated(models: list[Embedded]) -> Embedded:
    """Return the same photos with the unit vectors of all models concatenated and scaled to length one."""
    unit = np.concatenate([model.unit for model in models], axis=1) / np.sqrt(len(models))
    return dataclasses.replace(models[0], unit=unit.astype(np.float32), norms=np.ones(len(unit), np.float32))


def _value(name: str, models: list[Embedded]) -> float:
    metric, numbers = find_metric(name.removeprefix(CONCATENATED))
    measured = [concatenated(models)] if name.startswith(CONCATENATED) else models
    return metric.scale * float(np.mean([metric.measure(model, numbers) for model in measured]))


def _tuned(
    settings: Settings, variant: Variant, dataset: str, folds: list[Fold], photo_sets: PhotoSets, options: Options
) -> Settings:
    """Return the settings of the best trial of a study; a finished study is read, an unfinished one continued."""
    if not variant.space:
        return settings
    labelled = photo_sets.get(dataset, "classes")
    splits = Splits(fit=labelled.train, validation=labelled.test, calibration=(), test=labelled.test)
    job = photo_sets.prepare(dataset, labelled, splits, settings, 0, about="classes")
    space = {name: {"low": low, "high": high, "log": True} for name, (low, high) in variant.space.items()}
    plan = Plan(job.settings, space, "r@1", tuple(folds), prune=False)
    key = json.dumps(plan.to_dict(), sort_keys=True)
    path = options.output / "studies" / hashlib.sha256(key.encode()).hexdigest()[:16]
    trials = SMALL_TRIALS if options.smoke_test else TRIALS
    return run_study(path, None if (path / "study.db").exists() else plan, trials=trials).settings
