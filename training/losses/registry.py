"""Losses by name, for settings and the command line, and the table of them."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from retrieval.errors import InvalidParameter, command
from retrieval.text import text_table

from .base import check_not_negative
from .contextual import Contextual, ContextualSum, SimilarityRegularizer
from .contrastive import Contrastive
from .mean_field import ClassWiseMultiSimilarity, MeanFieldClassWiseMultiSimilarity, MeanFieldContrastive
from .proxies import ProxyAnchor
from .ranking import RecallAtK, SmoothAP
from .tcm import ThresholdConsistentMargin
from .vmf_nca import VonMisesFisherNCA


@dataclass(frozen=True)
class Entry:
    """A loss, and what it needs. Symbols of `cost`: n batch, d dimension, m positives, C classes, N samples."""

    loss: type[nn.Module]
    paper: str
    cost: str
    needs_balanced_batches: bool  # useless without several photos per item in a batch

    @property
    def has_proxies(self) -> bool:
        """Return whether the loss takes (classes, dim) and learns something for each class."""
        return "classes" in inspect.signature(self.loss).parameters


PLUG_IN = "research.losses"  # a checkout has it, the wheel does not
COMPARISON_NOTE = (
    "Losses for comparison with papers, such as arcface and multi_similarity, are in research/losses of a checkout"
)
TCM_PAPER, CONTEXTUAL_PAPER = "arXiv 2307.04047", "arXiv 2210.01908"
MEAN_FIELD_PAPER, VMF_PAPER = "Furusawa, ICLR 2024", "arXiv 2207.03784"

LOSSES: dict[str, Entry] = {
    "class_wise_multi_similarity": Entry(ClassWiseMultiSimilarity, MEAN_FIELD_PAPER + ", Eq. 9", "n² d", True),
    "contextual": Entry(Contextual, CONTEXTUAL_PAPER + ", Eq. 28", "n³", True),
    "contextual_sum": Entry(ContextualSum, CONTEXTUAL_PAPER + ", Eq. 6", "n³", True),
    "contrastive": Entry(Contrastive, CONTEXTUAL_PAPER + ", Eq. 29", "n² d", True),
    "mean_field_class_wise_multi_similarity": Entry(
        MeanFieldClassWiseMultiSimilarity, MEAN_FIELD_PAPER + ", Eq. 10", "n C d", False
    ),
    "mean_field_contrastive": Entry(MeanFieldContrastive, MEAN_FIELD_PAPER + ", Eq. 8", "n C d", False),
    "proxy_anchor": Entry(ProxyAnchor, "Kim et al., CVPR 2020", "n C d", False),
    "recall_at_k": Entry(RecallAtK, "Patel et al., CVPR 2022", "n² (d + m)", True),
    "similarity_regularizer": Entry(SimilarityRegularizer, CONTEXTUAL_PAPER + ", Eq. 7", "n d", False),
    "smooth_ap": Entry(SmoothAP, "Brown et al., ECCV 2020", "n² (d + m)", True),
    "tcm": Entry(ThresholdConsistentMargin, TCM_PAPER + ", Eq. 5", "n² d", True),
    "vmf_nca": Entry(VonMisesFisherNCA, VMF_PAPER + ", Eq. 6", "N n C d", False),
}


COMPARED: dict[str, Entry] = {}  # of LOSSES, those that `research.losses` adds for the papers' tables


def register_comparison(entries: Mapping[str, Entry]) -> None:
    """Add losses that exist only for comparison to LOSSES."""
    COMPARED.update(entries)
    LOSSES.update(entries)


def load_comparison_losses() -> None:
    """Import the losses of `research`, which register themselves, where a checkout is importable."""
    if has_comparison_losses():
        importlib.import_module(PLUG_IN)


def has_comparison_losses() -> bool:
    """Return whether `research.losses` can be imported."""
    try:
        return importlib.util.find_spec(PLUG_IN) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def loss_arguments(name: str) -> dict[str, Any]:
    """Return a loss's arguments and their defaults."""
    parameters = inspect.signature(LOSSES[name].loss).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("classes", "dim")}


def check_name(name: str) -> None:
    """Refuse an unknown loss, with the valid names and the nearest."""
    if name not in LOSSES:
        near = difflib.get_close_matches(name, LOSSES, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"`{command('losses')}` describes them."
        remedy = remedy if has_comparison_losses() else f"{remedy} {COMPARISON_NOTE}"
        raise InvalidParameter("loss", f"be one of {', '.join(LOSSES)}", name, remedy=remedy)


def make_loss(name: str, *, classes: int, dim: int, arguments: Mapping[str, Any]) -> nn.Module:
    """Return the loss of a name; an unknown name or argument is an error that lists the valid ones."""
    check_name(name)
    valid = loss_arguments(name)
    for argument, value in arguments.items():
        if argument not in valid:
            raise InvalidParameter(f"argument of {name}", f"be one of {', '.join(valid)}", argument)
        _check_kind(f"{name}.{argument}", value, valid[argument])
    if LOSSES[name].has_proxies:
        return LOSSES[name].loss(classes, dim, **arguments)
    return LOSSES[name].loss(**arguments)


def _check_kind(argument: str, value: object, default: object) -> None:
    """Refuse a value of another kind than the default: text where a number belongs, 3 where true does."""
    kinds: tuple[type, ...] = {float: (int, float), tuple: (tuple, list)}.get(type(default), (type(default),))
    if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(default, bool)):
        name = {float: "number", int: "whole number", bool: "truth value", tuple: "list", str: "word"}[type(default)]
        raise InvalidParameter(argument, f"be a {name}, such as {default!r}", value)


class Regularized(nn.Module):
    """A base loss plus `weight` times a regularizer (arXiv 2307.04047, Eq. 6).

    Examples
    --------
    >>> loss = Regularized(Contrastive(), ThresholdConsistentMargin(), weight=0.5)
    >>> loss(torch.eye(2).repeat(2, 1), torch.tensor([0, 0, 1, 1]))  # 1.15 + 0.5 * 1.4
    tensor(1.8500)
    """

    def __init__(self, base: nn.Module, regularizer: nn.Module, weight: float) -> None:
        super().__init__()
        check_not_negative(weight=weight)
        self.base = base
        self.regularizer = regularizer
        self.weight = weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar sum for raw embeddings (n, d) with labels (n,)."""
        total: Tensor = self.base(embeddings, labels) + self.weight * self.regularizer(embeddings, labels)
        return total


def describe(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each loss, or for `names`; raise InvalidParameter for an unknown name."""
    for name in names:
        check_name(name)
    return [
        {
            "name": name,
            "summary": (entry.loss.__doc__ or "").strip().splitlines()[0],
            "paper": entry.paper,
            "cost": f"O({entry.cost})",
            "batches": "at least 2 photos per item" if entry.needs_balanced_batches else "any",
            "learns": "a vector per item" if entry.has_proxies else "nothing",
            "arguments": loss_arguments(name),
            "compared_only": name in COMPARED,
        }
        for name, entry in LOSSES.items()
        if not names or name in names
    ]


def render_losses(rows: Sequence[Mapping[str, Any]], *, summaries: bool = False) -> str:
    """Return the rows as a text table, with the defaults of each loss on the line below it.

    Losses that exist only for comparison come last, under a heading.
    """
    head = {"name": "loss", "paper": "paper", "cost": "cost of a step", "batches": "batches", "learns": "learns"}
    rows = sorted(rows, key=lambda row: bool(row["compared_only"]))
    cells = [[str(row[key]) for key in head] for row in rows]
    title, rule, *described = text_table([*head.values()], cells, left=len(head))
    lines, apart = [title, rule], False
    for row, line in zip(rows, described, strict=True):
        if row["compared_only"] and not apart:
            lines += ["", "for comparison:"]
            apart = True
        summary = [f"    {row['summary']}"] if summaries else []
        arguments = " ".join(f"{name}={json.dumps(value)}" for name, value in row["arguments"].items())
        lines += [line, *summary, f"    {arguments}"]
    return "\n".join(lines if has_comparison_losses() else [*lines, "", f"{COMPARISON_NOTE}."])
