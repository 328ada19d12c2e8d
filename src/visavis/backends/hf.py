"""`HuggingFaceModel`: transformers behind the common interface.

Ids and pixel tensors come from us, tokens are chosen by the native engine's sampler, so transformers contributes
the model's arithmetic and its generation loop. Batching is static: up to `max_num_seqs` requests of any settings run in
one left-padded `generate`, further ones wait for it to end.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.option_map import check_extra
from visavis.backends.options import EngineOptions, refuse_unsupported
from visavis.backends.waiting import wait_asleep
from visavis.errors import MissingExtraError
from visavis.sampling import ALL_FIELDS

if TYPE_CHECKING:
    from visavis.backends.hf_generate import TokenHook
    from visavis.backends.hf_load import LoadedModel
    from visavis.engine.structured import Grammars

__all__ = ["HuggingFaceModel"]

OPTIONS = frozenset(
    {"dtype", "device", "threads", "max_model_len", "max_num_seqs", "enforce_eager", "seed", "trust_remote_code"}
)
EXTRA = frozenset({"attn_implementation", "cache_implementation", "device_map", "max_memory", "offload_folder"})
DEFAULT_MAX_NUM_SEQS = 64
SHORT_ANSWER = 256
"""Tokens. A static cache is computed over from its first to its last place, however few are filled. As long as the room
for answers is small, it is the faster one for a batch on a CPU (1.4 times with twelve requests; alone both are alike:
benchmarks/results/cpu_tiny.json)."""


class HuggingFaceModel(ModelInterface):
    """Any folder that transformers' auto classes load, on any device, in any dtype."""

    name = "hf"

    def __init__(self) -> None:
        super().__init__()
        self._loaded: LoadedModel | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._hook: TokenHook | None = None
        self._aborted: set[int] = set()
        self._max_num_seqs = DEFAULT_MAX_NUM_SEQS
        self._cache_implementation: str | None = None
        self._known_grammars: Grammars | None = None

    def capabilities(self) -> Capabilities:
        family = self._family()
        return Capabilities(
            images=family.supports_images,
            videos=family.supports_videos,
            prompt_logprobs=True,
            batching="static",
            sampling=ALL_FIELDS,
        )

    # ---- load and close ----------------------------------------------------------------------------------------

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        refuse_unsupported(self.name, options, OPTIONS)
        extra = check_extra(self.name, options.extra, EXTRA, {})
        start = time.perf_counter()
        progress("import", 0.0)
        wait_asleep()
        try:
            import torch
            import transformers

            from visavis.backends import hf_generate  # noqa: F401  (its imports belong to this phase)
            from visavis.backends.hf_load import import_classes, load_model
        except ImportError as error:
            raise MissingExtraError(f"backend hf ({error})", "hf") from None
        family = self._family()
        import_classes(family, options.trust_remote_code)
        imported = time.perf_counter() - start
        progress("load", imported)
        self._fetch_weights()
        torch.manual_seed(options.seed)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        # One thread for life: a new one for each batch would start a new pool of OpenMP threads each time.
        self._executor = ThreadPoolExecutor(1, "visavis-hf", self._begin_thread, (options.threads,))
        self._loaded = loaded = load_model(family, options)
        self._max_num_seqs = options.max_num_seqs or DEFAULT_MAX_NUM_SEQS
        self._cache_implementation = extra.get("cache_implementation")
        return LoadInfo(
            backend=self.name,
            model=family.folder.name,
            version=transformers.__version__,
            device=str(loaded.device),
            dtype=loaded.dtype,
            max_model_len=min(options.max_model_len or family.max_model_len, family.max_model_len),
            phases={"import": imported, "load": time.perf_counter() - start - imported},
            settings={
                "max_num_seqs": self._max_num_seqs,
                "threads": torch.get_num_threads(),
                "torch": str(torch.__version__),  # a plain str: TorchVersion would import torch where it is unpickled
                **loaded.settings,
            },
            marks=loaded.marks,
        )

    def _fetch_weights(self) -> None:
        from visavis.families.hub import fetch_weights

        fetch_weights(self._family().folder)

    @staticmethod
    def _begin_thread(threads: int | None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)  # counts per thread in some builds of OpenMP

    def _close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        loaded, self._loaded = self._loaded, None
        self._known_grammars = None
        if loaded is None:
            return
        import torch

        on_gpu = loaded.device.type == "cuda"
        del loaded
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()

    # ---- requests ----------------------------------------------------------------------------------------------

    def _abort(self, index: int) -> None:
        self._aborted.add(index)
        if self._hook is not None:
            self._hook.aborted.add(index)

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        submitted = time.perf_counter()
        self._aborted.clear()
        for first in range(0, len(requests), self._max_num_seqs):
            yield from self._run_batch(requests[first : first + self._max_num_seqs], submitted)

    def _run_batch(self, requests: Sequence[EngineRequest], submitted: float) -> Iterator[TokenEvent]:
        from visavis.backends.hf_generate import Generation, TokenHook
        from visavis.engine.sampler import Sampler
        from visavis.engine.sequence import Sequence as EngineSequence

        loaded, executor = self._loaded, self._executor
        assert loaded is not None  # base checked: `info` is set
        assert executor is not None
        batch: list[EngineRequest] = []
        for request in requests:
            if request.index in self._aborted:
                yield TokenEvent(request.index, finish_reason="abort")
            else:
                batch.append(request)
        if not batch:
            return
        generation = None
        try:
            for request in batch:
                if request.sampling.prompt_logprobs is not None:
                    yield self._prompt_logprobs(request)
            inputs = self._inputs(batch)
            seqs = [
                EngineSequence(r.index, str(r.index), r.prompt, r.sampling, list(r.prompt.token_ids), ()) for r in batch
            ]
            for seq in seqs:
                if seq.sampling.structured is not None:
                    seq.grammar = self._grammars(loaded.vocab_size).start(seq.sampling.structured, seq.sampling)
            sampler = Sampler(loaded.vocab_size, loaded.device)
            self._hook = TokenHook(batch, seqs, sampler, time.perf_counter() - submitted, loaded.dtype)
            generation = Generation(
                loaded.module,
                inputs,
                self._hook,
                executor,
                pad_token_id=self._family().pad_token_id,
                cache_implementation=self._cache_implementation or self._faster_cache(batch),
            )
            yield from generation
        except Exception as error:
            hook, self._hook = self._hook, None
            lost = hook.unfinished() if hook is not None else batch
            if len(batch) > 1 and (hook is None or not hook.started):
                # One request may have spoilt it for all: alone, only that one fails.
                for request in lost:
                    yield from self._run_batch([request], submitted)
            else:
                for request in lost:
                    yield TokenEvent(request.index, finish_reason="error", error=_explain(error))
        finally:
            if generation is not None:
                generation.close()
            self._hook = None

    def _grammars(self, vocab_size: int) -> Grammars:
        """Kept, as the library's own tokenizer takes a while to make."""
        if self._known_grammars is None:
            from visavis.engine.structured import Grammars

            self._known_grammars = Grammars(vocab_size, self._family().tokenizer_json)
        return self._known_grammars

    def _prompt_logprobs(self, request: EngineRequest) -> TokenEvent:
        from visavis.backends.hf_prompt import prompt_logprobs

        assert self._loaded is not None
        assert self._executor is not None
        inputs, ids = self._inputs([request]), request.prompt.token_ids
        top = request.sampling.prompt_logprobs or 0
        future = self._executor.submit(prompt_logprobs, self._loaded.module, inputs, ids, top)
        return TokenEvent(request.index, prompt_logprobs=future.result())

    def _faster_cache(self, batch: Sequence[EngineRequest]) -> str | None:
        """None is the library's default, a cache that grows."""
        if self._loaded is None or not self._loaded.static_cache_pays:
            return None
        answer = max(request.sampling.max_tokens for request in batch)
        return "static" if answer <= max(SHORT_ANSWER, max(len(r.prompt) for r in batch)) else None

    def _inputs(self, batch: Sequence[EngineRequest]) -> dict[str, Any]:
        """Left-padded tensors on the model's device; floating-point ones stay float32, the vision tower casts them."""
        from visavis.engine_inputs import for_hf_batch

        loaded = self._loaded
        assert loaded is not None
        tensors = for_hf_batch([request.prompt for request in batch], pad_token_id=self._family().pad_token_id)
        return {k: v.to(loaded.device) if hasattr(v, "to") else v for k, v in tensors.items()}


def _explain(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if type(error).__name__ == "OutOfMemoryError":
        return f"hf ran out of memory; lower max_num_seqs or max_tokens, or shrink the images: {text[:200]}"
    return f"hf failed: {type(error).__name__}: {text[:400]}"
