"""Property: whatever mixture of spellings, every text and every medium comes out, in order, in its message."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage

from tests.unit.chat.making import png
from visavis.chat import Image, Text, Video, normalize

ROLES = ["system", "developer", "user", "assistant", "tool", "function"]

TEXTS = st.text(max_size=12)  # hypothesis leaves surrogates out, and keeps control and marker characters in


@st.composite
def text_parts(draw: st.DrawFn) -> tuple[Any, Any]:
    """(a spelling, what must come out)."""
    text = draw(TEXTS)
    spelling = draw(
        st.sampled_from(
            [
                text,
                Text(text),
                {"type": "text", "text": text},
                {"type": "input_text", "text": text},
                {"type": "output_text", "text": text, "annotations": []},
                {"type": "refusal", "refusal": text},
                {"text": text},
            ]
        )
    )
    return spelling, text


@st.composite
def image_parts(draw: st.DrawFn) -> tuple[Any, Any]:
    width, height = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    colour = draw(st.tuples(*[st.integers(0, 255)] * 3))
    data = png((width, height), colour)
    url = "data:image/jpeg;base64," + base64.urlsafe_b64encode(data).decode().rstrip("=")
    array = np.full((height, width, 3), colour, dtype=np.uint8)
    spelling = draw(
        st.sampled_from(
            [
                data,
                array,
                Image(array),
                PILImage.open(io.BytesIO(data)),
                {"type": "image", "image": data},
                {"type": "image", "image": array},
                {"type": "image", "image": base64.b64encode(data).decode()},
                {"type": "image_url", "image_url": url},
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "input_image", "image_url": url},
                {"image": url},
            ]
        )
    )
    return spelling, (height, width, colour)


@st.composite
def video_parts(draw: st.DrawFn) -> tuple[Any, Any]:
    levels = draw(st.lists(st.integers(0, 255), min_size=1, max_size=4))
    frames = np.stack([np.full((2, 3, 3), v, dtype=np.uint8) for v in levels])
    spelling = draw(
        st.sampled_from(
            [frames, {"type": "video", "video": frames}, {"type": "video", "video": list(frames), "fps": [2]}]
        )
    )
    return spelling, levels


PARTS = st.lists(st.one_of(text_parts(), image_parts(), video_parts()), max_size=5)


def seen(part: Text | Image | Video) -> Any:
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Image):
        assert (part.pixels == part.pixels[0, 0]).all()
        return (*part.size, tuple(int(v) for v in part.pixels[0, 0]))
    return [int(frame[0, 0, 0]) for frame in part.frames]


@settings(max_examples=150, deadline=None)
@given(chat=st.lists(st.tuples(st.sampled_from(ROLES), PARTS), min_size=1, max_size=4))
def test_every_text_and_every_medium_survives_in_order(chat: list[tuple[str, list[tuple[Any, Any]]]]) -> None:
    messages = [{"role": role, "content": [spelling for spelling, _ in parts]} for role, parts in chat]
    made = normalize(messages)
    assert [[seen(p) for p in m.parts] for m in made.messages] == [[out for _, out in parts] for _, parts in chat]
    again = normalize(made)
    assert [[seen(p) for p in m.parts] for m in again.messages] == [[out for _, out in parts] for _, parts in chat]


@settings(max_examples=100, deadline=None)
@given(role=st.sampled_from(ROLES), text=TEXTS)
def test_a_string_as_content_is_kept_to_the_letter(role: str, text: str) -> None:
    (message,) = normalize([{"role": role, "content": text}]).messages
    assert message.parts == (Text(text),)
