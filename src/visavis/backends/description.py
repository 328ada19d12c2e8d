"""A model described in a file, so that an experiment changes engine by one word.

TOML or YAML with the keys `backend`, `model`, `python`, `box_format`, `special_tokens`, `sampling` and `options`:

    backend = "vllm"
    model = "Qwen/Qwen2-VL-7B-Instruct"   # a relative folder counts from the file
    [options]
    dtype = "bfloat16"
    vllm.enable_prefix_caching = false    # holds whenever vllm runs it, whichever backend the file names

or VLMHyperBench's `vlm_base.csv` (`;` between columns), of which `framework` (or `backend`) and `model_name` are read;
`vlm_base.csv#NAME` names one model of several.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from visavis.backends.options import OPTION_NAMES, check_prefix, parse_options
from visavis.errors import ModelError, OptionError, shorten, shorten_path
from visavis.prompt import BoxFormat
from visavis.sampling import SamplingParams

__all__ = ["ModelDescription", "is_description", "read_description"]

SUFFIXES = (".toml", ".yaml", ".yml", ".csv")
KEYS = ("backend", "model", "python", "box_format", "special_tokens", "sampling", "options")
FRAMEWORKS = {"hugging face": "hf", "huggingface": "hf", "transformers": "hf", "vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """None: not said in the file."""

    model: str | None = None
    backend: str | None = None
    box_format: BoxFormat | None = None
    sampling: SamplingParams | None = None  # `special_tokens` included
    options: dict[str, Any] = field(default_factory=dict)  # of EngineOptions, checked
    python: dict[str, str] = field(default_factory=dict)  # an interpreter by backend
    path: str = ""  # of the file

    def options_for(self, backends: Collection[str], known: Collection[str]) -> dict[str, Any]:
        """Without what the file says for others of the `known` backends alone: it names them so that the engine can be
        changed. Raises OptionError for a name that is no backend's."""
        extra = self.options.get("extra")
        if extra is None:
            return dict(self.options)
        for key in extra:
            if "." in key:
                check_prefix(key, {*known, *backends}, f"{self.path}: ")
        mine = {k: v for k, v in extra.items() if "." not in k or k.partition(".")[0] in backends}
        return {**self.options, "extra": mine}


def is_description(model: str | None) -> bool:
    """Whether it names such a file, rather than a model. Raises ModelError where the file is not there."""
    if model is None:
        return False
    path = Path(str(model).partition("#")[0]).expanduser()
    if path.suffix.lower() not in SUFFIXES or path.is_dir():
        return False
    if not path.is_file():
        raise ModelError(f"there is no file {shorten_path(str(path))}, so no model is described")
    return True


def read_description(source: str, backend: str | None = None) -> ModelDescription:
    """`backend`: picks the row of a CSV with several for one model.

    Raises ModelError for a file that cannot be read, OptionError for what stands in it.
    """
    name, _, wanted = source.partition("#")
    path = Path(name).expanduser()
    if path.suffix.lower() == ".csv":
        return _from_csv(path, wanted, backend)
    if wanted:
        raise OptionError(f"{path}: #{shorten(wanted)} picks a row of a CSV; this file describes one model")
    return _from_mapping(_parsed(path), path)


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix.lower() == ".toml":
            import tomllib

            found = tomllib.loads(text)
        else:
            import yaml

            found = yaml.safe_load(text)
    except Exception as error:  # yaml's own errors have no common base outside it
        raise ModelError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(found, Mapping):
        raise ModelError(f"{path} holds {shorten(found)}; keys are needed: {', '.join(KEYS)}")
    return found


def _from_mapping(found: Mapping[str, Any], path: Path) -> ModelDescription:
    for key in found:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            raise OptionError(
                f"{path}: unknown key {shorten(key)}; " + (f"did you mean {near[0]}?" if near else _known())
            )
    for key in ("sampling", "options"):
        if not isinstance(found.get(key, {}), Mapping):
            raise OptionError(f"{path}: {key} {shorten(found[key])} must hold names and values")
    box_format = found.get("box_format")
    if box_format is not None and box_format not in get_args(BoxFormat):
        raise OptionError(f"{path}: box_format {shorten(box_format)} is not one of {', '.join(get_args(BoxFormat))}")
    sampling = dict(found.get("sampling", {}))
    if "special_tokens" in found:
        sampling["special_tokens"] = found["special_tokens"]
    model, backend = (_name(found, key, path) for key in ("model", "backend"))
    return ModelDescription(
        model=None if model is None else _beside(model, path),
        backend=backend,
        box_format=box_format,
        sampling=SamplingParams.from_mapping(sampling, where=str(path)) if sampling else None,
        options=_options(found.get("options", {}), path),
        python=_python(found.get("python"), backend, path),
        path=str(path),
    )


def _name(found: Mapping[str, Any], key: str, path: Path) -> str | None:
    value = found.get(key)
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise OptionError(f"{path}: {key} {shorten(value)} is no name")
    return value


def _options(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Checked. `vllm.NAME`, as a dotted name or as a table `vllm`, is moved to `extra`, where such names stand."""
    options: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in given.items():
        if name in OPTION_NAMES or not (isinstance(value, Mapping) or "." in name):
            options[name] = value
        elif isinstance(value, Mapping):
            extra |= {f"{name}.{own}": v for own, v in value.items()}
        else:
            extra[name] = value
    if extra and isinstance(options.setdefault("extra", {}), Mapping):
        options["extra"] = {**options["extra"], **extra}
    parse_options(options, where=str(path))
    return options


def _python(given: Any, backend: str | None, path: Path) -> dict[str, str]:
    """An interpreter for the file's own backend, or a table of one for each."""
    if given is None:
        return {}
    if isinstance(given, str) and backend is None:
        raise OptionError(f"{path}: python {shorten(given)} is for which backend? [python] vllm = … says it")
    table = {backend: given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not all(isinstance(v, str) for v in table.values()):
        raise OptionError(f"{path}: python {shorten(given)} must be a path, or a table of backends and paths")
    return {str(name): str(Path(value).expanduser()) for name, value in table.items()}


def _known() -> str:
    return f"known: {', '.join(KEYS)}"


def _beside(model: str, path: Path) -> str:
    """A folder beside the file, if there is one of that name; else the name as it is."""
    folder = path.parent / Path(model).expanduser()
    return str(folder) if folder.is_dir() else model


def _from_csv(path: Path, wanted: str, backend: str | None) -> ModelDescription:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, delimiter=";"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    found = []
    for number, row in enumerate(rows, 2):
        if not row.get("model_name"):
            raise OptionError(f"{path}, line {number}: model_name is missing (columns are separated by ;)")
        found.append((row["model_name"].strip(), _backend_of(row, f"{path}, line {number}")))
    names = sorted({name for name, _ in found})
    if wanted:
        found = [(name, engine) for name, engine in found if name == wanted]
        if not found:
            near = difflib.get_close_matches(wanted, names, n=1)
            raise OptionError(f"{path} has no model {shorten(wanted)}" + (f"; did you mean {near[0]}?" if near else ""))
    elif len(names) != 1:
        raise OptionError(f"{path} has {len(names)} models; name one: {path}#{names[0] if names else 'NAME'}")
    engines = sorted({engine for _, engine in found})
    name = found[0][0]
    if backend is None and len(engines) > 1:
        raise OptionError(f"{path}: {name} stands there for {', '.join(engines)}; give the backend")
    return ModelDescription(model=_beside(name, path), backend=backend or engines[0], path=str(path))


def _backend_of(row: Mapping[str, str | None], where: str) -> str:
    """`framework` as VLMHyperBench writes it, or `backend`; not both disagreeing."""
    framework, backend = (row.get("framework") or "").strip(), (row.get("backend") or "").strip()
    if framework and framework.lower() not in FRAMEWORKS:
        raise OptionError(f"{where}: framework {shorten(framework)} is not Hugging Face, vLLM or SGLang")
    from_framework = FRAMEWORKS.get(framework.lower(), "")
    if framework and backend and from_framework != backend:
        raise OptionError(f"{where}: framework {framework} and backend {backend} disagree")
    if not (framework or backend):
        raise OptionError(f"{where}: framework (or backend) is missing")
    return backend or from_framework
