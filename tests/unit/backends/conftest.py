"""A family without a model folder, and a fake backend on top of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.reference.tiny_tokenizers import qwen_tokenizer
from visavis.backends.fake import FakeModel, FakeScript
from visavis.backends.options import EngineOptions
from visavis.chat.types import Conversation, Text
from visavis.families.base import CountReport, Family
from visavis.prompt import PreparedMedia, Prompt, Span


class StubTokenizer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.special_ids = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        self.tokenizer.encode_special_tokens = not allow_special
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokenizer.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.tokenizer.token_to_id(token)


class StubFamily(Family):
    """Text only; a prompt is its text."""

    name = "stub"

    def __init__(self) -> None:
        self.tokenizer = StubTokenizer(qwen_tokenizer())
        eos, pad = self.tokenizer.token_to_id("<|im_end|>"), self.tokenizer.token_to_id("<|endoftext|>")
        assert eos is not None
        assert pad is not None
        self.eos_token_ids = (eos,)
        self.pad_token_id = pad
        self.max_model_len = 512
        self.box_format = "qwen2_vl"
        self.patch_rule = None
        self.folder: Any = SimpleNamespace(
            name="stub-model",
            generation_config={"do_sample": True, "temperature": 0.5},
            text_config={"vocab_size": self.tokenizer.vocab_size + 3},
        )

    @property
    def supports_images(self) -> bool:
        return False

    @property
    def supports_videos(self) -> bool:
        return False

    def prepare(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
        return make_prompt(
            self, " ".join(p.text for m in conversation.messages for p in m.parts if isinstance(p, Text))
        )

    def count(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> CountReport:
        raise NotImplementedError


def make_prompt(family: StubFamily, text: str, images: int = 0) -> Prompt:
    ids = tuple(family.tokenizer.encode(text))
    media = tuple(
        PreparedMedia(
            kind="image",
            pixels=np.zeros((56, 84, 3), np.uint8),
            original_size=(60, 90),
            size=(56, 84),
            grid=(1, 4, 6),
            num_tokens=6,
            span=Span(0, 6),
            canonical_span=Span(0, 1),
            content_hash="0",
            where=f"messages[0].content[{i}]",
        )
        for i in range(images)
    )
    return Prompt(
        model="stub-model",
        family="stub",
        text=text,
        canonical_ids=ids,
        token_ids=ids,
        position_ids=np.arange(len(ids))[None],
        media=media,
        box_format="qwen2_vl",
        prepare_s=0.25,
    )


@pytest.fixture
def family() -> StubFamily:
    return StubFamily()


Make = Callable[..., FakeModel]


@pytest.fixture
def fake(family: StubFamily) -> Make:
    """`fake(answers=…, …)`: a loaded FakeModel with that script."""

    def make(**script: Any) -> FakeModel:
        model = FakeModel(FakeScript(**script), family=family)
        model.load(None, EngineOptions())
        return model

    return make
