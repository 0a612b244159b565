"""Configurations of "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning" (arXiv 2307.04047)."""

from __future__ import annotations

from .tcm_figures import FIGURES
from .tcm_tables import TABLES

CONFIGURATIONS = (*TABLES, *FIGURES)

NOTHING_TO_RUN = {"Figure 4": "a drawing of the method; nothing is measured"}
