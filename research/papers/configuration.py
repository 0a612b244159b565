"""Configuration of a paper's table or figure, which `runner` trains, measures and prints.

A configuration lists *variants*, the rows of a table or the points of a curve. Each is trained on each data set with
each seed, and measured on the test photos of that data set.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.errors import InvalidParameter

from .transformations import IMAGE_NOISE

TRAINED, MODERN, COST, STATISTICS, DRAWN = "trained", "modern", "cost", "statistics", "drawn"
PROTOCOLS = (TRAINED, MODERN, COST, STATISTICS, DRAWN)
CLASSES, SHARED = "classes", "shared"
ON_TEST, HELD_OUT, LAST = "test", "held out", "last"
DATASETS = ("cub", "cars", "sop", "inshop", "inat", "grocery")

Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Variant:
    """A row of a table or a point of a curve."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # `training.config`, overriding the configuration's
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # per data set, overriding both
    series: str = ""  # name of its curve
    x: float | None = None  # position on the curve
    photos: tuple[str, float] | None = None  # transformation of the training photos (`transformations`) and its amount
    space: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # ranges of tuned parameters (modern), in logarithms


@dataclass(frozen=True)
class Configuration:
    """A table or figure, or several that share the same runs."""

    name: str
    items: tuple[str, ...]  # "Table 2", "Figure 9"
    shows: str
    datasets: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # names from `measure`
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of every variant
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings per data set, overriding these
    protocol: str = TRAINED
    split: str = CLASSES  # new classes in the test, or "shared": new photos of the same classes
    selection: str = ON_TEST  # photos that select the checkpoint: the test items, a held-out fifth, or "last" (epoch)
    seeds: int = 1
    drawing: str = ""  # name from `drawings`, of the protocol without data sets
    published: Mapping[tuple[str, str], Numbers] = field(
        default_factory=dict
    )  # (data set, variant): the values of the metrics
    note: str = ""  # differences from the paper
    missing: str = ""  # rows of the paper that are omitted, with the reason

    def __post_init__(self) -> None:
        _check(self)

    @property
    def command(self) -> tuple[str, ...]:
        """Return the words of the command that runs it by the paper's protocol."""
        data = ("--data", "DATA") if self.datasets else ()
        noisy = any(variant.photos and variant.photos[0] == IMAGE_NOISE for variant in self.variants.values())
        return ("research", "run", self.name, *data, *(("--strangers", "PHOTOS") if noisy else ()), "-o", "papers")


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


def read_tables(path: Path, recipes: Mapping[str, Any]) -> tuple[Configuration, ...]:
    """Return the configurations of a TOML file, one a table.

    Each of its `rows` is a variant, with the paper's numbers by data set. `use` names the recipes that settings are
    made of, of which later ones win, and a note may name texts among them in braces.
    """
    return tuple(_configuration(name, table, recipes) for name, table in tomllib.loads(path.read_text("utf-8")).items())


def _configuration(name: str, table: dict[str, Any], recipes: Mapping[str, Any]) -> Configuration:
    variants: dict[str, Variant] = {}
    published: dict[tuple[str, str], Numbers] = {}
    for row in table.pop("rows"):
        title = row.pop("name")
        variants[title] = Variant(_settings(row, recipes), series=row.pop("series", ""))
        published |= {(dataset, title): tuple(numbers) for dataset, numbers in row.items()}
    settings, note = _settings(table, recipes), table.pop("note", "").format_map(recipes)
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return Configuration(name, settings=settings, variants=variants, published=published, note=note, **given)


def _settings(entry: dict[str, Any], recipes: Mapping[str, Any]) -> dict[str, Any]:
    """Take the settings out of a table or a row."""
    settings: dict[str, Any] = {}
    for recipe in entry.pop("use", ()):
        settings |= recipes[recipe]
    settings |= entry.pop("settings", {})
    return settings
