"""Metrics: ranks, identification rates, consistency (OPIS), re-ranking and diversity."""
