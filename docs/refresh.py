"""Makes every pasted output and picture of the documentation anew, so that none of them goes stale.

python docs/refresh.py                          all of it; takes some minutes, on a machine that does nothing else
python docs/refresh.py docs/commands/ask.md     these files alone
python docs/refresh.py --exact                  what is the same on every machine, busy or not
python docs/refresh.py --list                   what there is

A pasted output is a fenced block whose first line is the command (`$ visavis …`), under a comment with options:

    <!-- pasted {"exact": true} -->

exact    the output is the same everywhere: a test runs the command and compares
command  the command, where it names a bundled sample: {image} is the first one's file, {question} its question
stderr   what is said beside the output is shown too
columns  of the terminal (112)
drop     lines that match one of these expressions are left out, with … in their place
only     [expression, number]: so many lines from the first that matches on, of everything; … stands for the rest
by_hand  why this script cannot make it
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"<!-- pasted ?(\{.*?\})? -->\n```\n(\$ .*?)\n```", re.DOTALL)
UNMARKED = re.compile(r"(?<! -->\n)^```\n\$ visavis ", re.MULTILINE)
SAMPLES = ROOT / "src" / "visavis" / "assets" / "samples"
SAMPLE = re.compile(r"\b(\d\d)-[a-z]+(?:-[a-z]+)*\.png")
QUESTION = re.compile(r"""'In this UI screenshot, what is the position [^'\n]*\(with bbox\)\?'""")
CONTINUED = re.compile(r"\\\n\s*")
TERMINAL = ("docs/images/compare.svg",)
REPORT = "docs/reports/document-000.html"
SCREENSHOTS: dict[str, tuple[int, int, tuple[str, ...], bool]] = {  # width, height, the sections shown, dark
    "docs/images/compare-report.png": (1280, 1800, (), False),
    "docs/images/compare-report-phone.png": (390, 1500, ("screens", "tokens"), True),
}
DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Pasted:
    """One pasted output. `shown` is the command as it stands there, with its `$` and its line breaks."""

    file: Path
    shown: str
    output: str
    options: dict[str, Any]
    span: tuple[int, int]  # of the block's inside in the file's text

    @property
    def line(self) -> str:
        """The command as it is to stand there: with the names of today's samples."""
        template = self.options.get("command")
        return self.shown if template is None else "$ " + template.format(**first_sample())

    @property
    def command(self) -> list[str]:
        return shlex.split(CONTINUED.sub("", self.line.removeprefix("$ ")))

    @property
    def exact(self) -> bool:
        return bool(self.options.get("exact"))


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def first_sample() -> dict[str, str]:
    """File and question of the first bundled sample, for a command line."""
    sample = json.loads((SAMPLES / "samples.json").read_text("utf-8"))["samples"][0]
    parts = sample["messages"][-1]["content"]
    question = next(part["text"] for part in parts if part["type"] == "text")
    return {
        "image": next(part["image"] for part in parts if part["type"] == "image"),
        "question": shlex.quote(question),
    }


def with_todays_samples(text: str) -> str:
    """Names of bundled samples that are no more become the names of today's with the same number, and the first one's
    question, where it stands on a command line, today's."""
    today = {path.name[:2]: path.name for path in SAMPLES.glob("*.png")}
    text = SAMPLE.sub(lambda match: today.get(match[1], match[0]), text)
    return QUESTION.sub(lambda match: first_sample()["question"], text)


def pasted_in(file: Path) -> list[Pasted]:
    """The pasted outputs of a file, in order."""
    found = []
    for match in MARKED.finditer(file.read_text("utf-8")):
        lines = match[2].split("\n")
        length = 1 + next(i for i, line in enumerate(lines) if not line.endswith("\\"))
        shown, output = "\n".join(lines[:length]), "\n".join(lines[length:])
        found.append(Pasted(file, shown, output, json.loads(match[1] or "{}"), match.span(2)))
    return found


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder to run commands in: the sample screens, and the config.json of the hub models that pages name."""
    sys.path.insert(0, str(ROOT))
    from tests.unit.plan.configs import qwen2_vl_7b

    with tempfile.TemporaryDirectory(prefix="visavis-docs-") as name:
        folder = Path(name)
        for sample in SAMPLES.iterdir():
            shutil.copy(sample, folder)
        model = folder / "Qwen" / "Qwen2-VL-7B-Instruct"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(qwen2_vl_7b()), "utf-8")
        yield folder


def run(pasted: Pasted, folder: Path) -> str:
    """What the command says, stdout and stderr as a terminal mixes them. Ends the script where it fails."""
    env = os.environ | {
        "COLUMNS": str(pasted.options.get("columns", 112)),
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    beside = subprocess.STDOUT if pasted.options.get("stderr") else subprocess.PIPE
    done = subprocess.run(
        pasted.command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=beside, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        said = done.stderr or done.stdout
        sys.exit(f"{pasted.file.name}: {' '.join(pasted.command)} ended with {done.returncode}:\n{said}")
    text = done.stdout.replace(sys.prefix, "/home/me/visavis/.venv").replace(str(ROOT), "/home/me/visavis")
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    return "\n".join(_shortened(lines, pasted.options))


def _shortened(lines: list[str], options: dict[str, Any]) -> Iterator[str]:
    rules = [re.compile(rule) for rule in options.get("drop", ())]
    kept = set(range(len(lines)))
    if "only" in options:
        kept = set()
        for rule, count in options["only"]:
            first = next((i for i, line in enumerate(lines) if re.search(rule, line)), None)
            kept |= set() if first is None else set(range(first, first + count))
    left_out = False
    for i, line in enumerate(lines):
        gone = i not in kept or any(rule.search(line) for rule in rules)
        if gone and not left_out:
            yield "…"
        if not gone:
            yield line
        left_out = gone


def refresh(file: Path, folder: Path, *, exact: bool) -> int:
    """Writes the file's outputs anew, the exact ones alone or all; gives back how many."""
    text = file.read_text("utf-8")
    count = 0
    for pasted in reversed(pasted_in(file)):  # from the end, so that the places before stay where they are
        if exact and not pasted.exact:
            continue
        print(f"{file.relative_to(ROOT)}: {pasted.line.splitlines()[0]}", flush=True)
        if reason := pasted.options.get("by_hand"):
            print(f"NOT MADE: {reason}")
            continue
        start, end = pasted.span
        text = f"{text[:start]}{pasted.line}\n{run(pasted, folder)}{text[end:]}"
        count += 1
    text = with_todays_samples(text)
    if text != file.read_text("utf-8"):
        file.write_text(text, "utf-8")
    return count


def pictures() -> None:
    """The terminal's picture, document 000's report, and that page as a browser shows it."""
    visavis = str(Path(sys.executable).parent / "visavis")
    for target in TERMINAL:
        print(target, flush=True)
        subprocess.run([sys.executable, "docs/make_picture.py", target, visavis, "compare"], cwd=ROOT, check=True)
    found = subprocess.run([visavis, "backends", "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    runs = {entry["name"] for entry in json.loads(found.stdout)["backends"] if entry["can_run"]}
    if "vllm" in runs:
        print(REPORT, flush=True)
        command = [visavis, "compare", "examples/document-000", "--report", REPORT]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    else:
        print(f"NOT MADE: {REPORT} needs vLLM (visavis backends install vllm)")
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(f"NOT MADE: {', '.join(SCREENSHOTS)} need one of {', '.join(BROWSERS)}")
        return
    for target, (width, height, sections, dark) in SCREENSHOTS.items():
        print(target, flush=True)
        screenshot(browser, ROOT / REPORT, ROOT / target, (width, height), sections, dark=dark)


def screenshot(
    browser: str, page: Path, target: Path, size: tuple[int, int], sections: tuple[str, ...] = (), *, dark: bool = False
) -> None:
    """A page, or some of its sections alone, as a browser without a window shows it."""
    shown = ", ".join(f"[aria-labelledby={name}]" for name in sections)
    style = f"<style>main > :not({shown}) {{ display: none }}</style>" if sections else ""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(page.read_text("utf-8").replace("</head>", f"{style}</head>", 1), "utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={size[0]},{size[1]}", f"--screenshot={target}"]
        subprocess.run([*command, *(DARK if dark else ()), copy.as_uri()], check=True, capture_output=True, timeout=120)


def main(argv: list[str]) -> None:
    if "--list" in argv:
        for file in documents():
            for pasted in pasted_in(file):
                kind = "exact" if pasted.exact else "by hand" if "by_hand" in pasted.options else "times"
                print(f"{file.relative_to(ROOT)}  {kind}  {pasted.line.splitlines()[0]}")
        print("\n".join([*TERMINAL, REPORT, *SCREENSHOTS]))
        return
    from visavis.report.machine import busy_words, describe

    exact = "--exact" in argv
    files = [Path(name).resolve() for name in argv if not name.startswith("--")]
    if not exact and "--anyway" not in argv and (busy := busy_words(describe())):
        sys.exit(f"{busy}; wait, or give --anyway")
    with workplace() as folder:
        count = sum(refresh(file, folder, exact=exact) for file in files or documents())
    print(f"{count} outputs")
    if not files and not exact:
        pictures()


if __name__ == "__main__":
    main(sys.argv[1:])
