"""Whether an engine saw the prompt we gave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from visavis.families.base import TextTokenizer

__all__ = ["describe_mismatch"]


def describe_mismatch(
    engine: str, ours: Sequence[int], theirs: Sequence[int] | None, tokenizer: TextTokenizer | None = None
) -> str | None:
    """None when both are the same ids; else where they part, in words."""
    if theirs is None or list(ours) == list(theirs):
        return None
    shared = min(len(ours), len(theirs))
    at = next((i for i in range(shared) if ours[i] != theirs[i]), shared)

    def shown(ids: Sequence[int]) -> str:
        if at >= len(ids):
            return "nothing"
        spelled = tokenizer.id_to_token(ids[at]) if tokenizer is not None else None
        return f"{ids[at]}" + (f" ({spelled})" if spelled else "")

    return (
        f"{engine} saw another prompt than was given: {len(theirs)} tokens instead of {len(ours)}, first difference at "
        f"position {at}: given {shown(ours)}, seen {shown(theirs)}"
    )
