"""Metrics: ranks, identification rates, consistency (OPIS), re-ranking and diversity."""

from .ranks import map_at_r, r_precision, recall_at_k

__all__ = ["map_at_r", "r_precision", "recall_at_k"]
