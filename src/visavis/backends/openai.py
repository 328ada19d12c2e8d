"""`OpenAIModel`: any OpenAI-compatible chat server behind the common interface."""

from __future__ import annotations

import os
import queue
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from visavis.backends.arrivals import Arrivals
from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.http_client import Cancellation, CancelledRequestError, HttpClient, HttpStatusError, RetryPolicy
from visavis.backends.openai_wire import DIALECTS, Dialect, chunk_events, detect_dialect, request_body
from visavis.backends.option_map import check_extra
from visavis.backends.options import EngineOptions, refuse_unsupported
from visavis.backends.prompt_check import describe_mismatch
from visavis.backends.remote_family import RemoteFamily
from visavis.errors import BackendError, OptionError, VisavisError, shorten

__all__ = ["OpenAIModel"]

DEFAULT_CONCURRENCY = 32
OPEN_LOOP_CONCURRENCY = 1024
"""Connections at most where requests come over time and nobody set `max_num_seqs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options `openai.…`. Times in seconds."""

    base_url: str = ""  # else $OPENAI_BASE_URL
    model: str = ""  # the name the server knows; else -m, else the server's only one
    api_key_env: str = "OPENAI_API_KEY"  # the variable that holds the key; unset: no key is sent
    tokenizer: str = ""  # folder or hub id whose template, tokenizer and resize rule prepare the prompt
    dialect: str = "auto"  # auto | openai | vllm | sglang
    timeout_s: float = 600.0  # longest silence
    connect_timeout_s: float = 10.0
    max_retries: int = 4
    max_tokens_field: str = "auto"  # max_completion_tokens for OpenAI's own servers, else max_tokens


class OpenAIModel(ModelInterface):
    """A chat server. What it alone decides (template, resize) is said in `LoadInfo.marks`.

    Prompts are prepared as for every engine when the model's folder is known (`-m` a folder, or `openai.tokenizer`):
    images are then sent after the one resize. A vLLM server gives token ids back, so its prompt ids are compared with
    ours and its results carry no such mark.
    """

    name = "openai"
    takes_arrivals = True

    def __init__(self) -> None:
        super().__init__()
        self._client: HttpClient | None = None
        self._settings = Settings()
        self._dialect = DIALECTS["openai"]
        self._served = ""
        self._concurrency: int | None = None
        self._cancellations: dict[int, Cancellation] = {}

    def capabilities(self) -> Capabilities:
        return Capabilities(
            images=True,
            videos=False,
            logprobs=self._dialect.gives_ids,
            arrivals=self.takes_arrivals,
            sampling=self._dialect.sampling,
        )

    # ---- load and close ----------------------------------------------------------------------------------------

    def _open(self, model: str | None, options: EngineOptions) -> None:
        self._settings = _settings(options)
        source = self._settings.tokenizer or (model if model is None or Path(model).expanduser().is_dir() else "")
        if source == "":
            self.family = RemoteFamily(str(model))
            return
        from visavis.families import load_family

        self.family = load_family(source, trust_remote_code=options.trust_remote_code)

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        refuse_unsupported(self.name, options, ("max_model_len", "max_num_seqs", "seed", "trust_remote_code"))
        settings, family = self._settings, self._family()
        key = os.environ.get(settings.api_key_env) or None
        self._client = client = HttpClient(
            settings.base_url or os.environ.get("OPENAI_BASE_URL", ""),
            key=key,
            timeout_s=settings.timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
            retry=RetryPolicy(retries=settings.max_retries),
        )
        models = self._list_models(client)
        name = settings.dialect if settings.dialect != "auto" else detect_dialect(models)
        self._dialect = dialect = DIALECTS[name]
        if dialect.gives_ids and isinstance(family, RemoteFamily):
            # Ids mean nothing without the tokenizer: the server's text is taken as from any other.
            self._dialect = dialect = DIALECTS["openai"]
        self._served, card = self._pick_model(models)
        self._concurrency = options.max_num_seqs
        reported = card.get("max_model_len")
        limit = options.max_model_len or (reported if isinstance(reported, int) else None) or family.max_model_len
        return LoadInfo(
            backend=self.name,
            model=self._served,
            version=name,
            device="server",
            dtype="unknown",
            max_model_len=limit,
            settings={
                "base_url": client.base_url,
                "dialect": dialect.name,
                "max_num_seqs": self._concurrency or DEFAULT_CONCURRENCY,
                "timeout_s": settings.timeout_s,
                "max_retries": settings.max_retries,
            },
            marks=_marks(dialect, isinstance(family, RemoteFamily)),
        )

    def _list_models(self, client: HttpClient) -> Any:
        try:
            return client.get("/models")
        except HttpStatusError as error:
            if error.status in (404, 405, 501):
                return None  # not every server lists its models
            if error.status in (401, 403):
                raise OptionError(
                    f"{client.base_url}: {error}; the key is read from ${self._settings.api_key_env}"
                ) from None
            raise

    def _pick_model(self, models: Any) -> tuple[str, dict[str, Any]]:
        cards = {
            str(c.get("id")): c
            for c in (models.get("data") if isinstance(models, dict) else None) or ()
            if isinstance(c, dict)
        }
        wanted = self._settings.model or ("" if self._family().name != "remote" else self._family().folder.name)
        if wanted:
            if cards and wanted not in cards:
                listed = ", ".join(sorted(cards)[:5])
                raise OptionError(
                    f"the server has no model {shorten(wanted)}; it has: {listed}; give one as openai.model"
                )
            return wanted, cards.get(wanted, {})
        if len(cards) == 1:
            return next(iter(cards.items()))
        raise OptionError(
            "the server has several models or names none; give the one to use as openai.model"
            + (f": {', '.join(sorted(cards)[:5])}" if cards else "")
        )

    def _warm_up(self) -> None:
        """A server warms itself, and a request there may cost money."""

    def _close(self) -> None:
        for cancellation in list(self._cancellations.values()):
            cancellation.cancel()
        self._client = None

    # ---- requests ----------------------------------------------------------------------------------------------

    def _abort(self, index: int) -> None:
        if (cancellation := self._cancellations.get(index)) is not None:
            cancellation.cancel()

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        arrivals = Arrivals(requests)
        return arrivals.watching(self._serve(requests, arrivals))

    def _serve(self, requests: Sequence[EngineRequest], arrivals: Arrivals) -> Generator[TokenEvent, None, None]:
        field = self._settings.max_tokens_field
        if field == "auto":
            official = "api.openai.com" in (self._client.base_url if self._client else "")
            field = "max_completion_tokens" if official else "max_tokens"
        bodies = {
            r.index: request_body(r.prompt, r.sampling, self._dialect, self._served, max_tokens_field=field)
            for r in requests
        }
        self._cancellations = {r.index: Cancellation() for r in requests}
        news: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        pool = ThreadPoolExecutor(self._connections(requests), thread_name_prefix="visavis-openai")
        try:
            left = len(requests)
            while left:
                for request in arrivals.due():
                    cancellation = self._cancellations[request.index]
                    pool.submit(self._answer, request, bodies[request.index], cancellation, news)
                try:
                    event = news.get(timeout=arrivals.next_in_s)
                except queue.Empty:  # the next request is due
                    continue
                left -= event.finish_reason is not None
                yield event
        finally:
            for cancellation in self._cancellations.values():
                cancellation.cancel()
            pool.shutdown(wait=True, cancel_futures=True)

    def _connections(self, requests: Sequence[EngineRequest]) -> int:
        """As many as asked for; by default enough that requests which come over time never wait on this side."""
        limit = self._concurrency
        if limit is None:
            limit = (
                OPEN_LOOP_CONCURRENCY
                if any(r.arrival_s or r.after is not None for r in requests)
                else DEFAULT_CONCURRENCY
            )
        return max(1, min(len(requests), limit))

    def _answer(
        self, request: EngineRequest, body: dict[str, Any], cancel: Cancellation, news: queue.SimpleQueue[TokenEvent]
    ) -> None:
        """One request, in a thread of its own; its last event always comes."""
        try:
            news.put(self._exchange(request, body, cancel, news))
        except CancelledRequestError:
            news.put(TokenEvent(request.index, finish_reason="abort"))
        except VisavisError as error:
            news.put(TokenEvent(request.index, finish_reason="error", error=str(error)))
        except BaseException as error:  # a defect here must not leave the batch waiting
            text = f"{type(error).__name__}: {error}"
            news.put(TokenEvent(request.index, finish_reason="error", error=f"openai: {text}"))

    def _exchange(
        self, request: EngineRequest, body: dict[str, Any], cancel: Cancellation, news: queue.SimpleQueue[TokenEvent]
    ) -> TokenEvent:
        """Puts what comes; returns the last event. It is held back until the usage has come behind it."""
        client, dialect = self._client, self._dialect
        if client is None:
            raise BackendError("the connection was closed")
        index, last, usage = request.index, None, None
        cancel.check()
        for chunk in client.events("/chat/completions", body, cancel):
            event, prompt_ids = chunk_events(chunk, index, self.clock(), dialect)
            if prompt_ids is not None and request.prompt.token_ids and (wrong := self._mismatch(request, prompt_ids)):
                return TokenEvent(index, finish_reason="error", error=wrong)
            usage = event.usage or usage
            if last is None and event.finish_reason is not None:
                last = event
            elif last is None and (event.token_ids or event.text):
                news.put(event)
        if last is None:
            return TokenEvent(index, finish_reason="error", error="the server ended without a finish_reason")
        values = {f.name: getattr(last, f.name) for f in fields(last)}
        return TokenEvent(**{**values, "usage": usage})

    def _mismatch(self, request: EngineRequest, prompt_ids: list[int]) -> str | None:
        return describe_mismatch("the server", request.prompt.token_ids, prompt_ids, self._family().tokenizer)


def _settings(options: EngineOptions) -> Settings:
    known = {f.name for f in fields(Settings)}
    why = "keys are read from the environment only; name the variable in openai.api_key_env"
    given = check_extra("openai", options.extra, known, {"api_key": why, "key": why})
    for name, kind in (("timeout_s", float), ("connect_timeout_s", float), ("max_retries", int)):
        if name in given:
            try:
                given[name] = kind(given[name])
            except (TypeError, ValueError):
                raise OptionError(f"openai.{name} {shorten(given[name])} is not a number") from None
            if given[name] < 0 or (kind is float and not given[name] > 0):
                raise OptionError(f"openai.{name} {given[name]} is out of range")
    settings = Settings(**given)
    if settings.dialect not in ("auto", *DIALECTS):
        raise OptionError(f"openai.dialect {shorten(settings.dialect)} is not one of auto, {', '.join(DIALECTS)}")
    if settings.max_tokens_field not in ("auto", "max_tokens", "max_completion_tokens"):
        raise OptionError("openai.max_tokens_field is auto, max_tokens or max_completion_tokens")
    if not (settings.base_url or os.environ.get("OPENAI_BASE_URL")):
        raise OptionError(
            "openai needs the server's address: --set openai.base_url=http://host:port/v1 or $OPENAI_BASE_URL"
        )
    return settings


def _marks(dialect: Dialect, remote: bool) -> tuple[str, ...]:
    marks = []
    if not dialect.gives_ids:
        marks.append("template not controlled")
        marks.append("special tokens not controlled")
        marks.append("no token ids")
    if remote:
        marks.append("images sent unresized")
    if not dialect.takes_pixel_limits:
        marks.append("resize not controlled")
    return tuple(marks)
