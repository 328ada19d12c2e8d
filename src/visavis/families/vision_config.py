"""Image and video settings of Qwen-VL folders: `preprocessor_config.json` and its newer relatives, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from visavis.chat.types import VideoDefaults
from visavis.errors import ModelError, shorten
from visavis.families.folder import ModelFolder
from visavis.families.resize import PixelBounds
from visavis.prompt import PatchRule

__all__ = ["VisionSettings", "read_video_defaults", "read_vision_settings"]

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_BICUBIC = 3


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """`video_bounds` are of one frame for Qwen2-VL and Qwen2.5-VL, of all frames together for Qwen3-VL.
    `video_tokens`: `max_video_tokens` where the folder says `cap_pixels_per_frame`, of the whole video for Qwen2-VL and
    Qwen2.5-VL, of one frame for Qwen3-VL; None for no such bound."""

    rule: PatchRule
    image_bounds: PixelBounds
    video_bounds: PixelBounds
    video_tokens: int | None


def read_vision_settings(
    folder: ModelFolder,
    *,
    patch_size: int,
    image_default: PixelBounds,
    video_default: PixelBounds,
    video_tokens_default: int = 128000,
) -> VisionSettings:
    """What the folder says, with the family's values where it is silent. Raises ModelError."""
    if not folder.preprocessor_config:
        raise ModelError(f"{folder.name}: preprocessor_config.json is missing in {folder.path}: image sizes unknown")
    image, video = folder.preprocessor_config, folder.video_preprocessor_config
    rule = _rule(folder, image, patch_size)
    video_rule = _rule(folder, video, patch_size)
    if video_rule != rule:
        raise ModelError(f"{folder.name}: images and videos are declared with different patches or normalisation")
    _check_vision_tower(folder, rule)
    capped = bool(video.get("cap_pixels_per_frame"))
    separate = video is not image
    return VisionSettings(
        rule=rule,
        image_bounds=_bounds(folder, image, image_default),
        # Without a video file transformers takes the image's bounds for both.
        video_bounds=_bounds(folder, video, video_default if separate else image_default),
        video_tokens=_number(folder, video, "max_video_tokens", video_tokens_default) if capped else None,
    )


def read_video_defaults(folder: ModelFolder, default: VideoDefaults) -> VideoDefaults:
    """The family's rule for picking frames with the rate and the bounds that the folder's video processor declares.

    A folder that says `do_sample_frames` for Qwen2-VL or Qwen2.5-VL means transformers' `Qwen2VLVideoProcessor`, which
    spreads frames by strides. Raises ModelError.
    """
    video = folder.video_preprocessor_config
    fps = video.get("fps")
    if fps is None:
        fps = default.fps
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise ModelError(f"{folder.name}: video_preprocessor_config.json: fps {shorten(fps)} is no frame rate")
    least = _number(folder, video, "min_frames", default.min_frames)
    most = _number(folder, video, "max_frames", default.max_frames)
    if least > most:
        raise ModelError(f"{folder.name}: video_preprocessor_config.json: min_frames {least} is over max_frames {most}")
    strides = default.frame_factor > 1 and video.get("do_sample_frames") is True
    spacing = "stride" if strides else default.spacing
    return replace(default, fps=float(fps), min_frames=least, max_frames=most, spacing=spacing)


def _check_vision_tower(folder: ModelFolder, rule: PatchRule) -> None:
    """The two files must agree on the patches."""
    tower = folder.vision_config
    for key, ours in (
        ("patch_size", rule.patch_size),
        ("spatial_merge_size", rule.merge_size),
        ("temporal_patch_size", rule.temporal_patch_size),
    ):
        if tower.get(key, ours) != ours:
            raise ModelError(
                f"{folder.name}: {key} is {shorten(tower[key])} in config.json and {ours} in preprocessor_config.json"
            )


def _rule(folder: ModelFolder, config: Mapping[str, Any], patch_size: int) -> PatchRule:
    for name, wanted in (("do_resize", True), ("resample", _BICUBIC)):
        if config.get(name, wanted) != wanted:
            raise ModelError(f"{folder.name}: preprocessor {name} {shorten(config[name])} is not supported")
    normalise = config.get("do_normalize", True)
    return PatchRule(
        patch_size=_number(folder, config, "patch_size", patch_size),
        merge_size=_number(folder, config, "merge_size", 2),
        temporal_patch_size=_number(folder, config, "temporal_patch_size", 2),
        mean=_triple(folder, config.get("image_mean", _CLIP_MEAN)) if normalise else (0.0, 0.0, 0.0),
        std=_divisors(folder, config.get("image_std", _CLIP_STD)) if normalise else (1.0, 1.0, 1.0),
        rescale=_factor(folder, config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
    )


def _factor(folder: ModelFolder, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"{folder.name}: preprocessor_config.json: rescale_factor {shorten(value)} is no factor")
    return float(value)


def _divisors(folder: ModelFolder, values: Any) -> tuple[float, float, float]:
    found = _triple(folder, values)
    if 0 in found:
        raise ModelError(f"{folder.name}: preprocessor_config.json: image_std {shorten(values)} would divide by zero")
    return found


def _bounds(folder: ModelFolder, config: Mapping[str, Any], default: PixelBounds) -> PixelBounds:
    """`min_pixels`/`max_pixels` win over `size`, as in transformers."""
    size = config.get("size")
    size = size if isinstance(size, Mapping) else {}

    def pick(name: str, edge: str, fallback: int) -> int:
        for value in (config.get(name), size.get(edge), size.get(name), fallback):
            if value is not None:
                return _number(folder, {name: value}, name, fallback)
        return fallback

    low = pick("min_pixels", "shortest_edge", default.min_pixels)
    high = pick("max_pixels", "longest_edge", default.max_pixels)
    if not 0 < low <= high:
        raise ModelError(f"{folder.name}: preprocessor_config.json bounds pixels from {low} to {high}")
    return PixelBounds(low, high)


def _number(folder: ModelFolder, config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{folder.name}: preprocessor_config.json: {name} {shorten(value)} is not a size")
    return value


def _triple(folder: ModelFolder, values: Any) -> tuple[float, float, float]:
    try:
        first, second, third = (float(v) for v in values)
        if not all(map(math.isfinite, (first, second, third))):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ModelError(f"{folder.name}: preprocessor_config.json: {shorten(values)} is not three numbers") from None
    return first, second, third
