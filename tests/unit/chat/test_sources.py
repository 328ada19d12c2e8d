"""Where bytes come from: paths, file URLs, base64 against paths, and what the policy refuses."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chat.making import encode, png
from visavis.chat.fetch import PERMISSIVE, STRICT, FetchPolicy
from visavis.chat.sources import open_source
from visavis.errors import MediaError, MessageError, OptionError

DATA = png()


def read(value: Any, policy: FetchPolicy = PERMISSIVE, base_dir: Path | None = None) -> bytes:
    with open_source(value, policy, expected="image", base_dir=str(base_dir) if base_dir else None) as source:
        assert source.head == DATA[: len(source.head)]
        return source.read(policy.max_bytes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, also `~`, with a.png in it."""
    real = tmp_path.resolve()
    (real / "a.png").write_bytes(DATA)
    monkeypatch.chdir(real)
    monkeypatch.setenv("HOME", str(real))
    return real


# ---- paths -----------------------------------------------------------------------------------------------------------


def test_paths_in_every_form(folder: Path) -> None:
    for path in ("a.png", "./a.png", str(folder / "a.png"), "~/a.png", Path("a.png"), Path("~/a.png"), "  a.png \n"):
        assert read(path) == DATA


def test_bytes_as_a_path_object_gives_them(folder: Path) -> None:
    class Odd(os.PathLike[bytes]):
        def __fspath__(self) -> bytes:
            return b"a.png"

    assert read(Odd()) == DATA


@pytest.mark.parametrize(
    "name", ["with space.png", "100%.png", "a%20b.png", "ünï.png", "a#b?c.png", "https.png", " a.png"]
)
def test_odd_file_names(folder: Path, name: str) -> None:
    (folder / name).write_bytes(DATA)
    assert read(name) == DATA
    assert read(str(folder / name)) == DATA
    assert read((folder / name).as_uri()) == DATA  # percent-encoded
    assert read(f"file://{folder}/{name}") == DATA  # as people write it


def test_file_urls_in_every_form(folder: Path) -> None:
    for url in (f"file://{folder}/a.png", f"file://localhost{folder}/a.png", f"FILE:{folder}/a.png", "file:a.png"):
        assert read(url) == DATA


def test_a_file_url_with_a_host_is_refused(folder: Path) -> None:
    with pytest.raises(MediaError, match="names the host 'images'; write file:///absolute/path"):
        read("file://images/a.png")


def test_base_dir_comes_before_the_working_directory(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "b.png").write_bytes(DATA)
    assert read("b.png", base_dir=folder / "sub") == DATA
    assert read(str(folder / "a.png"), base_dir=folder / "sub") == DATA
    with pytest.raises(MediaError, match=r"no such file in .*sub"):
        read("a.png", base_dir=folder / "sub")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("missing.png", r"'missing\.png': no such file in /"),
        ("/nowhere/missing.png", r"no such file$"),
        ("a.png/b.png", "no such file"),
        (".", "is a folder"),
        ("", "an empty string"),
        ("   ", "an empty string"),
        ("a\x00.png", "not a valid path"),
        ("x/" * 3000 + "a.png", "too long for a path"),
        ("C:\\pictures\\a.png", "is a Windows path, and this is not Windows"),
        ("c:/pictures/a.png", "is a Windows path"),
        ("\\\\server\\share\\a.png", "is a Windows path"),
        ("file:///C:/pictures/a.png", "is a Windows path"),
        ("s3://bucket/a.png", "s3: URLs are not fetched; download the file"),
        ("ftp://host/a.png", "ftp: URLs are not fetched"),
    ],
    ids=lambda v: v[:40],
)
def test_paths_that_lead_nowhere(folder: Path, value: str, message: str) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        read(value)
    assert len(str(caught.value)) < 250


def test_an_unreadable_file_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any, **kwargs: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(MediaError, match=r"'a\.png': cannot be read \(Permission denied\)"):
        read("a.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    with pytest.raises(MediaError, match="is not a regular file"):
        read("pipe.png")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero here")
def test_a_device_is_refused() -> None:
    with pytest.raises(MediaError, match="is not a regular file"):
        read("/dev/zero")


def test_the_byte_cap_of_files(folder: Path) -> None:
    exact = replace(PERMISSIVE, max_bytes=len(DATA))
    assert read("a.png", exact) == DATA
    for value in ("a.png", DATA, io.BytesIO(DATA), "data:;base64," + base64.b64encode(DATA).decode()):
        with pytest.raises(MediaError, match="over the cap of 10"):
            read(value, replace(PERMISSIVE, max_bytes=10))


def test_a_file_that_grows_while_it_is_read_stays_under_the_cap(folder: Path) -> None:
    policy = replace(PERMISSIVE, max_bytes=len(DATA) + 5)
    with open_source("a.png", policy, expected="image") as source:
        with open("a.png", "ab") as more:
            more.write(bytes(100))
        with pytest.raises(MediaError, match="over the cap"):
            source.read(policy.max_bytes)


# ---- other carriers --------------------------------------------------------------------------------------------------


def test_bytes_and_file_objects(folder: Path) -> None:
    assert read(DATA) == read(bytearray(DATA)) == read(memoryview(DATA)) == DATA
    with open("a.png", "rb") as stream:
        assert read(stream) == DATA
        assert not stream.closed


def test_a_text_file_object_is_refused(folder: Path) -> None:
    with pytest.raises(MediaError, match="binary mode"):
        read(io.StringIO("x"))


def test_what_holds_no_bytes_is_refused() -> None:
    with pytest.raises(MessageError, match="cannot read a medium from float"):
        read(1.5)


def test_base64_of_a_jpeg_is_no_absolute_path() -> None:
    from PIL import Image

    data = encode(Image.new("RGB", (8, 8)), "JPEG")
    text = base64.b64encode(data).decode()
    assert text.startswith("/9j/")
    with open_source(text, PERMISSIVE, expected="image") as source:
        assert source.read(1 << 20) == data
        assert source.name == "base64"
    with open_source(text, STRICT, expected="image") as source:  # no local files: nothing to confuse it with
        assert source.read(1 << 20) == data


def test_a_file_with_a_name_like_base64_is_still_a_file(folder: Path) -> None:
    name = "A" * 80
    (folder / name).write_bytes(DATA)
    assert read(name) == DATA


def test_base64_of_something_else_says_what_it_is() -> None:
    page = base64.b64encode(b"<!doctype html><title>Sign in</title>" + bytes(3).hex().encode() * 10).decode()
    with pytest.raises(MediaError, match=r"as base64 it holds a web page \(HTML\)") as caught:
        read(page)
    assert page[:20] not in str(caught.value)


# ---- the policy ------------------------------------------------------------------------------------------------------


def test_strict_reads_no_files_and_does_not_tell_which_exist(folder: Path) -> None:
    answers = set()
    for path in ("a.png", "missing.png"):
        with pytest.raises(MediaError) as caught:
            read(path, STRICT)
        answers.add(str(caught.value).replace(path, "…"))
    assert answers == {"'…': local files are not allowed here; send the content itself as a data URL"}
    with pytest.raises(MediaError, match="local files are not allowed"):
        read(f"file://{folder}/a.png", STRICT)
    with pytest.raises(MediaError, match="local files are not allowed"):
        read(Path("a.png"), STRICT)


@pytest.fixture
def fenced(folder: Path) -> tuple[Path, FetchPolicy]:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "a.png").write_bytes(DATA)
    (folder / "inside2").mkdir()
    (folder / "inside2" / "a.png").write_bytes(DATA)
    return inside, replace(STRICT, allowed_folders=(str(inside),))


def test_an_allowed_folder_is_read(fenced: tuple[Path, FetchPolicy]) -> None:
    inside, policy = fenced
    assert read(str(inside / "a.png"), policy) == DATA
    assert read("a.png", policy, base_dir=inside) == DATA
    (inside / "link.png").symlink_to(inside / "a.png")
    assert read(str(inside / "link.png"), policy) == DATA


@pytest.mark.parametrize("path", ["../a.png", "../inside2/a.png", "../missing.png", "~/a.png", "/etc/hostname", "/"])
def test_outside_an_allowed_folder_nothing_is_read_or_told(fenced: tuple[Path, FetchPolicy], path: str) -> None:
    inside, policy = fenced
    with pytest.raises(MediaError, match="is not in a folder that may be read here"):
        read(path, policy, base_dir=inside)


def test_a_symlink_out_of_an_allowed_folder_is_refused(fenced: tuple[Path, FetchPolicy], folder: Path) -> None:
    inside, policy = fenced
    (inside / "out.png").symlink_to(folder / "a.png")
    (inside / "up").symlink_to(folder)
    for path in ("out.png", "up/a.png"):
        with pytest.raises(MediaError, match="is not in a folder that may be read here"):
            read(path, policy, base_dir=inside)


def test_an_allowed_folder_may_itself_be_a_symlink(fenced: tuple[Path, FetchPolicy], folder: Path) -> None:
    inside, policy = fenced
    (folder / "alias").symlink_to(inside)
    assert read(str(inside / "a.png"), replace(policy, allowed_folders=(str(folder / "alias"),))) == DATA


def test_a_folder_exchanged_for_a_symlink_while_opening_is_noticed(
    fenced: tuple[Path, FetchPolicy], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, policy = fenced
    (inside / "sub").mkdir()
    (inside / "sub" / "a.png").write_bytes(DATA)
    real = os.open

    def race(path: Any, *args: Any, **kwargs: Any) -> int:
        (inside / "sub").rename(inside / "moved")
        (inside / "sub").symlink_to(folder)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", race)
    with pytest.raises(MediaError, match=r"is not in a folder that may be read here|changed while"):
        read(str(inside / "sub" / "a.png"), policy)


def test_urls_are_off_in_strict_mode() -> None:
    with pytest.raises(MediaError, match="URLs are not fetched here; send the content itself as a data URL"):
        read("http://127.0.0.1:1/a.png", STRICT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 0}, "max_bytes 0 must be 1 or more"),
        ({"max_pixels": -1}, "max_pixels"),
        ({"read_timeout_s": 0}, "read_timeout_s 0 must be above 0"),
        ({"max_redirects": -1}, "max_redirects"),
        ({"allowed_folders": "/data"}, "allowed_folders takes a tuple"),
        ({"allowed_hosts": "example.com"}, "allowed_hosts takes a tuple"),
    ],
)
def test_a_policy_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FetchPolicy(**options)


def test_of_a_long_path_the_files_name_is_shown(tmp_path: Path) -> None:
    path = tmp_path / ("folder" * 20) / "screen.png"
    with pytest.raises(MediaError, match=r"folder/screen\.png': no such file") as caught:
        open_source(str(path), PERMISSIVE, expected="image")
    assert len(str(caught.value)) < 100
