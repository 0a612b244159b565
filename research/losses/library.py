"""The modules of pytorch-metric-learning that compute losses and mine batches."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from retrieval.errors import importing


def library(module: Literal["losses", "miners"]) -> Any:
    """Return a module of pytorch-metric-learning.

    No other module may be imported: `testers` and `utils.inference` replace methods of Faiss in the whole process, and
    the `search` that they put there takes no parameters, which searches of galleries need.
    """
    called = "pytorch-metric-learning, which computes this loss,"
    with importing("pytorch_metric_learning", "dev", called=called):
        return import_module(f"pytorch_metric_learning.{module}")
