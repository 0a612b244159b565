"""Synthetic catalogue, drawn with Pillow, for the demo and for tests without downloads."""

from .catalogue import make_catalogue

__all__ = ["make_catalogue"]
