"""`Collectives`: NCCL, or gloo on a CPU, between the ranks of one group; no process-wide state of torch.distributed."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, Store, TCPStore

from visavis.engine.communicator import columns_of
from visavis.errors import BackendError

__all__ = ["Collectives", "backend_for", "open_store"]

HOST = "127.0.0.1"


def backend_for(device: torch.device) -> str:
    """Raises BackendError where this torch has none."""
    name = "nccl" if device.type == "cuda" else "gloo"
    there = dist.is_available() and (dist.is_nccl_available() if name == "nccl" else dist.is_gloo_available())
    if not there:
        raise BackendError(f"tensor_parallel_size needs {name}, which this build of torch does not have")
    return name


def open_store() -> TCPStore:
    """Where the ranks of one machine find each other; at a free port of its own."""
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


class Collectives:
    """Every rank makes one, at about the same time, and then calls the same operations in the same order."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._group = _make(backend_for(device), store, rank, size, timedelta(seconds=timeout_s))
        self._sum = _on_current_stream(dist.AllreduceOptions())
        self._from_first = _on_current_stream(dist.BroadcastOptions())
        self._from_first.rootRank = 0
        self._gather = _on_current_stream(AllgatherOptions())
        self.all_reduce(torch.zeros(1, device=device))  # meets the others; NCCL makes its buffers now

    @classmethod
    def join(cls, port: int, rank: int, size: int, device: torch.device, timeout_s: float) -> Collectives:
        store = TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=timeout_s))
        return cls(store, rank, size, device, timeout_s)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        _wait(self._group.allreduce([x], self._sum))
        return x

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        _wait(self._group.broadcast([x], self._from_first))
        return x

    def all_gather(self, part: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """part (rows, columns) of each rank → out (size · rows, columns), in the order of ranks."""
        _wait(self._group._allgather_base(out, part, self._gather))
        return out

    def join_columns(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """See `Communicator`."""
        rows, count = part.shape
        out = part.new_empty((rows, columns)) if self.rank == 0 else None
        return self.join_into(out, part.contiguous(), part.new_empty((self.size * rows, count)))

    def join_into(self, out: torch.Tensor | None, part: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        """The same in memory that is there: part (rows, count), parts (size · rows, count); `out` on rank 0."""
        self.all_gather(part, parts)
        if out is None:
            return part
        rows, columns = out.shape
        for rank in range(self.size):
            first, count = columns_of(rank, self.size, columns)
            out[:, first : first + count] = parts[rank * rows : (rank + 1) * rows]
        return out

    def abort(self) -> None:
        """Ends what waits for the others, in whichever thread; nothing works afterwards."""
        if self.device.type == "cuda":
            self._group.abort()


NCCL_OWN_WATCH = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""torch's own watch ends the whole process when a rank is late or gone, which is the user's here: `group` watches."""


def _make(backend: str, store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    made: Any  # torch's annotations lack what is used here
    if backend == "gloo":
        made = dist.ProcessGroupGloo
        options = made._Options()
        options._devices = [made.create_device(hostname=HOST)]
        options._timeout = timeout
        return made(store, rank, size, options)
    made = dist.ProcessGroupNCCL
    options = made.Options()
    options._timeout = timeout
    before = {name: os.environ.get(name) for name in NCCL_OWN_WATCH}
    os.environ.update(NCCL_OWN_WATCH)
    try:
        return made(store, rank, size, options)
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _on_current_stream(options: Any) -> Any:
    """Not on a stream of NCCL's own: what follows needs the result at once, and a graph is one chain then."""
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    return options


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
