"""`VLLMModel`: vLLM behind the common interface. Runs where vLLM is installed, usually in a worker."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from visavis.backends.arrivals import Arrivals
from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.options import EngineOptions
from visavis.backends.prompt_check import describe_mismatch
from visavis.backends.vllm_options import (
    SAMPLING,
    cpu_environment,
    engine_arguments,
    environment,
    sampling_arguments,
    structured_arguments,
)
from visavis.completion import FinishReason, TokenLogprobs
from visavis.errors import BackendError, OptionError, shorten

__all__ = ["VLLMModel"]

SHOWN_SETTINGS = {
    "model_config": ("dtype", "max_model_len", "quantization", "enforce_eager", "seed"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"),
    "cache_config": (
        "block_size",
        "num_gpu_blocks",
        "enable_prefix_caching",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
    ),
    "parallel_config": ("tensor_parallel_size",),
}


class VLLMModel(ModelInterface):
    """vLLM's engine, driven step by step. Its prompt ids are compared with ours on every request."""

    name = "vllm"
    takes_arrivals = True

    def __init__(self) -> None:
        super().__init__()
        self._engine: Any = None
        self._aborted: deque[int] = deque()
        self._batch = 0
        self._stamp = 0.0

    def capabilities(self) -> Capabilities:
        return Capabilities(
            images=True,
            videos=True,
            logprobs=True,
            prompt_logprobs=True,
            arrivals=self.takes_arrivals,
            sampling=SAMPLING,
        )

    # ---- load and close ----------------------------------------------------------------------------------------

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        start = time.perf_counter()
        progress("import", 0.0)
        os.environ.update(environment(options))
        try:
            import vllm
            from vllm.engine.arg_utils import EngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise BackendError(f"vllm cannot be imported here: {error}; visavis backends install vllm") from None
        imported = time.perf_counter() - start
        progress("load", imported)
        cpu = bool(current_platform.is_cpu())
        if cpu:
            os.environ.update(cpu_environment(options))
        known = {f.name for f in dataclasses.fields(EngineArgs) if not f.name.startswith("_")}
        model = str(self._family().folder.path)
        arguments = engine_arguments(options, model, known, cpu=cpu)
        try:
            config = EngineArgs(**arguments).create_engine_config()
        except (ValueError, TypeError, NotImplementedError) as error:
            raise OptionError(f"vllm refuses this model or these settings: {_first_words(error)}") from None
        try:
            engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        except Exception as error:  # of any kind, out of its engine's own process too
            raise BackendError(f"vllm cannot start: {type(error).__name__}: {_first_words(error)}") from error
        self._engine = engine
        self._watch_clock(engine)
        loaded = time.perf_counter() - start
        config = engine.vllm_config
        settings = {
            name: _plain(getattr(getattr(config, part), name, None))
            for part, names in SHOWN_SETTINGS.items()
            for name in names
        }
        settings |= {k: _plain(v) for k, v in options.extra.items()}
        return LoadInfo(
            backend=self.name,
            model=self._family().folder.name,
            version=vllm.__version__,
            device="cpu" if cpu else current_platform.device_type,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            max_model_len=config.model_config.max_model_len,
            phases={"import": imported, "load": loaded - imported},
            settings=settings,
        )

    def _watch_clock(self, engine: Any) -> None:
        """Keeps the time at which the engine core made the tokens of a step; it may run in a process of its own and
        be ahead of us. Both clocks count from the machine's start (CLOCK_MONOTONIC) on Linux."""
        core = getattr(engine, "engine_core", None)
        shared = time.get_clock_info("monotonic").implementation == time.get_clock_info("perf_counter").implementation
        if core is None or not shared or not hasattr(core, "get_output"):
            return
        get_output = core.get_output

        def stamped() -> Any:
            outputs = get_output()
            self._stamp = float(getattr(outputs, "timestamp", 0.0))
            return outputs

        core.get_output = stamped

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.engine_core.shutdown()
        del engine
        gc.collect()

    def _inputs(self, request: EngineRequest) -> dict[str, Any]:
        """The prompt in vLLM's form. Where both of its caches were switched off, images go without our name for their
        content: vLLM would use an image's embedding again by that name, whatever its caches are set to."""
        inputs = request.prompt.for_vllm()
        config = self._engine.vllm_config
        media = config.model_config.multimodal_config
        if media is not None and media.mm_processor_cache_gb == 0 and not config.cache_config.enable_prefix_caching:
            inputs.pop("multi_modal_uuids", None)
        return inputs

    # ---- requests ----------------------------------------------------------------------------------------------

    def _abort(self, index: int) -> None:
        self._aborted.append(index)

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        arrivals = Arrivals(requests)
        return arrivals.watching(self._serve(requests, arrivals))

    def _serve(self, requests: Sequence[EngineRequest], arrivals: Arrivals) -> Generator[TokenEvent, None, None]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._aborted.clear()
        self._batch += 1
        arguments = {
            request.index: _with_structured(sampling_arguments(request.sampling), request) for request in requests
        }
        running: dict[str, EngineRequest] = {}
        names: dict[int, str] = {}
        unchecked: set[str] = set()
        try:
            while running or arrivals:
                for request in arrivals.due():
                    name = f"{self._batch}-{request.index}"
                    try:
                        params = SamplingParams(**arguments[request.index], output_kind=RequestOutputKind.DELTA)
                        self._engine.add_request(name, self._inputs(request), params)
                    except Exception as error:  # its processors raise errors of many kinds
                        yield _failed(request.index, f"vllm refused the request: {_first_words(error)}")
                        continue
                    running[name] = request
                    names[request.index] = name
                    unchecked.add(name)
                while self._aborted:
                    index = self._aborted.popleft()
                    if (name := names.get(index, "")) in running:
                        self._engine.abort_request([name])
                        del running[name]
                        yield TokenEvent(index, finish_reason="abort")
                    elif arrivals.drop(index):
                        yield TokenEvent(index, finish_reason="abort")
                if arrivals and not running:
                    yield arrivals.pause()
                for output in self._step() if running else ():
                    name = _asked(output.request_id, running)
                    if name not in running:
                        continue  # what was on its way when it was aborted
                    request = running[name]
                    if name in unchecked:
                        unchecked.discard(name)
                        if wrong := self._mismatch(request, output):
                            self._engine.abort_request([name])
                            del running[name]
                            yield _failed(request.index, wrong)
                            continue
                    event = self._event(request, output)
                    if event.finish_reason is not None:
                        del running[name]
                    yield event
        finally:
            if running and self._engine is not None:
                with contextlib.suppress(Exception):  # a dead engine has told already why it is dead
                    self._engine.abort_request(list(running))

    def _step(self) -> list[Any]:
        self._stamp = 0.0
        try:
            outputs: list[Any] = self._engine.step()
        except Exception as error:
            raise BackendError(f"vllm's engine failed: {_first_words(error)}") from error
        self._stamp = self._stamp or time.perf_counter()
        return outputs

    def _mismatch(self, request: EngineRequest, output: Any) -> str | None:
        return describe_mismatch("vllm", request.prompt.token_ids, output.prompt_token_ids, self._family().tokenizer)

    def _event(self, request: EngineRequest, output: Any) -> TokenEvent:
        answer = output.outputs[0]
        ids = tuple(answer.token_ids)
        finish: FinishReason | None = answer.finish_reason if output.finished else None
        error = None
        if finish not in (None, "stop", "length", "abort", "error"):
            finish, error = "error", f"vllm ended the answer with {shorten(finish)}"
        elif finish == "error":
            error = "vllm reports an error in this request"
        prompt_logprobs = None
        if output.finished and request.sampling.prompt_logprobs is not None:
            prompt_logprobs = _prompt_logprobs(output, request)
        return TokenEvent(
            request.index,
            token_ids=ids,
            times=(self._stamp,) * len(ids),
            logprobs=tuple(
                _logprobs(entry, token, request.sampling.logprobs or 0)
                for entry, token in zip(answer.logprobs or (), ids, strict=False)
            ),
            finish_reason=finish,
            stop_reason=ids[-1] if finish == "stop" and ids and answer.stop_reason is None else answer.stop_reason,
            error=error,
            prompt_logprobs=prompt_logprobs,
        )


def _with_structured(arguments: dict[str, Any], request: EngineRequest) -> dict[str, Any]:
    if request.sampling.structured is None:
        return arguments
    from vllm.sampling_params import StructuredOutputsParams

    wanted = StructuredOutputsParams(**structured_arguments(request.sampling.structured))
    return {**arguments, "structured_outputs": wanted}


def _asked(request_id: str, running: dict[str, EngineRequest]) -> str:
    """Our name of a request: vLLM may append a suffix of its own."""
    if request_id in running:
        return request_id
    return next((name for name in running if request_id.startswith(f"{name}-")), "")


def _logprobs(entry: Any, token_id: int, top: int) -> TokenLogprobs:
    ranked = sorted(((v.rank or 0, k, v.logprob) for k, v in entry.items()), key=lambda r: r[0])
    return TokenLogprobs(token_id, entry[token_id].logprob, tuple((k, p) for rank, k, p in ranked if rank <= top))


def _prompt_logprobs(output: Any, request: EngineRequest) -> tuple[TokenLogprobs | None, ...]:
    ids = request.prompt.token_ids
    top = request.sampling.prompt_logprobs or 0
    return tuple(
        None if entry is None else _logprobs(entry, token, top)
        for entry, token in zip(output.prompt_logprobs or (), ids, strict=False)
    )


def _failed(index: int, error: str) -> TokenEvent:
    return TokenEvent(index, finish_reason="error", error=error)


def _first_words(error: BaseException, limit: int = 400) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]}…"


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | type(None) | dict | list) else str(value)
