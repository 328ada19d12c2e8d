"""`visavis bench`: how fast, and nothing else: phases, latency, throughput, load."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visavis.cli import bench_report
from visavis.cli.bench_options import (
    SAYING,
    command_of,
    given_flags,
    result_path,
    workloads_of,
)
from visavis.cli.bench_work import able_to, family_of, plan_of, users_of, work_of
from visavis.cli.caches import switch_off
from visavis.cli.engines import Opener, choose_backends, progress_display, refuse_engines
from visavis.cli.model_file import described_by, interpreters_of, use_model_file
from visavis.cli.options import (
    add_engine_options,
    add_model_option,
    add_pixel_options,
    add_sampling_options,
    announce_model,
    engine_options,
)
from visavis.cli.output import Output, add_output_options
from visavis.cli.parser import Parser, positive
from visavis.errors import InputError, OptionError, shorten

if TYPE_CHECKING:
    from visavis.backends.options import EngineOptions
    from visavis.bench.plan import BenchPlan
    from visavis.bench.result import Bench, Cell
    from visavis.bench.work import Work
    from visavis.families import Family

__all__ = ["add_parser", "run"]

BY_DEFAULT = ("native", "hf", "vllm", "sglang")
"""Backends taken where none is named; a server (openai) has to be named."""


def add_parser(commands: Any) -> Parser:
    parser: Parser = commands.add_parser(
        "bench",
        help="speed alone: latency, throughput, users and load over sizes, lengths and concurrency",
        description="""\
Measures the speed of one or several engines, each in a process of its own, in alternating rounds once they are steady,
with prompts made to measure that no cache has seen. Writes a result file after every round.

  visavis bench --backends native,hf
  visavis bench --workload throughput --concurrency 1,4,16 --output-tokens 32,128
  visavis bench --users 1,4,16                              each user asks again when answered
  visavis bench --workload load --rates 1,2,4 --ttft 500ms --tpot 50ms
  visavis bench --backends openai -m MODEL --set openai.base_url=http://localhost:8000/v1 --natural
  visavis bench --resume bench.json                         goes on where it was interrupted
  visavis bench report a.json b.json --html r.html          tables, charts, CSV, old against new""",
    )
    actions = parser.add_subparsers(
        title="reports of earlier results", dest="bench_action", metavar="[report FILE …]", parser_class=Parser
    )
    parser.explain_word = partial(refuse_engines, "bench")  # type: ignore[method-assign]
    bench_report.add_parser(actions, parser)
    add_model_option(parser)
    parser.add_argument("--backends", metavar="A,B", help="(default: all that can run here)")
    work = parser.add_argument_group("work", "Lists are swept: every combination is a row.")
    work.add_argument(
        "--workload",
        metavar="A,B",
        help="latency (one request at a time), throughput (all at once), users (each asks again when answered), load "
        "(Poisson arrivals) (default: latency,throughput; users with --users, load with --rates)",
    )
    work.add_argument("--image-size", metavar="WxH,…", help="or none (default: 640x480 where the model takes images)")
    work.add_argument("--prompt-tokens", metavar="N,…", help="of the text, template included (default: 128)")
    work.add_argument("--output-tokens", metavar="N,…", help="of the answer (default: 64)")
    work.add_argument("--concurrency", metavar="N,…", help="requests at once, for throughput (default: 8)")
    work.add_argument("--users", metavar="N,…", help="users at once, for users (default: 1,2,4,8)")
    work.add_argument("--rates", metavar="X,…", help="requests a second, for load")
    work.add_argument("--messages", metavar="FILE", help="prompts of a messages file instead of made ones")
    work.add_argument(
        "--natural", action="store_true", help="answers end where the model ends them (default: exactly that long)"
    )
    work.add_argument(
        "--repeat-prompts", action="store_true", help="the same prompts in every round: caches may answer"
    )
    work.add_argument("--prompt-seed", metavar="N", help="of the prompts, images and arrivals (default: 0)")
    add_pixel_options(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--rounds", type=positive, metavar="N", help="timed rounds of each row (default: 5)")
    how.add_argument(
        "--requests", type=positive, metavar="N", help="in a round (default: latency 4, load and users 32)"
    )
    how.add_argument("--ttft", metavar="TIME", help="limit for goodput, e.g. 500ms")
    how.add_argument("--tpot", metavar="TIME", help="limit for goodput, e.g. 50ms")
    how.add_argument("--steady-within", metavar="P", help="warm-up ends when its rounds differ by less (default: 10%%)")
    how.add_argument("--max-warm-up", type=positive, metavar="N", help="rounds of warm-up at most (default: 10)")
    how.add_argument("--no-warm-up", action="store_true", help="the engine gets no warm-up of its own while it loads")
    how.add_argument(
        "--reload",
        action="store_true",
        help="start the engine anew for every round, one engine at a time: less memory, and a spread of the starts",
    )
    how.add_argument("--no-ceiling", action="store_true", help="do not measure what the machine reads and multiplies")
    add_sampling_options(parser, single=False, lengths=False)
    add_engine_options(parser)
    files = parser.add_argument_group("files")
    files.add_argument("--out", metavar="FILE", help="the result (default: bench-MODEL-TIME.json)")
    files.add_argument("--resume", metavar="FILE", help="go on with an interrupted result, with its own options")
    bench_report.add_form_options(files)
    add_output_options(parser)
    return parser


def run(args: Namespace) -> int:
    """0; 1 when an engine failed or a row is void. Raises InputError for bad input."""
    if args.words_left:
        refuse_engines("bench", *args.words_left)
        raise OptionError(f"bench: {shorten(args.words_left[0])} belongs to no option; see visavis bench --help")
    output = Output(args)
    bench_report.check_forms(args)
    path, earlier = None, None
    if args.resume is not None:
        args, path, earlier = _resumed(args)
    use_model_file(args)
    described = described_by(args)
    if args.backends is None and described is not None:
        args.backends = described.backend
    named = None if args.backends is None else tuple(name.strip() for name in args.backends.split(","))
    python = interpreters_of(args, named or BY_DEFAULT)
    names, skipped = choose_backends(args.backends, BY_DEFAULT, python)
    workloads = workloads_of(args)
    names, unable = able_to(names, workloads, users_of(args), named=args.backends is not None)
    options = engine_options(args, names, warmup=not args.no_warm_up)
    plan = plan_of(args, names)
    off: tuple[str, ...] = ()
    if not plan.repeat_prompts and args.messages is None:
        options, off = switch_off(options, names)
    if earlier is None:
        announce_model(args, output)
    family = family_of(args, names, options)
    cells, work = work_of(args, family, plan, workloads, options)
    bench = earlier or _new(args, family, plan, cells)
    if earlier is not None:
        _check_same(earlier, plan, cells)
    if path is None:
        path = result_path(args, bench)
    if off and earlier is None:
        bench.notes.append(f"caches of earlier prompts are off: all prompts begin with the template ({', '.join(off)})")
    if earlier is None:
        left_out = [*(f"{entry.name} ({entry.missing})" for entry in skipped), *unable]
        bench.notes += [f"not measured: {one}" for one in left_out]
    output.say(f"{_amount(plan, cells)}; result file: {path}")
    interrupted = _measure(args, output, bench, plan, cells, work, options, path, python)
    report = bench_report.finish(args, output, [(path.name, bench)])
    if interrupted is not None:
        output.say(f"interrupted; what was measured is kept: visavis bench --resume {path} goes on")
        raise interrupted
    output.say(f"result file: {path}")
    bad = any(e.error for e in bench.engines) or any(row.void for row in report.files[0].rows)
    return 1 if bad else 0


def _amount(plan: BenchPlan, cells: tuple[Cell, ...]) -> str:
    """`30 timed rounds to measure: 3 rows × 2 engines × 5`."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}{'s' if number != 1 else ''}"

    total = plan.rounds * len(cells) * len(plan.backends)
    factors = f"{count(len(cells), 'row')} × {count(len(plan.backends), 'engine')} × {plan.rounds}"
    return f"{count(total, 'timed round')} to measure: {factors}"


def _measure(
    args: Namespace,
    output: Output,
    bench: Bench,
    plan: BenchPlan,
    cells: tuple[Cell, ...],
    work: Work,
    options: EngineOptions,
    path: Path,
    python: Mapping[str, str],
) -> BaseException | None:
    """Runs to the end; gives back what interrupted it, once the file is whole."""
    from visavis.bench.runner import Runner
    from visavis.bench.store import save

    def keep() -> None:
        save(bench, path)

    keep()
    opener = Opener(args.model, options, args.generation_config, python)
    try:
        with output.only_ours(), progress_display(output, unit=None) as say:
            if not args.no_ceiling and not bench.ceiling:
                _measure_ceiling(bench, options, say)
            Runner(plan, cells, work, bench, opener.open, keep, say).run()
    except InputError:
        if not any(run.rounds for run in bench.runs):
            path.unlink(missing_ok=True)  # nothing was measured: bad input leaves no file behind
        raise
    except Exception:
        raise
    except BaseException as stop:  # Ctrl-C and SIGTERM
        keep()
        return stop
    return None


def _measure_ceiling(bench: Bench, options: EngineOptions, say: Callable[[str, str, int, int], None]) -> None:
    from visavis.bench.ceiling import measure

    if bench.config["backends"] == ["openai"]:
        return  # a server's machine is not this one
    say("machine", "what it reads and multiplies at best", 0, 1)
    device = options.device if options.device in ("auto", "cpu") or options.device.startswith("cuda") else "cpu"
    bench.ceiling = measure(device, options.threads)


def _new(args: Namespace, family: Family, plan: BenchPlan, cells: tuple[Cell, ...]) -> Bench:
    from datetime import UTC, datetime

    from visavis import __version__
    from visavis.bench.result import Bench
    from visavis.bench.roofline import describe as describe_shape
    from visavis.report.machine import describe

    config = family.folder.config if family.name != "remote" else None
    return Bench(
        model=family.folder.name,
        visavis_version=__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_of(args),
        machine=describe(),
        config={**plan.as_dict(), "cache": "repeated prompts" if args.messages else plan.cache(cells[0])},
        model_shape=describe_shape(config) if config else None,
        cells=cells,
    )


def _resumed(args: Namespace) -> tuple[Namespace, Path, Bench]:
    """The options of an interrupted run, with this call's wishes about output."""
    from visavis.bench.store import load

    path = Path(args.resume).expanduser()
    others = [flag for flag in given_flags(args, args.parser) if flag not in (*SAYING, "--resume")]
    if others:
        raise OptionError(f"--resume goes on with the options of {path.name}; leave out {others[0]}")
    bench = load(path)
    if bench.complete:
        raise OptionError(f"{path.name} is complete; visavis bench report {path.name} shows it")
    again = args.parser.parse_all(list(bench.command[2:]))
    for name in ("json", "quiet", "html", "csv", "compare_to"):
        setattr(again, name, getattr(args, name))
    again.command = args.command
    return again, path, bench


def _check_same(bench: Bench, plan: BenchPlan, cells: tuple[Cell, ...]) -> None:
    """What is resumed must be the same bench: a machine that changed, or a messages file that did, is not."""
    from visavis.bench.result import to_json
    from visavis.report.machine import describe

    if bench.cells != cells or [*bench.config["backends"]] != [*plan.backends]:
        raise OptionError("the result cannot be resumed here: its rows or backends are not what these options give now")
    now, then = to_json(replace(bench, machine=describe()))["machine"], dict(bench.machine)
    changed = [name for name in ("cpu", "cores", "gpus", "packages") if now.get(name) != then.get(name)]
    if changed:
        raise OptionError(f"the result cannot be resumed here: {' and '.join(changed)} of the machine differ")
    bench.notes.append("resumed after an interruption: its engines were started anew and warmed up again")
