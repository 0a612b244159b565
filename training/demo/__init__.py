"""Demo of the whole workflow on a synthetic catalogue."""

from .cli import demo
from .run import run_demo

__all__ = ["demo", "run_demo"]
