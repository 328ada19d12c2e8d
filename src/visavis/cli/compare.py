"""`visavis compare`: the same prompts on several engines, side by side."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
from visavis.errors import OptionError

if TYPE_CHECKING:
    from visavis.backends.base import ModelInterface, Progress
    from visavis.backends.options import EngineOptions
    from visavis.compare.cases import Case
    from visavis.compare.measure import Say
    from visavis.compare.result import SkippedBackend

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
    names, skipped = _backends(args)
    sampling, options = sampling_params(args), engine_options(args, names, warmup=False)
    pixel_limits(args)
    announce_model(args, output)

    from visavis.compare.cases import Case
    from visavis.compare.result import Expected, as_dict
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
        skipped=tuple(skipped),
        folder=family.folder.path if family.folder.repo_id is None else None,
    )
    _print_before(args, output, plan.backends, cases, family.folder.name, first_image)
    with output.only_ours(), _progress(output) as say:
        opener = _Opener(args.model, options, args.generation_config)
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


class _Opener:
    """Loads a backend in a child process, with the interpreter it needs: its memory and its start are its own, and
    end with it."""

    def __init__(self, model: str | None, options: EngineOptions, use_generation_config: bool) -> None:
        from visavis.backends.registry import availability

        self.model, self.options, self.use_generation_config = model, options, use_generation_config
        self.interpreters = {entry.name: entry.interpreter for entry in availability()}

    @contextmanager
    def open(self, backend: str, progress: Progress) -> Iterator[ModelInterface]:
        from visavis.backends.worker import WorkerModel

        with WorkerModel(backend, python=self.interpreters.get(backend) or None) as model:
            model.use_generation_config = self.use_generation_config
            model.load(self.model, self.options, progress)
            yield model


def _backends(args: Namespace) -> tuple[tuple[str, ...], list[SkippedBackend]]:
    """The backends to run, and those that cannot and were not asked for by name. Raises OptionError."""
    from visavis.backends.registry import availability, new
    from visavis.compare.result import SkippedBackend

    if args.backends is not None:
        names = tuple(name.strip() for name in args.backends.split(",") if name.strip())
        if not names:
            raise OptionError("--backends names none; e.g. --backends native,hf")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise OptionError(f"--backends names {twice} twice")
        known = {entry.name: entry for entry in availability()}
        for name in names:
            if name not in known:
                new(name)  # raises for what does not exist
            elif not known[name].can_run:
                fix = f"; to add it: {known[name].fix}" if known[name].fix else ""
                raise OptionError(f"backend {name} cannot run here: {known[name].missing}{fix}")
        return names, []
    usual = [entry for entry in availability() if entry.name in BY_DEFAULT]
    skipped = [SkippedBackend(e.name, e.missing, e.fix) for e in usual if not e.can_run]
    if not (names := tuple(e.name for e in usual if e.can_run)):
        raise OptionError("no backend can run here; visavis backends says what adds them")
    return names, skipped


def _print_before(
    args: Namespace, output: Output, backends: tuple[str, ...], cases: list[Case], model: str, image: Any
) -> None:
    if output.quiet and output.json:
        return
    from visavis.compare.machine import describe
    from visavis.compare.table import print_header

    console = output.console()
    asked = sampling_params(args).asked()
    settings = ", ".join([*([] if asked.get("temperature") else ["greedy"]), *(f"{k} {v}" for k, v in asked.items())])
    print_header(console, model=model, backends=backends, prompts=len(cases), machine=describe(), settings=settings)
    in_colour = console.is_terminal and console.color_system is not None and not console.no_color
    if image is not None and (in_colour if args.picture is None else args.picture):
        from visavis.cli.picture import half_blocks, shades

        pixels = image.frames[0] if hasattr(image, "frames") else image.pixels
        console.print((half_blocks if in_colour else shades)(pixels, width=min(console.width, 72)))


@contextmanager
def _progress(output: Output) -> Iterator[Say]:
    """A bar on a terminal; a line for each new phase elsewhere."""
    console = output.progress_console()
    if console is None:
        seen: set[tuple[str, str]] = set()

        def line(backend: str, what: str, done: int, total: int) -> None:
            if (backend, what) not in seen:
                seen.add((backend, what))
                output.say(f"{backend}: {what}{f', {total} prompts' if total > 1 else ''}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(backend: str, what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{backend}: {what}", completed=done, total=total if total > 1 else None)

        yield show
