"""Chats in every spelling become the same few types; what cannot be kept is refused by name."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PILImage

from tests.unit.chat.making import png, video
from visavis.chat import Conversation, Image, Message, PixelLimits, Text, Video, normalize
from visavis.chat.fetch import PERMISSIVE
from visavis.errors import InputError, MediaError, MessageError, OptionError

RED = png((5, 4), (255, 0, 0))
DATA_URL = "data:image/png;base64," + base64.b64encode(RED).decode()
CLIP = video(frames=4)


def texts(conversation: Conversation) -> list[list[str]]:
    return [[p.text for p in m.parts if isinstance(p, Text)] for m in conversation.messages]


def only_part(content: Any, **options: Any) -> Any:
    (message,) = normalize([{"role": "user", "content": content}], **options).messages
    (part,) = message.parts
    return part


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": "hi"}],
        ({"role": "user", "content": ["hi"]},),
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": {"type": "text", "text": "hi"}}],
        [{"role": "user", "content": [{"text": "hi"}]}],
        [{"role": "user", "content": Text("hi")}],
        [{"type": "text", "text": "hi"}],
        {"type": "input_text", "text": "hi"},
        ["hi"],
        Message("user", (Text("hi"),)),
        [Message("user", (Text("hi"),))],
        Conversation((Message("user", (Text("hi"),)),)),
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "status": "completed"}],
    ],
    ids=str,
)
def test_spellings_of_one_question(messages: Any) -> None:
    assert normalize(messages).messages == (Message("user", (Text("hi"),)),)


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_roles(given: str, role: str) -> None:
    assert normalize([{"role": given, "content": "x"}]).messages[0].role == role


@pytest.mark.parametrize(("content", "parts"), [(None, ()), ([], ()), ("", (Text(""),)), ([""], (Text(""),))])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_empty_content(role: str, content: Any, parts: tuple[Text, ...]) -> None:
    assert normalize([{"role": role, "content": content}]).messages[0].parts == parts


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_parts_and_images_are_kept_in_every_role(role: str) -> None:
    content = ["a", {"type": "image", "image": RED}, {"type": "text", "text": "b"}]
    (message,) = normalize([{"role": role, "content": content}]).messages
    assert [type(p) for p in message.parts] == [Text, Image, Text]


def test_fields_of_tool_turns_are_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "zoom", "arguments": '{"x": 1}'}}
    chat = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "name": "zoom",
            "content": [{"type": "image_url", "image_url": DATA_URL}],
        },
    ]
    asked, answered = normalize(chat).messages
    assert asked.tool_calls == (call,)
    assert asked.parts == ()
    assert (answered.tool_call_id, answered.name) == ("c1", "zoom")
    assert isinstance(answered.parts[0], Image)


def test_an_assistant_with_calls_may_leave_content_out() -> None:
    call = {"function": {"name": "f", "arguments": {"a": [1, None]}}}
    (message,) = normalize([{"role": "assistant", "tool_calls": [call]}]).messages
    assert message.tool_calls == ({"type": "function", "function": {"name": "f", "arguments": {"a": [1, None]}}},)


def test_the_older_function_call_is_a_tool_call() -> None:
    chat = [{"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}]
    assert normalize(chat).messages[0].tool_calls == (
        {"type": "function", "function": {"name": "f", "arguments": "{}"}},
    )


def test_refusals_and_reasoning_of_an_assistant_are_kept() -> None:
    (message,) = normalize([{"role": "assistant", "content": None, "refusal": "No.", "reasoning": "hm"}]).messages
    assert message.parts == (Text("No."),)
    (both,) = normalize([{"role": "assistant", "content": "Well.", "refusal": "No."}]).messages
    assert both.parts == (Text("Well."), Text("No."))
    assert message.reasoning_content == "hm"
    again = normalize(Conversation((message,)))
    assert again.messages == (message,)


class PydanticLike:
    """As the openai package's answers: attributes, and model_dump()."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def model_dump(self) -> dict[str, Any]:
        return self._fields


def test_an_openai_answer_can_be_sent_back_as_it_came() -> None:
    answer = PydanticLike(
        role="assistant", content="ok", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None
    )
    chat = [{"role": "user", "content": [PydanticLike(type="text", text="hi")]}, answer]
    assert texts(normalize(chat)) == [["hi"], ["ok"]]


def test_tools_and_template_options_are_kept() -> None:
    schema = {"name": "f", "parameters": {"type": "object"}}
    made = normalize("x", tools=[schema, {"type": "function", "function": schema}], template_options={"a": 1})
    assert made.tools == ({"type": "function", "function": schema},) * 2
    assert made.template_options == {"a": 1}
    again = normalize(made, template_options={"b": 2})
    assert (again.tools, again.template_options) == (made.tools, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "usr", "content": "x"}], r"messages\[0\]\.role: unknown role 'usr'; did you mean user\?"),
        ([{"role": "critic", "content": "x"}], r"messages\[0\]\.role: unknown role 'critic'; known: system"),
        ([{"role": None, "content": "x"}], r"messages\[0\]\.role: unknown role None"),
        ([{"content": "x"}], r"messages\[0\]: has no role"),
        ([{"role": "user"}], r"messages\[0\]: has no content"),
        (
            [{"role": "user", "content": "x", "contnet": "y"}],
            "unknown key 'contnet' in a message; did you mean content",
        ),
        ([{"role": "user", "content": 7}], r"messages\[0\]\.content: int is no content"),
        ([{"role": "user", "content": ["a", 7]}], r"messages\[0\]\.content\[1\]: int is no content"),
        ([{"role": "user", "content": "a"}, "b"], r"messages\[1\]: is content among messages"),
        ([[{"role": "user", "content": "a"}]], r"messages\[0\]: is a list; a batch"),
        ([], "empty list"),
        (7, "int is no chat"),
        (None, "NoneType is no chat"),
        ({"messages": [{"role": "user", "content": "a"}], "temperature": 1}, 'give its "messages" list'),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], r"messages\[0\]\.tool_calls: belongs to assistant"),
        ([{"role": "assistant", "tool_calls": "x"}], r"messages\[0\]\.tool_calls: a list is needed"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"tool_calls\[0\]: has no function name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
            r"tool_calls\[0\]\.function\.arguments: a JSON object",
        ),
        ([{"role": "tool", "content": "x", "tool_call_id": 5}], r"messages\[0\]\.tool_call_id: int 5 is not text"),
        ([{"role": "user", "content": "a\ud800"}], r"messages\[0\]\.content: half a surrogate pair \(U\+D800\) at"),
        ([{"role": "assistant", "content": "a", "audio": {"id": "x"}}], "unknown key 'audio'"),
    ],
    ids=str,
)
def test_messages_that_cannot_be_understood(messages: Any, message: str) -> None:
    with pytest.raises(MessageError, match=message):
        normalize(messages)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("f", "tools: a list"),
        ([len], r"tools\[0\]: builtin_function_or_method is no function schema"),
        ([{"type": "web_search"}], r"tools\[0\]\.type: 'web_search' is not supported"),
        ([{"type": "function", "function": {"parameters": {}}}], r"tools\[0\]: the function has no name"),
    ],
)
def test_tools_that_cannot_be_understood(tools: Any, message: str) -> None:
    with pytest.raises(MessageError, match=message):
        normalize("x", tools=tools)


# ---- image parts -----------------------------------------------------------------------------------------------------

IMAGE_SPELLINGS: list[Any] = [
    {"type": "image", "image": RED},
    {"type": "image", "image": bytearray(RED)},
    {"type": "image", "image": DATA_URL},
    {"type": "image", "image": base64.b64encode(RED).decode()},
    {"type": "image", "image": PILImage.open(io.BytesIO(RED))},
    {"type": "image", "image": np.full((4, 5, 3), (255, 0, 0), dtype=np.uint8)},
    {"type": "image", "image": {"url": DATA_URL}},
    {"type": "image", "image": {"bytes": RED, "path": "name-only.png"}},
    {"type": "image", "url": DATA_URL},
    {"type": "image", "base64": base64.b64encode(RED).decode()},
    {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": base64.b64encode(RED).decode()}},
    {"type": "image_url", "image_url": DATA_URL},
    {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "high"}},
    {"type": "image_url", "image_url": PydanticLike(url=DATA_URL, detail="auto")},
    {"type": "input_image", "image_url": DATA_URL, "detail": "auto", "file_id": None},
    {"type": "input_image", "image_url": {"url": DATA_URL}},
    {"type": "image_pil", "image_pil": PILImage.open(io.BytesIO(RED))},
    {"type": "file", "file": {"file_data": DATA_URL, "filename": "a.png"}},
    {"type": "input_file", "file_data": DATA_URL, "filename": "a.png"},
    {"image": RED},
    {"type": "image", "image": Image(np.full((4, 5, 3), (255, 0, 0), dtype=np.uint8), source="mine")},
    {"image_url": {"url": DATA_URL}},
    RED,
    memoryview(RED),
    np.full((4, 5, 3), (255, 0, 0), dtype=np.uint8),
    PILImage.open(io.BytesIO(RED)),
]


@pytest.mark.parametrize("part", IMAGE_SPELLINGS, ids=lambda p: str(p)[:60])
@pytest.mark.parametrize("as_list", [True, False])
def test_spellings_of_one_image(part: Any, as_list: bool) -> None:
    image = only_part([part] if as_list else part)
    assert isinstance(image, Image)
    assert image.where == ("messages[0].content[0]" if as_list else "messages[0].content")
    assert image.size == (4, 5)
    assert (image.pixels == (255, 0, 0)).all()
    assert image.source
    assert "iVBOR" not in image.source


@pytest.mark.parametrize("wrap", [str, Path, lambda p: p.as_uri(), lambda p: open(p, "rb")])  # noqa: SIM115
def test_an_image_on_disk(tmp_path: Path, wrap: Any) -> None:
    path = tmp_path / "a b.png"
    path.write_bytes(RED)
    image = only_part([{"type": "image", "image": wrap(path)}])
    assert image.size == (4, 5)
    assert image.source.endswith("a b.png")


def test_a_bare_path_is_a_medium_and_a_bare_string_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(RED)
    assert isinstance(only_part([path]), Image)
    assert only_part([str(path)]) == Text(str(path))


def test_relative_paths_start_at_base_dir(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(RED)
    assert only_part([{"type": "image", "image": "a.png"}], base_dir=tmp_path).size == (4, 5)


def test_media_alone_are_a_user_message() -> None:
    for given in (RED, PILImage.open(io.BytesIO(RED)), {"type": "image", "image": RED}, [RED]):
        (message,) = normalize(given).messages
        assert message.role == "user"
        assert isinstance(message.parts[0], Image)


def test_a_picture_and_a_question_in_one_list() -> None:
    (message,) = normalize([RED, "what is it?"]).messages
    assert [type(p) for p in message.parts] == [Image, Text]


def test_our_own_types_pass_through_with_their_new_place() -> None:
    image = Image(np.zeros((2, 3, 3), dtype=np.uint8), PixelLimits(max_pixels=9), "elsewhere", "mine.png")
    clip = Video(np.zeros((2, 4, 5, 3), dtype=np.uint8), (0.0, 0.5), 2.0)
    (message,) = normalize([{"role": "user", "content": [image, clip]}]).messages
    first, second = message.parts
    assert isinstance(first, Image)
    assert isinstance(second, Video)
    assert first.pixels is image.pixels
    assert (first.where, first.source, first.limits) == (
        "messages[0].content[0]",
        "mine.png",
        PixelLimits(max_pixels=9),
    )
    assert (second.where, second.timestamps) == ("messages[0].content[1]", (0.0, 0.5))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "img", "image": RED}, r"content\[0\]: unknown part type 'img'; did you mean image\?"),
        ({"type": "Image", "image": RED}, "unknown part type 'Image'; did you mean image"),
        ({"type": "input_audio", "input_audio": {}}, "audio is not supported"),
        ({"type": "image_embeds", "image_embeds": []}, "give the picture"),
        ({"type": "tool_result", "content": "x"}, "role tool"),
        ({"type": ["text"], "text": "x"}, "unknown part type"),
        ({"type": "text", "txt": "x"}, r"unknown key 'txt' in a part of type text; did you mean text\?"),
        ({"type": "text"}, "a part of type text without text"),
        ({"type": "text", "text": None}, r"content\[0\]\.text: NoneType None is not text"),
        ({"type": "text", "text": ["x"]}, r"content\[0\]\.text: list"),
        ({"type": "text", "text": "x", "image": RED}, "unknown key 'image' in a part of type text"),
        ({"text": "x", "image": RED}, "has image and text at once"),
        ({"foo": 1}, r"without type, text, image or video \(keys: 'foo'\)"),
        ({}, r"\(keys: none\)"),
        ({"type": "image"}, "a part of type image that holds no image"),
        ({"type": "image", "image": None}, "holds no image"),
        ({"type": "image_url", "image_url": {}}, r"content\[0\]\.image_url: a part of type image_url that holds no"),
        ({"type": "image", "image": RED, "url": DATA_URL}, "holds image and url at once"),
        ({"type": "image", "image": RED, "max_pixel": 5}, r"unknown key 'max_pixel' .*; did you mean max_pixels\?"),
        ({"type": "image_url", "image_url": {"url": DATA_URL, "maxpixels": 5}}, "unknown key 'maxpixels'"),
        ({"type": "input_image", "file_id": "file-1"}, r"content\[0\]\.file_id: names a file in a vendor's store"),
        (
            {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}},
            r"image_url\.detail: low .*max_pixels",
        ),
        ({"type": "image", "image": RED, "detail": "sharp"}, r"content\[0\]\.detail: 'sharp' is not one of auto"),
        ({"type": "image", "image": [RED]}, r"content\[0\]\.image: a list is no image"),
        ({"type": "image", "image": 5}, r"content\[0\]\.image: cannot read a medium from int"),
        ({"type": "image", "image": RED, "fps": 2}, r"content\[0\]\.fps: is for videos"),
        ({"type": "file", "file": {"file_data": DATA_URL, "nframes": 4}}, r"content\[0\]\.nframes: is for videos"),
        ({"type": "video", "video": PILImage.new("RGB", (2, 2))}, r"content\[0\]\.video: a PIL image is no video"),
        (Image(np.zeros((2, 2), dtype=np.uint8)), "uint8 array of 3 dimensions"),
        (Image(np.zeros((2, 2, 4), dtype=np.uint8)), r"RGB pixels, not shape \(2, 2, 4\)"),
        (Video(np.zeros((2, 2, 2, 3), dtype=np.uint8), (0.0,), 1.0), "2 frames and 1 timestamps"),
    ],
    ids=lambda p: str(p)[:60],
)
def test_parts_that_cannot_be_understood(part: Any, message: str) -> None:
    with pytest.raises(MessageError, match=message) as caught:
        normalize([{"role": "user", "content": [part]}])
    assert str(caught.value).startswith("messages[0].content[0]")


def test_harmless_hints_are_accepted() -> None:
    part = {"type": "image", "image": RED, "cache_control": {"type": "ephemeral"}, "uuid": "u", "mime_type": "x/y"}
    assert only_part([part]).size == (4, 5)
    assert only_part([{"type": "output_text", "text": "x", "annotations": []}]) == Text("x")


def test_keys_without_a_value_say_nothing() -> None:
    """Tables of parts (datasets, pyarrow) fill the columns a part does not use with null."""
    filled = {"text": None, "image": None, "video": None, "fps": None}
    assert only_part([{**filled, "type": "text", "text": "x"}]) == Text("x")
    assert only_part([{**filled, "text": "x"}]) == Text("x")
    assert only_part([{**filled, "image": RED}]).size == (4, 5)


def test_a_broken_image_names_its_part_and_echoes_nothing() -> None:
    secret = "A" * 5000
    chat = [{"role": "user", "content": "x"}, {"role": "user", "content": ["a", {"type": "image", "image": secret}]}]
    with pytest.raises(MediaError, match=r"^messages\[1\]\.content\[1\]\.image: ") as caught:
        normalize(chat)
    assert len(str(caught.value)) < 300
    for wrapped in (f"data:image/png;base64,{secret}", f"data:{secret}", f"http://127.0.0.1:1/{secret}?{secret}"):
        with pytest.raises(MediaError) as caught:
            normalize([{"role": "user", "content": [{"type": "image_url", "image_url": wrapped}]}])
        assert len(str(caught.value)) < 300


def test_errors_about_content_name_the_source_once(tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    path.write_bytes(b"<html>" + bytes(100).hex().encode())
    for kind in ("image", "file"):
        with pytest.raises(MediaError) as caught:
            normalize([{"role": "user", "content": [{"type": kind, "path": str(path)}]}])
        reason = f"{path} is a web page (HTML), not an image: the link leads to a page, not to the picture itself"
        assert str(caught.value) == f"messages[0].content[0].path: {reason}"
    # what it is comes before how large it is
    with pytest.raises(MediaError, match="is a web page"):
        normalize([{"role": "user", "content": [path]}], policy=replace(PERMISSIVE, max_bytes=10))
    path.write_bytes(RED)
    with pytest.raises(MediaError) as caught:
        normalize([{"role": "user", "content": [path]}], policy=replace(PERMISSIVE, max_bytes=10))
    assert str(caught.value).count("page.png") == 1


# ---- options ---------------------------------------------------------------------------------------------------------


def test_pixel_limits_of_an_item() -> None:
    part = {"type": "image", "image": RED, "min_pixels": 4 * 28 * 28, "max_pixels": 1003520.0}
    assert only_part([part]).limits == PixelLimits(min_pixels=3136, max_pixels=1003520)
    part = {"type": "image_url", "image_url": {"url": DATA_URL, "resized_height": 280}, "resized_width": np.int64(420)}
    assert only_part([part]).limits == PixelLimits(resized_height=280, resized_width=420)


def test_limits_of_the_request_fill_what_items_leave_open() -> None:
    def limits(part: dict[str, Any]) -> PixelLimits:
        found = only_part([{"type": "image", "image": RED, **part}], min_pixels=100, max_pixels=1000)
        assert isinstance(found.limits, PixelLimits)
        return found.limits

    assert limits({}) == PixelLimits(min_pixels=100, max_pixels=1000)
    assert limits({"max_pixels": 500}) == PixelLimits(min_pixels=100, max_pixels=500)
    fixed = {"resized_height": 28, "resized_width": 28}
    assert limits(fixed) == PixelLimits(**fixed)
    assert only_part([RED], limits=PixelLimits(max_pixels=7)).limits == PixelLimits(max_pixels=7)
    assert only_part([{"type": "image", "image": RED, "max_pixels": 5}], limits=PixelLimits(**fixed)).limits == (
        PixelLimits(max_pixels=5)
    )
    with pytest.raises(MessageError, match=r"content\[0\]\.min_pixels: 100 is more than max_pixels 50"):
        limits({"max_pixels": 50})


@pytest.mark.parametrize("value", ["401408", 0, -1, 1.5, True, [1], float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["min_pixels", "max_pixels"])
def test_wrong_pixel_limits_are_named(key: str, value: Any) -> None:
    with pytest.raises(MessageError, match=rf"^messages\[0\]\.content\[0\]\.{key}: .* whole number of 1 or more"):
        only_part([{"type": "image", "image": RED, key: value}])


@pytest.mark.parametrize("key", ["min_pixels", "max_pixels"])
def test_pixel_limits_beyond_what_floats_hold_are_refused(key: str) -> None:
    with pytest.raises(MessageError, match=rf"content\[0\]\.{key}: 1000.* larger than anything") as caught:
        only_part([{"type": "image", "image": RED, key: 10**400}])
    assert len(str(caught.value)) < 200


def test_one_side_alone_is_refused() -> None:
    with pytest.raises(MessageError, match=r"\.resized_width: given without resized_height"):
        only_part([{"type": "image", "image": RED, "resized_width": 28}])


def test_the_same_option_twice_must_agree() -> None:
    part = {"type": "image_url", "image_url": {"url": DATA_URL, "max_pixels": 5}, "max_pixels": 6}
    with pytest.raises(MessageError, match=r"content\[0\]\.max_pixels: given twice, as 6 and 5"):
        only_part([part])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_pixels": 0}, "limits.max_pixels: 0 must be"),
        ({"limits": PixelLimits(), "max_pixels": 5}, "not both"),
        ({"limits": PixelLimits(resized_height=28)}, "limits.resized_height: given without"),
        ({"background": "white"}, "background 'white' must be three numbers"),
        ({"background": (0, 0, 256)}, "background"),
        ({"template_options": [1]}, "template_options"),
    ],
)
def test_wrong_options_of_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        normalize("x", **options)


def test_the_background_reaches_every_picture() -> None:
    clear = np.zeros((2, 2, 4), dtype=np.uint8)
    chat = [{"role": "user", "content": [clear, PILImage.new("RGBA", (2, 2)), {"type": "video", "video": [clear]}]}]
    first, second, third = normalize(chat, background=(1, 2, 3)).media
    assert isinstance(first, Image)
    assert isinstance(second, Image)
    assert isinstance(third, Video)
    for pixels in (first.pixels, second.pixels, third.frames):
        assert (pixels == (1, 2, 3)).all()


# ---- videos ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video", "video": CLIP},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + base64.b64encode(CLIP).decode()}},
        {"type": "input_video", "video_url": "data:;base64," + base64.b64encode(CLIP).decode()},
        {"type": "video", "video": base64.b64encode(CLIP).decode()},
        {"type": "file", "file": {"file_data": "data:;base64," + base64.b64encode(CLIP).decode()}},
        {"video": CLIP},
        CLIP,
        io.BytesIO(CLIP),
    ],
    ids=lambda p: str(p)[:40],
)
def test_spellings_of_one_video(part: Any) -> None:
    if isinstance(part, io.BytesIO):
        part.seek(0)
    clip = only_part([part])
    assert isinstance(clip, Video)
    assert clip.where == "messages[0].content[0]"
    assert (clip.size, clip.total_frames, clip.source_fps) == ((48, 64), 4, 10.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, r"\.fps: 0 must be a number above 0"),
        ({"fps": "2"}, r"\.fps: '2' must be"),
        ({"fps": [1, 2]}, r"\.fps: a list of 2 values; one video takes one number"),
        ({"fps": 2, "nframes": 4}, r"\.nframes: excludes fps"),
        ({"nframes": 4, "max_frames": 8}, r"\.nframes: excludes max_frames"),
        ({"nframes": 2.5}, r"\.nframes: 2.5 must be a whole number"),
        ({"min_frames": 8, "max_frames": 4}, r"\.min_frames: 8 is more than max_frames 4"),
        ({"video_start": -1}, r"\.video_start: -1 must be a number of 0 or more"),
        ({"video_start": 2, "video_end": 1}, r"\.video_start: 2 s is not before video_end 1 s"),
        ({"total_pixels": 0}, r"\.total_pixels: 0 must be"),
        ({"num_frames": 4}, r"unknown key 'num_frames' .*did you mean nframes"),
        ({"sample_fps": 2}, "sample_fps belongs to lists of frames"),
    ],
    ids=str,
)
def test_wrong_video_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MessageError, match=message) as caught:
        only_part([{"type": "video", "video": CLIP, **options}])
    assert str(caught.value).startswith("messages[0].content[0]")


def test_media_keep_the_order_of_the_text() -> None:
    chat = [
        {"role": "system", "content": ["a", {"type": "image", "image": png((1, 1))}]},
        {"role": "user", "content": [{"type": "video", "video": CLIP}, "b", {"type": "image", "image": png((2, 2))}]},
        {"role": "assistant", "content": [{"type": "image", "image": png((3, 3))}]},
    ]
    assert [m.size for m in normalize(chat).media] == [(1, 1), (48, 64), (2, 2), (3, 3)]


def test_every_error_is_an_input_error() -> None:
    with pytest.raises(InputError):
        normalize([{"role": "user", "content": [{"type": "image", "image": "nowhere.png"}]}])
