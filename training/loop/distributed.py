"""Data-parallel training: each process embeds its share of a batch, and all compute the loss of the whole batch.

Symbols: n = photos of the global batch, r = this process's share of them, d = embedding size, W = processes.

Every process computes the same loss of all n embeddings and backpropagates the gradient of its own rows.
`DistributedDataParallel` averages the model's gradients over the processes, so the gradient of the gathered rows is
multiplied by W. The result equals a step of one process with the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from retrieval.errors import InvalidParameter
from retrieval.process import threads_of_share
from training.model import choose_device

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as seen by one of them. A group of one needs no communication."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> ProcessGroup:
        """Return the group that `accelerate launch` started this process in, or a group of one."""
        size = os.environ.get("WORLD_SIZE", "1")
        if not size.isdecimal():
            raise InvalidParameter("WORLD_SIZE", "be a whole number", size, remedy="Unset it, or use accelerate launch")
        if int(size) < 2:
            return cls(choose_device())
        from accelerate import PartialState

        torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_share()))))
        state = PartialState(cpu=not torch.cuda.is_available())
        return cls(state.device, rank=state.process_index, size=state.num_processes)

    @property
    def is_main(self) -> bool:
        """Return whether this is the main process, which writes the files of the run."""
        return self.rank == 0

    def share(self, rows: np.ndarray) -> np.ndarray:
        """Return this process's share of rows that the group divides, in order."""
        share: np.ndarray = np.array_split(rows, self.size)[self.rank]
        return share

    def wrap(self, network: nn.Module, *, static_statistics: bool) -> nn.Module:
        """Return the network with the weights of the main process, wrapped so that gradients are averaged.

        Every parameter that requires a gradient must get one in each step.
        """
        if self.size == 1:
            return network
        if not static_statistics and self.device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(
            network,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            forward_sync_buffers=not static_statistics,
        )

    def gather(self, embeddings: Tensor, rows: int) -> Tensor:
        """Return the embeddings (n, d) of the whole batch of n = `rows`; the gradient of own rows is W times theirs."""
        if self.size == 1:
            return embeddings
        from torch.distributed.nn.functional import all_gather

        sizes = [len(part) for part in np.array_split(np.arange(rows), self.size)]
        parts = all_gather(F.pad(embeddings, (0, 0, 0, max(sizes) - len(embeddings))))  # type: ignore[no-untyped-call]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients over the processes. They differ by rounding only, and are equal afterwards."""
        for parameter in parameters:
            if self.size > 1 and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.size

    def gather_rows(self, share: np.ndarray) -> np.ndarray:
        """Return the rows of all processes, in order, in every process."""
        if self.size == 1:
            return share
        from accelerate.utils import gather_object

        return np.concatenate(gather_object([share]))

    def broadcast(self, value: T) -> T:
        """Return the value that the main process passes."""
        if self.size == 1:
            return value
        from accelerate.utils import broadcast_object_list

        (shared,) = broadcast_object_list([value])
        return cast(T, shared)

    def barrier(self) -> None:
        """Wait until every process has reached this call. If one fails before, the launcher ends them all."""
        if self.size > 1:
            dist.barrier()
