"""The encoder cache keeps what is read, and of the rest as much as its budget allows."""

from __future__ import annotations

import torch

from visavis.engine.encoder_cache import EncoderCache
from visavis.engine.models.vision import VisionOutput

ITEM = 2 * 8 * 4  # bytes of 2 tokens of 8 float32 values


def output(deepstack: bool = False) -> VisionOutput:
    return VisionOutput(torch.zeros(2, 8), torch.zeros(2, 3, 8) if deepstack else None)


def read(cache: EncoderCache, *keys: str) -> None:
    for key in keys:
        if key not in cache:
            cache.put(key, output())
        cache.acquire(key)


def test_what_is_read_stays_even_beyond_the_budget() -> None:
    cache = EncoderCache(ITEM)
    read(cache, "a", "b", "c")
    cache.trim()
    assert all(key in cache for key in "abc")
    assert cache.num_bytes == 3 * ITEM
    cache.release("b")
    assert "b" not in cache
    assert (cache.num_read, cache.evictions) == (2, 1)


def test_the_longest_unused_goes_first_and_use_makes_young() -> None:
    cache = EncoderCache(2 * ITEM)
    for key in "ab":
        read(cache, key)
        cache.release(key)
    read(cache, "a")
    cache.release("a")
    read(cache, "c")
    cache.trim()
    assert [key in cache for key in "abc"] == [True, False, True]
    assert cache.num_bytes == 2 * ITEM


def test_an_output_goes_with_its_last_reader_when_the_budget_is_nothing() -> None:
    cache = EncoderCache(0)
    read(cache, "a", "a")
    cache.release("a")
    assert "a" in cache
    cache.release("a")
    assert ("a" in cache, cache.num_bytes) == (False, 0)


def test_deepstack_features_count() -> None:
    cache = EncoderCache(1 << 20)
    cache.put("a", output(deepstack=True))
    assert cache.num_bytes == ITEM + 3 * ITEM
