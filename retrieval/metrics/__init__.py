"""Metrics: ranks, identification rates, bounds on rates, and consistency across items (OPIS)."""

from .ranks import map_at_r, mean_average_precision, r_precision, recall_at_k

__all__ = ["map_at_r", "mean_average_precision", "r_precision", "recall_at_k"]
