"""`Family`: what a model family decides: template, resize rule, placeholders, positions, box format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from visavis.chat.types import Conversation, Text, VideoDefaults
from visavis.errors import OptionError
from visavis.prompt import BoxFormat, ChatSource, PatchRule, Prompt, Turn

if TYPE_CHECKING:
    from visavis.families.folder import ModelFolder

__all__ = ["CountReport", "Family", "MediaCount", "TextTokenizer", "chat_source"]


class TextTokenizer(Protocol):
    """What detokenising and templates need of a tokenizer."""

    vocab_size: int
    special_ids: frozenset[int]  # every added token marked special, plus bos/eos/pad

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`. Spellings of special tokens are plain text unless `allow_special`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens spelled out; broken UTF-8 shows as U+FFFD."""
        ...

    def id_to_token(self, token_id: int) -> str | None: ...

    def token_to_id(self, token: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class MediaCount:
    """What one image or video will cost."""

    kind: str
    where: str
    source: str
    original_size: tuple[int, int]  # (height, width), upright
    size: tuple[int, int]  # after the resize
    frames: int  # 1 for images
    tokens: int  # visual tokens


@dataclass(frozen=True, slots=True)
class CountReport:
    model: str
    family: str
    total: int
    text_tokens: int
    media: tuple[MediaCount, ...]
    max_model_len: int

    @property
    def fits(self) -> bool:
        return self.total < self.max_model_len


class Family(ABC):
    """One loaded model folder seen from the text side: no weights, no torch."""

    name: ClassVar[str]
    folder: ModelFolder
    tokenizer: TextTokenizer
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    max_model_len: int  # the model's context
    box_format: BoxFormat
    patch_rule: PatchRule | None
    video_defaults: VideoDefaults = VideoDefaults()  # how frames are picked where a message does not say

    @property
    def vocab_size(self) -> int | None:
        """How many token ids the model has, often more than its tokenizer; None where the config does not say."""
        value = self.folder.text_config.get("vocab_size")
        return value if isinstance(value, int) else None

    def tokenizer_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json, for libraries that read one. Raises OptionError."""
        backend = getattr(self.tokenizer, "backend", None)
        if backend is None:
            raise OptionError(f"{self.folder.name}: its tokenizer cannot be given to another library")
        return str(backend.to_str())

    @property
    @abstractmethod
    def supports_images(self) -> bool: ...

    @property
    @abstractmethod
    def supports_videos(self) -> bool: ...

    @abstractmethod
    def prepare(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
        """The one path: rendered, resized, expanded, positioned."""

    @abstractmethod
    def count(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> CountReport:
        """What `prepare` would give, without resizing a pixel."""

    def fitting_max_pixels(self, prompt: Prompt, room: int) -> int | None:
        """The largest `max_pixels` with which the prompt would have `room` tokens at most; None where nothing fits, or
        the family has no size rule of ours."""
        return None

    def prepare_messages(self, messages: Any, *, add_generation_prompt: bool = True, **options: Any) -> Prompt:
        """Messages in any spelling → Prompt. `options`: `tools`, `policy`, `min_pixels`, `max_pixels`, …
        as in `visavis.chat.normalize`."""
        from visavis.chat import normalize

        conversation = normalize(messages, **{"video_defaults": self.video_defaults, **options})
        prompt = self.prepare(conversation, add_generation_prompt=add_generation_prompt)
        return replace(prompt, chat=chat_source(conversation, add_generation_prompt))


def chat_source(conversation: Conversation, add_generation_prompt: bool) -> ChatSource:
    """The conversation with each image and video replaced by its number in the order of the text."""
    numbers = iter(range(len(conversation.media)))
    turns = tuple(
        Turn(
            role=m.role,
            parts=tuple(p.text if isinstance(p, Text) else next(numbers) for p in m.parts),
            name=m.name,
            tool_call_id=m.tool_call_id,
            tool_calls=m.tool_calls,
            reasoning_content=m.reasoning_content,
        )
        for m in conversation.messages
    )
    return ChatSource(turns, conversation.tools, dict(conversation.template_options), add_generation_prompt)
