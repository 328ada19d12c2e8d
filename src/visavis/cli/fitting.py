"""An engine that does not start for lack of memory: the error ends with the settings that would fit here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from visavis.errors import BackendError, OptionError, VisavisError

if TYPE_CHECKING:
    from visavis.backends.options import EngineOptions

__all__ = ["saying_what_fits"]

_SIGNS = ("visavis plan", "KV cache")
"""How start-up errors about memory are known: the hint of `backends.memory_hint`, and native's own words."""
_HINT = " says what fits here"


@contextmanager
def saying_what_fits(
    model: str | None,
    backend: str,
    options: EngineOptions,
    *,
    images: Sequence[tuple[int, int]] | None = None,
    text_tokens: int | None = None,
    max_tokens: int | None = None,
    concurrency: int | None = None,
) -> Iterator[None]:
    """Around a load. `images`: (height, width) of what will be asked; None is assumed as `plan` does."""
    try:
        yield
    except (BackendError, OptionError) as error:
        text = str(error)
        if not any(sign in text for sign in _SIGNS):
            raise
        found = _what_fits(model, backend, options, images, text_tokens, max_tokens, concurrency)
        if not found:
            raise
        told = text.replace(_HINT, f"{_HINT} ({found})", 1) if _HINT in text else f"{text}; {found}"
        raise type(error)(told) from None


def _what_fits(
    model: str | None,
    backend: str,
    options: EngineOptions,
    images: Sequence[tuple[int, int]] | None,
    text_tokens: int | None,
    max_tokens: int | None,
    concurrency: int | None,
) -> str:
    """In a line; "" where that cannot be planned, which is no reason to say less of the fault itself."""
    from visavis.cli.plan import image_bounds
    from visavis.families.hub import resolve_model
    from visavis.plan import choose, plan
    from visavis.plan.devices import cpu
    from visavis.plan.document import in_one_line

    try:
        folder = resolve_model(model)
        device = cpu() if options.device == "cpu" else choose(None, options.tensor_parallel_size)
        found = plan(
            folder.config,
            device,
            model=model or "",
            path=str(folder.path),
            ranks=options.tensor_parallel_size,
            dtype=options.dtype,
            quantization=options.quantization,
            images=images,
            prompt_tokens=text_tokens,
            max_tokens=max_tokens,
            concurrency=concurrency,
            bounds=image_bounds(folder),
            context=folder.max_model_len,
            engines=(backend,),
        )
    except (VisavisError, OSError):
        return ""
    return in_one_line(found, backend, flags=True)
