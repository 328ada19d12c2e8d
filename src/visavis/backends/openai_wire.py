"""What is said to an OpenAI-compatible server and what it answers: request bodies out, `TokenEvent`s in.

A *dialect* is what a server understands beyond OpenAI's own fields. `openai` is the plain one; `vllm` servers also
take every sampling value we have, give token ids back, and say which prompt ids they made of the messages.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from visavis.backends.base import TokenEvent
from visavis.completion import FinishReason, TokenLogprobs
from visavis.errors import MessageError, OptionError, RequestError, shorten
from visavis.prompt import PreparedMedia, Prompt
from visavis.sampling import ResolvedSampling, StructuredOutput

__all__ = ["DIALECTS", "Dialect", "chunk_events", "detect_dialect", "request_body"]

PLAIN = frozenset(
    {"max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logit_bias"}
    | {"structured"}
)
MAX_STOP_STRINGS = 4  # OpenAI's limit


@dataclass(frozen=True, slots=True)
class Dialect:
    """`sampling` names the ResolvedSampling fields the server honours."""

    name: str
    sampling: frozenset[str]
    gives_ids: bool  # token ids of prompt and answer come back
    takes_pixel_limits: bool  # the server's own resize can be made the identity


DIALECTS = {
    "openai": Dialect("openai", PLAIN, gives_ids=False, takes_pixel_limits=False),
    "vllm": Dialect(
        "vllm",
        PLAIN
        | {"min_tokens", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "logprobs"}
        | {"eos_token_ids", "special_tokens"},
        gives_ids=True,
        takes_pixel_limits=True,
    ),
    "sglang": Dialect(
        "sglang",
        PLAIN | {"min_tokens", "top_k", "min_p", "stop_token_ids", "ignore_eos"},
        gives_ids=False,
        takes_pixel_limits=False,
    ),
}


def detect_dialect(models: Any) -> str:
    """From the answer of `GET /models`: servers name themselves in `owned_by`."""
    data = models.get("data") if isinstance(models, Mapping) else None
    owners = {str(m.get("owned_by", "")).lower() for m in data or () if isinstance(m, Mapping)}
    for name in ("vllm", "sglang"):
        if name in owners:
            return name
    return "openai"


def request_body(
    prompt: Prompt, sampling: ResolvedSampling, dialect: Dialect, model: str, *, max_tokens_field: str
) -> dict[str, Any]:
    """The body of `POST /chat/completions`, every sampling value in it.

    Raises OptionError for what the dialect cannot carry, MessageError for prompts without a conversation or with
    videos.
    """
    if prompt.chat is None:
        raise MessageError("this prompt was made from token ids; a chat server needs messages: use prepare(messages)")
    if not prompt.chat.add_generation_prompt:
        raise OptionError("a chat server always opens a new answer: add_generation_prompt=False cannot be honoured")
    if prompt.chat.template_options and dialect.name == "openai":
        names = ", ".join(sorted(prompt.chat.template_options))
        raise OptionError(f"template options ({names}) cannot be given to this server")
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(turn, prompt.media) for turn in prompt.chat.turns],
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(sampling, dialect, max_tokens_field),
    }
    if prompt.chat.tools:
        body["tools"] = list(prompt.chat.tools)
    if dialect.name != "openai" and prompt.chat.template_options:
        body["chat_template_kwargs"] = prompt.chat.template_options
    own_resize = dialect.takes_pixel_limits and prompt.media and prompt.token_ids
    if own_resize and (limits := prompt.for_vllm().get("mm_processor_kwargs")):
        body["mm_processor_kwargs"] = limits
    return body


def _sampling(sampling: ResolvedSampling, dialect: Dialect, max_tokens_field: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        max_tokens_field: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if not sampling.greedy:
        fields["seed"] = sampling.seed
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.structured is not None:
        fields["response_format"] = _response_format(sampling.structured)
    if dialect.name == "openai" and len(sampling.stop) > MAX_STOP_STRINGS:
        raise OptionError(f"stop: {len(sampling.stop)} strings; this server takes at most {MAX_STOP_STRINGS}")
    if dialect.gives_ids:
        # Stop strings are found in the ids by us, as for every engine; the model's ends are named, not assumed.
        fields |= {
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "min_tokens": sampling.min_tokens,
            "stop_token_ids": list(sampling.end_token_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
        }
        if sampling.logprobs is not None:
            fields |= {"logprobs": True, "top_logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        return fields
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if dialect.name == "sglang":
        fields |= {
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "min_tokens": sampling.min_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": sampling.ignore_eos,
            "skip_special_tokens": sampling.special_tokens == "none",
        }
    return fields


def _response_format(structured: StructuredOutput) -> dict[str, Any]:
    if structured.kind != "json_schema" or not isinstance(structured.value, str):
        raise OptionError(
            f"structured {structured.kind}: chat servers take a json_schema; use native, hf, vllm or sglang"
        )
    schema = json.loads(structured.value)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _message(turn: Any, media: Sequence[PreparedMedia]) -> dict[str, Any]:
    content: Any
    if len(turn.parts) == 1 and isinstance(turn.parts[0], str):
        content = turn.parts[0]
    else:
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": _data_url(media[part])}}
            for part in turn.parts
        ]
    message: dict[str, Any] = {"role": turn.role, "content": content}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(turn, name)) is not None:
            message[name] = value
    if turn.tool_calls:
        message["tool_calls"] = list(turn.tool_calls)
        message["content"] = content or None
    return message


def _data_url(item: PreparedMedia) -> str:
    """The resized pixels as PNG: lossless, so the server sees what every other engine sees."""
    if item.kind == "video":
        raise MessageError(f"{item.where or 'the prompt'}: videos cannot be sent to a chat server; use vllm or hf")
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(item.pixels, "RGB").save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


# ---- answers ----------------------------------------------------------------------------------------------------


def chunk_events(chunk: Any, index: int, now: float, dialect: Dialect) -> tuple[TokenEvent, list[int] | None]:
    """One chunk of the stream (or a whole answer) → its event, and the server's prompt ids where it gives them.

    Raises RequestError for a chunk that makes no sense.
    """
    if not isinstance(chunk, Mapping) or not isinstance(chunk.get("choices"), list):
        raise RequestError(f"the server's answer is no chat completion: {shorten(chunk)}")
    usage = chunk.get("usage")
    counted = (usage.get("prompt_tokens"), usage.get("completion_tokens")) if isinstance(usage, Mapping) else None
    prompt_ids = chunk.get("prompt_token_ids")
    if not chunk["choices"]:
        return TokenEvent(index, usage=counted), prompt_ids
    choice = chunk["choices"][0]
    said = choice.get("delta") or choice.get("message") or {}
    finish = _finish_reason(choice.get("finish_reason"))
    stop_reason = choice.get("stop_reason")
    if not dialect.gives_ids:
        text = said.get("content") or ""
        if not text and said.get("tool_calls"):
            raise RequestError("the server answered with tool calls, which have no text to show")
        event = TokenEvent(
            index,
            text=text,
            times=(now,) if text else (),
            finish_reason=finish,
            stop_reason=stop_reason,
            usage=counted,
        )
        return event, prompt_ids
    ids = tuple(choice.get("token_ids") or ())
    if finish == "stop" and stop_reason is None and ids:
        stop_reason = ids[-1]
    event = TokenEvent(
        index,
        token_ids=ids,
        times=(now,) * len(ids),
        logprobs=_logprobs(choice.get("logprobs")),
        finish_reason=finish,
        stop_reason=stop_reason,
        usage=counted,
    )
    return event, choice.get("prompt_token_ids") or prompt_ids


def _finish_reason(said: Any) -> FinishReason | None:
    if said is None:
        return None
    if said in ("length", "abort"):
        return "length" if said == "length" else "abort"
    if said == "content_filter":
        raise RequestError("the server withheld the answer (content_filter)")
    return "stop"  # "stop", "tool_calls", "function_call"


def _logprobs(found: Any) -> tuple[TokenLogprobs, ...]:
    """Tokens come spelled `token_id:123`, as asked."""
    if not found or not found.get("content"):
        return ()
    return tuple(
        TokenLogprobs(
            _id(entry["token"]),
            entry["logprob"],
            tuple((_id(top["token"]), top["logprob"]) for top in entry.get("top_logprobs") or ()),
        )
        for entry in found["content"]
    )


def _id(token: str) -> int:
    prefix, _, number = token.partition(":")
    if prefix != "token_id" or not number.isdigit():
        raise RequestError(f"the server named a token {shorten(token)} instead of by its id")
    return int(number)
