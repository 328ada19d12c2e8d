"""What every family built on a folder shares: ids that end an answer, the declared box format, the context check."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from visavis.errors import ContextLengthError, ModelError, OptionError, shorten
from visavis.families.base import Family, MediaCount
from visavis.families.budget import answer_room
from visavis.families.folder import ModelFolder
from visavis.families.template import ChatTemplate
from visavis.families.tokenizer import HFTokenizer
from visavis.machine import usable_cores
from visavis.pool import worker_pool
from visavis.prompt import BoxFormat

__all__ = ["FolderFamily", "media_hash"]

PIECE = 512 << 10
"""Bytes that are hashed by themselves; a change of it changes every picture's hash."""
_BOX_FORMATS: tuple[str, ...] = get_args(BoxFormat)


class FolderFamily(Family):
    """A family read from a model folder. Subclasses say how conversations become prompts."""

    default_box_format: BoxFormat = "none"
    tokenizer: HFTokenizer

    def __init__(self, folder: ModelFolder, *, box_format: str | None = None) -> None:
        """`box_format` overrides what the folder declares. Raises ModelError or OptionError."""
        self.folder = folder
        self.tokenizer = HFTokenizer(folder)
        self.template = ChatTemplate(folder, self.tokenizer, multimodal=self.supports_images)
        self.eos_token_ids = self._eos_token_ids()
        self.pad_token_id = self._pad_token_id()
        self.max_model_len = self._max_model_len()
        self.box_format = self._box_format(box_format)
        self.patch_rule = None

    def _max_model_len(self) -> int:
        return self.folder.max_model_len

    def _eos_token_ids(self) -> tuple[int, ...]:
        if self.folder.eos_token_ids:
            return self.folder.eos_token_ids
        eos = self.tokenizer.token_to_id(self.tokenizer.special_tokens.get("eos_token", ""))
        if eos is None:
            raise ModelError(
                f"{self.folder.name}: no end-of-sequence token: generation_config.json, config.json and "
                f"tokenizer_config.json in {self.folder.path} name none"
            )
        return (eos,)

    def _pad_token_id(self) -> int:
        for part in (self.folder.generation_config, self.folder.text_config):
            value = part.get("pad_token_id")
            if isinstance(value, int) and value >= 0:
                return value
        pad = self.tokenizer.token_to_id(self.tokenizer.special_tokens.get("pad_token", ""))
        return self.eos_token_ids[0] if pad is None else pad

    def _box_format(self, option: str | None) -> BoxFormat:
        """Declared, never guessed: the option, `visavis.json`, `visavis_box_format` in config.json, the family's."""
        declared = (
            (option, "box_format", OptionError),
            (self.folder.visavis_config.get("box_format"), "visavis.json: box_format", ModelError),
            (self.folder.config.get("visavis_box_format"), "config.json: visavis_box_format", ModelError),
        )
        for value, where, error in declared:
            if value is None:
                continue
            for known in get_args(BoxFormat):
                if value == known:
                    chosen: BoxFormat = known
                    return chosen
            raise error(f"{where} {shorten(value)} is unknown; known: {', '.join(_BOX_FORMATS)}")
        return self.default_box_format

    def _check_fits(
        self, total: int, media: Sequence[MediaCount], fitting: Callable[[int], int | None] | None = None
    ) -> None:
        """Raises ContextLengthError unless the prompt leaves room for one token. `fitting(room)`: the max_pixels under
        which the prompt has `room` tokens at most; None for a family that takes no max_pixels."""
        if total < self.max_model_len:
            return
        items = [f"{m.where or m.kind} {m.tokens} ({m.size[1]}×{m.size[0]})" for m in media]
        shown = f": {', '.join(items[:8])}{' …' if len(items) > 8 else ''} of image and video" if items else ""
        way_out = "shorten the text"
        if items:
            frames = ", lower fps or max_frames" if any(m.kind == "video" for m in media) else ""
            way_out = f"{self._bound_that_fits(fitting)}{frames}, send fewer items or shorten the text"
        raise ContextLengthError(
            f"the prompt has {total} tokens and the context of {self.folder.name} is {self.max_model_len}{shown}; "
            f"{way_out}"
        )

    def _bound_that_fits(self, fitting: Callable[[int], int | None] | None) -> str:
        if fitting is None:
            return "make the images smaller"
        kept = answer_room(self.max_model_len)
        bound = fitting(self.max_model_len - kept)
        return f"max_pixels {bound} fits with {kept} tokens for the answer" if bound else "lower max_pixels"


def media_hash(kind: str, pixels: npt.NDArray[np.uint8], timestamps: Iterable[float] | None = None) -> str:
    """Hex digest over kind, shape, times and pixels: same digest, same input to the vision tower (128 bit of a SHA-256
    over the SHA-256 of each `PIECE` of pixels, so that several cores can share the work)."""
    said = f"{kind}:{'x'.join(map(str, pixels.shape))}:".encode()
    if timestamps is not None:
        said += np.asarray(list(timestamps), dtype="<f8").tobytes()
    data = np.ascontiguousarray(pixels).reshape(-1).data
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    side_by_side = len(pieces) > 1 and usable_cores() > 1
    digests = worker_pool().map(_digest, pieces) if side_by_side else map(_digest, pieces)
    return hashlib.sha256(said + b"".join(digests)).hexdigest()[:32]


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
