"""Sampled proxies for very many classes: each step uses those of its batch and a random sample of the others.

Symbols: n = batch size, d = embedding size, C = classes, S = classes of a step. After An et al., "Partial FC: Training
10 Million Identities on a Single Machine" (2021), for every loss with one row per class.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .base import check_labels


class SampledClasses(nn.Module):
    """A loss that uses S = `share` · C classes per step, always including those of the batch.

    Gradients of the rows are sparse, so that a step costs O(n S d), and with `torch.optim.SparseAdam` neither time nor
    communication grows with C. A loss that divides by the number of classes divides by S. A batch with more than S
    classes uses all of its classes.

    Raises InvalidParameter for a loss without proxies, or without one row per class.
    """

    def __init__(self, loss: nn.Module, classes: int, *, share: float) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise InvalidParameter("proxy_sample", "lie between 0 and 1", share)
        self._names = [n for n, p in loss.named_parameters() if p.dim() and len(p) == classes]
        if not self._names or any(p.dim() and len(p) != classes for p in loss.parameters()):
            raise InvalidParameter(
                "proxy_sample",
                f"be 1 for {type(loss).__name__}, which has not one row per class",
                share,
                remedy="Use proxy_anchor, proxy_nca, arcface, vmf_nca or a mean-field loss",
            )
        self.loss = loss
        self.classes = classes
        self.share = share

    def of_classes(self) -> list[nn.Parameter]:
        """Return the parameters with one row per class."""
        parameters = dict(self.loss.named_parameters())
        return [parameters[name] for name in self._names]

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        check_labels(labels, self.classes)
        chosen = self._choose(labels)  # (S,), ascending
        parameters = dict(self.loss.named_parameters())
        rows = {}
        for name in self._names:
            table = parameters[name]
            if table.dim() == 1:
                rows[name] = torch.gather(table, 0, chosen, sparse_grad=True)
            else:
                rows[name] = F.embedding(chosen, table, sparse=True)
        local = torch.searchsorted(chosen, labels)
        value: Tensor = torch.func.functional_call(self.loss, rows, (embeddings, local))
        return value

    def _choose(self, labels: Tensor) -> Tensor:
        """Return the classes of the batch and a random sample of the others, without enumerating all C."""
        present: Tensor = torch.unique(labels)
        wanted = max(round(self.share * self.classes), 2)
        chosen = present
        while len(chosen) < min(wanted, self.classes):  # draws may repeat: draw until there are enough
            more = torch.randint(self.classes, (wanted - len(chosen) + 8,), device="cpu").to(labels.device)
            fresh = torch.unique(more)
            fresh = fresh[~torch.isin(fresh, chosen)]
            keep = fresh[torch.randperm(len(fresh), device="cpu").to(labels.device)[: wanted - len(chosen)]]
            chosen = torch.unique(torch.cat([chosen, keep]))
        return chosen
