"""Logs, metrics, drift monitor and readiness."""
