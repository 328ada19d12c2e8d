"""Checks a request on arrival, so that nothing that enters the scheduler can fail for a reason known beforehand."""

from __future__ import annotations

import numpy as np

from visavis.engine.model_config import ModelConfig
from visavis.engine.sequence import Sequence
from visavis.errors import ContextLengthError, InputError, MediaError, OptionError
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

__all__ = ["make_sequence"]


def make_sequence(
    uid: int,
    request_id: str,
    prompt: Prompt,
    sampling: ResolvedSampling,
    model: ModelConfig,
    max_model_len: int,
    priority: int = 0,
) -> Sequence:
    """Raises InputError and its kin, naming the part at fault."""
    _check_sampling(sampling, model)
    _check_prompt(prompt, model)
    _check_length(len(prompt), sampling.max_tokens, max_model_len)
    positions = _visual_positions(prompt, model)
    return Sequence(uid, request_id, prompt, sampling, list(prompt.token_ids), positions, priority=priority)


def _check_length(prompt: int, asked: int, max_model_len: int) -> None:
    room = max_model_len - prompt
    if asked <= room:
        return
    larger = "raise kv_cache_bytes or max_model_len, whichever limits it"
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {prompt} tokens and the engine has room for {max_model_len} with the answer: shorten the "
            f"prompt to {max_model_len - 1} or fewer, or {larger}"
        )
    raise ContextLengthError(
        f"the prompt has {prompt} tokens and {asked} are asked for; the engine has room for {max_model_len} in all: "
        f"lower max_tokens to {room}, shorten the prompt, or {larger}"
    )


def _check_sampling(sampling: ResolvedSampling, model: ModelConfig) -> None:
    if sampling.n != 1:
        raise OptionError("the engine answers once; submit the prompt n times with different seeds")
    if sampling.bad_words and not sampling.bad_words_ids:
        raise OptionError("bad_words: the engine takes them as token ids, in bad_words_ids")
    named = {
        "logit_bias": [token_id for token_id, _ in sampling.logit_bias],
        "stop_token_ids": sampling.stop_token_ids,
        "bad_words_ids": [token_id for word in sampling.bad_words_ids for token_id in word],
    }
    for name, ids in named.items():
        for token_id in ids:
            if not 0 <= token_id < model.vocab_size:
                raise OptionError(f"{name} names token {token_id}; the vocabulary has {model.vocab_size}")


def _check_prompt(prompt: Prompt, model: ModelConfig) -> None:
    if len(prompt) == 0:
        raise InputError("the prompt is empty")
    if prompt.processor_inputs:
        raise InputError("the native engine takes prompts of its own families only; use --backend hf for this model")
    ids = np.asarray(prompt.token_ids)
    if ids.min() < 0 or ids.max() >= model.vocab_size:
        worst = int(ids.max() if ids.max() >= model.vocab_size else ids.min())
        raise InputError(f"the prompt holds token id {worst}; the model's vocabulary has {model.vocab_size}")
    expected = (model.rope.num_axes, len(prompt))
    if prompt.position_ids.shape != expected:
        raise InputError(f"position_ids have shape {prompt.position_ids.shape}; this model needs {expected}")


def _visual_positions(
    prompt: Prompt, model: ModelConfig
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...]:
    if not prompt.media:
        return ()
    if model.vision is None:
        raise MediaError(f"{prompt.media[0].where or 'media'}: this model takes text only; use a vision-language model")
    rule, tower = prompt.patch_rule, model.vision
    if rule is None:
        raise MediaError("the prompt has media and no patch rule; prepare it with the model's family")
    cut = (rule.patch_size, rule.merge_size, rule.temporal_patch_size)
    expected = (tower.patch_size, tower.merge_size, tower.temporal_patch_size)
    if cut != expected:
        raise MediaError(f"the prompt's media are cut by (patch, merge, frames) {cut}; this model takes {expected}")
    mask = prompt.visual_mask
    found = []
    for number, item in enumerate(prompt.media):
        where = item.where or f"media[{number}]"
        positions = item.span.start + np.flatnonzero(mask[item.span.start : item.span.stop])
        if item.grid is None:
            raise MediaError(f"{where}: its grid of patches is not known; prepare it with the model's family")
        t, h, w = item.grid
        tokens = t * h * w // tower.merge_size**2
        if len(positions) != tokens:
            raise MediaError(
                f"{where}: the prompt has {len(positions)} visual tokens for it and its grid makes {tokens}"
            )
        found.append(positions)
    if sum(map(len, found)) != int(mask.sum()):
        raise MediaError("the prompt has visual tokens that belong to no image or video")
    return tuple(found)
