"""The import of pytorch-metric-learning, which computes some of the losses, at the time one of them is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from retrieval.errors import MissingDependency


def library(module: str) -> Any:
    """Return a module of pytorch-metric-learning, such as its `losses`."""
    try:
        return import_module(f"pytorch_metric_learning.{module}")
    except ModuleNotFoundError as error:
        raise MissingDependency.of_extra("pytorch-metric-learning, which computes this loss,", "train") from error
