"""From what people call a model (nothing, a folder, a hub id) to a `ModelFolder`.

Hub ids go through huggingface_hub, so `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and the shared cache hold, and broken
downloads resume. Counting and preparing need the small files only; `fetch_weights` brings the rest into the same
snapshot. A local folder never touches the network.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from visavis.errors import ModelError, shorten
from visavis.families.folder import ModelFolder
from visavis.weight_files import check_weight_files

__all__ = ["BUNDLED", "Announce", "fetch_weights", "resolve_model"]

BUNDLED = "tiny-screen"

Announce = Callable[[str], None]
"""Called with one line before a large download."""

SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
CODE_FILES = ("*.py",)
NOT_OURS = ("original/*", "consolidated*", "onnx/*", "*.gguf", "metal/*")  # other runtimes' copies of the weights
ANNOUNCED_FROM = 50 * 2**20  # bytes

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(model: str | Path | None = None, *, weights: bool = False, code: bool = False) -> ModelFolder:
    """The folder of a model: None → the bundled `tiny-screen`, an existing folder, else a hub id (`owner/name`,
    `owner/name@revision`).

    `weights`: also download the weights of a hub id; `code`: also its Python files (`trust_remote_code`). Raises
    ModelError that says what was taken for what.
    """
    if model is None or model == BUNDLED:
        return _bundled()
    name = str(model)
    if not name.strip():
        raise ModelError("the model's name is empty; give a folder, a hub id (owner/name), or nothing for tiny-screen")
    path = Path(name).expanduser()
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # a name too long for a file, a folder that may not be entered
        raise ModelError(f"the model's folder {shorten(name)} cannot be read: {error.strerror}") from None
    if is_folder:
        if not (path / "config.json").is_file():
            raise ModelError(f"{name}: config.json is missing in {path}: not a Hugging Face model folder")
        return ModelFolder(path, name)
    if exists:
        raise ModelError(f"{name} is a file; give the model's folder{_gguf_hint(path)}")
    repo_id, _, revision = name.partition("@")
    if not _HUB_ID.fullmatch(repo_id) or name.startswith(("./", "../", "~")):
        raise ModelError(f"no folder {shorten(name)} here, and it is not a hub id (owner/name){_near(path)}")
    files = (*SMALL_FILES, *CODE_FILES) if code else SMALL_FILES
    folder = ModelFolder(_download(repo_id, revision or None, files, near=_near(path)), name, repo_id)
    if not folder.has("config.json"):
        raise ModelError(f"{name}: config.json is missing in the hub's repository: not a model transformers can load")
    if weights:
        fetch_weights(folder)
    return folder


def fetch_weights(folder: ModelFolder, announce: Announce | None = None) -> None:
    """Brings a hub model's weights into its cached folder; of a local folder, looks whether they are weights at all.

    The size is announced (default: on stderr) before anything large is fetched. Raises ModelError.
    """
    if folder.repo_id is not None and not _weights_complete(folder.path):
        _fetch_weights(folder, announce)
    check_weight_files(folder.path)


def _fetch_weights(folder: ModelFolder, announce: Announce | None) -> None:
    assert folder.repo_id is not None  # as the only caller saw
    revision = folder.path.name  # snapshots are named by commit, so weights and config cannot come apart
    sizes = _weight_sizes(folder.repo_id, revision)
    patterns = ("*.safetensors",) if any(f.endswith(".safetensors") for f in sizes) else ("*.bin", "*.pt")
    total = sum(size for file, size in sizes.items() if Path(file).suffix in {Path(p).suffix for p in patterns})
    if total >= ANNOUNCED_FROM:
        say = announce or _say
        say(f"{folder.name}: downloading {total / 2**30:.1f} GiB of weights to {_cache_place(folder.path)}")
    _download(folder.repo_id, revision, patterns)
    if not _weights_complete(folder.path):
        raise ModelError(
            f"{folder.name}: the weights are not in the cache and the hub cannot be reached: connect once, or give a "
            "local folder"
        )


def _bundled() -> ModelFolder:
    place = importlib.resources.files("visavis") / "assets" / BUNDLED
    path = Path(str(place))
    if not (path / "config.json").is_file():
        raise ModelError(f"the bundled model {BUNDLED} is not in this installation ({path}); give a model with -m")
    return ModelFolder(path, BUNDLED)


def _download(repo_id: str, revision: str | None, patterns: Iterable[str], near: str = "") -> Path:
    """The snapshot's folder with the files of `patterns`. Raises ModelError."""
    from huggingface_hub import errors as hub
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            repo_id, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(NOT_OURS)
        )
    except hub.GatedRepoError:
        raise ModelError(
            f"{repo_id}: the hub asks for access: accept its terms on the model's page, then `hf auth login`"
        ) from None
    except hub.RepositoryNotFoundError:
        raise ModelError(
            f"{repo_id}: no folder here and no such model on the hub (or it is private: `hf auth login`){near}"
        ) from None
    except hub.RevisionNotFoundError:
        raise ModelError(f"{repo_id}: the hub has no revision {shorten(revision)} of it") from None
    except hub.HFValidationError as error:
        raise ModelError(f"{shorten(repo_id)} is neither a folder here nor a hub id: {error}") from None
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        raise ModelError(
            f"{repo_id}: no folder here, not in the cache and the hub cannot be reached: {_why(error)}{near}; "
            "connect once, or give a local folder (count and plan need no weights in it)"
        ) from None
    except (hub.HfHubHTTPError, OSError) as error:
        raise ModelError(f"{repo_id}: the download failed: {_why(error)}; run it again to resume") from None
    return Path(path)


def _weight_sizes(repo_id: str, revision: str) -> dict[str, int]:
    """File → bytes of the repository, {} when the hub cannot be asked."""
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub

    try:
        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
    except (hub.HfHubHTTPError, hub.OfflineModeIsEnabled, OSError):
        return {}
    except Exception as error:  # the HTTP client's own errors differ between hub versions
        if type(error).__module__.split(".")[0] not in ("httpx", "httpcore", "requests"):
            raise
        return {}
    found = {s.rfilename: s.size or 0 for s in info.siblings or ()}
    return {file: size for file, size in found.items() if not any(Path(file).match(p) for p in NOT_OURS)}


def _weights_complete(path: Path) -> bool:
    """True when the folder has its single weights file or every shard its index names."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        try:
            shards: Any = json.loads((path / index).read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if all((path / shard).is_file() for shard in set(shards.values())):
            return True
    return any((path / file).is_file() for file in ("model.safetensors", "pytorch_model.bin"))


def _near(path: Path) -> str:
    """A hint at folders with a similar name beside the one asked for."""
    try:
        names = [p.name for p in path.parent.iterdir() if p.is_dir()]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, [*names, BUNDLED], n=1, cutoff=0.75)
    return f"; did you mean {path.parent / close[0] if close[0] in names else close[0]}?" if close else ""


def _gguf_hint(path: Path) -> str:
    return " (GGUF files are not read: use the original Hugging Face folder)" if path.suffix == ".gguf" else ""


def _why(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return first[0].removeprefix("Got: ")[:200] if first else type(error).__name__


def _cache_place(path: Path) -> Path:
    """The cache folder of the repository that a snapshot's folder belongs to."""
    return path.parents[1] if len(path.parents) > 1 else path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
