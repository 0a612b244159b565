"""Calibration of an operating point (`retrieval.threshold.calibrate`)."""

from retrieval.bundle.operating_point import OperatingPoint

from .threshold.calibrate import calibrate

__all__ = ["OperatingPoint", "calibrate"]
