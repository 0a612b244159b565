"""Losses that exist only for comparison in the papers' tables."""
