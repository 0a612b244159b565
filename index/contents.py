"""The name under which a gallery keeps its operating point."""

from .database import POINT

__all__ = ["POINT"]
