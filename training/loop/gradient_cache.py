"""Gradient caching: the gradient of a loss over a batch that is too large for memory, computed in micro-batches.

After Gao et al., "Scaling deep contrastive learning batch size under memory limited setup" (2021). Symbols: n = batch
size, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MicroBatch = TypeVar("MicroBatch")


def embed_in_micro_batches(
    embed: Callable[[MicroBatch], Tensor], micro_batches: Sequence[MicroBatch], model: nn.Module
) -> Tensor:
    """Return the embeddings (n, d) of a batch, whose gradient holds the activations of one micro-batch at a time.

    The backward pass embeds every micro-batch once more. Layers that depend on the batch see the micro-batch instead:
    batch-norm in training mode normalises with its statistics, as it does on several devices, and updates its running
    statistics once per micro-batch. Dropout draws one mask per micro-batch, the same in both passes.

    Parameters
    ----------
    embed:
        Returns raw embeddings (rows, d) of a micro-batch.
    model:
        The network that `embed` runs.
    """
    if len(micro_batches) == 1:
        return embed(micro_batches[0])

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), buffers_kept(model)

    parts = [checkpoint(embed, part, use_reentrant=False, context_fn=contexts) for part in micro_batches]
    return torch.cat(parts)


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of a network, such as the statistics of batch-norm, at the end of the block."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)
