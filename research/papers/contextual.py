"""Configurations of "Metric Learning to Rank via Contextual Similarity Optimization" (arXiv 2210.01908)."""

from __future__ import annotations

from .contextual_figures import FIGURES
from .contextual_studies import STUDIES
from .contextual_tables import MAIN_TABLES

CONFIGURATIONS = (*MAIN_TABLES, *STUDIES, *FIGURES)

NOTHING_TO_RUN = {
    "Figure 1": "photos of two data sets; nothing is measured",
    "Figure 5": "a drawing of the gradient; nothing is measured",
    "Figure 10": "a drawing of step 1; nothing is measured",
}
