"""Logs, metrics and drift monitoring."""
