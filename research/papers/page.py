"""Generator of docs/papers.md: paper item, command, measured value, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from research.markdown import markdown_table

from .configuration import DRAWN, Configuration
from .listing import PAPERS
from .measured import measured_values

HEAD = """# The papers' tables and figures

## What each paper gives the product

- *Threshold-Consistent Margin Loss* gives TCM, a margin that makes one distance mean the same for every item, and OPIS,
  the measure of that. See `train --regularizer tcm`, and [the demo](tables/demo.md), which trains with and without it.
  OPIS is in the lines of `train`, in `evaluate`, and in the evidence and the report of every threshold.
- *Mean Field Theory in Deep Metric Learning* gives losses that compare photos with a learned mean of each item instead
  of with each other: `train --loss mean_field_contrastive` and `mean_field_class_wise_multi_similarity`.
- *Contextual Similarity Optimization* gives losses that also compare the neighbours of two photos:
  `train --loss contextual` and `contextual_sum`, and the sampler `groups:COLUMN`.
- *A Non-isotropic Probabilistic Take on Proxy-based Metric Learning* gives EL-nivMF, in which each item has a direction
  and a spread of its own: `train --loss proxy_anchor --regularizer vmf_nca`. It also gives the `norm` of a photo,
  which is in the answers of models trained with this loss, and which the server watches for drift.

## How to run them

Every table and figure of the four papers that this project builds on has a configuration that `retrieval research run`
runs from start to end, on the official data sets or on a catalogue of your own. This page is made of those
configurations (`retrieval research list --markdown`); a test keeps both alike.

    retrieval research show NAME                                 what it trains and measures
    retrieval research run NAME --data DATA -o papers            the paper's protocol; DATA holds cub, cars, sop, ...
    retrieval research run NAME --data photos.csv -o papers      the same comparison on your photos
    retrieval research run NAME --data DATA -o try --smoke-test   minutes: a tiny model, to see that all fits together

`--backbone`, `--epochs`, `--seeds`, `--dataset` and `--set NAME=VALUE` change what is trained; changed settings
stand in the results. Runs are shared by the configurations that need the same ones, and an interrupted call continues.

*Measured here* is the result on the machine of the project, two CPU cores without the benchmark sets. "not run" is a
matter of cost: the item needs its data sets and a GPU for hours to weeks.
"""


def render_page() -> str:
    """Return the page."""
    lines, measured = [HEAD], measured_values()
    for paper in PAPERS.values():
        rows = [(entry.items, _row(entry, measured)) for entry in paper.configurations]
        rows += [((item,), (item, reason, "-", "nothing to run")) for item, reason in paper.nothing_to_run.items()]
        cells = [row for _, row in sorted(rows, key=lambda row: _order(row[0]))]
        lines += [f"## {paper.title}", "", *markdown_table(("item", "shows", "command", "measured here"), cells), ""]
        notes: dict[str, list[str]] = {}
        for entry in paper.configurations:
            notes.setdefault(_note(entry), []).append(f"`{entry.name}`")
        remarks = [f"- {', '.join(names)}: {text}" for text, names in notes.items() if text]
        lines += ["What differs from the paper:", "", *remarks, ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(entry: Configuration, measured: Mapping[str, str]) -> tuple[str, ...]:
    value = measured.get(entry.name) or f"not run: needs {', '.join(entry.datasets) or entry.settings['backbone']}"
    data = "" if entry.protocol == DRAWN or not entry.datasets else " --data DATA"
    command = f"`retrieval research run {entry.name}{data} -o papers`"
    return ", ".join(entry.items), entry.shows, command, value


def _note(entry: Configuration) -> str:
    return " ".join(text for text in (entry.note, f"Not here: {entry.missing}" if entry.missing else "") if text)


def _order(items: Sequence[str]) -> tuple[str, int]:
    kind, number = re.match(r"(\w+) (\d+)", items[0]).groups()  # type: ignore[union-attr]
    return ("0" if kind == "Table" else "1", int(number))
