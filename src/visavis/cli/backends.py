"""`visavis backends`: which engines can run here, and what adds the others."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser
from visavis.errors import OptionError, shorten

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "backends",
        help="which engines can run here",
        description="Which engines can run here, their versions and interpreters, and what adds the others.",
    )
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    if args.words_left:
        raise OptionError(f"{shorten(args.words_left[0])} is not understood; see visavis backends --help")
    from visavis.backends.registry import availability

    output = Output(args)
    found = availability()
    if output.json:
        output.document({"backends": [asdict(entry) for entry in found]})
        return 0
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("backend", "runs here", "version", "to add it"):
        table.add_column(name)
    for entry in found:
        runs = Text("yes", style="green") if entry.can_run else Text(f"no: {entry.missing}", style="yellow")
        table.add_row(entry.name, runs, entry.version or "–", Text(entry.fix))
    console = output.console()
    console.print(table)
    for interpreter in sorted({entry.interpreter for entry in found if entry.can_run}):
        names = ", ".join(e.name for e in found if e.can_run and e.interpreter == interpreter)
        console.print(Text(f"{names}: {interpreter}", style="dim"))
    return 0
