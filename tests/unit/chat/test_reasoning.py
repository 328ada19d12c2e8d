"""An assistant's thinking reaches the model's own template, as transformers would put it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference import tiny_tokenizers as tok
from visavis.chat import normalize
from visavis.families.base import chat_source
from visavis.families.folder import ModelFolder
from visavis.families.template import ChatTemplate
from visavis.families.tokenizer import HFTokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
)
CHAT = [
    {"role": "user", "content": "what is 2 + 3?"},
    {"role": "assistant", "reasoning_content": "two and three <|im_end|>", "content": "5"},
]


def test_reasoning_is_rendered_by_a_template_that_shows_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = tok.qwen_tokenizer(thinking=True)
    tok.save_tokenizer(tmp_path, tokenizer, TEMPLATE, eos="<|im_end|>", pad="<|im_end|>", bos=None)
    folder = ModelFolder(tmp_path, "tiny")
    ours = HFTokenizer(folder)
    rendered = ChatTemplate(folder, ours, multimodal=False).render(normalize(CHAT), add_generation_prompt=False)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert rendered.text == theirs.apply_chat_template(CHAT, tokenize=False)
    assert "two and three" in rendered.text
    # one end of turn for each of the two messages: the one spelled inside the thinking is plain text
    assert ours.encode_pieces(rendered.pieces).count(ours.token_to_id("<|im_end|>")) == 2


def test_reasoning_is_kept_for_servers_that_take_messages() -> None:
    assert chat_source(normalize(CHAT), True).turns[1].reasoning_content == "two and three <|im_end|>"
