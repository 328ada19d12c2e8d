"""`visavis count`: what a request will cost in tokens, before any engine starts. Imports no torch."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from visavis.cli.inputs import RawCase, add_request_options, conversation_of, flag_case, named_by_flags, raw_cases
from visavis.cli.model_file import use_model_file
from visavis.cli.options import add_model_option, add_pixel_options, announce_model
from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser
from visavis.errors import OptionError

if TYPE_CHECKING:
    from visavis.families import CountReport, Family

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "count",
        help="how many tokens a request will cost",
        description="How many tokens a request will cost: in all, and per image or video. Loads no weights.",
    )
    add_request_options(parser)
    add_model_option(parser)
    add_pixel_options(parser)
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    output = Output(args)
    cases = _cases(args)
    if not cases:
        raise OptionError('nothing to count: visavis count "what is this?" --image screen.png, or --messages FILE')
    use_model_file(args)
    announce_model(args, output)
    from visavis.families import load_family

    family = load_family(args.model, trust_remote_code=args.trust_remote_code)
    reports = [(case, _count(family, case, args, several=len(cases) > 1)) for case in cases]
    if output.json:
        output.document({"conversations": [_as_dict(case.id, report) for case, report in reports]})
        return 0
    for case, report in reports:
        _print(output, case.id if len(cases) > 1 else "", report)
    return 0


def _count(family: Family, case: RawCase, args: Namespace, *, several: bool) -> CountReport:
    conversation = conversation_of(family, case, args, several=several)
    with named_by_flags(case):
        return family.count(conversation)


def _cases(args: Namespace) -> list[RawCase]:
    """As for `ask`; also media without a question: what they alone cost."""
    if args.question or args.words_left or args.messages is not None or not (args.image or args.video):
        return raw_cases(args)
    return [flag_case(args, None)]


def _as_dict(name: str, report: CountReport) -> dict[str, Any]:
    return {
        "id": name,
        "model": report.model,
        "family": report.family,
        "total": report.total,
        "text_tokens": report.text_tokens,
        "media": [
            {
                "kind": m.kind,
                "where": m.where,
                "source": m.source,
                "original_size": list(m.original_size),
                "size": list(m.size),
                "frames": m.frames,
                "tokens": m.tokens,
            }
            for m in report.media
        ],
        "max_model_len": report.max_model_len,
        "fits": report.fits,
    }


def _print(output: Output, name: str, report: CountReport) -> None:
    console = output.console()
    left = report.max_model_len - report.total
    room = f"{left} left for the answer" if report.fits else f"too long by {-left + 1}: no room for an answer"
    prefix = f"{name}: " if name else ""
    console.print(
        f"[bold]{prefix}{report.total} tokens[/bold] of {report.max_model_len} for {report.model}; {room}",
        highlight=False,
    )
    rows = [("text", "", report.text_tokens)]
    rows += [(m.kind, _sizes(m), m.tokens) for m in report.media]
    width = max(len(str(tokens)) for _, _, tokens in rows)
    for kind, sizes, tokens in rows:
        console.print(f"  {tokens:>{width}}  {kind}{sizes}", highlight=False, markup=False)


def _sizes(media: Any) -> str:
    (height, width), (to_height, to_width) = media.original_size, media.size
    frames = f", {media.frames} frames" if media.kind == "video" else ""
    source = f" {media.source}" if media.source else ""
    return f"{source}  {width}×{height} → {to_width}×{to_height}{frames}"
