"""`visavis bench report`: results of files as tables, HTML, CSV; old against new. Also what a run shows at its end."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visavis.cli.bench_options import SAYING, given_flags
from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser
from visavis.errors import OptionError, shorten

if TYPE_CHECKING:
    from visavis.bench.report import Report
    from visavis.bench.result import Bench

__all__ = ["add_form_options", "add_parser", "check_forms", "finish", "run"]


def add_parser(actions: Any, bench: Parser) -> None:
    """`bench`: the parser this one belongs to."""
    parser: Parser = actions.add_parser(
        "report",
        help="tables, HTML and CSV of result files",
        description="""\
  visavis bench report a.json b.json --html r.html
  visavis bench report new.json --compare-to old.json     ratios, and whether they are more than noise""",
    )
    parser.add_argument("results", nargs="+", metavar="FILE", help="what visavis bench wrote")
    add_form_options(parser)
    add_output_options(parser)
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            action.default = SUPPRESS  # else it would wipe out what was given before the word "report"
    parser.set_defaults(run=run, parser=parser, bench_parser=bench)


def add_form_options(parser: Any) -> None:
    parser.add_argument("--html", metavar="FILE", help="one self-contained page with charts")
    parser.add_argument("--csv", metavar="FILE", help="one line per row and figure")
    parser.add_argument("--compare-to", metavar="FILE", help="an earlier result: ratios with their spread")


def check_forms(args: Namespace) -> None:
    """What can be wrong with the flags of `add_form_options`, before any work is done."""
    for flag in ("html", "csv"):
        given = getattr(args, flag)
        if given is not None and not Path(given).expanduser().parent.is_dir():
            raise OptionError(f"--{flag} {shorten(given)}: there is no such folder")
    if args.compare_to is not None and not Path(args.compare_to).expanduser().is_file():
        raise OptionError(f"--compare-to {shorten(args.compare_to)}: no such file")


def run(args: Namespace) -> int:
    """0. Raises InputError for files that are no results."""
    from visavis.bench.store import load

    output = Output(args)
    if args.words_left:
        raise OptionError(f"bench report: {shorten(args.words_left[0])} is not understood")
    if others := [flag for flag in given_flags(args, args.bench_parser) if flag not in SAYING]:
        raise OptionError(f"bench report measures nothing, so {others[0]} has no meaning there; leave it out")
    check_forms(args)
    files = []
    for text in args.results:
        path = Path(text).expanduser()
        files.append((path.name, load(path)))
    names = [name for name, _ in files]
    if len(set(names)) < len(names):  # the same name in several folders
        files = [(text, bench) for text, (_, bench) in zip(args.results, files, strict=True)]
    finish(args, output, files)
    return 0


def finish(args: Namespace, output: Output, files: list[tuple[str, Bench]]) -> Report:
    """Writes and prints the report in every form that was asked for."""
    from visavis.bench.document import as_dict
    from visavis.bench.report import make_report
    from visavis.bench.store import load

    old = None
    if args.compare_to is not None:
        path = Path(args.compare_to).expanduser()
        old = (path.name, load(path))
    report = make_report(files, old)
    if args.html is not None:
        from visavis.bench.html.page import to_html

        _write("--html", args.html, to_html(report), output)
    if args.csv is not None:
        from visavis.bench.csv_file import to_csv

        _write("--csv", args.csv, to_csv(report), output)
    if output.json:
        output.document(as_dict(report))
    if not output.json or not output.quiet:
        from visavis.bench.table import print_report

        print_report(output.console(), report)
    return report


def _write(flag: str, target: str, text: str, output: Output) -> None:
    path = Path(target).expanduser()
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise OptionError(f"{flag} {shorten(target)} cannot be written: {error.strerror or error}") from None
    output.say(f"written: {path}")
