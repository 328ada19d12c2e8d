"""`visavis plan`: what fits, every setting, and why, from config.json alone."""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from visavis.cli.model_file import described_by, use_model_file
from visavis.cli.options import announce_model
from visavis.cli.output import Output, add_output_options, check_writable, write_file
from visavis.cli.parser import positive
from visavis.errors import OptionError, shorten

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from visavis.families.folder import ModelFolder
    from visavis.families.resize import PixelBounds

__all__ = ["add_parser", "image_bounds", "run"]

DESCRIPTION = """\
What fits, before anything is downloaded or started: weights by part, KV cache, activations; the settings each engine
should get, why, and the command that starts it. Reads config.json only.

  visavis plan -m Qwen/Qwen2-VL-7B-Instruct --gpu-memory 24GiB --image 1920x1080 --concurrency 16
  visavis plan -m ./my-model --gpu-memory 80GiB --tensor-parallel-size 2 --prompt-tokens 4000 --max-tokens 1000"""


def add_parser(commands: Any) -> ArgumentParser:
    """Adds the command to argparse's subparsers."""
    parser: ArgumentParser = commands.add_parser(
        "plan", help="what fits a device, every setting and why", description=DESCRIPTION
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="Hugging Face folder, hub id, or a file that describes a model, of which backend, dtype, quantization, "
        "max_model_len and tensor_parallel_size count (default: tiny-screen)",
    )
    place = parser.add_argument_group("device")
    place.add_argument("--gpu-memory", metavar="SIZE", help="of one card, e.g. 24GiB (default: the devices here)")
    place.add_argument(
        "--tensor-parallel-size", type=positive, metavar="N", help="cards to split the model over (default: 1)"
    )
    formats = parser.add_argument_group("formats")
    formats.add_argument("--dtype", metavar="TYPE", help="(default: auto: the checkpoint's on a GPU, float32 on a CPU)")
    formats.add_argument(
        "--quantization",
        metavar="NAME",
        help="plan weights quantised while loading: fp8, int8, int4, bitsandbytes-nf4 (default: the checkpoint's)",
    )
    formats.add_argument("--kv-cache-dtype", default="auto", metavar="TYPE", help="auto: the model's; fp8")
    work = parser.add_argument_group("work", "One request, and how many run at once.")
    work.add_argument(
        "--image",
        action="append",
        metavar="[Nx]WxH",
        help="an image of a request, or N; repeatable; none for text alone (default: one 1920x1080 for vision models)",
    )
    work.add_argument("--prompt-tokens", type=positive, metavar="N", help="of text (default: 512)")
    work.add_argument("--max-tokens", type=positive, metavar="N", help="longest answer (default: 512)")
    work.add_argument(
        "--concurrency",
        type=positive,
        metavar="N",
        help="requests at once (default: what fits, up to the engine's default limit)",
    )
    parser.add_argument("--backends", metavar="A,B", help="engines to plan for (default: native,hf,vllm,sglang)")
    parser.add_argument(
        "--why", action="store_true", help="also the reason of every setting, the weights by part, the advice in full"
    )
    parser.add_argument("--report", metavar="FILE.html", help="all of it on one page, with the memory as a picture")
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    """0 when some engine fits, 1 when none does. Raises InputError for bad input."""
    from visavis.families.hub import resolve_model
    from visavis.plan import choose, parse_bytes, plan
    from visavis.plan.document import as_dict
    from visavis.plan.engines import ENGINES

    output = Output(args)
    check_writable("--report", args.report)
    if args.words_left:
        raise OptionError(f"plan: {shorten(args.words_left[0])} belongs to no option; the model is given with -m")
    context = _use_file(args)
    memory = parse_bytes(args.gpu_memory) if args.gpu_memory is not None else None
    images = _images(args.image)
    announce_model(args, output)
    folder = resolve_model(args.model)
    result = plan(
        folder.config,
        choose(memory, args.tensor_parallel_size),
        model=args.model or "",
        path=str(folder.path),
        ranks=args.tensor_parallel_size,
        dtype=args.dtype,
        quantization=args.quantization,
        kv_dtype=args.kv_cache_dtype,
        images=images,
        prompt_tokens=args.prompt_tokens,
        max_tokens=args.max_tokens,
        concurrency=args.concurrency,
        bounds=image_bounds(folder),
        context=min(context or folder.max_model_len, folder.max_model_len),
        engines=_engines(args.backends) or tuple(ENGINES),
        where=f"{folder.name}: config.json",
    )
    if args.report is not None:
        from visavis.plan.html import to_html

        write_file(args.report, to_html(result, shlex.join(["visavis", *args.argv])))
        output.say(f"report: {args.report}")
    if output.json:
        output.document(as_dict(result))
    else:
        from visavis.plan.render import show

        show(result, output.console(), why=args.why)
    return 0 if result.fits else 1


def _use_file(args: Namespace) -> int | None:
    """What a file that describes the model says where no flag does; gives back its max_model_len."""
    use_model_file(args)
    described = described_by(args)
    options: dict[str, Any] = {} if described is None else described.options
    ranks = args.tensor_parallel_size or options.get("tensor_parallel_size", 1)
    args.tensor_parallel_size = int(ranks)
    args.dtype = str(args.dtype or options.get("dtype", "auto"))
    args.quantization = args.quantization or options.get("quantization")
    if args.backends is None and described is not None:
        args.backends = described.backend
    length = options.get("max_model_len")
    return None if length is None else int(length)


def _images(given: list[str] | None) -> tuple[tuple[int, int], ...] | None:
    from visavis.plan import parse_images

    if given is None:
        return None
    if given == ["none"]:
        return ()
    return tuple(size for text in given for size in parse_images(text))


def _engines(given: str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise OptionError(f"--backends {shorten(given)} names no engine; write e.g. --backends native,vllm")
    return tuple(dict.fromkeys(names))


def image_bounds(folder: ModelFolder) -> PixelBounds | None:
    """The folder's image bounds, by the one reader of them; None where the folder does not say."""
    from importlib import import_module

    from visavis.families.qwen_vl import QwenVLFamily
    from visavis.families.registry import FAMILIES
    from visavis.families.vision_config import read_vision_settings

    module, _, name = FAMILIES.get(folder.model_type, "").partition(":")
    family = getattr(import_module(module), name) if module else None
    if not folder.preprocessor_config or family is None or not issubclass(family, QwenVLFamily):
        return None
    return read_vision_settings(
        folder,
        patch_size=family.default_patch_size,
        image_default=family.default_image_bounds,
        video_default=family.default_video_bounds,
    ).image_bounds
