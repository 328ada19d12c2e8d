"""A `Prompt` in the form each engine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from visavis.errors import OptionError
from visavis.prompt import PreparedMedia, Prompt

if TYPE_CHECKING:
    import torch

__all__ = ["for_hf", "for_hf_batch", "for_sglang", "for_vllm", "seconds_per_grid"]


def for_hf(prompt: Prompt) -> dict[str, Any]:
    """Keyword arguments for a transformers model's `generate` or `forward`: torch tensors, a batch of one.

    Always `input_ids`, `attention_mask` (1, n); for Qwen-VL prompts also `mm_token_type_ids` (1, n), and where there
    are images or videos `pixel_values` and `image_grid_thw`, `pixel_values_videos` and `video_grid_thw`, and
    `second_per_grid_ts` for Qwen2.5-VL. Positions are left to the model, which computes the same ones from these.
    """
    return for_hf_batch([prompt], pad_token_id=0)


def for_hf_batch(prompts: Sequence[Prompt], pad_token_id: int) -> dict[str, Any]:
    """As `for_hf` for several prompts of one model, padded on the left so that all end together.

    Raises OptionError for prompts of different models, or `generic` ones whose images cannot stand in one tensor.
    """
    import torch

    if not prompts:
        raise OptionError("a batch needs at least one prompt")
    if len({(p.model, p.family) for p in prompts}) > 1:
        raise OptionError("prompts of different models cannot share a batch")
    length = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), length), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt.token_ids, dtype=torch.long)
        mask[row, length - len(prompt) :] = 1
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if prompts[0].patch_rule is None:
        return inputs | _processor_inputs(prompts, length)
    types = torch.zeros((len(prompts), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        types[row, length - len(prompt) :] = torch.from_numpy(prompt.mm_token_type_ids)
    inputs["mm_token_type_ids"] = types
    return inputs | _visual_inputs(prompts)


def for_vllm(prompt: Prompt) -> dict[str, Any]:
    """A vLLM prompt (0.8 and up): canonical ids, pixels after our resize, and the processor options that make vLLM's
    own resize leave them as they are. Videos come as (frames, metadata), already sampled. Images of the `generic`
    family are the originals: vLLM runs the same processor as we did."""
    inputs: dict[str, Any] = {"prompt_token_ids": list(prompt.canonical_ids)}
    images = [m for m in prompt.media if m.kind == "image"]
    videos = [m for m in prompt.media if m.kind == "video"]
    if not prompt.media:
        return inputs
    data: dict[str, Any] = {}
    uuids: dict[str, list[str]] = {}
    if images:
        from PIL import Image

        data["image"] = [Image.fromarray(m.pixels) for m in images]
        uuids["image"] = [m.content_hash for m in images]
    if videos:
        data["video"] = [_vllm_video(prompt, m) for m in videos]
        uuids["video"] = [m.content_hash for m in videos]
    inputs |= {"multi_modal_data": data, "multi_modal_uuids": uuids}
    if prompt.patch_rule is not None:
        inputs["mm_processor_kwargs"] = _identity_resize(prompt, images, videos)
    return inputs


def for_sglang(prompt: Prompt) -> dict[str, Any]:
    """Keyword arguments of SGLang's `Engine.generate`: expanded ids, and images and videos as processor output, which
    SGLang neither resizes nor expands again, with our positions. One entry holds all images, one all videos, as it
    asks. A `generic` prompt with images is its text and the originals, since SGLang runs the processor as we did and
    some of its processors take no ids; the ids it then saw are compared with ours."""
    inputs: dict[str, Any] = {"input_ids": list(prompt.token_ids)}
    if not prompt.media:
        return inputs
    if prompt.patch_rule is None:
        from PIL import Image

        return {"text": prompt.text, "image_data": [Image.fromarray(m.pixels) for m in prompt.media]}
    import torch

    made = _visual_inputs([prompt])
    common: dict[str, Any] = {"format": "processor_output"}
    if len(prompt.position_ids) == 3:
        common["mrope_positions"] = torch.from_numpy(prompt.position_ids)
        common["mrope_position_delta"] = torch.tensor([[prompt.rope_delta]])
    for key, names in (
        ("image_data", ("pixel_values", "image_grid_thw")),
        ("video_data", ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")),
    ):
        if names[0] in made:
            inputs[key] = [common | {name: made[name] for name in names if name in made}]
    return inputs


def seconds_per_grid(item: PreparedMedia, temporal_patch_size: int) -> float:
    """Seconds from one temporal patch of a video to the next (Qwen2.5-VL's `second_per_grid_ts`)."""
    return temporal_patch_size / (item.fps or DEFAULT_FPS)


DEFAULT_FPS = 24.0
"""Frame rate transformers assumes for a video that comes without one."""


def _visual_inputs(prompts: Sequence[Prompt]) -> dict[str, Any]:
    import torch

    from visavis.patches import patchify_all

    rule = prompts[0].patch_rule
    if rule is None:
        return {}
    found: dict[str, Any] = {}
    for kind, pixels_name, grid_name in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        media = [m for p in prompts for m in p.media if m.kind == kind]
        if not media:
            continue
        found[pixels_name] = patchify_all(media, rule)
        found[grid_name] = torch.tensor([m.grid for m in media], dtype=torch.long)
        if kind == "video" and prompts[0].family == "qwen2_5_vl":
            seconds = [seconds_per_grid(m, rule.temporal_patch_size) for m in media]
            found["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float32)
    return found


def _processor_inputs(prompts: Sequence[Prompt], length: int) -> dict[str, Any]:
    """What transformers' own processor made (`generic` family), joined over the batch."""
    import torch

    names = sorted({name for p in prompts for name in p.processor_inputs})
    joined: dict[str, torch.Tensor] = {}
    for name in names:
        arrays = [p.processor_inputs.get(name) for p in prompts]
        shapes = [a.shape for a in arrays if a is not None]
        per_token = all(a is None or a.shape == (1, len(p)) for a, p in zip(arrays, prompts, strict=True))
        if per_token:
            sample = next(a for a in arrays if a is not None)
            rows = torch.zeros((len(prompts), length), dtype=torch.from_numpy(sample).dtype)
            for row, array in enumerate(arrays):
                if array is not None:
                    rows[row, length - array.shape[1] :] = torch.from_numpy(array[0])
            joined[name] = rows
        elif name in _PER_PROMPT and shapes[0][0] == 1 and len(shapes[0]) == _PER_PROMPT[name]:
            joined[name] = _stack_padded(name, arrays)
        elif len({s[1:] for s in shapes}) > 1 and _in_one_row(shapes):
            joined[name] = torch.cat([torch.from_numpy(a) for a in arrays if a is not None], dim=-1)
        else:
            if len({s[1:] for s in shapes}) > 1:
                raise OptionError(f"{prompts[0].model}: {name} differs in size between the prompts; send them alone")
            joined[name] = torch.cat([torch.from_numpy(a) for a in arrays if a is not None])
    return joined


_PER_PROMPT: Mapping[str, int] = {"pixel_values": 5, "pixel_attention_mask": 4}
"""Idefics3's layout: (prompt, tiles, …); prompts with fewer tiles are filled with zeros, which the model drops."""


def _in_one_row(shapes: Sequence[tuple[int, ...]]) -> bool:
    """MiniCPM-V's layout: the patches of all images side by side, (1, channels, patch, patches · patch)."""
    return all(len(s) == 4 and s[0] == 1 for s in shapes) and len({s[:-1] for s in shapes}) == 1


def _stack_padded(name: str, arrays: Sequence[np.ndarray[Any, Any] | None]) -> torch.Tensor:
    import torch

    given = [a for a in arrays if a is not None]
    if len({a.shape[2:] for a in given}) > 1:
        raise OptionError(f"{name} differs in tile size between the prompts; send them alone")
    tiles = max(a.shape[1] for a in given)
    sample = torch.from_numpy(given[0])
    stacked = torch.zeros((len(arrays), tiles, *given[0].shape[2:]), dtype=sample.dtype)
    for row, array in enumerate(arrays):
        if array is not None:
            stacked[row, : array.shape[1]] = torch.from_numpy(array[0])
    return stacked


_TICKS = 720_000.0
"""A second in units in which the usual frame rates (24000/1001 too), 90 kHz and milliseconds are whole numbers."""


def _vllm_video(prompt: Prompt, item: PreparedMedia) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """(frames, metadata), sampled already: as a file of just these frames, numbered by their times.

    Qwen3-VL writes the times into the prompt: they are given in units that hold them, and the last frame is repeated
    here as its patches would, because transformers bounds an odd number of frames by another volume than it makes.
    """
    fps = item.fps or DEFAULT_FPS
    pixels, times = item.pixels, item.timestamps or tuple(i / fps for i in range(len(item.pixels)))
    unit = fps
    if _bounds_volume(prompt):
        missing = _padded_frames(prompt, item) - len(pixels)
        if missing:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, axis=0)])
            times += times[-1:] * missing
        if any(round(t * fps) / fps != t for t in times):
            unit = _TICKS
    return pixels, {
        "total_num_frames": len(pixels),
        "fps": unit,
        "duration": len(item.pixels) / fps,
        "frames_indices": [round(t * unit) for t in times],
        "video_backend": "visavis",
        "do_sample_frames": False,
    }


def _identity_resize(
    prompt: Prompt, images: Sequence[PreparedMedia], videos: Sequence[PreparedMedia]
) -> dict[str, Any]:
    """Bounds within which every item's area lies: sizes are multiples of the cell, so no rule changes them."""
    areas = [m.size[0] * m.size[1] for m in images]
    areas += [m.size[0] * m.size[1] * (_padded_frames(prompt, m) if _bounds_volume(prompt) else 1) for m in videos]
    low, high = min(areas), max(areas)
    # The first two for older releases, `size` for those where transformers no longer takes them.
    options: dict[str, Any] = {"min_pixels": low, "max_pixels": high}
    options["size"] = {"shortest_edge": low, "longest_edge": high}
    if videos:
        rates = [m.fps or DEFAULT_FPS for m in videos]
        options["fps"] = rates[0] if len(set(rates)) == 1 else rates
    return options


def _bounds_volume(prompt: Prompt) -> bool:
    return prompt.family == "qwen3_vl"


def _padded_frames(prompt: Prompt, item: PreparedMedia) -> int:
    temporal = prompt.patch_rule.temporal_patch_size if prompt.patch_rule else 1
    return len(item.pixels) + -len(item.pixels) % temporal
