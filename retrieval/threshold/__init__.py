"""Choosing a threshold: calibration, bounds, targets, feedback and the report."""
