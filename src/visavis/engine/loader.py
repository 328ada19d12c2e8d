"""Checkpoints in safetensors, read straight into the memory the model computes with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from visavis.engine.quantization.places import Place, SharedPlace
from visavis.engine.weight_stream import Rows, Target, stream_tensors
from visavis.errors import ModelError, shorten
from visavis.weight_files import instead_of_data, shards_of

__all__ = ["canonical_name", "load_weights", "tensor_names"]

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

# Both generations of names, longest first: what stands in front of the decoder's and the vision tower's own names.
_PREFIXES = (
    ("language_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
    ("model.visual.", "visual."),
    ("visual.", "visual."),
    ("model.language_model.", ""),
    ("language_model.model.", ""),
    ("model.", ""),
)
_BUFFERS = re.compile(r"(^|\.)rotary_(pos_)?emb\.inv_freq$|\.masked_bias$")
"""Tables some older checkpoints carry that are computed, not learned."""

MAX_NAMES_SHOWN = 5


def canonical_name(name: str) -> str | None:
    """One name for a tensor, whichever generation of names the checkpoint has; None for what is not a weight."""
    if _BUFFERS.search(name):
        return None
    for prefix, replacement in _PREFIXES:
        if name.startswith(prefix):
            return replacement + name[len(prefix) :]
    return name


def tensor_names(folder: Path) -> frozenset[str]:
    """Canonical names of what the folder's checkpoint has; no tensor is read. Files that cannot be read are left to
    `load_weights`, which says so."""
    names: set[str] = set()
    for file in _files(folder):
        with suppress(SafetensorError), safe_open(file, framework="pt") as checkpoint:
            names |= {key for name in checkpoint.keys() if (key := canonical_name(name)) is not None}  # noqa: SIM118
    return frozenset(names)


def load_weights(
    folder: Path, destinations: Mapping[str, Place], *, tied: bool, left_out: str | None = None
) -> torch.Tensor | None:
    """Copies every tensor of the folder's checkpoint to its place in `destinations` (canonical name → memory, or what
    makes codes of it), converting to its dtype. Names that begin with `left_out` are passed over.

    With a `tied` head, one that is stored all the same and differs from the embedding is returned: as in
    transformers, the checkpoint is then right and the config is not. Raises ModelError naming missing, unexpected,
    misshapen and unreadable tensors.
    """
    missing = set(destinations)
    unexpected: list[str] = []
    stored_head: torch.Tensor | None = None

    cut: dict[str, torch.Tensor] = {}  # tensors of which only rows are read, and where these go

    def rows_of(name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
        key = canonical_name(name)
        if key is None or (left_out is not None and key.startswith(left_out)):
            return (0, 0) if shape else None
        place = destinations.get(key)
        if not isinstance(place, SharedPlace) or place.rows is None or shape != tuple(place.shape):
            return None
        assert isinstance(place.place, torch.Tensor)
        cut[name] = place.place
        return place.rows

    def place_of(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Where a stored tensor can go as it is."""
        key = canonical_name(name)
        if key is None or (tied and key == "lm_head.weight"):
            return None
        place = cut.get(name, destinations.get(key))
        return place if isinstance(place, torch.Tensor) and _is_like(place, dtype, shape) else None

    memory = next((place for place in destinations.values() if isinstance(place, torch.Tensor)), torch.empty(0))
    for name, tensor in _tensors(folder, memory.device, place_of, rows_of):
        key = canonical_name(name)
        if key is None or (left_out is not None and key.startswith(left_out)):
            continue
        if key == "lm_head.weight" and tied:
            stored_head = tensor
            continue
        if key not in destinations:
            unexpected.append(name)
            continue
        place = cut.get(name, destinations[key])
        if tuple(tensor.shape) != tuple(place.shape):
            raise ModelError(
                f"{folder.name}: tensor {name} has shape {tuple(tensor.shape)} and config.json asks for "
                f"{tuple(place.shape)}"
            )
        if tensor is not place:
            place.copy_(tensor)
        missing.discard(key)
    for what, names in (("lacks", sorted(missing)), ("has unexpected", sorted(unexpected))):
        if names:
            more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
            raise ModelError(f"{folder.name}: the checkpoint {what} {', '.join(names[:MAX_NAMES_SHOWN])}{more}")
    if stored_head is None:
        return None
    embedding = destinations["embed_tokens.weight"]
    assert isinstance(embedding, torch.Tensor)
    head = stored_head.to(embedding)
    return None if torch.equal(head, embedding) else head


def _tensors(folder: Path, device: torch.device, place: Target, rows: Rows) -> Iterator[tuple[str, torch.Tensor]]:
    """On a GPU already there, in `place` where that gives one, and only the `rows` asked for; else mapped memory, of
    which nothing is read but what is copied."""
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as checkpoint:  # which checks the file
                if device.type == "cuda":
                    yield from stream_tensors(file, device, place, rows)
                    continue
                for name in checkpoint.keys():  # noqa: SIM118 (no mapping: it has no __iter__)
                    yield name, checkpoint.get_tensor(name)
        except (SafetensorError, EOFError) as error:
            if what := instead_of_data(file):
                raise ModelError(f"{file.name} in {folder.name} is {what}") from None
            raise ModelError(f"{file.name} in {folder.name} cannot be read: {shorten(str(error))}") from None
        except KeyError as error:
            raise ModelError(f"{file.name} in {folder.name} has a tensor of dtype {error.args[0]}") from None


def _is_like(place: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return place.dtype == dtype and tuple(place.shape) == shape and place.is_contiguous()


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX_FILE).is_file():
        return shards_of(folder, INDEX_FILE)
    single = folder / SINGLE_FILE
    if single.is_file():
        return [single]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise ModelError(f"{folder.name} has pickled weights only; the native engine reads safetensors")
    raise ModelError(f"{folder.name} has neither {SINGLE_FILE} nor {INDEX_FILE}")
