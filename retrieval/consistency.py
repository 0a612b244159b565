"""Consistency of a threshold across items: OPIS and utility curves (`retrieval.metrics.consistency`)."""

from .metrics.consistency import Opis, UtilityCurves, opis, opis_of_ranges, search_curves, search_opis, utility_curves

__all__ = ["Opis", "UtilityCurves", "opis", "opis_of_ranges", "search_curves", "search_opis", "utility_curves"]
