"""Definition of a tuning study: settings, search space, folds and objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import InvalidParameter
from training.config import SPLIT_SEED, Settings
from training.data.folds import Fold, fold_splits, item_folds, share_of_items, training_items
from training.data.splits import make_evaluation_protocol
from training.evaluation.evaluate import BALANCED, make_evaluation_split
from training.loop.recipe import check_recipe

from .search_space import Axis, parse_axis
from .search_targets import SearchSpace, make_space

Direction = Literal["minimize", "maximize"]
OBJECTIVES: Mapping[str, tuple[str, Direction]] = {  # name of the metric, direction
    "fnir": ("FNIR", "minimize"),
    "opis": ("OPIS", "minimize"),
    "search_opis": ("search OPIS", "minimize"),
    "r@1": ("R@1", "maximize"),
    "map@r": ("MAP@R", "maximize"),
    "balanced": (BALANCED, "maximize"),
}
PRUNERS = ("median", "hyperband", "none")
TCM_SHARE = 0.1  # of the training items, on which arXiv 2307.04047 tunes the margins of TCM
MIN_ITEMS = 10  # items per fold that this share is raised to


@dataclass(frozen=True)
class TuneOptions:
    """Options of a study."""

    trials: int = 50
    folds: int = 4
    objectives: tuple[str, ...] = ("fnir",)
    share: float | None = None  # of the training items; None is all of them, or a tenth for the margins of TCM alone
    pruner: str = "median"

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise InvalidParameter("trials", "be at least 1", self.trials)
        if self.pruner not in PRUNERS:
            raise InvalidParameter("pruner", f"be one of {', '.join(PRUNERS)}", self.pruner)
        unknown = [name for name in self.objectives if name not in OBJECTIVES]
        if unknown or not 1 <= len(self.objectives) <= 2 or len(set(self.objectives)) < len(self.objectives):
            raise InvalidParameter(
                "objective", f"be one or two of {', '.join(OBJECTIVES)}", ",".join(self.objectives) or "none"
            )


@dataclass(frozen=True)
class Plan:
    """Definition of a study, as stored in study.json."""

    settings: Settings
    space: SearchSpace
    objectives: tuple[str, ...]
    folds: tuple[Fold, ...]
    trials: int
    pruner: str

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that are the objectives."""
        return [OBJECTIVES[name][0] for name in self.objectives]

    @property
    def directions(self) -> list[Direction]:
        """Direction of each objective, in Optuna's words."""
        return [OBJECTIVES[name][1] for name in self.objectives]

    @property
    def judged_by(self) -> str:
        """Description of the objectives."""
        target = f"FNIR at FPIR {self.settings.target_fpir:g}"
        return " and ".join(target if metric == "FNIR" else metric for metric in self.metrics)

    def describe(self) -> str:
        """Return a description of the search."""
        names = ", ".join(f"{name} in {axis}" for name, axis in self.space.axes.items())
        items = sum(len(validation) for _, validation in self.folds)
        return (
            f"Searching {names}: {self.trials} trials on {items} training items in {len(self.folds)} folds, "
            f"optimising {self.judged_by}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "settings": self.settings.to_dict(),
            "search": self.space.to_dict(),
            "objectives": list(self.objectives),
            "folds": [{"fit": list(fit), "validation": list(validation)} for fit, validation in self.folds],
            "trials": self.trials,
            "pruner": self.pruner,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Build a plan from `to_dict`."""
        settings = Settings.from_dict(values["settings"])
        axes = {name: parse_axis(name, spec) for name, spec in values["search"].items()}
        folds = tuple((tuple(fold["fit"]), tuple(fold["validation"])) for fold in values["folds"])
        objectives = tuple(values["objectives"])
        return cls(settings, make_space(axes, settings), objectives, folds, values["trials"], values["pruner"])


def make_plan(settings: Settings, search: Mapping[str, Axis], options: TuneOptions) -> Plan:
    """Return the checked plan of a study, without writing anything or opening photos."""
    space = make_space(search, settings)
    photos = read_catalogue(settings.catalogue)
    folds = plan_folds(photos, options, small_share=not search)
    protocol = make_evaluation_protocol(photos)
    for number, (_, validation) in enumerate(folds):
        make_evaluation_split(f"fold {number + 1} validation", photos, validation, protocol)
    check_recipe(settings, fold_splits(folds[0]))
    return Plan(settings, space, options.objectives, tuple(folds), options.trials, options.pruner)


def plan_folds(photos: Sequence[Photo], options: TuneOptions, *, small_share: bool) -> list[Fold]:
    """Return folds of the training items, or of a share of them."""
    items = training_items(photos, seed=SPLIT_SEED)
    share = options.share
    if share is None and small_share:
        share = max(TCM_SHARE, min(1.0, MIN_ITEMS * options.folds / len(items)))
    if share is not None and share != 1:
        items = share_of_items(photos, items, share=share, seed=SPLIT_SEED)
    return item_folds(photos, items, folds=options.folds, seed=SPLIT_SEED)
