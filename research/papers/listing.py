"""Index of all configurations, and the paper items that have none."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from retrieval.errors import InvalidParameter, command

from . import contextual, mean_field, tcm, vmf
from .configuration import Configuration


class Paper(NamedTuple):
    """Configurations of a paper, and the reasons for omitted items."""

    title: str
    configurations: tuple[Configuration, ...]
    nothing_to_run: Mapping[str, str]


PAPERS: Mapping[str, Paper] = {
    "tcm": Paper("Threshold-Consistent Margin Loss (arXiv 2307.04047)", tcm.CONFIGURATIONS, tcm.NOTHING_TO_RUN),
    "mean-field": Paper(
        "Mean Field Theory in Deep Metric Learning (ICLR 2024)", mean_field.CONFIGURATIONS, mean_field.NOTHING_TO_RUN
    ),
    "contextual": Paper(
        "Contextual Similarity Optimization (arXiv 2210.01908)", contextual.CONFIGURATIONS, contextual.NOTHING_TO_RUN
    ),
    "vmf": Paper(
        "A Non-isotropic Probabilistic Take on Proxy-based Metric Learning (arXiv 2207.03784)",
        vmf.CONFIGURATIONS,
        vmf.NOTHING_TO_RUN,
    ),
}


def configurations() -> dict[str, Configuration]:
    """Return every configuration by name, in paper order."""
    return {entry.name: entry for paper in PAPERS.values() for entry in paper.configurations}


def find(name: str) -> Configuration:
    """Return the configuration with a name; raise InvalidParameter with the closest names if it is unknown."""
    known = configurations()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"`{command('research', 'list')}` names them"
        raise InvalidParameter("NAME", "be a configuration", name, remedy=remedy)
    return known[name]
