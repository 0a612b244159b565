"""What a table or a figure of a paper is: data, which `runner` trains, measures and prints.

A configuration lists *variants*, the lines of a table or the points of a curve. Each is trained on each data set with
each seed, and measured on the test photos of that data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retrieval.errors import InvalidParameter

TRAINED, MODERN, COST, STATISTICS, DRAWN = "trained", "modern", "cost", "statistics", "drawn"
PROTOCOLS = (TRAINED, MODERN, COST, STATISTICS, DRAWN)
CLASSES, SHARED = "classes", "shared"
ON_TEST, HELD_OUT, LAST = "test", "held out", "last"
DATASETS = ("cub", "cars", "sop", "inshop", "inat", "grocery")

Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Variant:
    """A line of a table, or a point of a curve."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # `training.config`, over the configuration's
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of one data set, over those
    series: str = ""  # the curve it is on
    x: float | None = None  # and where
    photos: tuple[str, float] | None = None  # what is done to the training photos (`transformations`), and how much
    space: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # what is tuned (modern), in logarithms


@dataclass(frozen=True)
class Configuration:
    """A table or a figure, or several that the same runs fill."""

    name: str
    items: tuple[str, ...]  # "Table 2", "Figure 9"
    shows: str
    datasets: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # `measure`
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every variant
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings of one data set, over these
    protocol: str = TRAINED
    split: str = CLASSES  # test classes are others, or "shared": test photos are
    selection: str = ON_TEST  # where the checkpoint is chosen: the test items, a held-out fifth, or the "last"
    seeds: int = 1
    pictures: tuple[str, ...] = ()  # `pictures`
    published: Mapping[tuple[str, str], Numbers] = field(default_factory=dict)  # (data set, variant): the metrics
    note: str = ""  # what differs from the paper
    missing: str = ""  # which lines of the paper are not here, and why

    def __post_init__(self) -> None:
        _check(self)


def _check(configuration: Configuration) -> None:
    known = {"protocol": PROTOCOLS, "split": (CLASSES, SHARED), "selection": (ON_TEST, HELD_OUT, LAST)}
    for name, allowed in known.items():
        if getattr(configuration, name) not in allowed:
            raise InvalidParameter(name, f"be one of {', '.join(allowed)}", getattr(configuration, name))
    for name in configuration.datasets:
        if name not in DATASETS:
            raise InvalidParameter("datasets", f"be among {', '.join(DATASETS)}", name)
    for (dataset, variant), numbers in configuration.published.items():
        if dataset not in configuration.datasets or variant not in configuration.variants:
            raise InvalidParameter("published", "name data sets and variants of the configuration", (dataset, variant))
        if len(numbers) != len(configuration.metrics):
            raise InvalidParameter("published", "have one number a metric", (variant, numbers))
