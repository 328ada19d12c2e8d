"""Conversations that parity tests and recorded goldens share. Pixels are drawn from fixed seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from visavis.chat.types import Conversation, Image, Message, Part, Text, Video


def picture(height: int, width: int, seed: int = 0) -> Image:
    """Smooth and noisy at once, so that resizing it wrongly shows."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = np.stack([rows * 255 // max(height - 1, 1), columns * 255 // max(width - 1, 1), (rows + columns) % 256], -1)
    noise = rng.integers(-40, 41, waves.shape)
    pixels = np.clip(waves + noise, 0, 255).astype(np.uint8)
    return Image(pixels, where=f"picture {seed}")


def film(frames: int, height: int, width: int, *, source_fps: float = 24.0, every: int = 12, seed: int = 0) -> Video:
    """`frames` frames, every `every`-th of a source of `source_fps`."""
    pixels = np.stack([picture(height, width, 100 * seed + i).pixels for i in range(frames)])
    indices = tuple(range(0, frames * every, every))
    total = frames * every
    return Video(
        pixels,
        timestamps=tuple(i / source_fps for i in indices),
        fps=frames / total * source_fps,
        source_fps=source_fps,
        frame_indices=indices,
        total_frames=total,
        duration=total / source_fps,
        where=f"film {seed}",
    )


def user(*parts: Part | str) -> Message:
    return Message("user", tuple(Text(p) if isinstance(p, str) else p for p in parts))


def said(role: Any, text: str) -> Message:
    return Message(role, (Text(text),))


TEXT_CASES: dict[str, Conversation] = {
    "plain": Conversation((user("Where is the button?"),)),
    "system": Conversation((said("system", "Be brief."), user("the quick brown fox"))),
    "turns": Conversation(
        (user("hello"), said("assistant", "Hello! The menu is on top."), user("and the\n\nsearch field?\n"))
    ),
    "unicode": Conversation((user("Привет 你好 e\u0301 \u00e9 🙂 \u200d\u00a0 \t  x "),)),
    "borders": Conversation((user("\nuser\n system"), said("assistant", " \n "), user("\n"))),
}

VISION_CASES: dict[str, Conversation] = {
    "no media": Conversation((said("system", "You see screens."), user("hello the dog"))),
    "one image": Conversation((user(picture(60, 90, 1), "What is this?"),)),
    "three images": Conversation(
        (user("First ", picture(56, 56, 1), " then", picture(33, 120, 2), picture(200, 31, 3), "\nCompare."),)
    ),
    "tiny image": Conversation((user(picture(1, 1, 1), "?"),)),
    "long image": Conversation((user(picture(3, 597, 4), "wide"),)),
    "two turns": Conversation(
        (user(picture(70, 70, 1), "a"), said("assistant", "a picture"), user("b", picture(84, 42, 2)))
    ),
    "video": Conversation((user(film(4, 56, 84, seed=1), "What happens?"),)),
    "odd video": Conversation((user("See ", film(5, 60, 45, every=7, seed=2), "now"),)),
    "mixture": Conversation(
        (
            user(
                picture(64, 96, 1), "x", film(3, 64, 64, every=30, seed=1), "y", picture(50, 80, 2),
                film(2, 32, 96, every=5, seed=2),
            ),
        )
    ),
}  # fmt: skip


def as_hf_messages(conversation: Conversation, *, lists: bool) -> list[dict[str, Any]]:
    """What one would hand to transformers' `apply_chat_template`."""
    messages: list[dict[str, Any]] = []
    for message in conversation.messages:
        content: Any
        if lists:
            content = [
                {"type": "text", "text": p.text}
                if isinstance(p, Text)
                else {"type": "image" if isinstance(p, Image) else "video"}
                for p in message.parts
            ]
        else:
            content = "\n".join(p.text for p in message.parts if isinstance(p, Text))
        turn: dict[str, Any] = {"role": message.role, "content": content}
        if message.tool_calls:
            turn["tool_calls"] = list(message.tool_calls)
        messages.append(turn)
    return messages


_CALL = {"type": "function", "function": {"name": "find", "arguments": {"q": "the dog"}}}
_TOOL = {"type": "function", "function": {"name": "find", "description": "Looks <it> up", "parameters": {}}}

QWEN3_CASES: dict[str, Conversation] = {
    "thought kept": Conversation((user("q"), said("assistant", "<think>\nhm\n</think>\n\nok"))),
    "thought dropped": Conversation((user("q"), said("assistant", "<think>\nhm\n</think>\n\nok"), user("again"))),
    "tools": Conversation(
        (
            said("system", "Be brief."),
            user("q"),
            Message("assistant", (Text("I look."),), tool_calls=(_CALL,)),
            said("tool", '{"found": 1}'),
            said("tool", "nothing"),
        ),
        tools=(_TOOL,),
    ),
    "no thinking": Conversation((user("q"),), template_options={"enable_thinking": False}),
}
