"""Which frames are taken: against transformers' own processors, and qwen-vl-utils' published rule by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from visavis.chat.frames import frame_range, num_frames, sample_frames
from visavis.chat.types import VideoDefaults, VideoSampling
from visavis.errors import MediaError

QWEN_VL_UTILS = VideoDefaults()
TRANSFORMERS_QWEN2 = VideoDefaults(spacing="stride")
TRANSFORMERS_QWEN3 = VideoDefaults(frame_factor=1)


def times(total: int, fps: float) -> list[float]:
    return [i / fps for i in range(total)]


def taken(total: int, source_fps: float, defaults: VideoDefaults = QWEN_VL_UTILS, **wishes: Any) -> list[int]:
    return sample_frames(times(total, source_fps), source_fps, VideoSampling(**wishes), defaults)[0]


VIDEOS = [(total, fps) for total in (4, 5, 7, 31, 100, 299, 1000, 54321) for fps in (1.0, 10.0, 24.0, 29.97, 60.0)]


def reference(name: str) -> Any:
    pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, name)()


@pytest.mark.parametrize(
    ("processor", "defaults"),
    [("Qwen2VLVideoProcessor", TRANSFORMERS_QWEN2), ("Qwen3VLVideoProcessor", TRANSFORMERS_QWEN3)],
)
def test_the_same_frames_as_transformers(processor: str, defaults: VideoDefaults) -> None:
    from transformers.video_utils import VideoMetadata

    theirs = reference(processor)
    compared = 0
    for (total, fps), wish in product(VIDEOS, ({}, {"fps": 1.0}, {"fps": 0.3}, {"fps": 7.5}, {"nframes": 4})):
        metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
        asked = {"num_frames": wish.get("nframes"), "fps": wish.get("fps", None if "nframes" in wish else 2.0)}
        expected = theirs.sample_frames(metadata=metadata, **{k: v for k, v in asked.items() if v is not None}).tolist()
        ours = taken(total, fps, defaults, **wish)
        if len(expected) == len(ours) + 1 and defaults is TRANSFORMERS_QWEN2:
            # torch.arange(0, total, total / n) has n + 1 entries where the step was rounded down: one frame too many
            expected = expected[:-1]
        assert ours == expected, (total, fps, wish)
        compared += 1
    assert compared == 200


@pytest.mark.parametrize(
    ("total", "fps", "wishes", "expected"),
    [
        (300, 30.0, {}, 20),  # 10 s at 2 a second
        (300, 30.0, {"fps": 0.5}, 5 - 1),  # 5, down to a multiple of 2
        (300, 30.0, {"fps": 0.1}, 4),  # 1, raised to min_frames 4
        (300, 30.0, {"fps": 0.1, "min_frames": 7}, 8),  # min_frames up to a multiple of 2
        (300, 30.0, {"fps": 30.0, "max_frames": 11}, 10),  # max_frames down to a multiple of 2
        (3000, 1.0, {}, 768),  # 6000 wanted, at most 768
        (5, 30.0, {}, 4),  # raised to 4
        (3, 30.0, {}, 2),  # only 3 there, down to 2
        (301, 30.0, {"nframes": 7}, 8),  # to the nearest multiple: 3.5 → 4 (even)
        (301, 30.0, {"nframes": 9}, 8),  # 4.5 → 4 (even)
    ],
)
def test_the_number_of_frames(total: int, fps: float, wishes: dict[str, Any], expected: int) -> None:
    assert num_frames(total, fps, VideoSampling(**wishes), QWEN_VL_UTILS) == expected


def test_frames_are_spread_from_the_first_to_the_last() -> None:
    assert taken(100, 10.0, nframes=4) == [0, 33, 66, 99]
    # 0, 12.86, 25.7, 38.6, 51.4, 64.3, 77.1, 90 − 0
    assert taken(91, 10.0, nframes=8) == [0, 13, 26, 39, 51, 64, 77, 90]


def test_a_still_clip_gives_its_one_frame() -> None:
    assert taken(1, 25.0) == [0]


def test_the_rate_after_sampling() -> None:
    _, fps = sample_frames(times(300, 30.0), 30.0, VideoSampling(nframes=20), QWEN_VL_UTILS)
    assert fps == 2.0  # 20 of 300 frames at 30 a second


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, (0, 29)),
        (1.0, None, (10, 29)),
        (0.95, 2.05, (10, 20)),
        (None, 0.3, (0, 3)),  # 3/10 is not exact in binary, and still counts
        (0.7, 0.7001, (7, 7)),
        (0.0, 100.0, (0, 29)),
    ],
)
def test_start_and_end_pick_the_frames_shown_between(start: Any, end: Any, expected: tuple[int, int]) -> None:
    assert frame_range(times(30, 10.0), VideoSampling(video_start=start, video_end=end)) == expected


def test_sampling_counts_only_the_frames_between() -> None:
    # 10…20 are 11 frames, 1.1 s: 2.2 wanted, raised to 4: 10, 13.3, 16.7, 20
    assert taken(30, 10.0, video_start=1.0, video_end=2.0) == [10, 13, 17, 20]


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"nframes": 40}, r"nframes 40 .*: 40\), but it has 30 frames"),
        ({"nframes": 1}, "nframes 1 rounds to 0; this model takes multiples of 2"),
        ({"max_frames": 1}, "max_frames 1 is less than this model takes at a time"),
        ({"min_frames": 800}, "min_frames 800 is more than max_frames 768"),
        ({"video_start": 3.0}, r"between video_start 3 s and video_end 2\.9 s; it has 30 frames, the last at 2\.900 s"),
        ({"video_start": 0.11, "video_end": 0.19}, "no frame is shown between"),
    ],
)
def test_wishes_that_cannot_be_met(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(MediaError, match=message):
        taken(30, 10.0, **wishes)
