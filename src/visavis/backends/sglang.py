"""`SGLangModel`: SGLang's engine behind the common interface. Always in a worker: on failure SGLang kills its own
process tree."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from visavis.backends.arrivals import PAUSE_S
from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.options import EngineOptions
from visavis.backends.prompt_check import describe_mismatch
from visavis.backends.sglang_options import SAMPLING, engine_arguments, environment, sampling_arguments
from visavis.completion import TokenLogprobs
from visavis.errors import BackendError, OptionError, shorten

__all__ = ["SGLangModel"]

SHOWN_SETTINGS = (
    "dtype",
    "context_length",
    "max_running_requests",
    "max_total_tokens",
    "chunked_prefill_size",
    "mem_fraction_static",
    "attention_backend",
    "disable_radix_cache",
    "disable_cuda_graph",
    "quantization",
    "tp_size",
    "random_seed",
)


class SGLangModel(ModelInterface):
    """SGLang's offline engine. Images and videos go in as processor output: nothing is resized or tokenised again."""

    name = "sglang"
    takes_arrivals = True

    def __init__(self) -> None:
        super().__init__()
        self._engine: Any = None
        self._ends: frozenset[int] = frozenset()
        self._aborted: deque[int] = deque()
        self._batch = 0

    def capabilities(self) -> Capabilities:
        return Capabilities(
            images=True,
            videos=True,
            logprobs=True,
            prompt_logprobs=False,
            arrivals=self.takes_arrivals,
            sampling=SAMPLING,
        )

    # ---- load and close ----------------------------------------------------------------------------------------

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        start = time.perf_counter()
        progress("import", 0.0)
        cpu = _on_cpu(options)
        os.environ.update(environment(options, cpu=cpu))
        try:
            import sglang
            from sglang.srt.server_args import ServerArgs
        except ImportError as error:
            raise BackendError(f"sglang cannot be imported here: {error}; visavis backends install sglang") from None
        imported = time.perf_counter() - start
        progress("load", imported)
        known = set(getattr(ServerArgs, "__struct_fields__", ())) or {f.name for f in dataclasses.fields(ServerArgs)}
        arguments = engine_arguments(options, str(self._family().folder.path), known, cpu=cpu)
        try:
            engine = sglang.Engine(**arguments)
        except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
            raise OptionError(f"sglang refuses this model or these settings: {_first_words(error)}") from None
        self._engine = engine
        manager = engine.tokenizer_manager
        self._ends = _engine_ends(manager)
        resolved = getattr(manager, "server_args", None)
        settings = {name: _plain(getattr(resolved, name, None)) for name in SHOWN_SETTINGS}
        settings |= {k: _plain(v) for k, v in options.extra.items()}
        config = manager.model_config
        return LoadInfo(
            backend=self.name,
            model=self._family().folder.name,
            version=sglang.__version__,
            device="cpu" if cpu else "cuda",
            dtype=str(config.dtype).removeprefix("torch."),
            max_model_len=int(config.context_len),
            phases={"import": imported, "load": time.perf_counter() - start - imported},
            settings=settings,
        )

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    # ---- requests ----------------------------------------------------------------------------------------------

    def _abort(self, index: int) -> None:
        self._aborted.append(index)

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        self._aborted.clear()
        self._batch += 1
        arguments = [sampling_arguments(request.sampling, self._ends) for request in requests]
        loop: asyncio.AbstractEventLoop = self._engine.loop
        news: asyncio.Queue[TokenEvent] = asyncio.Queue()
        tasks: dict[int, asyncio.Task[None]] = {}
        here = {request.index for request in requests}
        waiting = {r.index for r in requests if r.arrival_s > 0 or r.after in here}  # not submitted yet
        ended = {index: asyncio.Event() for index in here}
        start = time.perf_counter()
        try:
            for request, values in zip(requests, arguments, strict=True):
                tasks[request.index] = loop.create_task(self._answer(request, values, news, start, waiting, ended))
            while tasks:
                while self._aborted:
                    index = self._aborted.popleft()
                    if index in waiting:
                        waiting.discard(index)
                        tasks.pop(index).cancel()
                        ended[index].set()
                        yield TokenEvent(index, finish_reason="abort")
                    else:
                        self._engine.tokenizer_manager.abort_request(self._rid(index))
                if not tasks:
                    break
                try:
                    # With nothing but waiting ones, it looks up now and then whether they are still wanted.
                    patience = PAUSE_S if waiting and len(waiting) == len(tasks) else None
                    event = loop.run_until_complete(asyncio.wait_for(news.get(), patience))
                except TimeoutError:
                    event = TokenEvent(next(iter(tasks)))  # a sign of life
                if event.finish_reason is not None:
                    tasks.pop(event.index, None)
                    ended[event.index].set()
                yield event
        finally:
            for index, task in tasks.items():
                self._engine.tokenizer_manager.abort_request(self._rid(index))
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks.values(), return_exceptions=True))

    def _rid(self, index: int) -> str:
        return f"visavis-{self._batch}-{index}-"  # SGLang aborts every id that begins with the one given

    async def _answer(
        self,
        request: EngineRequest,
        values: dict[str, Any],
        news: asyncio.Queue[TokenEvent],
        start: float,
        waiting: set[int],
        ended: Mapping[int, asyncio.Event],
    ) -> None:
        """Feeds `news` from the request's arrival on; its last event always comes, unless the task is cancelled."""
        try:
            if request.index in waiting:
                if request.after is not None and request.after in ended:
                    await ended[request.after].wait()
                    start = time.perf_counter()
                await asyncio.sleep(request.arrival_s - (time.perf_counter() - start))
                waiting.discard(request.index)
            async for event in self._events(request, values):
                await news.put(event)
                if event.finish_reason is not None:
                    return
            error = "sglang ended the stream without a finish reason"
        except Exception as failure:  # of any kind: else the batch would wait for ever
            error = f"sglang failed: {_first_words(failure)}"
        await news.put(TokenEvent(request.index, finish_reason="error", error=error))

    async def _events(self, request: EngineRequest, values: dict[str, Any]) -> AsyncIterator[TokenEvent]:
        from sglang.srt.managers.io_struct import GenerateReqInput

        manager, sampling, rid = self._engine.tokenizer_manager, request.sampling, self._rid(request.index)
        asked = GenerateReqInput(
            rid=rid,
            sampling_params=values,
            stream=True,
            return_prompt_token_ids=True,
            return_logprob=sampling.logprobs is not None,
            logprob_start_len=-1,
            top_logprobs_num=sampling.logprobs or 0,
            **request.prompt.for_sglang(),
        )
        ends, seen, checked = set(sampling.end_token_ids), 0, False
        stream = manager.generate_request(asked, None)
        async with contextlib.aclosing(stream):
            async for chunk in stream:
                now = time.perf_counter()
                if not checked:
                    checked = True
                    if wrong := self._mismatch(request, chunk.get("prompt_token_ids")):
                        manager.abort_request(rid)
                        yield TokenEvent(request.index, finish_reason="error", error=wrong)
                        return
                event = _event(request.index, chunk, now, sampling.logprobs)
                cut = _first_end(event.token_ids, ends, skip=sampling.min_tokens - seen)
                seen += len(event.token_ids)
                if cut is not None:
                    if event.finish_reason is None:
                        manager.abort_request(rid)
                    yield _cut(event, cut)
                    return
                if event.finish_reason == "stop":
                    event = dataclasses.replace(
                        event, finish_reason="error", error=f"sglang stopped by itself: {shorten(event.stop_reason)}"
                    )
                yield event

    def _mismatch(self, request: EngineRequest, seen: list[int] | None) -> str | None:
        """SGLang writes a hash over each visual token, so there only their places and number can be compared."""
        if seen is None:
            return "sglang did not say which prompt it saw"
        prompt = request.prompt
        if len(seen) == len(prompt):
            mask = prompt.visual_mask
            seen = [ours if mask[i] else int(s) for i, (ours, s) in enumerate(zip(prompt.token_ids, seen, strict=True))]
        return describe_mismatch("sglang", prompt.token_ids, seen, self._family().tokenizer)


def _event(index: int, chunk: dict[str, Any], now: float, top: int | None) -> TokenEvent:
    meta = chunk["meta_info"]
    ids = tuple(int(i) for i in chunk.get("output_ids") or ())
    finish = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else finish
    error = None
    if kind == "abort" and isinstance(finish, dict) and finish.get("status_code") not in (None, 200):
        kind, error = "error", f"sglang refused the request: {shorten(finish.get('message') or finish, 400)}"
    logprobs: tuple[TokenLogprobs, ...] = ()
    if top is not None:
        chosen = (meta.get("output_token_logprobs") or [])[-len(ids) :] if ids else []
        best = (meta.get("output_top_logprobs") or [])[-len(ids) :] if ids and top else [()] * len(chosen)
        logprobs = tuple(
            TokenLogprobs(int(c[1]), float(c[0]), tuple((int(b[1]), float(b[0])) for b in others or ()))
            for c, others in zip(chosen, best, strict=False)
        )
    return TokenEvent(
        index,
        token_ids=ids,
        times=(now,) * len(ids),
        logprobs=logprobs,
        finish_reason=kind,
        stop_reason=finish.get("matched") if isinstance(finish, dict) else None,
        error=error,
    )


def _first_end(ids: Sequence[int], ends: set[int], skip: int) -> int | None:
    """Place of the first id that ends the answer, the first `skip` ones left alone."""
    return next((i for i, token in enumerate(ids) if i >= skip and token in ends), None)


def _cut(event: TokenEvent, at: int) -> TokenEvent:
    """The event up to the end token, which ends it."""
    return dataclasses.replace(
        event,
        token_ids=event.token_ids[: at + 1],
        times=event.times[: at + 1],
        logprobs=event.logprobs[: at + 1],
        finish_reason="stop",
        stop_reason=event.token_ids[at],
    )


def _engine_ends(manager: Any) -> frozenset[int]:
    """The ids at which SGLang ends an answer unless told to ignore them."""
    found: set[int] = set()
    for value in (
        getattr(manager.model_config, "hf_eos_token_id", None),
        getattr(manager.tokenizer, "eos_token_id", None),
        getattr(manager.tokenizer, "additional_stop_token_ids", None),
    ):
        found |= {value} if isinstance(value, int) else set(value or ())
    return frozenset(found)


def _on_cpu(options: EngineOptions) -> bool:
    if options.device == "cpu":
        return True
    if options.device == "auto":
        import torch

        return not torch.cuda.is_available()
    if options.device != "cuda" and not options.device.startswith("cuda:"):
        raise OptionError(f"sglang cannot run on device {shorten(options.device)}; it takes auto, cuda, cuda:N or cpu")
    return False


def _first_words(error: BaseException, limit: int = 400) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]}…"


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | type(None) | dict | list) else str(value)
