"""One answer as the JSON document of `visavis ask --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from visavis.backends.base import LoadInfo
    from visavis.completion import Completion, TokenLogprobs
    from visavis.families import TextTokenizer
    from visavis.prompt import Prompt

__all__ = ["SCHEMA", "answer_document"]

SCHEMA = "visavis.ask/1"


def answer_document(
    completion: Completion,
    info: LoadInfo,
    prompt: Prompt,
    tokenizer: TextTokenizer,
    phases_s: Mapping[str, float],
    *,
    drawn: str | None = None,
) -> dict[str, Any]:
    """Text, ids, boxes in pixels of the upright original, token counts, times in seconds, effective settings."""
    times = completion.timings
    return {
        "schema": SCHEMA,
        **_answer(completion, tokenizer),
        "alternatives": [_answer(other, tokenizer) for other in completion.alternatives],
        "prompt_tokens": completion.prompt_tokens,
        "image_tokens": completion.image_tokens,
        "completion_tokens": completion.completion_tokens,
        "media": [
            {
                "kind": m.kind,
                "source": m.source,
                "original_size": list(m.original_size),
                "size": list(m.size),
                "tokens": m.num_tokens,
            }
            for m in prompt.media
        ],
        "prompt_logprobs": _logprobs(completion.prompt_logprobs, tokenizer),
        "timings": {
            **phases_s,
            "load_phases_s": dict(info.phases),
            "prepare_s": times.prepare_s,
            "queue_s": times.queue_s,
            "first_token_s": times.first_token_s,
            "per_token_s": times.per_token_s,
            "decode_tokens_per_s": times.decode_tokens_per_s,
            "token_times_s": list(times.token_times),
            "total_s": times.total_s,
        },
        "sampling": completion.sampling.as_dict(),
        "model": completion.model,
        "family": prompt.family,
        "backend": {
            "name": info.backend,
            "version": info.version,
            "device": info.device,
            "dtype": info.dtype,
            "max_model_len": info.max_model_len,
            "settings": dict(info.settings),
            "marks": list(info.marks),
            "interpreter": info.interpreter,
        },
        "drawn": drawn,
    }


def _answer(completion: Completion, tokenizer: TextTokenizer) -> dict[str, Any]:
    images = range(len(completion.media_sizes)) if completion.box_format != "none" else ()
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "valid": completion.valid,
        "box_format": completion.box_format,
        "boxes": [{"image": i + 1, **completion.boxes(i).as_dict()} for i in images],
        "logprobs": _logprobs(completion.logprobs, tokenizer),
    }


def _logprobs(
    entries: tuple[TokenLogprobs | None, ...] | tuple[TokenLogprobs, ...] | None, tokenizer: TextTokenizer
) -> list[dict[str, Any] | None] | None:
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            "token_id": entry.token_id,
            "token": tokenizer.decode([entry.token_id]),
            "logprob": entry.logprob,
            "top": [{"token_id": i, "token": tokenizer.decode([i]), "logprob": p} for i, p in entry.top],
        }
        for entry in entries
    ]
