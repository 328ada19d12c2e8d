"""`visavis backends`: which engines can run here; `install` and `remove` of those with environments of their own."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser
from visavis.errors import OptionError, shorten

__all__ = ["add_parser", "run"]

ACTIONS = ("list", "install", "remove")


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "backends",
        help="which engines can run here, and what adds the others",
        description="""\
Which engines can run here, their versions and interpreters, and what adds the others.

  visavis backends                 the list
  visavis backends install vllm    makes a virtual environment for an engine that pins another torch than ours
  visavis backends remove vllm     deletes it

To use an engine you have installed elsewhere: --python vllm=/path/to/python with the other commands, or
VISAVIS_VLLM_PYTHON=/path/to/python (VISAVIS_SGLANG_PYTHON) for all.""",
    )
    parser.add_argument("action", nargs="?", default="list", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("name", nargs="?", metavar="NAME", help="engine to install or remove")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cuda", action="store_true", help="the build for NVIDIA GPUs (default where there is one)")
    kind.add_argument("--cpu", action="store_true", help="the build without")
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    output = Output(args)
    if args.words_left:
        raise OptionError(f"{shorten(args.words_left[0])} is not understood; see visavis backends --help")
    if args.action == "list":
        if args.name is not None or args.cuda or args.cpu:
            raise OptionError("visavis backends lists all; to add one: visavis backends install NAME")
        return _list(output)
    if args.name is None:
        from visavis.backends.recipes import INSTALLABLE

        raise OptionError(f"which one? visavis backends {args.action} {' | '.join(INSTALLABLE)}")
    return _install(args, output) if args.action == "install" else _remove(args, output)


def _list(output: Output) -> int:
    from visavis.backends.devices import devices
    from visavis.backends.registry import availability

    found, on = availability(), devices()
    if output.json:
        output.document({"backends": [asdict(entry) for entry in found], "devices": on})
        return 0
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("backend", "runs here", "version"):
        table.add_column(name)
    for entry in found:
        runs = Text("yes", style="green") if entry.can_run else Text(f"no: {entry.missing}", style="yellow")
        table.add_row(entry.name, runs, entry.version or "–")
    console = output.console()
    console.print(table)
    for entry in found:
        if entry.fix:  # a line of its own, unbroken: it is there to be copied
            console.print(Text.assemble((f"to add {entry.name}: ", "dim"), entry.fix), soft_wrap=True)
    for interpreter in sorted({entry.interpreter for entry in found if entry.can_run}):
        names = ", ".join(e.name for e in found if e.can_run and e.interpreter == interpreter)
        console.print(Text(f"{names}: {interpreter}", style="dim"))
    console.print(Text(f"devices: {', '.join(on)}", style="dim"))
    return 0


def _install(args: Namespace, output: Output) -> int:
    from visavis.backends.devices import cuda_gpus
    from visavis.backends.install import install
    from visavis.backends.recipes import recipe_for

    _refuse_without_environment(args.name)
    recipe = recipe_for(args.name, cuda=args.cuda or (not args.cpu and bool(cuda_gpus())))
    with output.only_ours():
        made = install(recipe, output.say)
    if output.json:
        output.document(
            {"backend": made.engine, "version": made.version, "variant": made.variant, "interpreter": str(made.python)}
        )
    else:
        output.piece(f"{made.engine} {made.version} is ready: visavis compare --backends native,{made.engine}\n")
    return 0


def _refuse_without_environment(name: str) -> None:
    """Raises OptionError for an engine that runs in this interpreter."""
    from visavis.backends.recipes import INSTALLABLE
    from visavis.backends.registry import availability

    for entry in availability():
        if entry.name == name and name not in INSTALLABLE:
            here = "is here already" if entry.can_run else f"is added by {entry.fix}"
            raise OptionError(
                f"{name} has no environment of its own and {here}; those that may: {', '.join(INSTALLABLE)}"
            )


def _remove(args: Namespace, output: Output) -> int:
    from visavis.backends.environments import environments_folder, remove
    from visavis.backends.recipes import INSTALLABLE

    if args.name not in INSTALLABLE:
        raise OptionError(
            f"{shorten(args.name)} has no environment of its own; those that may: {', '.join(INSTALLABLE)}"
        )
    if args.cuda or args.cpu:
        raise OptionError("--cuda and --cpu are for install")
    if not remove(args.name):
        raise OptionError(f"{args.name} is not installed in {environments_folder()}")
    if output.json:
        output.document({"removed": args.name})
    else:
        output.piece(f"{args.name} is removed\n")
    return 0
