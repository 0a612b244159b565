"""Results of a configuration: values, means and intervals, as JSON and as Markdown with the paper's numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.markdown import markdown_row, markdown_table
from retrieval.files import write_file

from .configuration import Configuration

Cells = dict[str, dict[str, dict[str, list[float]]]]  # data set, variant, metric: printed values, one per seed


@dataclass(frozen=True)
class Results:
    """Results of one configuration."""

    configuration: Configuration
    cells: Cells
    facts: Mapping[str, Any]  # changes to the configuration

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "configuration": self.configuration.name,
            "items": list(self.configuration.items),
            **self.facts,
            "results": {
                dataset: {
                    variant: {
                        metric: {"mean": float(np.mean(v)), "half_width": self._half_width(v), "values": v}
                        for metric, v in row.items()
                    }
                    for variant, row in rows.items()
                }
                for dataset, rows in self.cells.items()
            },
        }

    def to_markdown(self) -> str:
        """Return one table per data set: mean ± half of the 95 % interval over seeds, and the paper's number."""
        entry = self.configuration
        lines = [f"# {entry.name}: {', '.join(entry.items)}", "", entry.shows, ""]
        for dataset, rows in self.cells.items():
            metrics = list(next(iter(rows.values())))
            lines += [f"## {dataset}", "", *markdown_table(("variant", *metrics))]
            for variant, row in rows.items():
                paper = dict(zip(entry.metrics, entry.published.get((dataset, variant), ()), strict=False))
                cells = [self._cell(values, paper.get(metric)) for metric, values in row.items()]
                lines.append(markdown_row((variant, *cells)))
            lines.append("")
        left = [name for name in entry.datasets if name not in self.cells]
        if 0 < len(left) < len(entry.datasets):
            lines += [f"Not run: {', '.join(left)}.", ""]
        if self.facts.get("smoke_test"):
            lines += ["A smoke test: a tiny model after two steps. The figures mean nothing."]
            return "\n".join(lines) + "\n"
        changes = self.facts.get("changes")
        legend = "Recalls and precisions in %, OPIS in units of 1e-3; in brackets what the paper prints."
        lines += [legend, *([f"Changed settings: {json.dumps(changes)}."] if changes else [])]
        for label, text in (("Note", entry.note), ("Not here", entry.missing)):
            lines += [f"{label}: {text}"] if text else []
        return "\n".join(lines) + "\n"

    def _half_width(self, values: Sequence[float]) -> float | None:
        """Return half of the 95 % interval of the mean; a smoke test has none."""
        return None if self.facts.get("smoke_test") else half_width(values)

    def _cell(self, values: Sequence[float], paper: float | None) -> str:
        half = self._half_width(values)
        text = f"{np.mean(values):.4g}" + ("" if half is None else f" ± {half:.2g}")
        return text if paper is None else f"{text} [{paper:g}]"

    def write(self, folder: Path) -> None:
        """Write results.json and results.md."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "results.json", json.dumps(self.to_dict(), indent=2) + "\n")
        write_file(folder / "results.md", self.to_markdown())


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean (Student's t); None for a single value."""
    if len(values) < 2:
        return None
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
