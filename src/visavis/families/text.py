"""Text-only families: Qwen2 and Qwen2.5, Qwen3, Llama, and any other causal language model with a chat template."""

from __future__ import annotations

import time
from typing import ClassVar

from visavis.chat.types import Conversation
from visavis.errors import MessageError
from visavis.families.base import CountReport
from visavis.families.common import FolderFamily
from visavis.families.positions import plain_positions
from visavis.prompt import Prompt

__all__ = ["LlamaFamily", "OtherTextFamily", "Qwen2Family", "Qwen3Family"]


class TextFamily(FolderFamily):
    """Rendered, encoded, counted."""

    name: ClassVar[str] = "text"

    @property
    def supports_images(self) -> bool:
        return False

    @property
    def supports_videos(self) -> bool:
        return False

    def prepare(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
        """Raises MessageError for a conversation with images or videos, ContextLengthError for one too long."""
        start = time.perf_counter()
        text, ids = self._encode(conversation, add_generation_prompt)
        self._check_fits(len(ids), ())
        return Prompt(
            model=self.folder.name,
            family=self.name,
            text=text,
            canonical_ids=ids,
            token_ids=ids,
            position_ids=plain_positions(len(ids)),
            box_format=self.box_format,
            prepare_s=time.perf_counter() - start,
        )

    def count(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> CountReport:
        """As `prepare`; a conversation too long is reported, not refused."""
        _, ids = self._encode(conversation, add_generation_prompt)
        return CountReport(self.folder.name, self.name, len(ids), len(ids), (), self.max_model_len)

    def _encode(self, conversation: Conversation, add_generation_prompt: bool) -> tuple[str, tuple[int, ...]]:
        for item in conversation.media:
            raise MessageError(
                f"{item.where or 'the messages'}: {self.folder.name} is a text-only model ({self.folder.model_type}) "
                "and takes no images or videos; choose a vision-language model with -m"
            )
        rendered = self.template.render(conversation, add_generation_prompt=add_generation_prompt)
        return rendered.text, tuple(self.tokenizer.encode_pieces(rendered.pieces))


class Qwen2Family(TextFamily):
    """Qwen2 and Qwen2.5."""

    name = "qwen2"


class Qwen3Family(TextFamily):
    """Qwen3; `template_options={"enable_thinking": False}` turns its thinking off."""

    name = "qwen3"


class LlamaFamily(TextFamily):
    """Llama 2 and 3 and their likes. The template writes BOS itself, so the tokenizer's own is never added."""

    name = "llama"


class OtherTextFamily(TextFamily):
    """Any other causal language model: engines that know its architecture run it."""
