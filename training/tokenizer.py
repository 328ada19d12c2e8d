"""The byte-level BPE of tiny-screen: trained on generated questions and answers, Qwen's special tokens added."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training import questions, words
from training.config import ASSETS

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ENTRIES = 2034  # 256 bytes and 1778 merges; with the 14 special tokens 2048
# Qwen2's rule: a word with the blank before it, one digit at a time, runs of punctuation.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus(lines: int = 60000, seed: int = 11) -> Iterator[str]:
    """Template sentences, captions and dictionary words, in the mixture the model sees."""
    rng = random.Random(seed)
    yield "system\nYou are a helpful assistant.\nuser\nassistant\n"
    kinds = [t for group in questions.BY_KIND.values() for t in group] + list(questions.ANY)
    for _ in range(lines):
        caption = words.caption(rng, "train")
        yield caption
        if rng.random() < 0.35:
            phrase = rng.choice(kinds).format(caption.lower())
            yield rng.choice((questions.GROUND, *questions.GROUND_OTHERS)).format(phrase)
        if rng.random() < 0.1:
            yield rng.choice((questions.READ, *questions.READ_OTHERS)).format(*(rng.randrange(1001) for _ in range(4)))
    for meanings in words.CONCEPTS.values():
        yield from meanings
    yield from (f" {w}" for w in words.dictionary("train"))


def train() -> Tokenizer:
    """A new tokenizer, the same every time."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=12,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    return tokenizer


@lru_cache(maxsize=1)
def load(folder: Path = ASSETS) -> Tokenizer:
    """The tokenizer of the model folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    ASSETS.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(ASSETS / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} entries in {ASSETS / 'tokenizer.json'}")


if __name__ == "__main__":
    main()
