"""Proxies for very many classes: a step compares with those of its batch and a random sample of the others.

Symbols: n = batch size, d = embedding size, C = classes, S = classes of a step. The idea of An et al., "Partial FC:
Training 10 Million Identities on a Single Machine" (2021), for every loss that has one row a class.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .base import check_labels


class SampledClasses(nn.Module):
    """A loss of which each step sees S = `share` · C classes, those of the batch always among them.

    Gradients of the rows are sparse, so that a step costs O(n S d), and with `torch.optim.SparseAdam` neither time nor
    traffic grows with C. What a loss normalises by the number of classes it normalises by S. In evaluation mode, and
    where the batch alone has more classes, all that are needed are seen.

    Raises InvalidParameter for a loss without proxies, or with another layout than one row a class.
    """

    def __init__(self, loss: nn.Module, classes: int, *, share: float) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise InvalidParameter("proxy_sample", "lie between 0 and 1", share)
        self._names = [n for n, p in loss.named_parameters() if p.dim() and len(p) == classes]
        if not self._names or any(p.dim() and len(p) != classes for p in loss.parameters()):
            raise InvalidParameter(
                "proxy_sample",
                f"be 1 for {type(loss).__name__}, which has no row a class",
                share,
                remedy="proxy_anchor, proxy_nca, arcface, vmf_nca and the mean-field losses have one",
            )
        self.loss = loss
        self.classes = classes
        self.share = share

    def of_classes(self) -> list[nn.Parameter]:
        """Return the parameters that have a row a class."""
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
        """Return the classes of the batch and enough others, drawn without looking at all C."""
        present: Tensor = torch.unique(labels)
        wanted = max(round(self.share * self.classes), 2)
        chosen = present
        while len(chosen) < min(wanted, self.classes):  # a few draws repeat: draw until there are enough
            more = torch.randint(self.classes, (wanted - len(chosen) + 8,), device="cpu").to(labels.device)
            fresh = torch.unique(more)
            fresh = fresh[~torch.isin(fresh, chosen)]
            keep = fresh[torch.randperm(len(fresh), device="cpu").to(labels.device)[: wanted - len(chosen)]]
            chosen = torch.unique(torch.cat([chosen, keep]))
        return chosen
