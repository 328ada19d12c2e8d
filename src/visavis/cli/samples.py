"""`visavis samples DIR`: the bundled sample screens with questions and true answers, copied out."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from visavis.cli.inputs import read_messages_file, samples_file
from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser
from visavis.errors import OptionError, shorten

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "samples",
        help="copy the bundled sample screens and their messages file to a folder",
        description="Copies the bundled sample screens (PNG) and samples.json, their questions and true answers.",
    )
    parser.add_argument("folder", metavar="DIR", help="made if it does not exist")
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    output = Output(args)
    if args.words_left:
        raise OptionError(f"one folder is needed, {shorten(args.words_left[0])} is one too many")
    source = Path(samples_file()).parent
    files = sorted(p for p in source.iterdir() if p.suffix in (".png", ".json"))
    if not args.folder.strip():
        raise OptionError("the folder's name is empty; . is the folder you are in")
    target = Path(args.folder).expanduser()
    try:
        if target.exists() and not target.is_dir():
            raise OptionError(f"{shorten(args.folder)} is a file, a folder is needed")
        differing = [f.name for f in files if (target / f.name).exists() and not _same(f, target / f.name)]
        if differing and not args.force:
            raise OptionError(f"{shorten(args.folder)} already has another {differing[0]}; --force overwrites it")
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            _copy(file, target / file.name)
    except OSError as error:
        raise OptionError(f"{shorten(args.folder)} cannot be written: {error.strerror or error}") from None
    written = [str(target / f.name) for f in files]
    cases = read_messages_file(str(target / "samples.json"))
    if output.json:
        output.document({"folder": str(target), "files": written, "samples": [case.id for case in cases]})
    else:
        output.piece(f"{len(cases)} sample screens and samples.json are in {target}\n")
        output.say(f"compare engines on them: visavis compare --messages {target / 'samples.json'}")
    return 0


def _same(one: Path, two: Path) -> bool:
    return two.is_file() and one.read_bytes() == two.read_bytes()


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(source.read_bytes())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
