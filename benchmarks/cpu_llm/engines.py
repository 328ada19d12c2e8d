"""One engine in a process of its own: ids in, seconds out. Started by `run.py` with the engine's own interpreter.

    python engines.py ENGINE MODEL DTYPE THREADS MAX_BATCH

Reads one JSON request a line, {"prompts": [[ids], …], "tokens": n}: greedy, exactly n tokens a prompt, all prompts at
once. Answers with {"seconds": s, "token_ids": [[…], …] or null}. Needs nothing of visavis but for `native`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

READ_BYTES = 256 << 20
Ids = list[list[int]]
Run = Callable[[Ids, int], Ids | None]


def native(model: str, dtype: str, threads: int, max_batch: int) -> tuple[Run, str]:
    import numpy as np

    from visavis import __version__
    from visavis.engine import EngineConfig, NativeEngine
    from visavis.prompt import Prompt
    from visavis.sampling import ResolvedSampling

    with open(f"{model}/config.json") as file:
        config = json.load(file)
    int8 = dtype == "int8"
    settings = EngineConfig(
        device="cpu",
        dtype="bfloat16" if int8 else dtype,
        quantization="int8" if int8 else None,
        threads=threads,
        max_num_seqs=max_batch,
        enable_prefix_caching=False,
    )
    engine = NativeEngine(model, config, settings)

    def prompt(ids: list[int]) -> Prompt:
        return Prompt(
            model=model,
            family="text",
            text="",
            canonical_ids=tuple(ids),
            token_ids=tuple(ids),
            position_ids=np.arange(len(ids))[None],
            rope_delta=0,
        )

    def run(prompts: Ids, tokens: int) -> Ids:
        for i, ids in enumerate(prompts):
            engine.add_request(str(i), prompt(ids), ResolvedSampling(max_tokens=tokens))
        answers: Ids = [[] for _ in prompts]
        while engine.has_work:
            for output in engine.step():
                answers[int(output.request_id)] += output.token_ids
        return answers

    return run, f"visavis {__version__}, {engine.kernels}"


def transformers(model: str, dtype: str, threads: int, max_batch: int, cache: str | None = None) -> tuple[Run, str]:
    import torch
    import transformers as library

    torch.set_num_threads(threads)
    module = library.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def run(prompts: Ids, tokens: int) -> Ids:
        ids = torch.tensor(prompts)  # all of one length
        out = module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation=cache,
        )
        return [row[ids.shape[1] :].tolist() for row in out]

    return run, f"transformers {library.__version__}, torch {torch.__version__}, {cache or 'dynamic'} cache"


def transformers_static(model: str, dtype: str, threads: int, max_batch: int) -> tuple[Run, str]:
    return transformers(model, dtype, threads, max_batch, cache="static")


def vllm(model: str, dtype: str, threads: int, max_batch: int) -> tuple[Run, str]:
    os.environ.update(
        VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    import vllm as library

    engine = library.LLM(
        model, dtype=dtype, max_model_len=2048, max_num_seqs=max_batch, enable_prefix_caching=False, enforce_eager=False
    )

    def run(prompts: Ids, tokens: int) -> Ids:
        sampling = library.SamplingParams(temperature=0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run, f"vllm {library.__version__}, compiled"


def llamacpp(model: str, dtype: str, threads: int, max_batch: int) -> tuple[Run, str]:
    from importlib.metadata import version

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_parallel = max_batch
    params.n_ctx = 2048 * max_batch
    params.cache_prompt = False
    params.cont_batching = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(max_batch)

    def one(ids: list[int], tokens: int) -> list[int]:
        request = {
            "prompt": ids,
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        answer: Any = server.handle_completions(request)
        if isinstance(answer, str | bytes):
            answer = json.loads(answer)
        if isinstance(answer, list):
            (answer,) = answer
        if "usage" in answer:
            made = answer["usage"]["completion_tokens"]
        else:
            made = answer["tokens_predicted"]
        if made != tokens:
            raise RuntimeError(f"llama.cpp made {made} of {tokens} tokens")
        return list(answer.get("tokens", ()))

    def run(prompts: Ids, tokens: int) -> Ids | None:
        answers = list(pool.map(one, prompts, [tokens] * len(prompts)))
        return answers if all(answers) else None

    return run, f"llama.cpp (xllamacpp {version('xllamacpp')})"


def openvino(model: str, dtype: str, threads: int, max_batch: int) -> tuple[Run, str]:
    import numpy as np
    import openvino as ov
    import openvino_genai as library

    scheduler = library.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_seqs = max_batch
    scheduler.cache_size = 1
    engine = library.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)

    def run(prompts: Ids, tokens: int) -> Ids:
        config = library.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = ov.Tensor(np.array(prompts, dtype=np.int64))
        mask = ov.Tensor(np.ones((len(prompts), len(prompts[0])), dtype=np.int64))
        result = engine.generate(library.TokenizedInputs(ids, mask), config)
        return [list(row) for row in result.tokens]

    return run, f"OpenVINO GenAI {library.__version__}"


def memory(model: str, dtype: str, threads: int, max_batch: int) -> tuple[Run, str]:
    """No engine: reads 256 MiB on huge pages, as many times as tokens are asked for."""
    import torch

    from visavis.engine.kernels.cpu.arena import Arena

    torch.set_num_threads(threads)
    values = Arena().empty((READ_BYTES // 4,), torch.float32).fill_(1)

    def run(prompts: Ids, tokens: int) -> None:
        for _ in range(tokens):
            values.sum()

    return run, f"torch {torch.__version__}: sum over {READ_BYTES >> 20} MiB of float32 on huge pages"


ENGINES: dict[str, Callable[[str, str, int, int], tuple[Run, str]]] = {
    "native": native,
    "transformers": transformers,
    "transformers-static": transformers_static,
    "vllm": vllm,
    "llamacpp": llamacpp,
    "openvino": openvino,
    "memory": memory,
}


def main() -> None:
    name, model, dtype, threads, max_batch = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not get between the answers
    begin = time.perf_counter()
    run, version = ENGINES[name](model, dtype, int(threads), int(max_batch))
    print(json.dumps({"version": version, "load_s": time.perf_counter() - begin}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        try:
            token_ids = run(request["prompts"], request["tokens"])
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {str(error)[:300]}"}), file=answers)
            continue
        print(json.dumps({"seconds": time.perf_counter() - start, "token_ids": token_ids}), file=answers)


if __name__ == "__main__":
    main()
