"""Several processes that train one model: each embeds its share of a batch, all see the whole loss.

Symbols: n = photos of the global batch, r = this process's share of them, d = embedding size, W = processes.

Every process computes the loss of all n embeddings, the same everywhere, and carries the gradient of its own rows
back. `DistributedDataParallel` averages the model's gradients over processes, so that the gathered rows' gradient is
multiplied by W: the model moves as one process with the whole batch would move it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes
from torch.nn.parallel import DistributedDataParallel

from retrieval import errors
from retrieval.cores import threads_of_share
from retrieval.errors import InvalidParameter, RetrievalError, RunError

from .run import choose_device

T = TypeVar("T")


class Team:
    """The processes of a run, seen from one of them; by itself where there is only one."""

    def __init__(self, device: torch.device, *, rank: int = 0, size: int = 1) -> None:
        self.device = device
        self.rank = rank
        self.size = size

    @classmethod
    def join(cls, device: str) -> Team:
        """Return the team that this process was launched into (`--devices`, `accelerate launch`), or one of one."""
        if not launched():
            return cls(choose_device(device))
        from accelerate import PartialState

        torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_share()))))
        state = PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
        return cls(state.device, rank=state.process_index, size=state.num_processes)

    @property
    def leads(self) -> bool:
        """Whether this process writes what the run leaves."""
        return self.rank == 0

    def mine(self, positions: np.ndarray) -> np.ndarray:
        """Return this process's share of what all share, in order."""
        share: np.ndarray = np.array_split(positions, self.size)[self.rank]
        return share

    def wrap(self, network: nn.Module, *, static_statistics: bool) -> nn.Module:
        """Return what to call in place of a network, so that gradients are averaged; itself where it learns nothing.

        Every parameter that requires a gradient must get one in each step.
        """
        if self.size == 1 or not any(p.requires_grad for p in network.parameters()):
            return network
        if not static_statistics and self.device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(
            network,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            forward_sync_buffers=not static_statistics,
        )

    def gather(self, embeddings: Tensor, rows: int) -> Tensor:
        """Return the embeddings (n, d) of all processes' shares of a batch of n = `rows`, with their gradients."""
        if self.size == 1:
            return embeddings
        gathered: Tensor = _Gather.apply(embeddings, rows, self)  # type: ignore[no-untyped-call]
        return gathered

    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average gradients over the processes; they are equal but for rounding, and stay so."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:  # every process drew the same classes
                parameter.grad = parameter.grad.coalesce()
            values = parameter.grad._values() if parameter.grad.is_sparse else parameter.grad
            dist.all_reduce(values)
            values /= self.size

    def align(self, module: nn.Module) -> None:
        """Give every process the parameters and buffers of the first."""
        if self.size > 1:
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, 0)

    def collect(self, share: np.ndarray) -> np.ndarray:
        """Return the rows of all processes' shares, in order, everywhere."""
        if self.size == 1:
            return share
        shares: list[Any] = [None] * self.size
        dist.all_gather_object(shares, share)
        return np.concatenate(shares)

    def lead(self, action: Callable[[], object]) -> None:
        """Let the first process do something, and refuse it everywhere when it is refused there."""
        refusal: RetrievalError | None = None
        if self.leads:
            try:
                action()
            except RetrievalError as error:
                refusal = error
        told = self.agree(None if refusal is None else (refusal.message, refusal.remedy))
        if refusal is not None:
            raise refusal
        if told is not None:
            raise RunError(told[0], remedy=told[1])

    def agree(self, value: T) -> T:
        """Return what the first process has."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Wait for all the others."""
        if self.size > 1:
            dist.barrier()


class _Gather(torch.autograd.Function):
    """All rows of all processes; each gets the gradient of its own, times W."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, rows: int, team: Team) -> Tensor:
        sizes = [len(part) for part in np.array_split(np.arange(rows), team.size)]
        ctx.start, ctx.rows, ctx.size = sum(sizes[: team.rank]), sizes[team.rank], team.size
        padded = embeddings.new_zeros(max(sizes), embeddings.shape[1])
        padded[: len(embeddings)] = embeddings
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.size * gradient[ctx.start : ctx.start + ctx.rows], None, None


class ProcessEnded(RunError):
    """One of the processes of a run was killed, or ended without a word."""


def launched() -> bool:
    """Return whether a launcher started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def launch(work: Callable[..., None], arguments: tuple[Any, ...], *, processes: int) -> None:
    """Run `work(*arguments)` in several new processes that know of each other, and wait for them.

    When one dies the others are ended. Raises the RetrievalError that one of them raised, or RunError.
    """
    refusals = multiprocessing.get_context("spawn").SimpleQueue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        start_processes(_enter, (work, arguments, processes, port, refusals), nprocs=processes, start_method="spawn")  # type: ignore[no-untyped-call]
    except ProcessExitedException as error:
        name = signal.Signals(-error.exit_code).name if error.exit_code < 0 else f"status {error.exit_code}"
        raise ProcessEnded(
            f"process {error.error_index} of {processes} ended with {name}", remedy="Continue the run with --resume"
        ) from error
    except ProcessRaisedException as error:
        if refusals.empty():
            raise
        kind, message, remedy = refusals.get()
        refusal = getattr(errors, kind)
        raise (RunError if issubclass(refusal, InvalidParameter) else refusal)(message, remedy=remedy) from error


def _enter(
    rank: int, work: Callable[..., None], arguments: tuple[Any, ...], processes: int, port: int, refusals: Any
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        work(*arguments)
    except RetrievalError as error:
        refusals.put((type(error).__name__, error.message, error.remedy))
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
