"""A comparison for people: answers, the table, differences, notes, the verdict. Prints through rich."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from visavis.compare.result import BackendResult, Comparison, Difference, PairResult, PromptRecord, Side
from visavis.compare.settings_apart import shown
from visavis.compare.words import effect, of, the_rest
from visavis.report.machine import one_line
from visavis.report.units import bytes_, duration, rate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_answers", "print_header", "print_result"]

SHOWN_DIFFERENCES = 5
SHOWN_ANSWER = 300  # characters


def print_header(
    console: Console, *, model: str, backends: Sequence[str], prompts: int, machine: dict[str, object], settings: str
) -> None:
    """What is compared, on what machine, with what settings."""
    names = " and ".join(backends) if len(backends) < 3 else f"{', '.join(backends[:-1])} and {backends[-1]}"
    verb = "answers" if len(backends) == 1 else "answer"
    asked = f" · {settings}" if settings else ""
    console.print(f"[bold]{names}[/bold] {verb} {_count(prompts, 'prompt')} with {model}{asked}", highlight=False)
    console.print(f"[dim]{one_line(machine)}[/dim]", highlight=False)


def print_answers(console: Console, comparison: Comparison, record: PromptRecord) -> None:
    """One question with every engine's answer to it."""
    from rich.text import Text

    for b in comparison.backends:
        if b.own:
            said = ", ".join(f"{name} {shown(value)}" for name, value in b.own.items())
            console.print(Text.assemble((f"{b.backend}  ", "cyan"), (f"{b.engine} with {said}", "dim")))
    sizes = "".join(_sizes(media) for media in record.media)
    console.print(Text.assemble((f"{record.id}  ", "dim"), (record.question, "bold"), (sizes, "dim")))
    width = max(len(b.backend) for b in comparison.backends)
    for b in comparison.backends:
        answer = b.first_round().get(record.id)
        if answer is None:
            said, note = f"no answer: {b.error}", ""
        elif answer.error is not None:
            said, note = f"failed: {answer.error}", ""
        else:
            said = answer.text if len(answer.text) <= SHOWN_ANSWER else f"{answer.text[:SHOWN_ANSWER]}…"
            note = {True: "  right", False: "  wrong", None: ""}[answer.right]
        style = {"  right": "green", "  wrong": "red"}.get(note, "")
        console.print(Text.assemble((f"  {b.backend:<{width}}  ", "cyan"), said or "(nothing)", (note, style)))
    if record.expected is not None and record.expected.text is not None:
        console.print(Text.assemble((f"  {'true':<{width}}  ", "dim"), (record.expected.text, "dim")))


def print_result(console: Console, comparison: Comparison) -> None:
    """The table, the first differences, what limits the comparison, the verdict."""
    from rich.text import Text

    console.print(_table(comparison))
    for pair in comparison.pairs:
        for difference in pair.differences[:SHOWN_DIFFERENCES]:
            _print_difference(console, pair, difference)
        if (more := len(pair.differences) - SHOWN_DIFFERENCES) > 0:
            console.print(f"  … and {_count(more, 'more difference')}; --json has all of them", style="dim")
        if rest := the_rest(pair):
            console.print(Text(f"  {rest}", style="dim"))
        _print_findings(console, pair)
    for sentence in comparison.times:
        console.print(Text.assemble(("time  ", "cyan"), sentence))
    for note in comparison.notes:
        console.print(Text.assemble(("note  ", "yellow"), note))
    for skipped in comparison.skipped:
        how = f"; to add it: {skipped.install}" if skipped.install else ""
        console.print(Text(f"not compared: {skipped.backend} ({skipped.reason}){how}", style="dim"))
    console.print(Text(comparison.verdict, style="bold"))


def _table(comparison: Comparison) -> Table:
    from rich import box
    from rich.table import Table

    prompts = len(comparison.prompts)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("")
    for b in comparison.backends:
        table.add_column(b.backend, justify="right")
    for name, cell in _rows(comparison, prompts):
        cells = [cell(b) for b in comparison.backends]
        if any(c != "–" for c in cells):
            table.add_row(name, *cells)
    return table


def _rows(comparison: Comparison, prompts: int) -> list[tuple[str, Callable[[BackendResult], str]]]:
    at_once = f"tokens/s, {prompts} at once"
    first = comparison.backends[0].backend
    if comparison.pairs:
        first = comparison.pairs[0].first
    judged = sum(record.expected is not None for record in comparison.prompts)
    return [
        ("version", lambda b: b.version or "–"),
        ("dtype, device", lambda b: f"{b.dtype} {b.device}".strip() or "did not run"),
        ("load", lambda b: duration(b.load_s)),
        ("warm-up", lambda b: duration(b.warm_up_s)),
        ("first token (median)", lambda b: duration(b.first_token_s)),
        ("per token (median)", lambda b: duration(b.per_token_s)),
        ("tokens/s, one at a time", lambda b: rate(b.tokens_per_s)),
        (f"per token, {prompts} at once", lambda b: duration(b.batch.per_token_s if b.batch else None)),
        (at_once, lambda b: rate(b.batch.tokens_per_s if b.batch else None)),
        ("peak memory", lambda b: bytes_(b.peak_memory_bytes)),
        ("peak GPU memory", lambda b: bytes_(b.peak_device_memory_bytes)),
        (f"same tokens as {first}", lambda b: _same(comparison, b)),
        ("right answers", lambda b: "–" if b.right is None else f"{b.right}/{judged}"),
    ]


def _same(comparison: Comparison, b: BackendResult) -> str:
    pair = next((p for p in comparison.pairs if p.second == b.backend), None)
    if pair is None:
        return "–"
    if pair.without_ids:
        return f"no ids, text {pair.same_text}/{pair.total}"
    text = "" if pair.same_text == pair.same else f", text {pair.same_text}/{pair.total}"
    return f"{pair.same}/{pair.total}{text}"


def _print_findings(console: Console, pair: PairResult) -> None:
    """What was made equal, what each re-run brought, and what follows."""
    from rich.text import Text

    singles = [r for r in pair.reruns if r.prompt == pair.reruns[0].prompt]
    if singles:
        heading = f"{pair.second} asked again with {of(pair.first)} settings ({singles[0].prompt}):"
        console.print(Text(heading, style="dim"))
    for rerun in singles:
        console.print(Text.assemble(("  ", ""), (" + ".join(rerun.equalised), "bold"), f": {effect(rerun)}"))
    for finding in pair.findings:
        console.print(Text.assemble(("why  ", "green"), f"{pair.first} and {pair.second}: {finding}"))


def _print_difference(console: Console, pair: PairResult, difference: Difference) -> None:
    from rich.text import Text

    said = [cause.text for cause in difference.causes] or [difference.why]
    console.print(Text.assemble((f"{difference.prompt}  ", "dim"), (difference.kind, "bold"), f": {said[0]}"))
    for more in said[1:]:
        console.print(Text(f"  {more}"))
    if difference.first is None or difference.second is None:
        return
    console.print(Text(f"  at token {difference.position}, after {difference.before!r}", style="dim"))
    width = max(len(pair.first), len(pair.second))
    for name, side, other in (
        (pair.first, difference.first, pair.second),
        (pair.second, difference.second, pair.first),
    ):
        console.print(Text.assemble((f"  {name:<{width}}  ", "cyan"), _side(side, other)))


def _side(side: Side, other: str) -> str:
    if side.token_id is None:
        return "(ended)"
    text = f"{side.token!r} ({side.token_id})"
    if side.logprob is None:
        return text
    theirs = "not among its 5 best" if side.logprob_of_other is None else f"{side.logprob_of_other:.4f}"
    return f"{text}  logprob {side.logprob:.4f}, {of(other)} token {theirs}"


def _sizes(media: Mapping[str, Any]) -> str:
    original, size = media["original_size"], media["size"]
    return f"  [{original[1]}×{original[0]} → {size[1]}×{size[0]}, {media['tokens']} tokens]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
