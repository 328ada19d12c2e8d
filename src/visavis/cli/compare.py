"""`visavis compare`: the same prompts on several engines, side by side."""

from __future__ import annotations

import shlex
from argparse import BooleanOptionalAction, Namespace
from typing import TYPE_CHECKING, Any

from visavis.cli.compare_setups import SetupOpener, add_setup_options, asked_cases, choose, make_setups
from visavis.cli.engines import progress_display
from visavis.cli.inputs import add_request_options, prompt_of, question_of, refuse_overwriting
from visavis.cli.model_file import keep_box_format, use_model_file
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
from visavis.cli.output import Output, add_output_options, check_writable
from visavis.cli.parser import Parser, positive
from visavis.errors import OptionError, shorten

if TYPE_CHECKING:
    from visavis.backends.options import EngineOptions
    from visavis.cli.inputs import RawCase
    from visavis.compare.cases import Case
    from visavis.compare.result import Comparison
    from visavis.compare.setups import Setup
    from visavis.families import Family

__all__ = ["add_parser", "run"]

FEW_PROMPTS = 4


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "compare",
        help="the same prompts on several engines: speed by phase, same tokens or not",
        description="""\
Gives several engines the very same prepared prompts, each in a process of its own, one engine after the other, and
shows how fast each was and whether they generated the same tokens. With no prompts given: the 12 bundled samples.

  visavis compare
  visavis compare -m MODEL --ask "where is the search button?" --image screen.png --backends native,hf
  visavis compare --backends native,hf --set hf.special_tokens=all --report r.html
  visavis compare --backends mine=hf,theirs=native --settings two-people.toml
  visavis compare -m model.toml --backends old=vllm,new=vllm --python old=/opt/a/bin/python

A setting for one backend alone is --set NAME.setting=value: any sampling option, special_tokens, min_pixels,
max_pixels, system, generation_config, or an engine option such as dtype. Where answers then differ, each setting is
made equal in turn and the question asked again: that tells which setting explains what.

load          from the start of the engine's process until it takes requests
warm-up       its first request, image included; not in the figures below
first token   from submission to the first token, one prompt at a time; images are prepared before, once for all
per token     (last - first token time) / (tokens - 1), one prompt at a time
tokens/s      all generated tokens / all time from submission to last token""",
    )
    add_request_options(parser, question_flag=True)
    add_model_option(parser)
    add_setup_options(parser)
    parser.add_argument(
        "--rounds",
        type=positive,
        metavar="N",
        help="times each prompt is asked (default: 3 for under 4 prompts, else 1)",
    )
    parser.add_argument("--no-batch", action="store_true", help="do not also ask all prompts at once")
    parser.add_argument("--no-rerun", action="store_true", help="do not ask again with equal settings")
    parser.add_argument("--fail-on-difference", action="store_true", help="exit 1 unless all answers are the same")
    parser.add_argument("--report", metavar="FILE.html", help="everything on one page, which opens offline")
    parser.add_argument("--csv", metavar="FILE.csv", help="one row for each answer")
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
    use_model_file(args)
    raw = asked_cases(args)
    for flag, path in (("--report", args.report), ("--csv", args.csv)):
        check_writable(flag, path)
        if path is not None:
            refuse_overwriting(flag, path, raw, (args.messages, args.settings))
    if args.report is not None and args.report == args.csv:
        raise OptionError(f"--report and --csv both name {shorten(args.csv)}; give them files of their own")
    chosen = choose(args)
    sampling, options = sampling_params(args), engine_options(args, chosen.backends, warmup=False)
    setups, decided = make_setups(chosen, sampling, options, generation_config=args.generation_config)
    pixel_limits(args)
    announce_model(args, output)

    from visavis.compare.result import SkippedBackend, as_dict
    from visavis.compare.runner import Plan, compare
    from visavis.families import load_family

    family = load_family(args.model, trust_remote_code=args.trust_remote_code)
    keep_box_format(args, family)
    cases, first_image = _prepare(args, raw, family, setups, options)
    plan = Plan(
        model=family.folder.name,
        setups=setups,
        sampling=sampling,
        rounds=args.rounds or (3 if len(cases) < FEW_PROMPTS else 1),
        batch=not args.no_batch,
        rerun=not args.no_rerun,
        optional=args.backends is None and args.settings is None,
        skipped=tuple(SkippedBackend(e.name, e.missing, e.fix) for e in chosen.skipped),
        folder=family.folder.path if family.folder.repo_id is None else None,
        notes=decided,
        command=shlex.join(["visavis", *args.argv]),
    )
    _print_before(args, output, setups, cases, family.folder.name, first_image)
    with output.only_ours(), progress_display(output) as say:
        result = compare(plan, cases, SetupOpener(args.model, options, chosen.python).open, say)
    _write_files(args, result, cases, output)
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


def _prepare(
    args: Namespace, raw: list[RawCase], family: Family, setups: tuple[Setup, ...], options: EngineOptions
) -> tuple[list[Case], Any]:
    """Every prompt, checked under every setup before an engine is started; and the first image or video."""
    from visavis.chat.types import Image
    from visavis.compare.cases import Case
    from visavis.compare.prepare import preparer
    from visavis.compare.result import Expected
    from visavis.compare.setups import options_of

    cases, first = [], None
    for entry in raw:
        prompt, conversation = prompt_of(family, entry, args, several=len(raw) > 1)
        expected = None if entry.expected is None else Expected(**entry.expected)
        images = tuple(m.pixels if isinstance(m, Image) else m.frames[0] for m in conversation.media)
        prepare = preparer(family, conversation)
        case = Case(entry.id, question_of(conversation), prompt, expected, images, prepare)
        for setup in setups:
            under = case.prompted(setup.pixels, setup.system)
            check_sampling(args, setup.sampling, options_of(options, setup.engine), family, under)
        cases.append(case)
        if first is None and conversation.media:
            first = conversation.media[0]
    return cases, first


def _write_files(args: Namespace, result: Comparison, cases: list[Case], output: Output) -> None:
    if args.csv is not None:
        from visavis.compare.table_csv import write_csv

        write_csv(result, args.csv)
        output.say(f"one row for each answer: {args.csv}")
    if args.report is not None:
        from visavis.compare.html import write_report

        write_report(result, {case.id: case.images for case in cases}, args.report)
        output.say(f"report: {args.report}")


def _print_before(
    args: Namespace, output: Output, setups: tuple[Setup, ...], cases: list[Case], model: str, image: Any
) -> None:
    if output.quiet and output.json:
        return
    from visavis.compare.table import print_header
    from visavis.report.machine import describe

    console = output.console()
    asked = sampling_params(args).asked()
    own = [s.name for s in setups if s.generation_config or (s.sampling.temperature and "temperature" in s.said)]
    greedy = "greedy" + (f" but for {', '.join(own)}" if own else "")
    words = [*([] if asked.get("temperature") else [greedy]), *(f"{k} {v}" for k, v in asked.items())]
    if len(own) == len(setups):  # each says what it is asked with
        words = words[1:] if words[0] == greedy else words
    backends, settings = tuple(setup.name for setup in setups), ", ".join(words)
    print_header(console, model=model, backends=backends, prompts=len(cases), machine=describe(), settings=settings)
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    if image is not None and (in_colour if args.picture is None else args.picture):
        from visavis.cli.picture import half_blocks, shades

        pixels = image.frames[0] if hasattr(image, "frames") else image.pixels
        console.print((half_blocks if in_colour else shades)(pixels, width=min(console.width, 72)))
