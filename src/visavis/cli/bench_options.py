"""What `visavis bench` reads from its flags."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visavis.cli.parser import Parser
from visavis.errors import OptionError, shorten

if TYPE_CHECKING:
    from visavis.bench.result import Bench, Workload
    from visavis.bench.steady import Criterion
    from visavis.sampling import SamplingParams

__all__ = [
    "SAYING",
    "command_of",
    "criterion_of",
    "given_flags",
    "images_of",
    "numbers",
    "refuse_lengths",
    "result_path",
    "seconds",
    "without_lengths",
    "workloads_of",
]

SAYING = ("--json", "--quiet", "--html", "--csv", "--compare-to")
"""Flags about what is shown, not about what is measured."""
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


def workloads_of(args: Namespace) -> tuple[Workload, ...]:
    """Those asked for; also reads --rates, into `args.rates_parsed`. Raises OptionError."""
    from visavis.bench.result import WORKLOADS

    args.rates_parsed = _rates(args.rates)
    if args.workload is None:
        names = [*(["users"] if args.users else []), *(["load"] if args.rates else [])] or ["latency", "throughput"]
    else:
        names = [name.strip() for name in args.workload.split(",") if name.strip()]
    for name in names:
        if name not in WORKLOADS:
            raise OptionError(f"--workload {shorten(name)} is unknown; known: {', '.join(WORKLOADS)}")
    if not names:
        raise OptionError("--workload names none; e.g. --workload latency,throughput")
    if "load" in names and not args.rates_parsed:
        raise OptionError("--workload load needs --rates, e.g. --rates 1,2,4 (requests a second)")
    if args.rates and "load" not in names:
        raise OptionError("--rates is for --workload load")
    if args.users and "users" not in names:
        raise OptionError("--users is for --workload users")
    if args.concurrency and "throughput" not in names:
        raise OptionError("--concurrency is for --workload throughput")
    if (args.ttft or args.tpot) and not {"load", "users"} & set(names):
        raise OptionError("--ttft and --tpot are limits for goodput, which is measured under --workload load and users")
    return tuple(dict.fromkeys(names))  # type: ignore[arg-type]


def numbers(flag: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    """`1,4,16`. Raises OptionError."""
    parts = [part.strip() for part in str(text).split(",")]
    if not all(re.fullmatch(r"\d{1,9}", part) and int(part) >= least for part in parts):
        raise OptionError(f"{flag} {shorten(text)}: whole numbers from {least} on are needed, e.g. 8 or 1,4,16")
    return tuple(dict.fromkeys(int(part) for part in parts))


def images_of(args: Namespace, *, takes_images: bool) -> tuple[tuple[int, int] | None, ...]:
    """(width, height) of each size asked for; None stands for no image."""
    if args.image_size is None:
        return ((640, 480),) if takes_images else (None,)
    found: list[tuple[int, int] | None] = []
    for part in args.image_size.split(","):
        word = part.strip().lower()
        match = re.fullmatch(r"(\d{1,5})\s*[x×]\s*(\d{1,5})", word)
        if word == "none":
            found.append(None)
        elif match and int(match[1]) > 0 and int(match[2]) > 0:
            found.append((int(match[1]), int(match[2])))
        else:
            raise OptionError(f"--image-size {shorten(part)}: WIDTHxHEIGHT or none is needed, e.g. 640x480,1920x1080")
    if not takes_images and any(found):
        raise OptionError("--image-size: this model takes no images; leave it out or say none")
    return tuple(dict.fromkeys(found))


def seconds(flag: str, text: str | None) -> float | None:
    """`500ms`, `0.5s`, `0.5`."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s|)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise OptionError(f"{flag} {shorten(text)}: a time is needed, e.g. 500ms or 0.5s")
    return float(match[1]) * _UNITS[match[2]]


def criterion_of(args: Namespace) -> Criterion:
    from visavis.bench.steady import Criterion

    usual = Criterion()
    if args.max_warm_up is not None:
        if args.max_warm_up < usual.window:
            raise OptionError(
                f"--max-warm-up {args.max_warm_up}: {usual.window} rounds are needed to see that it is steady"
            )
        usual = replace(usual, most=args.max_warm_up)
    if args.steady_within is None:
        return usual
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", args.steady_within)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise OptionError(f"--steady-within {shorten(args.steady_within)}: a share is needed, e.g. 5% or 0.05")
    return replace(usual, within=share)


def refuse_lengths(args: Namespace) -> None:
    """Lengths are bench's own business: the sampling flags that would change them are refused."""
    for name in ("max_tokens", "min_tokens"):
        if getattr(args, name) is not None:
            raise OptionError(f"--{name.replace('_', '-')}: bench sets the length itself; give --output-tokens")
    if args.ignore_eos:
        raise OptionError("--ignore-eos is what bench does anyway, unless --natural is given")
    if (args.stop or args.stop_token_id) and not args.natural:
        raise OptionError("--stop would end answers that are to have an exact length; add --natural")


def without_lengths(sampling: SamplingParams, *, natural: bool) -> SamplingParams:
    """Of what a model's file says, that which would not change how long answers get: that is bench's own business."""
    lengths = {"max_tokens", "min_tokens", "ignore_eos"} | (set() if natural else {"stop", "stop_token_ids"})
    return replace(sampling, **dict.fromkeys(lengths & sampling.asked().keys()))


def result_path(args: Namespace, bench: Bench) -> Path:
    """Where the result goes. Raises OptionError for a file that is there already."""
    if args.out is None:
        model = re.sub(r"[^A-Za-z0-9.]+", "-", bench.model).strip("-") or "model"
        return Path(f"bench-{model}-{time.strftime('%Y%m%d-%H%M%S')}.json")
    path = Path(args.out).expanduser()
    if path.exists():
        raise OptionError(
            f"--out {shorten(args.out)} exists; name another file, or go on with --resume {shorten(args.out)}"
        )
    if not path.parent.is_dir():
        raise OptionError(f"--out {shorten(args.out)}: there is no folder {shorten(str(path.parent))}")
    return path


def given_flags(args: Namespace, parser: Parser) -> list[str]:
    """Flags of `parser` whose value is not the default."""
    return [action.option_strings[-1] for action in _options(parser) if _given(args, action)]


def command_of(args: Namespace) -> tuple[str, ...]:
    """The command line that measures the same, in one spelling; flags about files and output left out."""
    words = ["visavis", "bench"]
    for action in _options(args.parser):
        flag = next((s for s in action.option_strings if s.startswith("--")), action.option_strings[-1])
        from_file = action.dest == "model" and args.model_file is not None  # which is read again
        if not (from_file or _given(args, action)) or flag in (*SAYING, "--out", "--resume"):
            continue
        value = args.model_file if from_file else getattr(args, action.dest)
        if action.nargs == 0:
            words.append(flag)
        else:
            words += [word for one in (value if isinstance(value, list) else [value]) for word in (flag, str(one))]
    return tuple(words)


def _options(parser: Parser) -> list[Any]:
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


def _given(args: Namespace, action: Any) -> bool:
    return bool(getattr(args, action.dest) != action.default)


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d{1,6}(\.\d{1,6})?", part) and float(part) > 0 for part in parts):
        raise OptionError(f"--rates {shorten(text)}: requests a second are needed, e.g. 0.5,1,2")
    return tuple(dict.fromkeys(float(part) for part in parts))
