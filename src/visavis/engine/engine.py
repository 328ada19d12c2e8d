"""`NativeEngine`: requests in, tokens out, one step at a time."""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from visavis.completion import FinishReason, TokenLogprobs
from visavis.engine.block_pool import BlockPool
from visavis.engine.communicator import ALONE, Communicator
from visavis.engine.config import EngineConfig, EngineSettings, free_memory
from visavis.engine.encoder import VisionEncoder
from visavis.engine.forks import check_process, refuse_fork
from visavis.engine.kernels.choose import choose_kernels
from visavis.engine.loader import tensor_names
from visavis.engine.model_config import ModelConfig
from visavis.engine.out_of_memory import first_line, is_out_of_memory
from visavis.engine.parallel.sharding import config_of_one
from visavis.engine.quantization.fit import fitted
from visavis.engine.requests import make_sequence
from visavis.engine.runner import Runner
from visavis.engine.sampler import NOTHING_ALLOWED, Sampler, why_nothing
from visavis.engine.scheduler import ScheduledStep, Scheduler
from visavis.engine.sequence import Sequence
from visavis.engine.share import ModelShare
from visavis.engine.statistics import Counters, EngineStatistics, snapshot
from visavis.engine.structured import Grammars, completes
from visavis.errors import BackendError, OptionError, shorten
from visavis.machine import usable_cores
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

if TYPE_CHECKING:
    from visavis.engine.kernels.cuda.ahead import AheadDecoder

__all__ = ["NativeEngine", "StepOutput"]

MANY_LOGITS = 1 << 20  # in a step: changing them, drawing from them and ranking them is worth torch's threads

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step brought for one request. `finish_reason` "error" fails this request alone, `error` says why."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop or EOS id that ended it (it is in token_ids)
    error: str | None = None
    queue_s: float | None = None  # from arrival to its first step; on the first output
    num_cached_tokens: int | None = None  # prompt tokens that came from the prefix cache; on the first output
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # where asked for; on the first output


class NativeEngine:
    """Not thread-safe: one thread calls `add_request`, `step` and `abort`; any may call `close`."""

    def __init__(
        self,
        model_path: Path | str,
        config: Mapping[str, Any],
        engine_config: EngineConfig | None = None,
        progress: Progress | None = None,
        tokenizer_json: Callable[[], str] | None = None,
    ) -> None:
        """Loads the folder `model_path`, whose config.json is `config`.

        `tokenizer_json` gives the tokenizer's text to structured output; None: the folder's tokenizer.json is read.

        `progress` is called as (phase, seconds since the start) when a phase begins. Raises ModelError for the
        folder and OptionError for settings that do not fit it.
        """
        begin = time.perf_counter()
        report = progress or (lambda phase, seconds: None)
        whole = ModelConfig.from_dict(config)
        self.settings = (engine_config or EngineConfig()).resolve(whole)
        ranks = self.settings.tensor_parallel_size
        self.model_config = c = config_of_one(whole, ranks, self.settings.scheme)
        # Not more threads than may run, unless the user says so: torch counts the machine's cores, not a container's.
        threads = self.settings.threads or min(torch.get_num_threads(), max(usable_cores() // ranks, 1))
        refuse_fork(threads)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if self.settings.scheme is not None and self.settings.scheme.is_checkpoint:
            self.settings = replace(self.settings, scheme=self.settings.scheme.found_in(tensor_names(Path(model_path))))
        self.fitting: str | None = None  # what was done to make it fit, in words
        if self.settings.device.type == "cuda":
            self.settings, self.fitting = fitted(self.settings, c, free_memory(self.settings.device))
        with ExitStack() as undo, torch.inference_mode():
            self.communicator = communicator = ALONE if ranks == 1 else _lead(model_path, c, self.settings, threads)
            undo.callback(communicator.close)
            report("compile", time.perf_counter() - begin)
            kernels = choose_kernels(c, self.settings)
            kernels.communicator = communicator
            self.kernels = kernels.description
            self.torch_threads = kernels.torch_threads
            self.compile_s = time.perf_counter() - begin
            report("load", self.compile_s)
            share = communicator.led(ModelShare(Path(model_path), c, self.settings, kernels))
            communicator.join()
            self.num_blocks = communicator.smallest(self.settings.kv_blocks(c))
            self.max_model_len = min(self.settings.max_model_len, self.num_blocks * self.settings.block_size)
            cache = share.add_cache(self.num_blocks)
            communicator.make_caches(self.num_blocks, self.max_model_len)
            tower, seats = share.tower, self.settings.max_num_seqs
            self.encoder = VisionEncoder(tower, self.settings.encoder_cache_bytes) if tower is not None else None
            whole_step = kernels.whole_step(share.model, share.rope, cache, seats)
            self.runner = Runner(share.step, self.encoder, cache, c.vocab_size, whole_step)
            self.ahead = kernels.ahead(share.model, share.rope, cache, seats, self.max_model_len)
            undo.pop_all()
        if self.ahead is not None:
            self.ahead.lacks = self._lacks_memory_ahead
        self.pool = BlockPool(
            self.num_blocks, self.settings.block_size, enable_prefix_caching=self.settings.enable_prefix_caching
        )
        self.scheduler = Scheduler(self.pool, self.settings.max_num_seqs, self.settings.max_num_batched_tokens)
        self.sampler = Sampler(c.vocab_size, self.settings.device, kernels.best)
        self.grammars = Grammars(c.vocab_size, tokenizer_json or (Path(model_path) / "tokenizer.json").read_text)
        self._sequences: dict[str, Sequence] = {}
        self.counters = Counters()
        self._uids = itertools.count()
        self._final: EngineStatistics | None = None
        self._closed = False
        self._process_id = os.getpid()
        self._busy = threading.RLock()  # held by a step, and by `close`
        report("ready", time.perf_counter() - begin)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    def statistics(self) -> EngineStatistics:
        """As of now, or of its end. May be read from any thread."""
        if self._final is not None:
            return self._final
        return snapshot(self.scheduler, self.counters, self.encoder.cache if self.encoder is not None else None)

    def add_request(self, request_id: str, prompt: Prompt, sampling: ResolvedSampling, priority: int = 0) -> None:
        """Queues a request. Raises an InputError for one that can never run; the others are not touched."""
        self.add(self.prepare(request_id, prompt, sampling, priority))

    def prepare(self, request_id: str, prompt: Prompt, sampling: ResolvedSampling, priority: int = 0) -> Sequence:
        """Checks a request and works out what can be before its turn. Unlike all else, any thread may call this, and
        `needs_patches`, `make_patches`, `discard` and `statistics`."""
        self._check_open()
        uid = next(self._uids)
        seq = make_sequence(uid, request_id, prompt, sampling, self.model_config, self.max_model_len, priority)
        if sampling.structured is not None:
            seq.grammar = self.grammars.start(sampling.structured, sampling)
        self.scheduler.name_blocks(seq)
        return seq

    def needs_patches(self, seq: Sequence) -> bool:
        """Whether `make_patches` would have something to do."""
        return self.encoder is not None and self.encoder.needs_patches(seq)

    def make_patches(self, seq: Sequence) -> None:
        """Makes patches of a request's images before its turn."""
        if self.encoder is not None:
            self.encoder.make_patches(seq)

    def discard(self, seq: Sequence) -> None:
        """Lets go of a prepared request that will not be added."""
        if self.encoder is not None:
            self.encoder.forget(seq)

    def add(self, seq: Sequence) -> None:
        """Queues a prepared request."""
        self._check_open()
        if seq.request_id in self._sequences:
            raise OptionError(f"request id {shorten(seq.request_id)} is already running")
        self._sequences[seq.request_id] = seq
        self.scheduler.add(seq)

    def abort(self, request_id: str) -> bool:
        """Forgets a request; True when it was still there. It brings no further output."""
        seq = self._sequences.get(request_id)
        if seq is None:
            return False
        self._finish(seq)
        self.counters.aborted += 1
        return True

    def step(self) -> list[StepOutput]:
        """Computes one step; an output for every request that got a token or ended. Empty when there is no work."""
        with self._busy:
            self._check_open()
            with torch.inference_mode(), self.communicator.guard(), self.torch_threads.one():
                return self._step()

    def _step(self) -> list[StepOutput]:
        if self.ahead is not None and self.ahead.flight is not None:
            return self._take_flight(self.ahead)
        scheduled = self.scheduler.schedule()
        if scheduled.is_empty:
            if self.has_work:
                raise BackendError("the scheduler is stuck: requests are waiting and none can run; this is a bug")
            return []
        now = time.perf_counter()
        for seq, _ in scheduled.prefills:
            if seq.queue_s is None:
                seq.queue_s = now - seq.arrival_time
        if self.ahead is not None and self.ahead.takes(scheduled) and self.ahead.begin(scheduled.decodes):
            return self._take_flight(self.ahead)
        reason: str | None = None
        try:
            result = self.runner.run(scheduled)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        if reason is not None:  # only here has the exception let go of the step's tensors
            return self._back_off(scheduled, reason)
        self.scheduler.advance(scheduled)
        for seq, _ in scheduled.prefills:
            self.runner.release_consumed(seq)
        if result.logits is None:
            return []
        # Kernels with threads of their own find the largest logits on those.
        many = result.logits.numel() > MANY_LOGITS and not self.sampler.takes_largest(result.seqs)
        with self.torch_threads.all() if many else nullcontext():
            sampled = self.sampler(result.logits, result.seqs)
        rows = zip(result.seqs, sampled.token_ids, sampled.finite, sampled.logprobs, strict=True)
        return [output for row in rows if (output := self._append(*row)) is not None]

    def close(self) -> None:
        """Frees the model and the cache. May be called twice and from any thread: it waits for the step that is being
        computed. Nothing else may be called after."""
        with self._busy if os.getpid() == self._process_id else nullcontext():
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._final = self.statistics()
        self._closed = True
        self.runner.close()
        self.encoder = None
        if self.ahead is not None:
            self.ahead.ready()
        self.ahead = None  # before the ranks part: its graphs hold what they share
        del self.runner, self.sampler
        self._sequences.clear()
        self.communicator.close()
        if self.settings.device.type == "cuda":
            torch.cuda.empty_cache()

    def _back_off(self, scheduled: ScheduledStep, reason: str) -> list[StepOutput]:
        """After a step that found too little memory: makes the next ones smaller, or fails what is too large alone."""
        self._lacks_memory(reason, "it is tried again with fewer tokens or requests")
        seq = self.scheduler.back_off(scheduled)
        return [] if seq is None else [self._fail(seq, f"there is too little memory for this request alone: {reason}")]

    def _lacks_memory(self, reason: str, what_now: str) -> None:
        """Frees what is free, and says so the first time."""
        self.runner.kernels.give_back_memory()
        if self.counters.out_of_memory == 0:
            warnings.warn(
                f"native: memory ran out in a step ({shorten(reason, 200)}); {what_now}, which is slower: "
                "lower max_num_batched_tokens, max_num_seqs or kv_cache_bytes",
                stacklevel=2,
            )
        self.counters.out_of_memory += 1

    def _lacks_memory_ahead(self, requests: int, reason: str) -> None:
        self._lacks_memory(reason, f"decode steps of {requests} requests or more go without their CUDA graph")

    def _fail(self, seq: Sequence, error: str) -> StepOutput:
        self._finish(seq, forget=True)
        self.counters.failed += 1
        return StepOutput(seq.request_id, finish_reason="error", error=error)

    def _take_flight(self, ahead: AheadDecoder) -> list[StepOutput]:
        """The tokens of the decode step in flight, once the next one is launched."""
        rows = [(seq, token_id, token_id >= 0, None) for seq, token_id in ahead.advance(self.scheduler)]
        return [output for row in rows if (output := self._append(*row)) is not None]

    def _append(self, seq: Sequence, token_id: int, finite: bool, logprobs: TokenLogprobs | None) -> StepOutput | None:
        """The token goes to its request. None: the request is computed anew, without what others left in the cache."""
        if not finite:
            if self.scheduler.distrust(seq):
                return None
            return self._fail(
                seq,
                f"the model's logits are not finite after {seq.num_tokens} tokens ({self.settings.dtype}); "
                "float16 overflows on models made for bfloat16: try another dtype",
            )
        if token_id == NOTHING_ALLOWED:
            return self._fail(seq, why_nothing(seq))
        first = seq.num_output_tokens == 0
        seq.token_ids.append(token_id)
        self.counters.token(seq)
        reason: FinishReason | None = None
        stop_reason = None
        if token_id in seq.end_token_ids and seq.num_output_tokens > seq.sampling.min_tokens:
            reason, stop_reason = "stop", token_id
        elif completes(seq.grammar, token_id):
            reason = "stop"
        elif seq.num_output_tokens >= seq.sampling.max_tokens or seq.num_tokens >= self.max_model_len:
            reason = "length"
        if reason is not None:
            self._finish(seq)
            self.counters.finished += 1
        return StepOutput(
            seq.request_id,
            (token_id,),
            () if logprobs is None else (logprobs,),
            reason,
            stop_reason,
            queue_s=seq.queue_s if first else None,
            num_cached_tokens=seq.num_cached_tokens if first else None,
            prompt_logprobs=tuple(seq.prompt_logprobs) if first and seq.prompt_logprobs else None,
        )

    def _finish(self, seq: Sequence, *, forget: bool = False) -> None:
        self.scheduler.finish(seq, forget=forget)
        self.sampler.forget(seq)
        self.runner.forget(seq)
        del self._sequences[seq.request_id]

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("the engine is closed")
        check_process(self._process_id)


def _lead(folder: Path | str, config: ModelConfig, settings: EngineSettings, threads: int) -> Communicator:
    from visavis.engine.parallel.group import WorkerGroup  # torch.distributed, for those who need it

    return WorkerGroup(Path(folder), config, settings, threads)
