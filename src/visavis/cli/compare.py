"""`visavis compare`: the same prompts on several engines, side by side."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from typing import TYPE_CHECKING, Any

from visavis.cli.engines import Opener, choose_backends, progress_display
from visavis.cli.inputs import (
    add_request_options,
    prompt_of,
    question_of,
    raw_cases,
    read_messages_file,
    samples_file,
)
from visavis.cli.options import (
    add_engine_options,
    add_model_option,
    add_pixel_options,
    add_sampling_options,
    announce_model,
    check_sampling,
    engine_options,
    pixel_limits,
    sampling_params,
)
from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser, positive

if TYPE_CHECKING:
    from visavis.compare.cases import Case

__all__ = ["add_parser", "run"]

BY_DEFAULT = ("native", "hf", "vllm", "sglang")
"""Backends that `compare` takes by itself where they can run; a server (openai) has to be named."""
FEW_PROMPTS = 4


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "compare",
        help="the same prompts on several engines: speed by phase, same tokens or not",
        description="""\
Gives several engines the very same prepared prompts, each in a process of its own, one engine after the other, and
shows how fast each was and whether they generated the same tokens. With no prompts given: the 12 bundled samples.

  visavis compare
  visavis compare --ask "where is the search button?" --image screen.png --backends native,hf

load          from the start of the engine's process until it takes requests
warm-up       its first request, image included; not in the figures below
first token   from submission to the first token, one prompt at a time; images are prepared before, once for all
per token     (last - first token time) / (tokens - 1), one prompt at a time
tokens/s      all generated tokens / all time from submission to last token""",
    )
    add_request_options(parser, question_flag=True)
    add_model_option(parser)
    parser.add_argument(
        "--backends", metavar="A,B", help='the first is the reference of "same tokens" (default: all that can run here)'
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        metavar="N",
        help="times each prompt is asked (default: 3 for under 4 prompts, else 1)",
    )
    parser.add_argument("--no-batch", action="store_true", help="do not also ask all prompts at once")
    parser.add_argument("--fail-on-difference", action="store_true", help="exit 1 unless all tokens are the same")
    parser.add_argument(
        "--picture",
        action=BooleanOptionalAction,
        help="show the first image in the terminal (default: on a colour terminal)",
    )
    add_pixel_options(parser)
    add_sampling_options(parser, single=False)
    add_engine_options(parser)
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    output = Output(args)
    raw = raw_cases(args) or read_messages_file(samples_file())
    names, skipped = choose_backends(args.backends, BY_DEFAULT)
    sampling, options = sampling_params(args), engine_options(args, names, warmup=False)
    pixel_limits(args)
    announce_model(args, output)

    from visavis.compare.cases import Case
    from visavis.compare.result import Expected, SkippedBackend, as_dict
    from visavis.compare.runner import Plan, compare
    from visavis.families import load_family

    family = load_family(args.model, trust_remote_code=args.trust_remote_code)
    cases, first_image = [], None
    for case in raw:
        prompt, conversation = prompt_of(family, case, args, several=len(raw) > 1)
        check_sampling(args, sampling, options, family, prompt)
        expected = None if case.expected is None else Expected(**case.expected)
        cases.append(Case(case.id, question_of(conversation), prompt, expected))
        if first_image is None and conversation.media:
            first_image = conversation.media[0]
    plan = Plan(
        model=family.folder.name,
        backends=names,
        sampling=sampling,
        rounds=args.rounds or (3 if len(cases) < FEW_PROMPTS else 1),
        batch=not args.no_batch,
        optional=args.backends is None,
        skipped=tuple(SkippedBackend(e.name, e.missing, e.fix) for e in skipped),
        folder=family.folder.path if family.folder.repo_id is None else None,
    )
    _print_before(args, output, plan.backends, cases, family.folder.name, first_image)
    with output.only_ours(), progress_display(output) as say:
        opener = Opener(args.model, options, args.generation_config)
        result = compare(plan, cases, opener.open, say)
    if output.json:
        output.document(as_dict(result))
    if not output.json or not output.quiet:
        from visavis.compare.table import print_answers, print_result

        console = output.console()
        print_answers(console, result, result.prompts[0])
        print_result(console, result)
    if result.failed or (args.fail_on_difference and not result.all_same):
        return 1
    return 0


def _print_before(
    args: Namespace, output: Output, backends: tuple[str, ...], cases: list[Case], model: str, image: Any
) -> None:
    if output.quiet and output.json:
        return
    from visavis.compare.table import print_header
    from visavis.report.machine import describe

    console = output.console()
    asked = sampling_params(args).asked()
    settings = ", ".join([*([] if asked.get("temperature") else ["greedy"]), *(f"{k} {v}" for k, v in asked.items())])
    print_header(console, model=model, backends=backends, prompts=len(cases), machine=describe(), settings=settings)
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    if image is not None and (in_colour if args.picture is None else args.picture):
        from visavis.cli.picture import half_blocks, shades

        pixels = image.frames[0] if hasattr(image, "frames") else image.pixels
        console.print((half_blocks if in_colour else shades)(pixels, width=min(console.width, 72)))
