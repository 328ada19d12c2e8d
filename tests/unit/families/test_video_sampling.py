"""Which frames of a file a family takes, against transformers' processors where those sample, and folders that say."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as PILImage

from tests.reference import hf
from visavis.chat import VideoDefaults, normalize
from visavis.errors import ModelError
from visavis.families import load_family


def frames(number: int, height: int = 64, width: int = 64) -> npt.NDArray[np.uint8]:
    """Every frame another grey, so that a frame tells its number."""
    return np.repeat(np.arange(number, dtype=np.uint8), height * width * 3).reshape(number, height, width, 3)


def animation(pixels: npt.NDArray[np.uint8], milliseconds: int) -> bytes:
    """An animated PNG: lossless, and read without the extra."""
    first, *rest = [PILImage.fromarray(frame) for frame in pixels]
    file = io.BytesIO()
    first.save(file, "PNG", save_all=True, append_images=rest, duration=milliseconds)
    return file.getvalue()


def question(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "video", "video": data, **options}, {"type": "text", "text": "?"}]}]


def declared(folder: Path, target: Path, **settings: Any) -> str:
    """A copy of the folder whose video processor says more."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    file = target / "video_preprocessor_config.json"
    source = file if file.exists() else target / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(source.read_text()), **settings}), encoding="utf-8")
    return str(target)


@hf.needs_torchvision
@pytest.mark.parametrize(("number", "milliseconds"), [(2, 40), (3, 100), (61, 40), (77, 125), (150, 40)])
@pytest.mark.parametrize("wish", [{}, {"fps": 1.0}, {"nframes": 2}])
@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_vl", "qwen2_5_vl"])
def test_a_file_becomes_the_prompt_transformers_makes_of_it(
    name: str, number: int, milliseconds: int, wish: dict[str, Any], tiny: Any, tmp_path: Path
) -> None:
    """Qwen3-VL's processor samples by itself; Qwen2-VL's and Qwen2.5-VL's does where the folder says so."""
    import torch

    pixels, rate = frames(number), 1000 / milliseconds
    folder = Path(declared(tiny(name), tmp_path / name, do_sample_frames=True, fps=2))
    prompt = load_family(str(folder)).prepare_messages(question(animation(pixels, milliseconds), **wish))
    asked = {"num_frames": wish["nframes"], "fps": None} if "nframes" in wish else wish
    made = hf.processor(folder)(
        text=[prompt.text],
        videos=[torch.from_numpy(pixels).permute(0, 3, 1, 2)],
        video_metadata=[{"total_num_frames": number, "fps": rate, "duration": number / rate}],
        do_sample_frames=True,
        return_tensors="pt",
        **asked,
    )
    assert made["video_grid_thw"].tolist() == [list(prompt.media[0].grid or ())]
    assert made["input_ids"][0].tolist() == list(prompt.token_ids)
    ours = prompt.for_hf()["pixel_values_videos"]
    assert (ours - made["pixel_values_videos"]).abs().max() < 1e-5  # every grey is a frame's number


def test_qwen3_takes_odd_numbers_of_frames_and_the_others_even_ones(family: Any) -> None:
    data = animation(frames(35), 100)  # 3.5 s at 2 a second: 7
    taken = {n: len(family(n).prepare_messages(question(data)).media[0].pixels) for n in ("qwen3_vl", "qwen2_vl")}
    assert taken == {"qwen3_vl": 7, "qwen2_vl": 6}


def test_qwen2_spreads_frames_as_qwen_vl_utils_does(family: Any) -> None:
    # 6 of 35, first and last included: 0, 6.8, 13.6, 20.4, 27.2, 34
    prompt = family("qwen2_5_vl").prepare_messages(question(animation(frames(35), 100)))
    assert prompt.media[0].pixels[:, 0, 0, 0].tolist() == [0, 7, 14, 20, 27, 34]


def test_the_folders_rate_and_bounds_hold_where_a_message_says_nothing(tiny: Any, tmp_path: Path) -> None:
    told = load_family(declared(tiny("qwen2_vl"), tmp_path / "m", fps=5, min_frames=6, max_frames=8))
    assert told.video_defaults == VideoDefaults(fps=5.0, min_frames=6, max_frames=8)
    data = animation(frames(60), 100)  # 6 s at 5 a second: 30, at most 8
    assert len(told.prepare_messages(question(data)).media[0].pixels) == 8
    assert len(told.prepare_messages(question(data, max_frames=12)).media[0].pixels) == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fps": 0}, "fps 0 is no frame rate"),
        ({"fps": "two"}, "fps 'two' is no frame rate"),
        ({"min_frames": 0}, "min_frames 0"),
        ({"min_frames": 9, "max_frames": 8}, "min_frames 9 is over max_frames 8"),
        ({"cap_pixels_per_frame": True, "max_video_tokens": "many"}, "max_video_tokens 'many'"),
    ],
)
def test_sampling_that_cannot_be_meant_is_refused(
    settings: dict[str, Any], message: str, tiny: Any, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        load_family(declared(tiny("qwen3_vl"), tmp_path / "m", **settings))


@hf.needs_torchvision
@pytest.mark.parametrize("number", [2, 5, 16])
@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_vl"])
def test_a_cap_on_pixels_per_frame_is_kept(name: str, number: int, tiny: Any, tmp_path: Path) -> None:
    """`cap_pixels_per_frame` counts tokens of a frame for Qwen3-VL and of the whole video for Qwen2-VL."""
    import torch

    tokens = 12 if name == "qwen3_vl" else 60
    size = {"shortest_edge": 1024, "longest_edge": 400_000}
    folder = Path(declared(tiny(name), tmp_path / "m", cap_pixels_per_frame=True, max_video_tokens=tokens, size=size,
                           min_pixels=None, max_pixels=None))  # fmt: skip
    pixels = frames(number, 256, 320)
    loaded = load_family(str(folder))
    chat = normalize([{"role": "user", "content": [{"video": pixels, "fps": 2}, "?"]}])
    prompt = loaded.prepare(chat)
    made = hf.processor(folder)(
        text=[prompt.text],
        videos=[torch.from_numpy(pixels).permute(0, 3, 1, 2)],
        video_metadata=[{"total_num_frames": number, "fps": 2.0, "frames_indices": list(range(number))}],
        do_sample_frames=False,
    )
    assert [list(map(int, g)) for g in made["video_grid_thw"]] == [list(prompt.media[0].grid or ())]
    assert list(made["input_ids"][0]) == list(prompt.token_ids)


@pytest.mark.parametrize(
    ("name", "wish", "expected"),
    [
        # 256 cells of 32 px a frame: 640 × 360 → /√(230400/262144) > 1: not shrunk: 640 × 352 (360/32 = 11.25 → 11)
        ("qwen3_vl", {"max_pixels": 256 * 32 * 32}, (352, 640)),
        # 100 cells: √(230400 / 102400) = 1.5: 426.7 × 240 → 13 × 7 cells
        ("qwen3_vl", {"max_pixels": 100 * 32 * 32}, (224, 416)),
        # 8 frames in pairs share 400 cells: 100 each
        ("qwen3_vl", {"total_pixels": 400 * 32 * 32}, (224, 416)),
        ("qwen3_vl", {"max_pixels": 256 * 32 * 32, "total_pixels": 400 * 32 * 32}, (224, 416)),
        # 300 cells at least: √(307200 / 230400) = 1.155: 739 × 415.7 → 24 × 13 cells, upwards
        ("qwen3_vl", {"min_pixels": 300 * 32 * 32}, (416, 768)),
        # the same of 28 px: √(230400 / 78400) = 1.714: 373.3 × 210 → 13 × 7 cells
        ("qwen2_vl", {"max_pixels": 100 * 28 * 28}, (196, 364)),
        ("qwen2_vl", {"total_pixels": 400 * 28 * 28}, (196, 364)),
    ],
)
def test_a_messages_bounds_are_of_a_frame_as_in_qwen_vl_utils(
    name: str, wish: dict[str, int], expected: tuple[int, int], family: Any
) -> None:
    chat = [{"role": "user", "content": [{"video": frames(8, 360, 640), "fps": 2, **wish}, "?"]}]
    loaded = family(name)
    assert loaded.count(normalize(chat)).media[0].size == expected
