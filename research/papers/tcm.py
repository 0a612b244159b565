"""Configurations of "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning" (arXiv 2307.04047)."""

from __future__ import annotations

from pathlib import Path

from . import tcm_recipes
from .configuration import read_tables
from .tcm_figures import FIGURES

CONFIGURATIONS = (*read_tables(Path(__file__).with_name("tcm_tables.toml"), vars(tcm_recipes)), *FIGURES)

NOTHING_TO_RUN = {"Figure 4": "a drawing of the method; nothing is measured"}
