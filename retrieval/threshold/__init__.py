"""Thresholds: the rule for bundles, anchoring in a gallery, bounds, and labelled queries."""
