"""One request being answered: token events in, text and at last a Completion out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from visavis.completion import Completion, FinishReason, MediaSize, Timings, TokenLogprobs
from visavis.detokenize import TextStream, Vocabulary, dropped_ids

if TYPE_CHECKING:
    from visavis.backends.base import EngineRequest, ModelInterface, TokenEvent
    from visavis.sampling import ResolvedSampling

__all__ = ["Answer"]


class Answer:
    """Gathers the events of one request. `completion` is set when it has ended."""

    def __init__(self, model: ModelInterface, request: EngineRequest, vocabulary: Vocabulary) -> None:
        family, sampling = model._family(), request.sampling
        self.request = request
        self.submitted = 0.0
        self.stopped_early = False  # a stop string ended it while the engine still runs it
        self.completion: Completion | None = None
        self._model = model
        self._stream = TextStream(
            vocabulary,
            dropped=dropped_ids(family.tokenizer, sampling.special_tokens, family.eos_token_ids, family.pad_token_id),
            stop=sampling.stop,
            min_tokens=sampling.min_tokens,
        )
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._times: list[float] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._usage: tuple[int | None, int | None] = (None, None)
        self._queue_s = 0.0

    def add(self, event: TokenEvent) -> tuple[str, tuple[int, ...]]:
        """Takes an event; returns the text and the ids it adds to the answer.

        Ids that an engine generated past the one that completed a stop string are left out: they depend on how soon it
        was told to stop.
        """
        token_ids: tuple[int, ...]
        if event.text is not None:  # a server that gives no ids
            piece, token_ids = self._stream.add_text(event.text), ()
            self._times += [time - self.submitted for time in event.times]
        else:
            piece = self._stream.add(event.token_ids)
            token_ids = event.token_ids[: piece.consumed]
            self._token_ids += token_ids
            self._times += [time - self.submitted for time in event.times[: piece.consumed]]
            self._logprobs += event.logprobs[: piece.consumed]
        if event.usage is not None:
            self._usage = event.usage
        if event.queue_s is not None:
            self._queue_s = event.queue_s
        if event.prompt_logprobs is not None:
            self._prompt_logprobs = event.prompt_logprobs
        text = piece.text
        if piece.stop is not None:
            self.stopped_early = event.finish_reason is None
            self._text.append(text)
            self._end("stop", piece.stop)
        elif event.finish_reason is not None:
            text += self._finish(event.finish_reason, event.stop_reason, event.error, text)
        else:
            self._text.append(text)
        return text, token_ids

    def fail(self, error: str) -> str:
        """Ends it with an error; returns the text that was still held back."""
        return self._finish("error", None, error, "")

    def _finish(self, reason: FinishReason, stop_reason: int | str | None, error: str | None, text: str) -> str:
        rest = self._stream.finish()
        self._text += [text, rest.text]
        if rest.stop is not None and reason != "error":
            self._end("stop", rest.stop)
        else:
            self._end(reason, stop_reason, error)
        return rest.text

    def _end(self, reason: FinishReason, stop_reason: int | str | None, error: str | None = None) -> None:
        model, prompt, sampling = self._model, self.request.prompt, self.request.sampling
        text = "".join(self._text)
        self.completion = Completion(
            text=text,
            token_ids=tuple(self._token_ids),
            finish_reason=reason,
            stop_reason=stop_reason,
            backend=model.name,
            model=prompt.model,
            prompt_tokens=len(prompt) if self._usage[0] is None else self._usage[0],
            reported_tokens=self._usage[1],
            image_tokens=prompt.num_image_tokens,
            sampling=sampling,
            timings=Timings(
                prepare_s=prompt.prepare_s,
                queue_s=self._queue_s,
                token_times=tuple(self._times),
                total_s=model.clock() - self.submitted,
            ),
            logprobs=tuple(self._logprobs) if sampling.logprobs is not None else None,
            prompt_logprobs=self._prompt_logprobs if sampling.prompt_logprobs is not None else None,
            error=(error or "unknown failure") if reason == "error" else None,
            valid=None if sampling.structured is None else self._matches(text, sampling),
            media_sizes=tuple(MediaSize(m.original_size, m.size) for m in prompt.media if m.kind == "image"),
            box_format=prompt.box_format,
        )

    def _matches(self, text: str, sampling: ResolvedSampling) -> bool | None:
        """Whether the answer is what `sampling.structured` asked for, its end token left aside."""
        from visavis.sampling.grammar import accepts

        assert sampling.structured is not None
        if sampling.special_tokens == "all" and self._token_ids and self._token_ids[-1] in sampling.end_token_ids:
            text = text.removesuffix(self._model._family().tokenizer.decode(self._token_ids[-1:]))
        return accepts(sampling.structured, text)
