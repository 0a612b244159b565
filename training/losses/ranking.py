"""Losses of ranks: smooth surrogates of average precision.

Symbols: n = batch size, d = embedding size, m = positives of a query, s = cosine similarities (n, n).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss

BLOCK = 2**24  # elements of the largest (queries, m, n) block


def smooth_average_precision(
    similarity: Tensor, labels: Tensor, *, temperature: float, count_query: bool
) -> tuple[Tensor, Tensor]:
    """Return each query's smooth average precision (n,), and whether it has any positive (n,).

    With G = sigmoid((s_qz - s_qx) / temperature), AP_q is the mean over its positives x of
    (1 + Σ_{positives z ≠ x} G) / (1 + Σ_{z ≠ x} G). Only the columns of positives are compared: n·m·n
    numbers, taken in blocks of queries.

    Parameters
    ----------
    similarity:
        Cosines (n, n).
    count_query:
        Whether a query is among its own positives and in its own database, as in the released code.
    """
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = same if count_query else same & ~itself
    most = max(1, int(positive.sum(dim=1).max()))
    # (n, most): the positives of each query first, whatever pads the shorter rows is masked
    order = torch.sort(positive.to(torch.uint8), dim=1, descending=True, stable=True).indices[:, :most]
    rows = max(1, BLOCK // (most * len(labels)))
    values = [
        _block(
            similarity[start : start + rows],
            positive[start : start + rows],
            order[start : start + rows],
            start,
            temperature,
            count_query,
        )
        for start in range(0, len(labels), rows)
    ]
    return torch.cat(values), positive.any(dim=1)


def _block(
    similarity: Tensor, positive: Tensor, order: Tensor, start: int, temperature: float, count_query: bool
) -> Tensor:
    """Return the average precision (b,) of queries start..start+b from their cosines (b, n)."""
    valid = positive.gather(1, order)  # (b, m)
    own = similarity.gather(1, order)  # (b, m)
    above = torch.sigmoid((similarity[:, None, :] - own[:, :, None]) / temperature)  # (b, m, n)
    above = above.scatter(2, order[:, :, None], 0.0)  # z = x does not count
    if not count_query:
        queries = torch.arange(start, start + len(order), device=order.device)
        above = above.scatter(2, queries[:, None, None].expand(-1, order.shape[1], 1), 0.0)
    ahead = 1 + above.sum(dim=2)
    positives_ahead = 1 + (above * positive[:, None, :]).sum(dim=2)
    precision = positives_ahead / ahead * valid
    return precision.sum(dim=1) / valid.sum(dim=1).clamp(min=1)


class SmoothAP(Loss):
    """One minus the smooth average precision (Brown et al., ECCV 2020).

    `count_query=True` counts the query among its own positives, as the released code behind the published
    numbers does; False is the exact definition. Queries without a positive are left out. Cost O(n² m).
    """

    def __init__(self, *, temperature: float = 0.01, count_query: bool = True) -> None:
        super().__init__()
        if not temperature > 0:
            raise InvalidParameter("temperature", "be positive", temperature)
        self.temperature = temperature
        self.count_query = count_query

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        similarity = unit @ unit.T
        precision, asked = smooth_average_precision(
            similarity, labels, temperature=self.temperature, count_query=self.count_query
        )
        return ((1 - precision) * asked).sum() / asked.sum().clamp(min=1)
