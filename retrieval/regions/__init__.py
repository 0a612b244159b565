"""Regions of a photo, to find several items and their places."""
