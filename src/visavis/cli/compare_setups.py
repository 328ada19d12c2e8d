"""Who is compared: backends, labels for them, and settings that hold for one of them alone."""

from __future__ import annotations

import difflib
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from visavis.cli.caches import CACHES_OFF
from visavis.cli.engines import Opener, choose_backends, refuse_engines
from visavis.cli.inputs import RawCase, raw_cases, read_messages_file, refuse_look_alikes, samples_file
from visavis.cli.model_file import described_by, interpreters_of
from visavis.cli.options import named_value
from visavis.errors import OptionError, shorten, shorten_path

if TYPE_CHECKING:
    from visavis.backends.base import ModelInterface, Progress
    from visavis.backends.description import ModelDescription
    from visavis.backends.options import EngineOptions
    from visavis.backends.registry import Availability
    from visavis.compare.setups import Setup
    from visavis.sampling import SamplingParams

__all__ = ["Chosen", "SetupOpener", "add_setup_options", "asked_cases", "choose", "make_setups"]

NOT_SETTINGS = ("backend", "python")
"""Keys of a settings table that say what runs, not how."""
BY_DEFAULT = ("native", "hf", "vllm", "sglang")
"""Backends that `compare` takes by itself where they can run; a server (openai) has to be named."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """`who`: (name in the result, backend), in their order; `own`: settings of one alone."""

    who: tuple[tuple[str, str], ...]
    own: Mapping[str, Mapping[str, Any]]
    skipped: tuple[Availability, ...] = ()
    python: Mapping[str, str] = field(default_factory=dict)  # interpreters, by name or backend

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(backend for _, backend in self.who))


def add_setup_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="an example: a folder with messages.json and settings.toml"
    )
    parser.add_argument(
        "--backends",
        metavar="A,B",
        help='the first is the reference of "same tokens"; mine=hf,theirs=vllm gives them names, so one engine may '
        "stand there twice (default: all that can run here, or those of the settings file)",
    )
    parser.add_argument("--settings", metavar="FILE", help="TOML or JSON: a table of settings for each backend or name")


def asked_cases(args: Namespace) -> list[RawCase]:
    """What is asked: flags, a messages file, the example's, or the bundled samples. Reads the example's settings."""
    if args.folder is not None:
        folder = Path(args.folder).expanduser()
        if not folder.is_dir():
            _refuse_folder(args)
        _use_example(args, folder)
    if args.words_left:
        raise OptionError(f"{shorten(args.words_left[0])} belongs to no option; see visavis compare --help")
    return raw_cases(args) or read_messages_file(samples_file())


def _refuse_folder(args: Namespace) -> NoReturn:
    """What stands where an example's folder may stand and is none."""
    refuse_engines("compare", args.folder, *args.words_left)
    if any(letter.isspace() for letter in args.folder.strip()):
        raise OptionError(f"a question is asked with --ask: visavis compare --ask {shlex.quote(args.folder)[:80]}")
    if Path(args.folder).suffix or ":" in args.folder:
        refuse_look_alikes(args.folder, args)
    raise OptionError(
        f"there is no folder {shorten_path(args.folder)}; an example is a folder with messages.json and settings.toml, "
        "a question is asked with --ask, a model named with -m"
    )


def _use_example(args: Namespace, folder: Path) -> None:
    from visavis.compare.settings_file import find_settings_file

    messages, settings = folder / "messages.json", find_settings_file(folder)
    if not messages.is_file() and settings is None:
        raise OptionError(f"{shorten(args.folder)} holds no messages.json and no settings.toml, so it is no example")
    if args.settings is None:
        args.settings = settings
    if messages.is_file() and args.messages is None and args.question is None:
        args.messages = str(messages)


def choose(args: Namespace) -> Chosen:
    """From --backends, the settings file and --set NAME.setting=value (taken out of `args`). Raises OptionError."""
    from visavis.backends.registry import NAMES
    from visavis.compare.settings_file import read_settings_file

    tables = {} if args.settings is None else read_settings_file(args.settings)
    described = described_by(args)
    skipped: list[Availability] = []
    if args.backends is None and not tables:
        python = interpreters_of(args, NAMES)
        names, skipped = choose_backends(None, BY_DEFAULT, python)
        if described is not None and (first := described.backend) is not None:
            choose_backends(first, BY_DEFAULT, python)
            names = (first, *(name for name in names if name != first))
            skipped = [entry for entry in skipped if entry.name != first]
        who = tuple((name, name) for name in names)
    else:
        who = _named(args.backends, tables)
        python = interpreters_of(args, tuple(dict.fromkeys(n for pair in who for n in pair)))
        python = {n: str(t["python"]) for n, t in tables.items() if "python" in t} | python
        named = {backend: python[n] for name, backend in who for n in (backend, name) if n in python}
        try:
            choose_backends(",".join(dict.fromkeys(backend for _, backend in who)), BY_DEFAULT, named)
        except OptionError as error:
            way_out = _standing_in(who, named) if args.backends is None else ""
            raise OptionError(f"{error}{way_out}") from None
    own = {name: {k: v for k, v in tables.get(name, {}).items() if k not in NOT_SETTINGS} for name, _ in who}
    if described is not None:
        args.described = _take_described(described, who, own)
    args.engine_option = list(_take_own(args.engine_option or (), who, own)) or None
    return Chosen(who, own, tuple(skipped), python)


def _standing_in(who: tuple[tuple[str, str], ...], python: Mapping[str, str]) -> str:
    """Where a settings file names engines that cannot run here: the flag that has native run with their settings."""
    from visavis.backends.registry import availability

    unable = {entry.name for entry in availability(python) if not entry.can_run}
    if "native" in unable or not unable & {backend for _, backend in who}:
        return ""
    entries = ",".join(f"{name}=native" if backend in unable else name for name, backend in who)
    return f"; or let native stand in for it: --backends {shlex.quote(entries)}"


def _take_described(
    described: ModelDescription, who: tuple[tuple[str, str], ...], own: dict[str, dict[str, Any]]
) -> ModelDescription:
    """Moves what the model's file says for one backend alone into `own`, under what is said there; the rest holds for
    all."""
    from visavis.backends.registry import NAMES

    options = described.options_for([backend for _, backend in who], NAMES)
    for key, value in options.get("extra", {}).items():
        address, dot, name = key.partition(".")
        if dot:
            for n in (n for n, backend in who if backend == address):
                own[n].setdefault(name.replace("-", "_"), value)
    common = {k: v for k, v in options.get("extra", {}).items() if "." not in k}
    return replace(described, options={**options, "extra": common})


def _named(asked: str | None, tables: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    if asked is None:
        entries = list(tables)
    else:
        entries = [entry.strip() for entry in asked.split(",") if entry.strip()]
    if not entries:
        raise OptionError("--backends names none; e.g. --backends native,hf")
    who = []
    for entry in entries:
        name, equals, backend = (part.strip() for part in entry.partition("="))
        if not equals:
            backend = str(tables.get(name, {}).get("backend", name))
        if not name or not backend or "." in name:
            raise OptionError(f"--backends {shorten(entry)}: NAME or NAME=BACKEND is needed, e.g. mine=hf")
        who.append((name, backend))
    names = [name for name, _ in who]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"--backends names {twice} twice; a=native,b=native gives them names of their own")
    return tuple(who)


def _take_own(options: Any, who: tuple[tuple[str, str], ...], own: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Moves what is addressed to one backend into `own`; the rest holds for all."""
    from visavis.compare.setups import SAMPLING

    for text in options:
        key, value = named_value(text)
        address, dot, name = key.partition(".")
        if dot:
            meant = [n for n, _ in who if n == address] or [n for n, backend in who if backend == address]
            if not meant:
                names = sorted({n for pair in who for n in pair})
                near = difflib.get_close_matches(address, names, n=1)
                hint = f"; did you mean {near[0]}.{name}?" if near else ""
                raise OptionError(f"{shorten(key)} is for {shorten(address)}, only {', '.join(names)} used here{hint}")
            for n in meant:
                own[n][name.replace("-", "_")] = value
        elif key in SAMPLING and key != "seed":
            flag = f"--{key.replace('_', '-')}"
            raise OptionError(f"--set {key} holds for all: say {flag}, or {who[0][0]}.{key}=… for one alone")
        else:
            yield text


def make_setups(
    chosen: Chosen, common: SamplingParams, options: EngineOptions, *, generation_config: bool
) -> tuple[tuple[Setup, ...], tuple[str, ...]]:
    """The setups, and what was decided for them, in words: caches switched off, one seed for all."""
    from visavis.compare.setups import make_setup, own_options_of

    setups, notes, off = [], [], []
    for name, backend in chosen.who:
        setup = make_setup(name, backend, chosen.own.get(name, {}), common, generation_config=generation_config)
        known = own_options_of(backend)
        for option, value in CACHES_OFF.get(backend, {}).items():
            if (known is None or option in known) and option not in setup.engine and option not in options.extra:
                setup = replace(setup, engine={**setup.engine, option: value})
                off.append(f"{backend} {option}={str(value).lower()}")
        setups.append(setup)
    if off:
        said = ", ".join(dict.fromkeys(off))
        notes.append(f"caches of earlier prompts are off, so that no round is flattered ({said})")
    if any(s.sampling.temperature or s.generation_config for s in setups):
        without = [s for s in setups if s.sampling.seed is None]
        if without:
            notes.append("seed 0 for all where none was given; --seed N draws other tokens")
            setups = [replace(s, sampling=replace(s.sampling, seed=s.sampling.seed or 0)) for s in setups]
    return tuple(setups), tuple(notes)


class SetupOpener:
    """Loads each setup in a child process of its own."""

    def __init__(self, model: str | None, options: EngineOptions, python: Mapping[str, str] | None = None) -> None:
        """`python`: interpreters, by the setup's name or its backend."""
        self.options, self._python = options, python or {}
        self._opener = Opener(model, options, False)

    @contextmanager
    def open(self, setup: Setup, engine: Mapping[str, Any], progress: Progress) -> Iterator[ModelInterface]:
        from visavis.compare.setups import options_of

        self._opener.options = options_of(self.options, engine, f"settings of {setup.name}")
        self._opener.use_generation_config = setup.generation_config
        python = self._python.get(setup.name) or self._python.get(setup.backend)
        with self._opener.open(setup.backend, progress, python) as model:
            yield model
