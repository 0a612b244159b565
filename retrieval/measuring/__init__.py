"""Measuring: searches for left-out items (draws), the error rates of a threshold, and the rule that sets it.

The package reads photos only through the protocol `index.photos.Photos`. It knows nothing of disks, images or models.
"""
