"""Regions of a photo: which items are in it, and where."""
