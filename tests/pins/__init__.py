"""Thresholds, rates, p-values and answers of ten galleries as they were before the redesign, to the last digit.

They guard the redesign while it lasts, and go with its last commit.
"""
