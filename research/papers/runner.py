"""Run a configuration: prepare data, train, measure, and write tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from research.datasets import DATASETS, find_dataset
from retrieval.errors import InvalidParameter
from training.loop.run import Run

from .configuration import COST, DRAWN, MODERN, STATISTICS, Configuration
from .cost import cost
from .drawings import draw
from .metrics import Embedded, find_metric
from .modern import CONCATENATED, modern
from .results import Results
from .runs import Job, Options, PhotoSets, embedded, settings_of, trained

EPOCH = "best epoch"


def run(configuration: Configuration, options: Options) -> Results:
    """Run a configuration and write results.json, results.md below OUTPUT/NAME; finished runs are reused.

    Raises
    ------
    InvalidParameter
        If settings, metrics or data sets are unknown; raised before any training.
    DataError
        If the data set is not below `options.data`.
    """
    folder = options.output / configuration.name
    datasets = datasets_of(configuration, options)
    facts = {
        "datasets": datasets,
        "changes": dict(options.changes),
        "seeds": options.seeds_of(configuration),
        "smoke_test": options.smoke_test,
    }
    check(configuration, options, datasets)
    folder.mkdir(parents=True, exist_ok=True)
    photo_sets = PhotoSets(options)
    for name in datasets:
        photo_sets.get(name, configuration.split)  # a set that is not whole is refused at once
    if configuration.protocol == DRAWN:
        cells = draw(configuration.drawing)
    elif configuration.protocol == COST:
        cells = {"this machine": cost(configuration, options)}
    elif configuration.protocol == STATISTICS:
        cells = {
            name: {v: _counts(photo_sets, name, configuration) for v in configuration.variants} for name in datasets
        }
    elif configuration.protocol == MODERN:
        cells = {name: modern(configuration, name, photo_sets, options) for name in datasets}
    else:
        jobs = _jobs(configuration, datasets, photo_sets, options)
        cells = {name: {} for name in datasets}
        for (name, variant), some in jobs.items():
            cells[name][variant] = _measured(configuration, some)
    results = Results(configuration, cells, facts)
    results.write(folder)
    return results


def datasets_of(configuration: Configuration, options: Options) -> list[str]:
    """Return the data sets to run: those asked for, or else those that DATA contains, or all if it contains none.

    If DATA is a catalogue, it replaces all of them, under the name of its file.
    """
    known = list(configuration.datasets)
    if options.data.is_file() and known:
        return [options.data.name]  # mine.csv, which no benchmark set is called
    for name in options.datasets:
        if name not in known:
            raise InvalidParameter("dataset", f"be one of {', '.join(known) or 'none'}", name)
    if options.datasets:
        return [name for name in known if name in options.datasets]
    return [name for name in known if name not in DATASETS or find_dataset(name, options.data)] or known


def check(configuration: Configuration, options: Options, datasets: Iterable[str]) -> None:
    """Raise InvalidParameter for unknown settings, losses or metrics before any training."""
    from training.loop.recipe import build_loss

    for variant in configuration.variants.values():
        for dataset in datasets:
            build_loss(settings_of(configuration, variant, dataset, options), classes=4)
    if configuration.protocol not in (STATISTICS, COST):
        for name in _plain(configuration.metrics):
            find_metric(name)


def _plain(metrics: Iterable[str]) -> Iterator[str]:
    return (name.removeprefix(CONCATENATED) for name in metrics if name != EPOCH)


def _jobs(
    configuration: Configuration, datasets: list[str], photo_sets: PhotoSets, options: Options
) -> dict[tuple[str, str], list[Job]]:
    """Return the trained jobs of every cell, one per seed."""
    jobs: dict[tuple[str, str], list[Job]] = {}
    for dataset in datasets:
        for name, variant in configuration.variants.items():
            seeds = range(options.seeds_of(configuration))
            jobs[dataset, name] = [photo_sets.job(configuration, variant, dataset, seed) for seed in seeds]
    for job in itertools.chain.from_iterable(jobs.values()):  # all of them are made before the first trains for days
        trained(job)
    return jobs


def _measured(configuration: Configuration, jobs: list[Job]) -> dict[str, list[float]]:
    """Return the printed values of every metric, one per seed."""
    row: dict[str, list[float]] = {name: [] for name in configuration.metrics}
    for job in jobs:
        parts: dict[bool, Embedded] = {}
        for name in configuration.metrics:
            if name == EPOCH:
                row[name].append(float(Run.open(job.path).progress["best"]["epoch"]))
                continue
            metric, numbers = find_metric(name)
            if metric.train not in parts:
                parts[metric.train] = embedded(job, train_part=metric.train)
            row[name].append(metric.scale * metric.measure(parts[metric.train], numbers))
    return row


def _counts(photo_sets: PhotoSets, dataset: str, configuration: Configuration) -> dict[str, list[float]]:
    labelled = photo_sets.get(dataset, configuration.split)
    train = set(labelled.train)
    inside = sum(photo.item_id in train for photo in labelled.photos)
    numbers = (inside, len(labelled.train), len(labelled.photos) - inside, len(labelled.test))
    return {name: [float(number)] for name, number in zip(configuration.metrics, numbers, strict=True)}
