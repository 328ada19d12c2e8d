"""Runs a command in a terminal of its own and keeps what it shows as an SVG: the README's picture of visavis at work.

python docs/make_picture.py docs/images/compare.svg visavis compare
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

WIDTH = 112
FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)
ERASED = re.compile(r"\x1b\[(?:\?25[lh]|2K|1A|\d*G|0?J)")


def in_terminal(command: list[str]) -> str:
    """What `command` writes to a colour terminal of WIDTH columns, progress display taken out."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
    env = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH)}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=child, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(child)
        shown = b""
        try:
            while piece := os.read(parent, 65536):
                shown += piece
        except OSError:  # Linux: the other end has closed
            pass
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    lines = [line.rsplit("\r", 1)[-1] for line in shown.decode().replace("\r\n", "\n").split("\n")]
    return ERASED.sub("", "\n".join(lines)).strip("\n")


def main() -> None:
    target, command = Path(sys.argv[1]), sys.argv[2:]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(f"$ {Path(command[0]).name} {' '.join(command[1:])}", highlight=False)
    console.print(Text.from_ansi(in_terminal(command)))
    # The usual template loads a font from elsewhere; a picture in a README may not.
    template = FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace(
        "Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(target), title="visavis", theme=DIMMED_MONOKAI, code_format=template)


if __name__ == "__main__":
    main()
