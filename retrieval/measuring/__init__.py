"""Measuring: searches for unknown items in given photos, the error rates of a threshold, and the rule that sets one.

It asks photos through `index.photos.Photos` alone, and knows nothing of disks, images or models.
"""
