"""Calibration of an operating point (`retrieval.threshold.calibrate`)."""

from .threshold.calibrate import OperatingPoint, calibrate

__all__ = ["OperatingPoint", "calibrate"]
