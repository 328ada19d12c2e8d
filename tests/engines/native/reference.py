"""What transformers answers on a prompt built by hand, and the same prompt for the native engine.

Prompts are random ids with images and videos of random pixels; positions come from transformers' own
`get_rope_index`, so nothing here depends on visavis' families.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.reference import tiny_models
from visavis.patches import patchify_all
from visavis.prompt import PatchRule, PreparedMedia, Prompt, Span

TIE = 1e-4
"""Where the reference's two best logits are closer than this, either is a right answer."""

Part = int | tuple[str, tuple[int, int, int]]
"""A run of so many random text tokens, or ("image" | "video", grid in patches)."""


@dataclass
class Answer:
    token_ids: list[int]
    logits: torch.Tensor  # (answer tokens, vocab), each before its token was chosen


@dataclass
class Tally:
    """How greedy answers compare; ties are counted, not dropped."""

    answers: int = 0
    tokens: int = 0
    ties: list[str] = field(default_factory=list)

    def check(self, label: str, ours: Sequence[int], reference: Answer) -> None:
        """Asserts token for token equality up to a tie of the reference."""
        assert len(ours) == len(reference.token_ids), label
        self.answers += 1
        for i, (mine, theirs) in enumerate(zip(ours, reference.token_ids, strict=True)):
            if mine != theirs:
                best = reference.logits[i].topk(2)
                gap = float(best.values[0] - best.values[1])
                assert gap < TIE, (
                    f"{label}: token {i} is {mine}, transformers has {theirs}, its top two {gap:.2e} apart"
                )
                assert mine in best.indices.tolist(), f"{label}: token {i} is {mine}, which is not in the tie"
                self.ties.append(f"{label} at {i} (gap {gap:.1e})")
                return
            self.tokens += 1

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.answers + other.answers, self.tokens + other.tokens, self.ties + other.ties)

    def __str__(self) -> str:
        return f"{self.answers} answers, {self.tokens} tokens equal, {len(self.ties)} ties {self.ties or ''}"


class Reference:
    """A tiny random model of one family, as transformers runs it."""

    def __init__(self, family: str, folder: Path, **size: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        self.family = family
        self.folder = tiny_models.make(family, folder, **size)
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self.vision = family in tiny_models.VL_FAMILIES
        auto = AutoModelForImageTextToText if self.vision else AutoModelForCausalLM
        self.model = auto.from_pretrained(self.folder, dtype=torch.float32).eval()
        self.rule = PatchRule(16 if family == "qwen3_vl" else 14, 2, 2, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))

    def prompt(self, parts: Sequence[Part], seed: int) -> Prompt:
        """Random pixels and ids; markers around media as the family writes them."""
        random = np.random.default_rng(seed)
        config = self.config
        ids: list[int] = []
        media: list[PreparedMedia] = []
        for part in parts:
            if isinstance(part, int):
                ids += random.integers(10, 200, part).tolist()
                continue
            kind, (t, h, w) = part
            side = self.rule.patch_size
            shape = (h * side, w * side, 3) if kind == "image" else (2 * t, h * side, w * side, 3)
            # Smooth pixels, not noise: neighbouring patches of real pictures resemble each other.
            pixels = random.integers(0, 256, (*shape[:-3], h, w, 3), dtype=np.uint8)
            pixels = pixels.repeat(side, axis=-3).repeat(side, axis=-2)
            token = config[f"{kind}_token_id"]
            per_frame = h * w // 4
            start = len(ids) + 1
            if kind == "video" and self.family == "qwen3_vl":
                for _ in range(t):  # a timestamp and markers around each frame
                    ids += [*random.integers(10, 200, 3).tolist(), config["vision_start_token_id"]]
                    ids += [token] * per_frame + [config["vision_end_token_id"]]
                start, stop = start + 3, len(ids) - 1
            else:
                ids += [config["vision_start_token_id"], *[token] * (t * per_frame), config["vision_end_token_id"]]
                stop = len(ids) - 1
            span = Span(start, stop - start)
            size = (h * side, w * side)
            media.append(
                PreparedMedia(kind, pixels, size, size, (t, h, w), t * per_frame, span, Span(0, 1), f"{seed}-{start}")  # type: ignore[arg-type]
            )
        positions, delta = self._positions(ids, media)
        return Prompt(
            model="tiny",
            family=self.family,
            text="",
            canonical_ids=tuple(ids),
            token_ids=tuple(ids),
            position_ids=positions,
            rope_delta=delta,
            media=tuple(media),
            patch_rule=self.rule if media else None,
            image_token_id=config.get("image_token_id"),
            video_token_id=config.get("video_token_id"),
        )

    def _grids(self, media: Sequence[PreparedMedia]) -> dict[str, Any]:
        grids: dict[str, Any] = {}
        for kind in ("image", "video"):
            of_kind = [m.grid for m in media if m.kind == kind]
            grids[f"{kind}_grid_thw"] = torch.tensor(of_kind) if of_kind else None
        if self.family == "qwen2_5_vl" and grids["video_grid_thw"] is not None:
            grids["second_per_grid_ts"] = torch.tensor([1.5] * len(grids["video_grid_thw"]))
        return grids

    def _positions(self, ids: list[int], media: Sequence[PreparedMedia]) -> tuple[np.ndarray[Any, Any], int]:
        if not media:
            return np.tile(np.arange(len(ids)), (3 if self.vision else 1, 1)), 0
        types = self._types(ids)
        positions, _ = self.model.model.get_rope_index(torch.tensor([ids]), types, **self._grids(media))
        # `generate` goes on behind the last position; `get_rope_index` itself counts from the largest.
        return positions[:, 0].numpy(), int(positions[:, 0, -1].max()) + 1 - len(ids)

    def _types(self, ids: list[int]) -> torch.Tensor:
        tensor = torch.tensor([ids])
        image, video = self.config["image_token_id"], self.config["video_token_id"]
        return (tensor == image).int() + 2 * (tensor == video).int()

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        ids = torch.tensor([prompt.token_ids])
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if prompt.media:
            inputs |= {"mm_token_type_ids": self._types(list(prompt.token_ids)), **self._grids(prompt.media)}
            for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
                of_kind = [m for m in prompt.media if m.kind == kind]
                if of_kind:
                    inputs[name] = patchify_all(of_kind, self.rule)
        return {k: v for k, v in inputs.items() if v is not None}

    @torch.inference_mode()
    def answer(self, prompt: Prompt, max_tokens: int = 64) -> Answer:
        """Greedy, exactly `max_tokens` long."""
        if hasattr(self.model.model, "rope_deltas"):
            self.model.model.rope_deltas = None  # left over from the last prompt
        out = self.model.generate(
            **self.inputs(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.cat(out.logits)
        return Answer(out.sequences[0, len(prompt) :].tolist(), logits)
