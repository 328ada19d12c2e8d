"""The largest `max_pixels` with which images and videos fit a number of tokens: the way out that errors name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from visavis.errors import ContextLengthError

if TYPE_CHECKING:
    from visavis.families.base import Family
    from visavis.prompt import Prompt

__all__ = ["BudgetItem", "answer_room", "fitting_max_pixels", "naming_what_fits"]


@dataclass(frozen=True, slots=True)
class BudgetItem:
    """One image or video: its tokens now, and `at(max_pixels)`, its tokens under that bound."""

    tokens: int
    at: Callable[[int], int]


def answer_room(max_model_len: int) -> int:
    """Tokens to keep for the answer when proposing a bound: 256, of short contexts a quarter."""
    return max(1, min(256, max_model_len // 4))


@contextmanager
def naming_what_fits(family: Family, prompt: Prompt, max_model_len: int) -> Iterator[None]:
    """Around a check of the context's length: its error ends with the max_pixels that would fit, where there is one."""
    try:
        yield
    except ContextLengthError as error:
        kept = answer_room(max_model_len)
        bound = family.fitting_max_pixels(prompt, max_model_len - kept)
        if bound is None:
            raise
        raise ContextLengthError(f"{error} (max_pixels {bound} fits with {kept} tokens for the answer)") from None


def fitting_max_pixels(items: Iterable[BudgetItem], room: int, cell: int) -> int | None:
    """The largest multiple of a cell's area under which all items take `room` tokens at most; None when there is none.

    Tokens may only be lost: an item that is small already stays as it is.
    """
    items = list(items)

    def fits(cells: int) -> bool:
        return sum(min(item.tokens, item.at(cells * cell**2)) for item in items) <= room

    # 0 stands for none. n cells leave an item of n tokens alone, of a video n for each frame of a patch.
    low, high = 0, 4 * max((item.tokens for item in items), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low * cell**2 or None
