"""Any other vision-language model: transformers' own processor decides sizes and tokens, we hand it safe text.

The processor is run on the rendered template. Where people's text spells a control token, it gets the text with the
spellings broken, for the pixels only, and the ids are put together here: the template's pieces, with each placeholder
replaced by what the processor writes for that image. Otherwise the processor's ids are taken as they are.
"""

from __future__ import annotations

import time
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from visavis.chat.types import Conversation, Image, PixelLimits, Video
from visavis.errors import MediaError, MessageError, MissingExtraError, ModelError, shorten
from visavis.families.base import CountReport, MediaCount
from visavis.families.common import FolderFamily, media_hash
from visavis.families.folder import ModelFolder
from visavis.families.positions import plain_positions
from visavis.families.template import Rendered
from visavis.prompt import PreparedMedia, Prompt, Span

__all__ = ["GenericFamily"]


class GenericFamily(FolderFamily):
    """Images through `AutoProcessor`, pinned to its Pillow image processor where it has one; no videos."""

    name: ClassVar[str] = "generic"

    def __init__(self, folder: ModelFolder, *, box_format: str | None = None, trust_remote_code: bool = False) -> None:
        """Raises MissingExtraError without transformers, ModelError when it cannot make the processor."""
        self._processor = _load_processor(folder, trust_remote_code)
        self._trust_remote_code = trust_remote_code
        super().__init__(folder, box_format=box_format)
        self.image_token_id = self._image_token_id()

    @property
    def supports_images(self) -> bool:
        return True

    @property
    def supports_videos(self) -> bool:
        return False

    def _max_model_len(self) -> int:
        """Hub configs of these families leave values out that transformers knows."""
        if isinstance(self.folder.text_config.get("max_position_embeddings"), int):
            return super()._max_model_len()
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.folder.path, trust_remote_code=self._trust_remote_code)
        length = getattr(config.get_text_config(), "max_position_embeddings", None)
        if not isinstance(length, int):
            raise ModelError(f"{self.folder.name}: config.json in {self.folder.path} has no max_position_embeddings")
        return length

    def _image_token_id(self) -> int:
        for value in (
            getattr(self._processor, "image_token_id", None),
            self.folder.config.get("image_token_id"),
            self.folder.config.get("image_token_index"),
        ):
            if isinstance(value, int):
                return value
        raise ModelError(f"{self.folder.name}: config.json in {self.folder.path} names no image token")

    # ---- the two calls ---------------------------------------------------------------------------------------------

    def prepare(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
        """`media[i].pixels` are the originals and `grid` is None: the processor's own result is in
        `processor_inputs`. Raises MessageError, MediaError, ContextLengthError."""
        start = time.perf_counter()
        images = self._images(conversation)
        rendered = self.template.render(conversation, add_generation_prompt=add_generation_prompt)
        made = self._run(rendered.safe_text, images)
        canonical = self._canonical(rendered)
        ids, counts = self._expanded(rendered, made, images, canonical)
        spans = self._spans(ids, counts)
        media = tuple(
            PreparedMedia(
                kind="image",
                pixels=image.pixels,
                original_size=image.size,
                size=image.size,
                grid=None,
                num_tokens=count,
                span=span,
                canonical_span=Span(place, 1),
                content_hash=media_hash("image", image.pixels),
                where=image.where,
                source=image.source,
            )
            for image, count, span, place in zip(images, counts, spans, self._places(canonical), strict=True)
        )
        self._check_fits(len(ids), [self._report(m) for m in media])
        return Prompt(
            model=self.folder.name,
            family=self.name,
            text=rendered.text,
            canonical_ids=tuple(canonical),
            token_ids=tuple(ids),
            position_ids=plain_positions(len(ids)),
            media=media,
            image_token_id=self.image_token_id,
            box_format=self.box_format,
            prepare_s=time.perf_counter() - start,
            processor_inputs=_arrays(made, length=len(ids)),
        )

    def count(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> CountReport:
        """Runs the processor (these families have no size rule of ours); a prompt too long is reported."""
        images = self._images(conversation)
        rendered = self.template.render(conversation, add_generation_prompt=add_generation_prompt)
        made = self._run(rendered.safe_text, images)
        ids, counts = self._expanded(rendered, made, images, self._canonical(rendered))
        media = tuple(
            MediaCount("image", image.where, image.source, image.size, image.size, 1, count)
            for image, count in zip(images, counts, strict=True)
        )
        text = len(ids) - sum(counts)
        return CountReport(self.folder.name, self.name, len(ids), text, media, self.max_model_len)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _images(self, conversation: Conversation) -> list[Image]:
        images: list[Image] = []
        for item in conversation.media:
            if isinstance(item, Video):
                raise MessageError(
                    f"{item.where or 'the messages'}: videos are not possible with {self.folder.name} "
                    f"({self.folder.model_type}); send frames as images"
                )
            if item.limits != PixelLimits():
                raise MediaError(
                    f"{item.where or 'image'}: {self.folder.name} ({self.folder.model_type}) resizes images its own "
                    "way and takes no min_pixels, max_pixels, resized_height or resized_width"
                )
            images.append(item)
        return images

    def _run(self, text: str, images: list[Image]) -> dict[str, Any]:
        """The processor's output for one prompt, as torch tensors. Raises MessageError with its own words."""
        from PIL import Image as PILImage

        pictures = [PILImage.fromarray(image.pixels) for image in images]
        options = {"add_special_tokens": False} if self._starts_with_bos(text) else {}
        try:
            made = self._processor(text=[text], images=pictures or None, return_tensors="pt", **options)
        except Exception as error:  # foreign code with errors of many kinds
            raise MessageError(
                f"transformers' {type(self._processor).__name__} refuses this prompt: {shorten(str(error), 200)}"
            ) from None
        return dict(made)

    def _starts_with_bos(self, text: str) -> bool:
        bos = self.tokenizer.special_tokens.get("bos_token")
        return bos is not None and text.startswith(bos)

    @cached_property
    def _added_by_tokenizer(self) -> list[int]:
        """What the tokenizer puts before a text by itself (BOS)."""
        return [int(i) for i in self._processor.tokenizer("")["input_ids"]]

    def _canonical(self, rendered: Rendered) -> list[int]:
        added = [] if self._starts_with_bos(rendered.text) else self._added_by_tokenizer
        return [*added, *self.tokenizer.encode_pieces(rendered.pieces)]

    def _expanded(
        self, rendered: Rendered, made: dict[str, Any], images: list[Image], canonical: list[int]
    ) -> tuple[list[int], list[int]]:
        """Ids with every placeholder written out, and the visual tokens of each image."""
        if len(self._places(canonical)) != len(images):
            raise MessageError(
                f"the messages have {len(images)} images, but the chat template of {self.folder.name} wrote "
                f"{len(self._places(canonical))} placeholders for them"
            )
        whole = [int(i) for i in made["input_ids"][0]]
        if not images:
            return (canonical if rendered.safe_text != rendered.text else whole), []
        written = [self._expansion(image) for image in images]
        counts = [ids.count(self.image_token_id) for ids in written]
        if rendered.safe_text == rendered.text and whole.count(self.image_token_id) == sum(counts):
            return whole, counts
        parts = iter(written)
        return [j for i in canonical for j in (next(parts) if i == self.image_token_id else (i,))], counts

    def _expansion(self, image: Image) -> list[int]:
        """What the processor writes for one image alone."""
        placeholder = self.tokenizer.id_to_token(self.image_token_id)
        made = self._run(placeholder or "", [image])
        ids = [int(i) for i in made["input_ids"][0]]
        return ids[len(self._added_by_tokenizer) :]

    def _places(self, ids: list[int]) -> list[int]:
        return [i for i, token_id in enumerate(ids) if token_id == self.image_token_id]

    def _spans(self, ids: list[int], counts: list[int]) -> list[Span]:
        places = self._places(ids)
        ends = np.cumsum([0, *counts]).tolist()
        return [Span(places[a], places[b - 1] - places[a] + 1) for a, b in pairwise(ends)]

    @staticmethod
    def _report(item: PreparedMedia) -> MediaCount:
        return MediaCount("image", item.where, item.source, item.original_size, item.size, 1, item.num_tokens)


def _arrays(made: dict[str, Any], *, length: int) -> dict[str, npt.NDArray[Any]]:
    """The processor's output besides ids and mask. Per-token extras are kept only where they fit the ids."""
    found: dict[str, npt.NDArray[Any]] = {}
    for name, value in made.items():
        if name in ("input_ids", "attention_mask") or not hasattr(value, "numpy"):
            continue
        array: npt.NDArray[Any] = value.numpy()
        if array.shape != (1, made["input_ids"].shape[1]) or array.shape == (1, length):
            found[name] = array
    return found


def _load_processor(folder: ModelFolder, trust_remote_code: bool) -> Any:
    try:
        from transformers import AutoImageProcessor, AutoProcessor
    except ImportError:
        raise MissingExtraError(f"{folder.name} ({folder.model_type})", "hf") from None
    options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    try:
        processor = AutoProcessor.from_pretrained(folder.path, **options)
        # Pinned apart: asking for Pillow in one go fails for families with a video processor, which has no such form.
        processor.image_processor = AutoImageProcessor.from_pretrained(folder.path, backend="pil", **options)
        return processor
    except Exception as error:  # foreign code with errors of many kinds
        if isinstance(error, ImportError) and "num2words" in str(error):
            raise MissingExtraError(f"{folder.name} ({folder.model_type}: num2words)", "smolvlm") from None
        raise ModelError(
            f"{folder.name}: transformers cannot make a processor for {folder.model_type}: {shorten(str(error), 300)}"
        ) from None
