"""Flags that several commands share, and what they become: model, sampling, engine options."""

from __future__ import annotations

import re
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from visavis.cli.parser import words
from visavis.cli.structured_flags import add_structured_options, structured_option
from visavis.errors import OptionError, shorten

if TYPE_CHECKING:
    from visavis.backends.options import EngineOptions
    from visavis.chat.types import PixelLimits
    from visavis.cli.output import Output
    from visavis.families import Family
    from visavis.prompt import Prompt
    from visavis.sampling import SamplingParams

__all__ = [
    "add_engine_options",
    "add_model_option",
    "add_pixel_options",
    "add_sampling_options",
    "announce_model",
    "check_sampling",
    "engine_options",
    "named_value",
    "pixel_limits",
    "sampling_params",
]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}

# (flag, name in SamplingParams, metavar, help); a default is said in words where it is not one number
_SAMPLING = (
    ("--max-tokens", "max_tokens", "N", "longest answer (default: rest of the context, at most 1024)"),
    ("--min-tokens", "min_tokens", "N", "no end before this many tokens (default: 0)"),
    ("--temperature", "temperature", "T", "0 is greedy (default: 0)"),
    ("--top-p", "top_p", "P", "draw from the best tokens with this share of probability (default: 1, off)"),
    ("--top-k", "top_k", "K", "draw from the K best tokens (default: 0, off)"),
    ("--min-p", "min_p", "P", "draw from tokens with this share of the best one's probability (default: 0, off)"),
    ("--repetition-penalty", "repetition_penalty", "X", "above 1: prompt and answer tokens less likely (default: 1)"),
    ("--presence-penalty", "presence_penalty", "X", "subtracted once from tokens of the answer (default: 0)"),
    ("--frequency-penalty", "frequency_penalty", "X", "subtracted for each occurrence in the answer (default: 0)"),
    ("--seed", "seed", "N", "of the random draws (default: drawn, and shown)"),
)


def add_model_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="Hugging Face folder, hub id, or a file that describes a model: .toml, .yaml, vlm_base.csv "
        "(default: the bundled tiny-screen)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that comes with the model's tokenizer or model",
    )


def announce_model(args: Namespace, output: Output) -> None:
    """Says which model is used when none was named."""
    if args.model is None:
        why = "no -m given" if getattr(args, "model_file", None) is None else f"{args.model_file} names no model"
        output.say(f"{why}: using the bundled model tiny-screen, which reads screenshots")


def add_pixel_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("image and video size")
    group.add_argument("--min-pixels", metavar="N", help="per image, e.g. 3136 or 56*56 (default: the model's)")
    group.add_argument("--max-pixels", metavar="N", help="per image, e.g. 1280*28*28 (default: the model's)")


def pixel_limits(args: Namespace) -> PixelLimits | None:
    """Of all images of the request; None where nothing was asked."""
    if args.min_pixels is None and args.max_pixels is None:
        return None
    from visavis.chat.types import PixelLimits

    low, high = _product("--min-pixels", args.min_pixels), _product("--max-pixels", args.max_pixels)
    if low is not None and high is not None and low > high:
        raise OptionError(f"--min-pixels {low} is more than --max-pixels {high}; give them the other way round")
    return PixelLimits(min_pixels=low, max_pixels=high)


def add_sampling_options(parser: ArgumentParser, *, single: bool, lengths: bool = True) -> None:
    """`single`: also what only makes sense for one answer at a time (n, log-probabilities). Without `lengths` the flags
    about the answer's length are understood, to be refused with a reason, and not shown."""
    group = parser.add_argument_group("sampling", "Greedy unless asked otherwise; engines' own defaults never count.")
    for flag, name, metavar, text in _SAMPLING:
        shown = lengths or name not in ("max_tokens", "min_tokens")
        group.add_argument(flag, dest=name, metavar=metavar, help=text if shown else SUPPRESS)
    group.add_argument("--stop", action="append", type=words, metavar="TEXT", help="end before this text; repeatable")
    group.add_argument("--stop-token-id", action="append", metavar="ID", help="end at this token; repeatable")
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on after the model's end token" if lengths else SUPPRESS
    )
    group.add_argument("--logit-bias", action="append", metavar="ID:X", help="add X to a token's logit; repeatable")
    group.add_argument(
        "--bad-word", action="append", type=words, metavar="TEXT", help="never generate this text; repeatable"
    )
    group.add_argument(
        "--special-tokens",
        choices=("structural", "all", "none"),
        help="which special tokens stay in the text (default: structural: markers such as <|box_start|>, no end token)",
    )
    group.add_argument(
        "--generation-config",
        action="store_true",
        help="take what is not given here from the model folder's generation_config.json",
    )
    add_structured_options(parser)
    if single:
        group.add_argument("--n", metavar="N", help="answers to draw (default: 1)")
        group.add_argument("--logprobs", metavar="K", help="log-probabilities of the K best tokens at each step")
        group.add_argument("--prompt-logprobs", metavar="K", help="the same for the prompt's tokens")


def sampling_params(args: Namespace) -> SamplingParams:
    """What was asked for, by flags or else by the file that describes the model, checked. Raises OptionError."""
    from visavis.cli.model_file import described_by
    from visavis.sampling import SamplingParams

    given: dict[str, Any] = {name: getattr(args, name) for _, name, _, _ in _SAMPLING}
    given |= {name: getattr(args, name, None) for name in ("n", "logprobs", "prompt_logprobs")}
    given |= {
        "stop": args.stop,
        "stop_token_ids": args.stop_token_id,
        "ignore_eos": True if args.ignore_eos else None,
        "logit_bias": [_bias(text) for text in args.logit_bias] if args.logit_bias else None,
        "bad_words": args.bad_word,
        "special_tokens": args.special_tokens,
        "structured": structured_option(args),
    }
    asked = SamplingParams.from_mapping({k: v for k, v in given.items() if v is not None}, where="command line")
    described = described_by(args)
    if described is None or described.sampling is None:
        return asked
    return SamplingParams(**{**described.sampling.asked(), **asked.asked()})


def check_sampling(
    args: Namespace, sampling: SamplingParams, options: EngineOptions, family: Family, prompt: Prompt
) -> None:
    """What every engine will refuse, refused before one is started: values out of range, a prompt that does not fit or
    has too many images."""
    from visavis.backends.runner import check_limits, check_structured
    from visavis.families.budget import naming_what_fits
    from visavis.sampling import resolve

    check_limits(prompt, options.limit_per_prompt)
    check_structured(getattr(args, "backend", ""), sampling.structured)
    max_model_len = min(options.max_model_len or family.max_model_len, family.max_model_len)
    with naming_what_fits(family, prompt, max_model_len):
        resolve(
            sampling,
            prompt_tokens=len(prompt),
            max_model_len=max_model_len,
            eos_token_ids=family.eos_token_ids,
            vocab_size=family.vocab_size,
            generation_config=family.folder.generation_config if args.generation_config else None,
        )


def add_engine_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("engine", "What an engine cannot do it refuses by name.")
    group.add_argument("--dtype", metavar="TYPE", help="float32, bfloat16, float16 (default: auto: float32 on a CPU)")
    group.add_argument(
        "--device", metavar="DEVICE", help="cpu, cuda, cuda:1, mps; hf: also a device_map (default: auto)"
    )
    group.add_argument("--threads", metavar="N", help="CPU threads (default: the engine's choice)")
    group.add_argument(
        "--max-model-len", metavar="N", help="tokens of prompt and answer together (default: the model's)"
    )
    group.add_argument("--max-num-seqs", metavar="N", help="requests running at once (default: the engine's choice)")
    group.add_argument("--max-num-batched-tokens", metavar="N", help="tokens per step (default: the engine's choice)")
    group.add_argument("--kv-cache", metavar="SIZE", help="e.g. 2GiB (default: the engine's choice)")
    group.add_argument(
        "--gpu-memory-utilization", metavar="X", help="share of the GPU's memory (default: the engine's)"
    )
    group.add_argument("--tensor-parallel-size", metavar="N", help="GPUs to split the model over (default: 1)")
    group.add_argument(
        "--quantization",
        metavar="NAME",
        help="of the weights, e.g. int8; what each engine knows (default: as the checkpoint is)",
    )
    group.add_argument(
        "--limit-per-prompt",
        metavar="image=N,video=N",
        help="most images and videos in one prompt; less memory kept for them in vLLM (default: no limit)",
    )
    group.add_argument("--enforce-eager", action="store_true", help="no compiling, no graph capture")
    group.add_argument(
        "--python",
        action="append",
        metavar="[NAME=]PATH",
        help="interpreter that has the engine; for one backend (default: see `visavis backends`); repeatable",
    )
    group.add_argument("--engine-seed", metavar="N", help="of the engine itself, beside --seed (default: 0)")
    group.add_argument(
        "--engine-option",
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="one of the engine's own options; vllm.NAME=VALUE for one backend alone; repeatable",
    )


def engine_options(args: Namespace, backends: Collection[str], *, warmup: bool) -> EngineOptions:
    """What was asked for of these backends, by flags or else by the model's file, checked. Raises OptionError."""
    from visavis.backends.options import check_addressed, parse_options
    from visavis.backends.registry import NAMES, merged_options
    from visavis.cli.model_file import described_by

    names = (
        "dtype",
        "device",
        "threads",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "quantization",
        "limit_per_prompt",
    )
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    given |= {
        "kv_cache_bytes": None if args.kv_cache is None else _bytes("--kv-cache", args.kv_cache),
        "seed": args.engine_seed,
        "enforce_eager": args.enforce_eager or None,
        "trust_remote_code": args.trust_remote_code or None,
        "warmup": warmup,
        "extra": dict(named_value(text) for text in args.engine_option) if args.engine_option else None,
    }
    asked = {k: v for k, v in given.items() if v is not None}
    if (described := described_by(args)) is not None:
        below = described.options_for(backends, NAMES)
        asked["warmup"] = warmup and below.get("warmup", True)
        asked = merged_options(below, asked)
    options = parse_options(asked, where="command line")
    check_addressed(options, backends)
    return options


def _bias(text: str) -> tuple[str, str]:
    token_id, colon, value = text.partition(":")
    if not colon:
        raise OptionError(f"--logit-bias {shorten(text)}: TOKEN_ID:VALUE is needed, e.g. 42:-5")
    return token_id, value


def named_value(text: str) -> tuple[str, Any]:
    """`name=value`, the value read as JSON where it is JSON."""
    import json

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OptionError(f"--engine-option {shorten(text)}: NAME=VALUE is needed")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _product(flag: str, text: str | None) -> int | None:
    """`1280*28*28` as people write pixel counts."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*\d{1,12}(\s*[*x×]\s*\d{1,12})*\s*", text):
        raise OptionError(f"{flag} {shorten(text)}: a whole number or a product of such is needed, e.g. 1280*28*28")
    value = 1
    for factor in re.findall(r"\d+", text):
        value *= int(factor)
    if value < 1:
        raise OptionError(f"{flag} {shorten(text)}: 1 or more is needed")
    return value


def _bytes(flag: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text.lower())
    if match is None:
        raise OptionError(f"{flag} {shorten(text)}: a size is needed, e.g. 2GiB, 500MB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2] or ""])
