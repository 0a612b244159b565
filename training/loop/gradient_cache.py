"""Gradient caching: the gradient of a loss over a batch that is too large for memory, computed in micro-batches.

Symbols: n = batch size, d = embedding size. After Gao et al., "Scaling deep contrastive learning batch size under
memory limited setup" (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from .distributed import ProcessGroup

MicroBatch = TypeVar("MicroBatch")


def backward_with_gradient_cache(
    embed: Callable[[MicroBatch], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    micro_batches: Sequence[MicroBatch],
    labels: Tensor,
    model: nn.Module,
    *,
    process_group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the gradients of a batch to model and loss; return the scalar loss and the embeddings (n, d), detached.

    All micro-batches are embedded without a graph, and the loss of the whole batch gives the gradient of every
    embedding. Then each micro-batch is embedded again with a graph, and its gradient is backpropagated. The forward
    pass runs twice; activations are held for one micro-batch at a time.

    Layers that depend on the batch see the micro-batch instead. Batch-norm in training mode normalises with the
    statistics of each micro-batch, as it does on several devices, and updates its running statistics once per
    micro-batch; frozen batch-norm does not change. Dropout draws one mask per micro-batch, the same in both passes.

    Parameters
    ----------
    embed:
        Returns raw embeddings (rows, d) of a micro-batch; called twice per micro-batch.
    loss:
        Returns the loss of raw embeddings (n, d) and labels (n,), with rows in the order of the micro-batches.
    micro_batches:
        Inputs of `embed`. Each process passes the micro-batches of its own share.
    labels:
        Classes (n,) of all rows of all processes.
    model:
        The network that `embed` runs. Its buffers are restored after the first pass, and its gradients are averaged
        over the processes with the last micro-batch.
    process_group:
        The processes that share the batch; None for a single process.
    """
    device = labels.device
    states, parts = [], []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        for micro_batch in micro_batches:
            states.append(_random_state(device))
            parts.append(embed(micro_batch))
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    share = torch.cat(parts).requires_grad_()
    embeddings = process_group.gather(share, len(labels)) if process_group is not None else share
    value = loss(embeddings, labels)
    value.backward()  # type: ignore[no-untyped-call]
    state_after_loss = _random_state(device)
    if share.grad is None or not any(p.requires_grad for p in model.parameters()):
        return value.detach(), embeddings.detach()  # the loss depends on no trainable parameter
    no_sync = getattr(model, "no_sync", nullcontext)
    start = 0
    for number, (micro_batch, part, state) in enumerate(zip(micro_batches, parts, states, strict=True)):
        _set_random_state(state, device)
        with no_sync() if number + 1 < len(micro_batches) else nullcontext():
            torch.autograd.backward(embed(micro_batch), share.grad[start : start + len(part)])
        start += len(part)
    _set_random_state(state_after_loss, device)
    return value.detach(), embeddings.detach()


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
