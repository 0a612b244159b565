"""Metrics and drift monitoring."""
