"""`NativeModel`: visavis' own engine behind the common interface."""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from visavis.backends.arrivals import Arrivals
from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.option_map import check_extra
from visavis.backends.options import EngineOptions, refuse_unsupported
from visavis.backends.waiting import wait_asleep
from visavis.errors import InputError
from visavis.sampling import ALL_FIELDS

if TYPE_CHECKING:
    from visavis.engine import NativeEngine, StepOutput

__all__ = ["NativeModel"]

SHARED = (
    "dtype",
    "device",
    "threads",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_bytes",
    "quantization",
    "enforce_eager",
    "tensor_parallel_size",
)
EXTRA = ("block_size", "num_blocks", "enable_prefix_caching", "encoder_cache_bytes", "kernels")


class NativeModel(ModelInterface):
    """Drives the engine step by step in the thread that takes the events."""

    name = "native"
    takes_arrivals = True

    def __init__(self) -> None:
        super().__init__()
        self._engine: NativeEngine | None = None
        self._aborted: list[int] = []
        self._batch = 0

    def capabilities(self) -> Capabilities:
        family = self._family()
        return Capabilities(
            images=family.supports_images,
            videos=family.supports_videos,
            prompt_logprobs=True,
            arrivals=self.takes_arrivals,
            sampling=ALL_FIELDS,
        )

    # ---- load and close ----------------------------------------------------------------------------------------

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        refuse_unsupported(self.name, options, (*SHARED, "trust_remote_code"))
        extra = check_extra(self.name, options.extra, EXTRA, {})
        start = time.perf_counter()
        progress("import", 0.0)
        wait_asleep()
        import torch

        from visavis.engine import EngineConfig, NativeEngine
        from visavis.families.hub import fetch_weights

        imported = time.perf_counter() - start
        folder = self._family().folder
        fetch_weights(folder)
        begun = time.perf_counter() - start

        def report(phase: str, seconds: float) -> None:
            if phase != "ready":  # `load` says that, after the warm-up
                progress(phase, begun + seconds)

        config = EngineConfig(**{name: getattr(options, name) for name in SHARED}, **extra)
        self._engine = engine = NativeEngine(folder.path, folder.config, config, report, self._tokenizer_json)
        loaded = time.perf_counter() - start
        settings = engine.settings
        dtype = str(settings.dtype).removeprefix("torch.")
        marks: tuple[str, ...] = ()
        if dtype == "float16" and folder.dtype == "bfloat16":
            marks = ("float16 for a bfloat16 checkpoint: its activations may overflow to infinity and NaN",)
            warnings.warn(f"native: {marks[0]}; use bfloat16 or float32 unless the card has neither", stacklevel=2)
        if engine.fitting is not None:
            warnings.warn(f"native: {engine.fitting}", stacklevel=2)
        if settings.scheme is not None and not settings.scheme.is_checkpoint:
            marks += (f"{settings.quantization} weights, made at load",)
        return LoadInfo(
            backend=self.name,
            model=folder.name,
            version=_version(),
            device=str(settings.device),
            dtype=dtype,
            max_model_len=engine.max_model_len,
            phases={"import": imported, "compile": engine.compile_s, "load": loaded - imported - engine.compile_s},
            settings={
                "max_num_seqs": settings.max_num_seqs,
                "max_num_batched_tokens": settings.max_num_batched_tokens,
                "block_size": settings.block_size,
                "num_blocks": engine.num_blocks,
                "kv_cache_bytes": engine.num_blocks * settings.block_bytes(engine.model_config),
                "enable_prefix_caching": settings.enable_prefix_caching,
                "encoder_cache_bytes": settings.encoder_cache_bytes,
                "quantization": settings.quantization,
                "tensor_parallel_size": settings.tensor_parallel_size,
                "threads": torch.get_num_threads(),
                "kernels": engine.kernels,
                "torch": str(torch.__version__),  # a plain str: TorchVersion would import torch where it is unpickled
            },
            marks=marks,
        )

    def _tokenizer_json(self) -> str:
        return self._family().tokenizer_json()

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    # ---- requests ----------------------------------------------------------------------------------------------

    def _abort(self, index: int) -> None:
        self._aborted.append(index)

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        arrivals = Arrivals(requests)
        return arrivals.watching(self._serve(arrivals))

    def _serve(self, arrivals: Arrivals) -> Generator[TokenEvent, None, None]:
        engine = self._engine
        assert engine is not None  # `info` is set, as base checked
        self._aborted.clear()
        self._batch += 1
        running: dict[str, int] = {}  # the engine's name of a request → its index
        late_s: dict[int, float] = {}  # how long a request waited for the step that ran when it came
        try:
            while running or arrivals:
                for request in arrivals.due():
                    name = f"{self._batch}-{request.index}"
                    late_s[request.index] = arrivals.late_s(request)
                    try:
                        engine.add_request(name, request.prompt, request.sampling)
                    except InputError as error:
                        yield TokenEvent(request.index, finish_reason="error", error=str(error))
                    else:
                        running[name] = request.index
                for index in self._take_aborted():
                    name = f"{self._batch}-{index}"
                    if name in running:
                        engine.abort(name)
                        del running[name]
                        yield TokenEvent(index, finish_reason="abort")
                    elif arrivals.drop(index):
                        yield TokenEvent(index, finish_reason="abort")
                if not running:
                    if arrivals:
                        yield arrivals.pause()
                    continue
                outputs = engine.step()
                now = time.perf_counter()
                for output in outputs:
                    if output.request_id not in running:
                        continue
                    index = running[output.request_id]
                    if output.finish_reason is not None:
                        del running[output.request_id]
                    yield _event(index, output, now, late_s[index])
        finally:
            for name in running:
                engine.abort(name)

    def _take_aborted(self) -> list[int]:
        aborted, self._aborted = self._aborted, []
        return aborted


def _event(index: int, output: StepOutput, now: float, late_s: float) -> TokenEvent:
    return TokenEvent(
        index,
        token_ids=output.token_ids,
        times=(now,) * len(output.token_ids),
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        error=output.error,
        queue_s=None if output.queue_s is None else output.queue_s + late_s,
        prompt_logprobs=output.prompt_logprobs,
    )


def _version() -> str:
    from visavis import __version__

    return __version__
