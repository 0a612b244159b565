"""Example photos for the web page, chosen by a fixed rule and named after what they show."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.synthetic.catalogue import KNOWN, PLACE, UNKNOWN, VARIANT

from .queries import Answers

FIRST = 200  # queries that examples are chosen from
MATCH, NEW, THIRD, EMPTY = "match", "unknown item", "unknown variant", "empty place"
COUNTS = {MATCH: 3, NEW: 1, THIRD: 1, EMPTY: 1}
RULE = f"The page's examples are the first of their kind among the first {FIRST} queries."


@dataclass(frozen=True)
class Example:
    """An example photo: the number of its query, its kind and its label."""

    query: int
    kind: str
    label: str


def choose_examples(answers: Answers) -> list[Example]:
    """Return the first queries of each kind that there is, in the order of COUNTS.

    A match returns the right item first. Unknown items return no match.
    """
    return [
        Example(query, kind, _label(answers, query, kind))
        for kind, fits in _fitting(answers).items()
        for query in np.flatnonzero(fits[:FIRST])[: COUNTS[kind]].tolist()
    ]


def copy_examples(answers: Answers, examples: Sequence[Example], folder: Path) -> None:
    """Copy the example photos to a folder, named after their labels."""
    folder.mkdir()
    for number, example in enumerate(examples):
        name = f"{number + 1} {example.label}".replace(" ", "-")
        shutil.copy(answers.photos[example.query].path, folder / f"{name}.jpg")


def _fitting(answers: Answers) -> dict[str, NDArray[np.bool_]]:
    """Return which queries (n,) each kind of example fits."""
    kinds, matched, right = answers.kinds, answers.matched, answers.served.items == answers.items
    return {
        MATCH: (kinds == KNOWN) & matched & right,
        NEW: (kinds == UNKNOWN) & ~matched,
        THIRD: (kinds == VARIANT) & ~matched,
        EMPTY: (kinds == PLACE) & ~matched,
    }


def _label(answers: Answers, query: int, kind: str) -> str:
    name = answers.photos[query].metadata["name"]
    return f"{'' if kind == MATCH else 'no match '}{name if kind == EMPTY else f'{kind} {name}'}"
