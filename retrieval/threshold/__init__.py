"""Threshold selection: calibration, bounds, targets, feedback and the report."""
