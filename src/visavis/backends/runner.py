"""What every backend shares between `_run` and the user: sampling checks, n > 1, text, stop strings, Completions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from visavis.backends.answer import Answer
from visavis.backends.base import Capabilities, EngineRequest, ModelInterface
from visavis.completion import Completion, Delta
from visavis.errors import (
    BackendError,
    ContextLengthError,
    InputError,
    MissingExtraError,
    OptionError,
    VisavisError,
    shorten,
)
from visavis.sampling import ResolvedSampling, SamplingParams, StructuredOutput

if TYPE_CHECKING:
    from visavis.prompt import Prompt

__all__ = [
    "check_arrivals",
    "check_limits",
    "check_request",
    "check_structured",
    "derived_seed",
    "run_batch",
    "warm_up",
]

_RUNNER_FIELDS = frozenset({"max_tokens", "n", "stop", "stop_token_ids", "eos_token_ids", "special_tokens"})
"""Fields of ResolvedSampling that every backend honours: the runner does them, or `end_token_ids` and length do."""
_DESCRIPTIVE = frozenset({"origins", "notes"})


def run_batch(
    model: ModelInterface,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    arrivals: Sequence[float] | None = None,
    users: int | None = None,
) -> Generator[Delta, None, None]:
    """Answers `prompts` together, or each from `arrivals[i]` seconds on, or each once the one `users` places before it
    is answered; `params[i]` holds for `prompts[i]`.

    Everything is checked before anything runs: raises OptionError for what this engine cannot honour (naming field and
    engine), ContextLengthError, MediaError; with several prompts the text begins with the prompt's number. While it
    runs, one request's failure is a Completion with `error` and `finish_reason="error"`; the death of the engine raises
    BackendError or WorkerDiedError. Closing the iterator aborts everything that runs.
    """
    times = [0.0] * len(prompts) if arrivals is None else list(arrivals)
    check_arrivals(model.name, model.capabilities(), times, len(prompts))
    resolved = []
    for i, (prompt, asked) in enumerate(zip(prompts, params, strict=True)):
        try:
            sampling = model.resolve(prompt, asked)
            check_request(model.name, model.capabilities(), prompt, sampling)
            check_limits(prompt, model.limit_per_prompt)
        except InputError as error:
            if len(prompts) == 1:
                raise
            raise type(error)(f"prompt {i}: {error}") from None
        resolved.append(sampling)
    if users is not None:
        _check_users(model, users, resolved, timed=arrivals is not None)
    return _serve(model, prompts, resolved, times, users or len(prompts))


def _serve(
    model: ModelInterface,
    prompts: Sequence[Prompt],
    resolved: Sequence[ResolvedSampling],
    arrivals: Sequence[float],
    users: int,
) -> Generator[Delta, None, None]:
    if not model.serving.acquire(blocking=False):
        raise BackendError(f"{model.name} is serving another batch; finish it or close its iterator first")
    try:
        yield from _serve_alone(model, prompts, resolved, arrivals, users)
    finally:
        model.serving.release()


def _serve_alone(
    model: ModelInterface,
    prompts: Sequence[Prompt],
    resolved: Sequence[ResolvedSampling],
    arrivals: Sequence[float],
    users: int,
) -> Generator[Delta, None, None]:
    requests: list[EngineRequest] = []
    answers: list[Answer] = []
    groups: list[list[Answer]] = []  # per prompt: the n answers
    vocabulary = model.vocabulary()
    closed = len(prompts) > users  # n is 1 then, as `_check_users` saw to
    for prompt, sampling, arrival_s in zip(prompts, resolved, arrivals, strict=True):
        group = []
        for k in range(sampling.n):
            own = sampling if sampling.n == 1 else replace(sampling, n=1, seed=derived_seed(sampling.seed, k))
            index = len(requests)
            after = index - users if closed and index >= users else None
            request = EngineRequest(index, prompt, own, arrival_s, after)
            requests.append(request)
            group.append(Answer(model, request, vocabulary))
        answers += group
        groups.append(group)
    following = {r.after: answers[r.index] for r in requests if r.after is not None}
    prompt_of = [i for i, group in enumerate(groups) for _ in group]
    if not requests:
        return

    submitted = model.clock()
    for answer in answers:
        answer.submitted = submitted + answer.request.arrival_s
    events = model._run(requests)
    try:
        for event in events:
            answer = answers[event.index]
            if event.finish_reason is not None and event.index in following:
                ended = event.times[-1] if event.times else model.clock()
                following[event.index].submitted = ended + following[event.index].request.arrival_s
            if answer.completion is not None:
                continue  # the abort of a request that a stop string ended
            text, token_ids = answer.add(event)
            if answer.stopped_early:
                model._abort(event.index)
            index = prompt_of[event.index]
            group = groups[index]
            whole = _gathered(group, resolved[index]) if answer.completion is not None else None
            first = answer is group[0]
            if whole is not None or (first and (text or token_ids)):
                yield Delta(index, text if first else "", token_ids if first else (), whole)
        for index, group in enumerate(groups):
            lost = [answer for answer in group if answer.completion is None]
            for answer in lost:
                text = answer.fail(f"{model.name} ended without finishing this request")
            if lost:
                yield Delta(index, text if group[0] in lost else "", (), _gathered(group, resolved[index]))
    except (VisavisError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:
        raise BackendError(f"{model.name} failed: {type(error).__name__}: {error}") from error
    finally:
        for answer in answers:
            if answer.completion is None:
                model._abort(answer.request.index)
        close = getattr(events, "close", None)
        if close is not None:
            close()


def _gathered(group: Sequence[Answer], sampling: ResolvedSampling) -> Completion | None:
    """The first answer with the others as its alternatives, once all are there."""
    done = [answer.completion for answer in group if answer.completion is not None]
    if len(done) < len(group):
        return None
    return done[0] if len(done) == 1 else replace(done[0], sampling=sampling, alternatives=tuple(done[1:]))


def derived_seed(seed: int, k: int) -> int:
    """Seed of answer `k` of n: the request's own for the first, far apart for the others (63 bits)."""
    if k == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}:{k}".encode(), digest_size=8).digest(), "little") >> 1


def check_arrivals(engine: str, can: Capabilities, arrivals: Sequence[float], prompts: int) -> None:
    """Raises OptionError for times that are none, and for an engine that takes no request while it answers others."""
    if len(arrivals) != prompts:
        raise OptionError(f"{prompts} prompts but {len(arrivals)} arrivals; give one each")
    for time in arrivals:
        if not (math.isfinite(time) and time >= 0):
            raise OptionError(f"arrival {shorten(time)}: seconds from 0 on are needed")
    if any(arrivals) and not can.arrivals:
        raise OptionError(
            f"{engine} cannot take requests while it answers others ({can.batching} batches); "
            "give it all prompts at once or use another backend"
        )


def _check_users(model: ModelInterface, users: int, resolved: Sequence[ResolvedSampling], *, timed: bool) -> None:
    """Raises OptionError for a closed loop that cannot be: see `run_batch`."""
    if users < 1:
        raise OptionError(f"users {shorten(users)}: 1 or more are needed")
    if timed:
        raise OptionError("users and arrivals exclude each other: users ask again when they are answered")
    if len(resolved) <= users:
        return
    if any(sampling.n > 1 for sampling in resolved):
        raise OptionError("users and n exclude each other: each user waits for one answer")
    if not model.capabilities().arrivals:
        raise OptionError(
            f"{model.name} cannot take requests while it answers others ({model.capabilities().batching} batches), as "
            f"{users} users need it; give it all prompts at once or use another backend"
        )


def check_request(engine: str, can: Capabilities, prompt: Prompt, sampling: ResolvedSampling) -> None:
    """Raises OptionError naming the field and the engine when something asked for cannot be honoured."""
    for f in fields(ResolvedSampling):
        if f.name in _RUNNER_FIELDS | _DESCRIPTIVE or f.name in can.sampling:
            continue
        value = getattr(sampling, f.name)
        neutral = _neutral(f.name)
        if f.name == "seed":
            asked = not sampling.greedy and sampling.origins.get("seed") != "drawn at random"
        elif f.name in ("logprobs", "prompt_logprobs"):
            asked = value is not None and not getattr(can, f.name)
        else:
            asked = value != neutral
        if asked:
            origin = sampling.origins.get(f.name, "neutral")
            raise OptionError(
                f"{engine} cannot honour {f.name} {shorten(value)} ({origin}); leave it out or use another backend"
            )
    check_structured(engine, sampling.structured)
    for item in prompt.media:
        if not (can.images if item.kind == "image" else can.videos):
            where = item.where or item.source or f"the {item.kind}"
            raise OptionError(f"{engine} takes no {item.kind}s with this model: {where}")


def check_limits(prompt: Prompt, limits: Mapping[str, int] | None) -> None:
    """Raises OptionError for a prompt with more images or videos than `limit_per_prompt` allows."""
    for kind, most in (limits or {}).items():
        items = [item for item in prompt.media if item.kind == kind]
        if len(items) > most:
            first = items[most].where or items[most].source
            raise OptionError(
                f"the prompt has {len(items)} {kind}s and limit_per_prompt allows {most}"
                f"{f' ({first} is one too many)' if first else ''}; raise it ({kind}={len(items)}) or leave some out"
            )


def check_structured(engine: str, structured: StructuredOutput | None) -> None:
    """Raises OptionError for a schema, expression or grammar that makes no sense, MissingExtraError where this engine
    needs a library for it that is not installed."""
    if structured is None:
        return
    from visavis.sampling import grammar

    try:
        grammar.check(structured)
    except MissingExtraError:
        if engine in ("native", "hf"):  # the others have their own
            raise


_NEUTRAL = ResolvedSampling(max_tokens=1)


def _neutral(name: str) -> object:
    return getattr(_NEUTRAL, name)


def warm_up(model: ModelInterface) -> None:
    """Two tokens for a short prompt, with a small image where the model takes images."""
    import numpy as np

    from visavis.chat.types import Conversation, Image, Message, Text

    family = model._family()
    parts: tuple[Text | Image, ...] = (Text("Hello"),)
    allowed = (model.limit_per_prompt or {}).get("image", 1) > 0
    if family.supports_images and model.capabilities().images and allowed:
        pixels = np.arange(64 * 64 * 3, dtype=np.uint32).reshape(64, 64, 3) % 251
        parts = (Image(pixels.astype(np.uint8)), *parts)
    prompt = family.prepare(Conversation((Message("user", parts),)))
    params = SamplingParams(max_tokens=2, ignore_eos="ignore_eos" in model.capabilities().sampling or None)
    try:
        completion = model.complete([prompt], params)[0]
    except ContextLengthError:
        return  # a context too small for the warm-up prompt is no fault of the user's
    if completion.error is not None:
        raise BackendError(f"{model.name} failed at warm-up: {completion.error}")
