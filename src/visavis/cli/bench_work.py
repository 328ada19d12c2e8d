"""What `visavis bench` measures: the rules, the rows and their prompts, from its flags."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visavis.cli.bench_options import criterion_of, images_of, numbers, refuse_lengths, seconds, without_lengths
from visavis.cli.inputs import prompt_of, read_messages_file
from visavis.cli.options import pixel_limits, sampling_params
from visavis.errors import OptionError

if TYPE_CHECKING:
    from visavis.backends.options import EngineOptions
    from visavis.bench.plan import BenchPlan
    from visavis.bench.result import Cell, Workload
    from visavis.bench.work import Work
    from visavis.families import Family

__all__ = ["able_to", "family_of", "plan_of", "users_of", "work_of"]

ROUNDS = 5


def users_of(args: Namespace) -> tuple[int, ...]:
    """How many ask at once, of each row of the workload `users`."""
    return numbers("--users", args.users or "1,2,4,8")


def able_to(
    names: tuple[str, ...], workloads: tuple[Workload, ...], users: tuple[int, ...], *, named: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The engines that can do all the workloads, before any is started; and those that were left out, with why.

    Raises OptionError where one of the others was `named`, and where none is left.
    """
    from visavis.backends.registry import takes_arrivals

    need = [w for w in workloads if w == "load" or (w == "users" and max(users) > 1)]
    unable = [name for name in names if need and not takes_arrivals(name)]
    able = tuple(name for name in names if name not in unable)
    if unable and (named or not able):
        engines = " and ".join(unable)
        way = f"leave {engines} out of --backends" if able else "name another engine, e.g. --backends native"
        raise OptionError(
            f"{engines} cannot take a request while answering others, as --workload {need[0]} needs; {way}, or measure "
            "latency and throughput"
        )
    return able, tuple(f"{name} (takes no requests while it answers others, as {need[0]} needs)" for name in unable)


def plan_of(args: Namespace, names: tuple[str, ...]) -> BenchPlan:
    """The rules, from the flags. Raises OptionError."""
    from visavis.bench.plan import BenchPlan

    refuse_lengths(args)
    plan = BenchPlan(
        backends=names,
        sampling=without_lengths(sampling_params(args), natural=args.natural),
        lengths="natural" if args.natural else "fixed",
        rounds=args.rounds or ROUNDS,
        seed=numbers("--prompt-seed", args.prompt_seed, least=0)[0] if args.prompt_seed is not None else 0,
        repeat_prompts=args.repeat_prompts,
        reload=args.reload,
        criterion=criterion_of(args),
        ttft_limit=seconds("--ttft", args.ttft),
        tpot_limit=seconds("--tpot", args.tpot),
    )
    if args.requests is not None:
        plan = replace(plan, latency_requests=args.requests, load_requests=args.requests)
    return plan


def family_of(args: Namespace, names: tuple[str, ...], options: EngineOptions) -> Family:
    """Whose template and tokenizer the prompts are made with."""
    if names == ("openai",):
        from visavis.backends.registry import new

        return new("openai").open(args.model, options)  # perhaps only the server knows the model
    from visavis.families import load_family

    return load_family(args.model, trust_remote_code=args.trust_remote_code)


def work_of(
    args: Namespace, family: Family, plan: BenchPlan, workloads: tuple[Any, ...], options: EngineOptions
) -> tuple[tuple[Cell, ...], Work]:
    """The cells, and where their prompts come from; what cannot fit is refused before anything is started."""
    from visavis.bench.plan import sweep
    from visavis.bench.prompts import PromptMaker
    from visavis.bench.work import Given, Made

    common: dict[str, Any] = {
        "workloads": workloads,
        "output_tokens": numbers("--output-tokens", args.output_tokens or "64"),
        "concurrency": numbers("--concurrency", args.concurrency or "8"),
        "users": users_of(args),
        "rates": args.rates_parsed,
    }
    if args.messages is not None:
        if given := [flag for flag in ("image_size", "prompt_tokens", "repeat_prompts") if getattr(args, flag)]:
            raise OptionError(f"--messages and --{given[0].replace('_', '-')} exclude each other: the file says it all")
        raw = read_messages_file(args.messages)
        given_work = Given(plan, [prompt_of(family, case, args, several=len(raw) > 1)[0] for case in raw])
        source = "stdin" if args.messages == "-" else Path(args.messages).name
        cells = sweep(**common, images=(None,), prompt_tokens=(None,), source=source)
        given_work.check(cells, options.max_model_len or family.max_model_len)
        return cells, given_work
    cells = sweep(
        **common,
        images=images_of(args, takes_images=family.supports_images),
        prompt_tokens=numbers("--prompt-tokens", args.prompt_tokens or "128"),
    )
    made = Made(plan, PromptMaker(family, plan.seed, pixel_limits(args)))
    made.check(cells, min(options.max_model_len or family.max_model_len, family.max_model_len))
    return cells, made
