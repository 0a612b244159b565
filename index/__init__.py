"""Vectors in, neighbours out: the gallery, without images or models."""
