"""A procedural catalogue: products drawn with Pillow, for a demo and for tests that need no download."""

from .catalogue import make_catalogue

__all__ = ["make_catalogue"]
