"""Videos made here, frame i of flat grey `level(i)`, so that each decoded frame says which one it is."""

from __future__ import annotations

import builtins
import contextlib
import io
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PILImage

from tests.unit.chat.making import Pixels, encode, index_of, level, png, video
from visavis.chat import PixelLimits, Video, VideoDefaults, normalize
from visavis.chat.fetch import PERMISSIVE, FetchPolicy
from visavis.errors import MediaError, MessageError, MissingExtraError

av = pytest.importorskip("av")

WHERE = r"^messages\[0\]\.content\[0\]\.video: "


def read(
    given: Any, *, policy: FetchPolicy = PERMISSIVE, defaults: VideoDefaults | None = None, **options: Any
) -> Video:
    chat = [{"role": "user", "content": [{"type": "video", "video": given, **options}]}]
    (clip,) = normalize(chat, policy=policy, video_defaults=defaults).media
    assert isinstance(clip, Video)
    return clip


def indices(clip: Video) -> list[int]:
    return [index_of(frame) for frame in clip.frames]


FORMATS = [
    ("mp4", "mpeg4"),
    ("mp4", "libx264"),  # reordered frames
    ("matroska", "libx264"),
    ("webm", "libvpx"),
    ("webm", "libvpx-vp9"),
    ("avi", "mpeg4"),
    ("mpegts", "mpeg2video"),
    ("mov", "mjpeg"),
    ("flv", "flv"),
]


@pytest.mark.parametrize(("container", "codec"), FORMATS)
def test_the_right_frames_and_times_from_every_container(container: str, codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg has no {codec}")
    data = video(
        frames=31, fps=10, container=container, codec=codec, pix_fmt="yuvj420p" if codec == "mjpeg" else "yuv420p"
    )
    clip = read(data, nframes=4)
    assert clip.frame_indices == (0, 10, 20, 30)
    assert indices(clip) == [0, 10, 20, 30]
    assert clip.timestamps == pytest.approx((0.0, 1.0, 2.0, 3.0), abs=1e-9)
    assert (clip.total_frames, clip.source_fps) == (31, pytest.approx(10.0))
    assert clip.fps == pytest.approx(4 / 31 * 10)
    assert clip.duration == pytest.approx(3.1, abs=0.11)
    assert clip.frames.shape == (4, 48, 64, 3)
    assert clip.frames.dtype == np.uint8
    assert clip.frames.flags.c_contiguous


@pytest.mark.parametrize("gop", [5, 12, 300])
def test_jumping_to_keyframes_gives_the_same_frames(gop: int) -> None:
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    data = video(frames=240, fps=10, codec=codec, gop=gop)
    clip = read(data, nframes=6)  # 0, 47.8, 95.6, 143.4, 191.2, 239
    assert clip.frame_indices == (0, 48, 96, 143, 191, 239)
    assert indices(clip) == [i % 48 for i in clip.frame_indices]
    every = read(data, nframes=240)
    assert indices(every) == [i % 48 for i in range(240)]


def test_the_default_is_two_frames_a_second() -> None:
    clip = read(video(frames=41, fps=10))  # 8.2 wanted, down to 8
    assert len(clip.frames) == 8
    assert clip.frame_indices == (0, 6, 11, 17, 23, 29, 34, 40)  # round(i · 40/7)


def test_the_familys_defaults_are_used() -> None:
    data = video(frames=41, fps=10)
    assert read(data, defaults=VideoDefaults(fps=1.0)).frame_indices == (0, 13, 27, 40)
    assert read(data, defaults=VideoDefaults(fps=1.0, spacing="stride")).frame_indices == (0, 10, 20, 30)
    assert len(read(data, defaults=VideoDefaults(min_frames=9, frame_factor=1)).frames) == 9


@pytest.mark.parametrize("fps", [1, 1.0, [1.0], (1,), np.float32(1)])
def test_fps_as_a_number_or_a_list_of_one(fps: Any) -> None:
    assert len(read(video(frames=40, fps=10), fps=fps).frames) == 4


def test_a_stretch_of_the_video() -> None:
    clip = read(video(frames=40, fps=10), video_start=1.0, video_end=2.0, fps=10)
    assert clip.frame_indices == (10, 11, 12, 13, 14, 16, 17, 18, 19, 20)  # 11 frames, 10 taken: 10 + i · 10/9
    assert clip.timestamps[0] == pytest.approx(1.0)
    assert indices(clip) == list(clip.frame_indices)


def test_variable_frame_rate_keeps_each_frames_own_time() -> None:
    stamps = [0, 100, 200, 300, 1300, 2300, 3300, 3400, 3500, 3600]
    clip = read(video(frames=10, times_ms=stamps, container="matroska"), nframes=10)
    assert clip.timestamps == tuple(ms / 1000 for ms in stamps)
    assert clip.source_fps == pytest.approx(9 / 3.6)  # the container still says 10
    between = read(video(frames=10, times_ms=stamps, container="matroska"), video_start=0.35, video_end=3.3, fps=9)
    assert between.timestamps == (1.3, 3.3)  # of the frames at 1.3, 2.3 and 3.3 s a multiple of two


@pytest.mark.skipif("libx264" not in av.codecs_available, reason="this FFmpeg has no libx264")
def test_times_count_from_the_first_frame() -> None:
    stamps = [5000, 5100, 5200, 5300]
    assert read(video(frames=4, times_ms=stamps, container="mpegts", codec="libx264")).timestamps == pytest.approx(
        (0.0, 0.1, 0.2, 0.3)
    )


# ---- orientation -----------------------------------------------------------------------------------------------------

UPRIGHT = np.zeros((32, 48, 3), dtype=np.uint8)
UPRIGHT[:16, :16] = (255, 0, 0)  # red at the top left
UPRIGHT[16:, 32:] = (0, 0, 255)  # blue at the bottom right
UPRIGHT[16:, :16] = (0, 255, 0)  # green at the bottom left
ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "store"),
    [
        ((ONE, 0, 0, ONE), lambda p: p),
        ((0, ONE, -ONE, 0), lambda p: np.rot90(p, 1)),  # shown a quarter clockwise, so stored counterclockwise
        ((-ONE, 0, 0, -ONE), lambda p: np.rot90(p, 2)),
        ((0, -ONE, ONE, 0), lambda p: np.rot90(p, -1)),
        ((-ONE, 0, 0, ONE), lambda p: p[:, ::-1]),
        ((ONE, 0, 0, -ONE), lambda p: p[::-1]),
        ((0, ONE, ONE, 0), lambda p: p.transpose(1, 0, 2)),
        ((0, -ONE, -ONE, 0), lambda p: np.rot90(p, 2).transpose(1, 0, 2)),
    ],
)
def test_a_rotated_or_mirrored_video_is_upright(matrix: tuple[int, ...], store: Any) -> None:
    """The matrix is written into the track header by hand (ISO/IEC 14496-12, 8.3.2: a b u c d v x y w)."""
    stored = np.ascontiguousarray(store(UPRIGHT))
    height, width = stored.shape[:2]
    data = video(pictures=[stored] * 4, size=(width, height), options={"qscale": "1"})
    at = data.index(struct.pack(">9i", ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30), data.index(b"tkhd"))
    a, b, c, d = matrix
    data = data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]
    clip = read(data)
    assert clip.size == (32, 48)
    for frame in clip.frames:
        middle = frame[8::16, 8::16].astype(int)
        assert np.abs(middle - UPRIGHT[8::16, 8::16]).max() < 60


def test_full_and_limited_range_are_told_apart() -> None:
    """Grey 235 is white in limited range and grey in full range (ITU-R BT.601)."""
    for pix_fmt, expected in (("yuvj420p", 235), ("yuv420p", 235)):
        codec = "mjpeg" if pix_fmt == "yuvj420p" else "mpeg4"
        pictures: list[Pixels] = [np.full((48, 64, 3), 235, dtype=np.uint8)] * 4
        clip = read(video(pictures=pictures, codec=codec, container="mov", pix_fmt=pix_fmt))
        assert abs(float(clip.frames.mean()) - expected) <= 3


# ---- animations ------------------------------------------------------------------------------------------------------


COLOURS = [(0, 0, 0, 0), (255, 0, 0, 255), (0, 0, 255, 255), (0, 255, 0, 255)]


def animation(fmt: str, colours: list[tuple[int, ...]], durations: list[int], **options: Any) -> bytes:
    first, *rest = [PILImage.new("RGBA", (20, 10), colour) for colour in colours]
    return encode(first, fmt, save_all=True, append_images=rest, duration=durations, **options)


@pytest.mark.parametrize(
    ("fmt", "options"), [("GIF", {"disposal": 2}), ("PNG", {"blend": 0}), ("WEBP", {"lossless": True})]
)
def test_an_animation_given_as_a_video_has_all_its_frames_on_white(fmt: str, options: dict[str, Any]) -> None:
    clip = read(animation(fmt, COLOURS, [100, 200, 300, 400], **options))
    assert clip.source_fps == pytest.approx(4.0)
    assert clip.timestamps == pytest.approx((0.0, 0.1, 0.3, 0.6))
    assert clip.duration == pytest.approx(1.0)
    assert clip.frames[:, 5, 5].tolist() == [[255, 255, 255], [255, 0, 0], [0, 0, 255], [0, 255, 0]]


def test_the_picture_before_a_png_animation_does_not_play() -> None:
    data = animation("PNG", COLOURS, [100] * 4, default_image=True)
    clip = read(data, nframes=2)
    assert clip.total_frames == 3
    assert clip.frames[:, 5, 5].tolist() == [[255, 0, 0], [0, 255, 0]]


def test_frames_without_a_duration_last_a_tenth_of_a_second() -> None:
    assert read(animation("GIF", COLOURS, [0] * 4, disposal=2)).timestamps == pytest.approx((0.0, 0.1, 0.2, 0.3))


def test_animations_obey_the_caps_and_may_be_broken() -> None:
    data = animation("GIF", COLOURS, [100] * 4, disposal=2)
    with pytest.raises(MediaError, match=r"would be 4 frames of 20×10 = 800 pixels"):
        read(data, policy=replace(PERMISSIVE, max_video_pixels=799))
    with pytest.raises(MediaError, match=WHERE + "bytes is a broken GIF"):
        read(data[:-30])


# ---- lists of frames -------------------------------------------------------------------------------------------------


def greys(count: int, size: tuple[int, int] = (6, 4)) -> list[Pixels]:
    return [np.full((size[1], size[0], 3), level(i), dtype=np.uint8) for i in range(count)]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda frames: frames,
        lambda frames: tuple(frames),
        lambda frames: np.stack(frames),
        lambda frames: [PILImage.fromarray(f) for f in frames],
        lambda frames: [encode(PILImage.fromarray(f)) for f in frames],
    ],
)
def test_frames_in_a_list_are_all_kept(wrap: Any) -> None:
    clip = read(wrap(greys(5)), fps=[4])
    assert indices(clip) == [0, 1, 2, 3, 4]
    assert clip.timestamps == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert (clip.fps, clip.source_fps, clip.total_frames, clip.duration) == (4.0, 4.0, 5, 1.25)
    assert clip.where == "messages[0].content[0]"


def test_frames_as_paths(tmp_path: Path) -> None:
    for i, frame in enumerate(greys(3)):
        (tmp_path / f"{i}.png").write_bytes(encode(PILImage.fromarray(frame)))
    names = ["0.png", tmp_path / "1.png", (tmp_path / "2.png").as_uri()]
    chat = [{"role": "user", "content": [{"type": "video", "video": names, "sample_fps": 1}]}]
    (clip,) = normalize(chat, base_dir=tmp_path).media
    assert isinstance(clip, Video)
    assert indices(clip) == [0, 1, 2]
    assert clip.timestamps == (0.0, 1.0, 2.0)


def test_frames_without_a_rate_are_taken_as_two_a_second_and_say_so() -> None:
    clip = read(greys(3))
    assert (clip.fps, clip.source_fps) == (2.0, None)
    assert clip.timestamps == (0.0, 0.5, 1.0)


def test_limits_of_a_video() -> None:
    clip = read(greys(2), max_pixels=100, total_pixels=5000)
    assert (clip.limits, clip.total_pixels) == (PixelLimits(max_pixels=100), 5000)
    clip = read(video(frames=4), max_pixels=100, total_pixels=5000)
    assert (clip.limits, clip.total_pixels) == (PixelLimits(max_pixels=100), 5000)


@pytest.mark.parametrize(
    ("frames", "options", "error", "message"),
    [
        ([], {}, MediaError, "a list of no frames"),
        ([*greys(1), *greys(1, (5, 4))], {}, MediaError, "frame 1 is 5×4, frame 0 is 6×4"),
        ([png(), b"junk"], {}, MediaError, r"video\[1\]: bytes is plain text"),
        (greys(4), {"nframes": 2}, MessageError, "nframes is for video files; a list of frames is taken whole"),
        (greys(4), {"video_start": 1}, MessageError, "video_start is for video files"),
        (greys(4), {"fps": 2, "sample_fps": 3}, MessageError, "fps 2 and sample_fps 3 disagree"),
        (np.zeros((2, 3, 8, 8), dtype=np.uint8), {}, MediaError, "channels first"),
        (np.zeros((8, 8, 3), dtype=np.uint8), {}, MediaError, r"a video is \(frames, height, width, 3\)"),
    ],
)
def test_lists_of_frames_that_cannot_be_meant(frames: Any, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        read(frames, **options)
    assert str(caught.value).startswith("messages[0].content[0].video")


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"<html></html>", r"is a web page \(HTML\), not a video"),
        (png(), r"is a still image \(PNG\), not a video; give it as an image part"),
        (encode(PILImage.new("RGB", (4, 4)), "JPEG"), r"is an image \(JPEG\), not a video; give it as an image part"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "is an HLS playlist, not a video"),
        (b"\x00\x00\x00\x18ftypisom" + bytes(200), "is a broken MP4 video"),
        (b"\x1a\x45\xdf\xa3" + bytes(200), "is a broken Matroska/WebM video|has no video track"),
    ],
)
def test_what_is_no_video_is_named(data: bytes, message: str) -> None:
    with pytest.raises(MediaError, match=WHERE + f"bytes ({message})"):
        read(data)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_cut_off_video_is_refused(kept: float) -> None:
    data = video(frames=40, codec="mpeg4", options={"movflags": "faststart"})
    with pytest.raises(MediaError, match=WHERE + "bytes is (cut off|a broken|broken)"):
        read(data[: int(len(data) * kept)])


@pytest.mark.parametrize(("container", "codec"), [("matroska", "mpeg4"), ("webm", "libvpx")])
def test_a_cut_off_matroska_file_is_refused_unless_it_was_streamed(container: str, codec: str) -> None:
    """FFmpeg plays the frames that are there, and would make a shorter video of them in silence."""
    data = video(frames=40, container=container, codec=codec)
    cut = data[: len(data) * 9 // 10]
    with pytest.raises(
        MediaError, match=WHERE + f"bytes is cut off: {len(cut):,} of its {len(data):,} bytes are there"
    ):
        read(cut)
    segment = data.index(b"\x18\x53\x80\x67") + 4
    streamed = data[:segment] + b"\x01" + b"\xff" * 7 + data[segment + 8 :]  # eight bytes: "size unknown"
    assert read(streamed).total_frames == 40


def test_no_fault_injected_into_a_video_escapes_as_another_error() -> None:
    """Bytes changed, cut out and cut off at random: either it decodes or it is a MediaError."""
    kinds = [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("webm", "libvpx"), ("avi", "mpeg4"), ("mpegts", "mpeg2video")]
    clips = [video(frames=6, container=container, codec=codec, size=(32, 32)) for container, codec in kinds]
    clips.append(animation("GIF", COLOURS, [100] * 4))
    chance = random.Random(0)
    for _ in range(200):
        data = bytearray(chance.choice(clips))
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(data))
            how = chance.random()
            if how < 0.6:
                data[at] = chance.randrange(256)
            elif how < 0.8:
                del data[at : at + chance.randrange(1, 40)]
            else:
                del data[max(at, 16) :]
        with contextlib.suppress(MediaError):
            read(bytes(data))


def remuxed(data: bytes, keep: Any) -> bytes:
    """The MPEG-TS video with only the packets `keep(number)` says, times unchanged."""
    out = io.BytesIO()
    with av.open(io.BytesIO(data)) as given, av.open(out, "w", format="mpegts") as target:
        template = given.streams.video[0]
        if hasattr(target, "add_stream_from_template"):
            stream = target.add_stream_from_template(template)
        else:  # PyAV before 14
            stream = target.add_stream(template=template)
        packets = [p for p in given.demux(given.streams.video[0]) if p.size]
        for i, packet in enumerate(packets):
            if keep(i):
                packet.stream = stream
                target.mux(packet)
    return out.getvalue()


@pytest.fixture(scope="module")
def recording() -> bytes:
    """30 frames, a keyframe every 10, no reordering."""
    if "libx264" not in av.codecs_available:
        pytest.skip("this FFmpeg has no libx264")
    return video(frames=30, container="mpegts", codec="libx264", gop=10, options={"bf": "0"})


def test_a_recording_cut_before_its_first_keyframe_begins_where_it_can(recording: bytes) -> None:
    clip = read(remuxed(recording, lambda i: i >= 4), fps=10)  # frames 4 to 9 lean on frame 0
    assert clip.total_frames == 20
    assert indices(clip) == list(range(10, 30))
    assert clip.timestamps[0] == 0.0


def test_frames_lost_in_the_middle_of_a_video_are_not_passed_over(recording: bytes) -> None:
    data = bytearray(recording)
    data[len(data) // 2 : len(data) * 3 // 5] = bytes(len(data) * 3 // 5 - len(data) // 2)
    with pytest.raises(MediaError, match=WHERE + "bytes is damaged: packet [0-9]+ of its video track is incomplete"):
        read(bytes(data), fps=10)


def test_garbage_inside_a_video_is_refused() -> None:
    data = bytearray(video(frames=40, codec="mpeg4"))
    start = data.index(b"mdat") + 4
    data[start : start + 2000] = b"\xff" * 2000
    with pytest.raises(MediaError, match=WHERE):
        read(bytes(data))


def test_a_file_without_a_video_track_is_refused() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as target:
        stream = target.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        for packet in [*stream.encode(frame), *stream.encode()]:
            target.mux(packet)
    with pytest.raises(MediaError, match=WHERE + "bytes has no video track"):
        read(out.getvalue())


def test_the_pixel_caps_hold_for_videos() -> None:
    data = video(frames=20)
    with pytest.raises(MediaError, match=r"frames of 64×48 = 3,072 pixels, over the cap of 3,071"):
        read(data, policy=replace(PERMISSIVE, max_pixels=3071))
    with pytest.raises(
        MediaError, match=r"would be 4 frames of 64×48 = 12,288 pixels, over the cap of 12,287; lower fps"
    ):
        read(data, policy=replace(PERMISSIVE, max_video_pixels=12287))
    assert len(read(data, policy=replace(PERMISSIVE, max_video_pixels=12288)).frames) == 4
    with pytest.raises(MediaError, match="would be 3 frames"):
        read(greys(3), policy=replace(PERMISSIVE, max_video_pixels=71))


def test_the_byte_cap_of_videos_is_their_own() -> None:
    data = video(frames=20)
    policy = replace(PERMISSIVE, max_bytes=10)
    assert len(read(data, policy=policy).frames) == 4
    with pytest.raises(MediaError, match=rf"is {len(data):,} bytes or more, over the cap of 100"):
        read(data, policy=replace(PERMISSIVE, max_video_bytes=100))


def test_without_pyav_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_av(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ModuleNotFoundError("No module named 'av'")
        return real(name, *args, **kwargs)

    data = video(frames=4)
    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(MissingExtraError, match=r"pip install 'visavis\[video\]'"):
        read(data)
    assert len(read(greys(2)).frames) == 2  # lists of frames need no extra
