"""A checkpoint's weight files: which ones, and whether they are what their names say. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from visavis.errors import ModelError, shorten

__all__ = ["check_weight_files", "instead_of_data", "shards_of"]

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
_HEAD_BYTES = 512


def shards_of(folder: Path, index: str) -> list[Path]:
    """The files that an index names, sorted. Raises ModelError for an index that cannot be read, for a file that is
    not there, and for a name that leads out of the folder."""
    try:
        names = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        what = instead_of_data(folder / index)
        why = what or shorten(str(error))
        raise ModelError(f"{index} in {folder.name} cannot be read: {why}") from None
    for name in names:
        if not isinstance(name, str) or _leads_out(name):
            raise ModelError(
                f"{index} in {folder.name} names {shorten(name)}, which is not a file of that folder; weights are read "
                "from nowhere else"
            )
        if not (folder / name).is_file():
            raise ModelError(f"{folder.name} lacks {shorten(name)}, which its {index} names")
    return [folder / name for name in sorted(names)]


def check_weight_files(folder: Path) -> None:
    """Raises ModelError where a weight file that the folder would be loaded from is something else: a Git LFS pointer,
    a saved web page, nothing; or where its index leads elsewhere. A folder without weights is no fault here."""
    index = next((name for name in INDEX_FILES if (folder / name).is_file()), None)
    if index is not None:
        files = shards_of(folder, index)
    else:
        files = [folder / name for name in SINGLE_FILES if (folder / name).is_file()][:1]
    for file in files:
        if what := instead_of_data(file):
            raise ModelError(f"{file.name} in {folder.name} is {what}")


def instead_of_data(file: Path) -> str | None:
    """What is in a file that was not downloaded properly, and the way out; None where nothing speaks against it."""
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return None
    begin = head.lstrip()[:32].lower()
    if head.startswith(b"version https://git-lfs"):
        return f"a Git LFS pointer, not the file itself: run `git lfs pull` in {file.parent}"
    if begin.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "a web page (of a login or an error), not the file itself: download it again"
    if not head:
        return "empty: download it again"
    return None


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
