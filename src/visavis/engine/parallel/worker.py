"""The process of a rank other than 0: loads its share of a model and does what rank 0 tells. Run by `group`."""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from visavis.engine.communicator import Communicator
from visavis.engine.device_step import Decodes, Mixed
from visavis.engine.kernels.choose import choose_kernels
from visavis.engine.out_of_memory import first_line, is_out_of_memory
from visavis.engine.parallel.collectives import Collectives
from visavis.engine.parallel.leader import receive_visual
from visavis.engine.parallel.memory import reserve
from visavis.engine.parallel.messages import (
    Cache,
    Close,
    Encode,
    Enter,
    Failed,
    Go,
    Join,
    Launch,
    Loaded,
    Ready,
    Start,
)  # fmt: skip
from visavis.engine.share import ModelShare
from visavis.errors import VisavisError

__all__ = ["Follower", "main"]


class Follower(Communicator):
    """A rank that follows: it tells nobody anything."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size


class Worker:
    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def start(self) -> None:
        """Loads, meets the others, makes its cache."""
        start: Start = self.pipe.recv()
        torch.set_num_threads(start.threads)
        settings = self.settings = start.settings
        device, size = settings.device, settings.tensor_parallel_size
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.kernels = choose_kernels(start.config, settings)
        self.kernels.communicator = follower = Follower(start.rank, size)
        self.share = ModelShare(start.folder, start.config, settings, self.kernels)
        self.kernels.warmed_up()
        self.pipe.send(Ready())
        join: Join = self.pipe.recv()
        follower.collectives = Collectives.join(join.port, start.rank, size, device, join.timeout_s)
        self.pipe.send(Loaded(settings.kv_blocks(start.config)))
        told: Cache = self.pipe.recv()
        cache = self.share.add_cache(told.num_blocks)
        self.ahead = self.kernels.ahead(
            self.share.model, self.share.rope, cache, settings.max_num_seqs, told.max_model_len
        )
        self.pipe.send(Ready())

    def serve(self) -> None:
        """Until rank 0 says that it is over, or is gone."""
        while True:
            message = self.pipe.recv()
            if isinstance(message, Close):
                if self.settings.device.type == "cuda":
                    torch.cuda.synchronize()  # a step launched ahead ends on all ranks
                return
            self._do(message)

    def _do(self, message: Any) -> None:
        match message:
            case Decodes():
                self.share.step.decodes(message)
            case Launch() | Enter():
                self._follow(message)
            case Mixed():
                if self._agreed(self.settings.tokens_bytes(self.share.config, len(message.token_ids))):
                    visual = receive_visual(message, self.share)
                    self.share.step.mixed(message, visual, lambda number, logits: None)
            case Encode():
                tower = self.share.tower
                assert tower is not None
                if self._agreed(self.settings.patches_bytes(self.share.config, message.patches[0])):
                    patches = torch.empty(message.patches, device=tower.device, dtype=tower.dtype)
                    tower(self.kernels.communicator.broadcast(patches), message.grids)
            case _:
                raise TypeError(f"{type(message).__name__} is not for a worker")

    def _follow(self, message: Enter | Launch) -> None:
        """Decoding ahead, which only GPUs do."""
        assert self.ahead is not None
        if isinstance(message, Enter):
            self.ahead.enter(torch.from_numpy(message.tables))
            return
        columns = self.ahead.next_columns(message.size)
        columns.copy_(torch.from_numpy(message.columns))
        self.ahead.start(message.size, message.mode, columns)

    def _agreed(self, num_bytes: int) -> bool:
        try:
            reserve(num_bytes, self.settings.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.pipe.send(Failed("MemoryError", first_line(error)))
        else:
            self.pipe.send(Ready())
        answer: Go = self.pipe.recv()
        return answer.go


def main(arguments: list[str]) -> None:
    """`arguments`: the socket's file descriptor, and what else `ChildProcess` gives."""
    connection = int(arguments[0])
    os.set_inheritable(connection, False)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    pipe = Connection(connection)
    worker = Worker(pipe)
    try:
        with torch.inference_mode():
            worker.start()
            worker.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        _leave(1)
    except BaseException as error:
        traceback.print_exc()
        kind = type(error).__name__ if isinstance(error, VisavisError) else ""
        text = str(error) if isinstance(error, VisavisError) else f"{type(error).__name__}: {first_line(error)}"
        try:
            pipe.send(Failed(kind, text))
        finally:
            _leave(1)
    _leave(0)


def _leave(code: int) -> None:
    """At once: the way of communicators that are torn down in order waits for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent(connection: int) -> None:
    """A rank that waits for the others in a collective reads no pipe: this thread sees that it was closed."""
    poll = select.poll()
    poll.register(connection, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    while not poll.poll():
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
