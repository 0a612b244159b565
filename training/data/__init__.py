"""Training data: reading, caching, augmentation, sampling and splits."""
