"""The native engine beside transformers at full size: `python -m benchmarks.gpu.parity FOLDER [family …]`.

Random weights of the real dimensions are made on the device and written to FOLDER as a checkpoint, which is deleted
afterwards. transformers answers in bfloat16 and, with the same weights widened, in float32, the reference; then the
engine in bfloat16. One JSON line a family and prompt: how far the logits of both are from float32, at the first token
and along the eight tokens that transformers answers in bfloat16, and whether that is within the law: ours no further
than transformers' own, within `FACTOR`, and a first difference of greedy answers a near tie. Where it is not, the plain
torch kernels are judged as well, in rows of their own.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.machine import describe, need_cuda
from benchmarks.gpu.parity_models import FAMILIES, REAL, TINY, Dimensions, make_prompt, write_checkpoint
from visavis.engine import EngineConfig, NativeEngine
from visavis.engine.sampler import Sampled
from visavis.engine.sequence import Sequence as EngineSequence
from visavis.patches import patchify_all
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

FACTOR = 1.1
"""Of transformers' own error: what `test_bfloat16_errs_no_more_than_transformers_in_bfloat16` allows."""
NEAR_TIE_NAT = 0.5
NEW = 8


# ---- what each side answers ----------------------------------------------------------------------------------------


@dataclass
class Answer:
    token_ids: list[int]  # greedy
    logits: torch.Tensor  # (tokens, vocab) float32 on the host, along the answer that all are led along
    visual: torch.Tensor | None  # (visual tokens, hidden) float32 on the host, out of the tower


class Transformers:
    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoModelForImageTextToText

        placed = device.type == "cuda" and importlib.util.find_spec("accelerate") is not None
        where = {"device_map": {"": device.type}} if placed else {}
        model = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="sdpa", **where
        )
        self.model = model.eval() if placed else model.eval().to(device)
        self.device = device
        self._seen: list[torch.Tensor] = []
        self.model.model.visual.register_forward_hook(lambda module, args, output: self._see(output))

    def _see(self, output: Any) -> None:
        found = getattr(output, "pooler_output", None)
        if found is None:
            found = output[0] if isinstance(output, tuple) else output
        self._seen.append(found.float().cpu())

    def widen(self) -> None:
        """The same weights in float32."""
        narrow = [name for name, buffer in self.model.named_buffers() if buffer.dtype == torch.bfloat16]
        if narrow:
            raise RuntimeError(f"these tables are in bfloat16, and would be no reference once widened: {narrow}")
        self.model.float()

    def answer(self, prompt: Prompt, led_along: Sequence[int] | None = None) -> Answer:
        """`led_along` another answer, the logits are those along it; `token_ids` are greedy all the same."""
        tokens, logits = self._generate(prompt, None)
        visual = torch.cat(self._seen) if self._seen else None
        if led_along is not None and tokens != list(led_along):
            _, logits = self._generate(prompt, led_along)
        return Answer(tokens, logits, visual)

    def _generate(self, prompt: Prompt, led_along: Sequence[int] | None) -> tuple[list[int], torch.Tensor]:
        from transformers import LogitsProcessorList

        self._seen.clear()
        self.model.model.rope_deltas = None  # left over from the last prompt
        leading = [] if led_along is None else [_Leading(len(prompt), led_along)]
        exact = self.model.dtype == torch.float32
        with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH) if exact else nullcontext():
            out = self.model.generate(
                **self._inputs(prompt),
                max_new_tokens=NEW,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
                logits_processor=LogitsProcessorList(leading),
            )
        return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float().cpu()

    def _inputs(self, prompt: Prompt) -> dict[str, torch.Tensor]:
        ids = torch.tensor([prompt.token_ids])
        assert prompt.patch_rule is not None
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": torch.isin(ids, prompt.image_token_id or -1).int(),
            "image_grid_thw": torch.tensor([item.grid for item in prompt.media]),
            "pixel_values": patchify_all(prompt.media, prompt.patch_rule),
        }
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}


class _Leading:
    """A logits processor that leaves one token: the next of a given answer."""

    def __init__(self, prompt_length: int, answer: Sequence[int]) -> None:
        self.prompt_length = prompt_length
        self.answer = answer

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        left = torch.full_like(scores, -math.inf)
        left[:, self.answer[input_ids.shape[1] - self.prompt_length]] = 0.0
        return left


def answer_of(engine: NativeEngine, prompt: Prompt, led_along: Sequence[int]) -> Answer:
    """Greedy as any request is answered; then along `led_along` step by step."""
    tokens: list[int] = []
    engine.add_request("greedy", prompt, ResolvedSampling(max_tokens=NEW))
    while engine.has_work:
        for output in engine.step():
            if output.error:
                raise RuntimeError(output.error)
            tokens += output.token_ids
    rows: list[torch.Tensor] = []

    def lead(logits: torch.Tensor, seqs: Sequence[EngineSequence]) -> Sampled:
        rows.append(logits[0].float().cpu().clone())
        return Sampled([led_along[seqs[0].num_output_tokens]], [True], [None])

    sampler = engine.sampler
    lead.forget = sampler.forget  # type: ignore[attr-defined]
    engine.sampler = lead  # type: ignore[assignment]
    try:
        # Log-probabilities are asked for so that the device does not choose tokens by itself.
        engine.add_request("led", prompt, ResolvedSampling(max_tokens=len(led_along), logprobs=1))
        while engine.has_work:
            engine.step()
    finally:
        engine.sampler = sampler
    return Answer(tokens, torch.stack(rows), visual_of(engine, prompt))


def visual_of(engine: NativeEngine, prompt: Prompt) -> torch.Tensor:
    assert engine.encoder is not None
    with torch.inference_mode():
        grids = [item.grid for item in prompt.media if item.grid is not None]
        return engine.encoder.tower(patches_of(engine, prompt), grids).embeddings.float().cpu()


def patches_of(engine: NativeEngine, prompt: Prompt) -> torch.Tensor:
    assert engine.encoder is not None
    assert prompt.patch_rule is not None
    return engine.encoder.tower.ops.patches(prompt.media, [prompt.patch_rule] * len(prompt.media))


def patches_are_equal(engine: NativeEngine, prompt: Prompt) -> bool:
    """Whether the tower gets, bit for bit, what transformers' gets."""
    assert prompt.patch_rule is not None
    with torch.inference_mode():
        mine = patches_of(engine, prompt).to(torch.bfloat16).cpu()
    return torch.equal(mine, patchify_all(prompt.media, prompt.patch_rule).to(torch.bfloat16))


# ---- how they compare ----------------------------------------------------------------------------------------------


def compared(ours: Answer, theirs: Answer, exact: Answer) -> dict[str, Any]:
    """All of them along `theirs.token_ids`. Errors are relative to the reference in the L2 norm, KL in nats."""
    mine, other = _error(ours.logits, exact.logits), _error(theirs.logits, exact.logits)
    first, other_first = _error(ours.logits[0], exact.logits[0]), _error(theirs.logits[0], exact.logits[0])
    tie = near_tie(ours, theirs)
    within = {
        "error": mine <= FACTOR * other,
        "first_token": first <= FACTOR * other_first,
        "difference": tie is not False,
    }
    return {
        "error": mine, "transformers_error": other, "error_ratio": round(mine / other, 3),
        "first_error": first, "transformers_first_error": other_first, "first_ratio": round(first / other_first, 3),
        "vision_error": _visual_error(ours, exact), "transformers_vision_error": _visual_error(theirs, exact),
        "kl": _kl(ours, exact), "transformers_kl": _kl(theirs, exact),
        "top1": _best(ours) == _best(exact), "transformers_top1": _best(theirs) == _best(exact),
        "equal_to_transformers": _equal(ours, theirs), "equal_to_float32": _equal(ours, exact),
        "transformers_equal_to_float32": _equal(theirs, exact), "near_tie": tie,
        "tokens": {"ours": ours.token_ids, "transformers": theirs.token_ids, "float32": exact.token_ids},
        "logit_spread": _rounded(float(exact.logits.std())), "within": within, "kept": all(within.values()),
    }  # fmt: skip


def near_tie(ours: Answer, theirs: Answer) -> bool | None:
    """At the first difference: each token in the other's top 5 and no more than `NEAR_TIE_NAT` behind. None: there is
    no difference."""
    at = _equal(ours, theirs)
    if at == len(theirs.token_ids):
        return None
    mine, other = ours.token_ids[at], theirs.token_ids[at]
    p, q = ours.logits[at].log_softmax(-1), theirs.logits[at].log_softmax(-1)
    known = mine in q.topk(5).indices.tolist() and other in p.topk(5).indices.tolist()
    return known and float(p[mine] - p[other]) <= NEAR_TIE_NAT and float(q[other] - q[mine]) <= NEAR_TIE_NAT


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return _rounded(float((found.double() - exact.double()).norm() / exact.double().norm()))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _visual_error(found: Answer, exact: Answer) -> float | None:
    if found.visual is None or exact.visual is None or found.visual.shape != exact.visual.shape:
        return None
    return _error(found.visual, exact.visual)


def _kl(found: Answer, exact: Answer) -> float:
    p, q = exact.logits[0].double().log_softmax(-1), found.logits[0].double().log_softmax(-1)
    return _rounded(float((p.exp() * (p - q)).sum()))


def _best(answer: Answer) -> int:
    return int(answer.logits[0].argmax())


def _equal(a: Answer, b: Answer) -> int:
    """How many tokens are equal before the first that is not."""
    pairs = enumerate(zip(a.token_ids, b.token_ids, strict=True))
    return next((i for i, (x, y) in pairs if x != y), len(a.token_ids))


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure(folder: Path, family: str, dimensions: Dimensions, say: Callable[..., None]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    took: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(what: str) -> None:
        nonlocal clock
        took[what], clock = round(time.perf_counter() - clock, 1), time.perf_counter()

    config = write_checkpoint(folder, family, dimensions)
    free(device)
    lap("write")
    prompts = {
        name: make_prompt(family, dimensions, parts, seed)
        for seed, (name, parts) in enumerate(dimensions.prompts().items())
    }
    reference = Transformers(folder, device)
    lap("load transformers")
    theirs = {name: reference.answer(prompt) for name, prompt in prompts.items()}
    lap("transformers bf16")
    reference.widen()
    exact = {name: reference.answer(prompt, theirs[name].token_ids) for name, prompt in prompts.items()}
    del reference
    free(device)
    lap("transformers float32")
    rows = {name: f"parity-{family}-{name}" for name in prompts}
    for kernels in ("auto", "torch"):
        settings = EngineConfig(
            dtype="bfloat16", num_blocks=512, max_model_len=4096, max_num_seqs=8, enable_prefix_caching=False,
            kernels=kernels,
        )  # fmt: skip
        engine = NativeEngine(folder, config, settings)
        lap(f"load ours, {kernels}")
        kept = True
        try:
            for name, prompt in prompts.items():
                row: dict[str, Any] = {
                    "row": rows[name], "model": dimensions.name, "kernels": engine.kernels, "prompt": len(prompt),
                    "visual": sum(item.num_tokens for item in prompt.media),
                }  # fmt: skip
                try:
                    row["patches_equal"] = patches_are_equal(engine, prompt)
                    row |= compared(answer_of(engine, prompt, theirs[name].token_ids), theirs[name], exact[name])
                except Exception as error:  # logits that are not finite, say: the other prompt may tell where from
                    row |= _told(error)
                kept = kept and row.get("kept", False)
                say(**row)
                lap(f"ours, {kernels}, {name}")
        finally:
            engine.close()
            free(device)
        if kept:
            break
        # Plain torch on the same device tells whether it is the kernels or the model that is wrong.
        rows = {name: f"{row}-torch" for name, row in rows.items()}
    say(parity=family, seconds=took)


def _told(error: Exception) -> dict[str, Any]:
    return {"failed": repr(error)[:800], "where": traceback.format_exc().splitlines()[-9:]}


def versions() -> dict[str, Any]:
    import transformers

    known = describe() if torch.cuda.is_available() else {"gpu": None, "torch": str(torch.__version__)}
    return known | {"transformers": transformers.__version__}


def main(folder: Path, families: Sequence[str], dimensions: Mapping[str, Dimensions]) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    machine = versions()

    def say(**what: Any) -> None:
        print(json.dumps(what | {"machine": machine}), flush=True)

    for family in families:
        try:
            measure(folder / family, family, dimensions[family], say)
        except Exception as error:  # the other families are still worth their device time
            say(parity=family, **_told(error))
        finally:
            shutil.rmtree(folder / family, ignore_errors=True)
        free(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="17 GB are written below it, a family at a time")
    parser.add_argument("families", nargs="*", metavar="family", help=", ".join(FAMILIES))
    parser.add_argument("--tiny", action="store_true", help="small dimensions, for a machine without a GPU")
    args = parser.parse_args()
    if unknown := set(args.families) - set(FAMILIES):
        parser.error(f"unknown families {', '.join(sorted(unknown))}; known are {', '.join(FAMILIES)}")
    if not args.tiny:
        need_cuda()
    main(args.folder, args.families or list(FAMILIES), TINY if args.tiny else REAL)
