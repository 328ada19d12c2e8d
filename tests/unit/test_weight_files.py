"""Weight files that are none, and indexes that lead out of their folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import visavis
from visavis.engine.loader import load_weights
from visavis.errors import ModelError
from visavis.families.folder import ModelFolder
from visavis.weight_files import INDEX_FILES, check_weight_files, shards_of

LFS = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca2\n"
)
PAGE = b"\n<!DOCTYPE html><html><head><title>Sign in</title>"
INDEX = INDEX_FILES[0]
TINY_SCREEN = Path(visavis.__file__).parent / "assets" / "tiny-screen"


def write_index(folder: Path, *shards: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": {f"t{i}": shard for i, shard in enumerate(shards)}}))
    return folder


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LFS, "is a Git LFS pointer, not the file itself: run `git lfs pull` in "),
        (PAGE, "is a web page (of a login or an error), not the file itself: download it again"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied", "is a web page"),
        (b"", "is empty: download it again"),
    ],
)
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_a_file_that_is_no_weights_is_named_with_the_way_out(
    tmp_path: Path, file: str, content: bytes, said: str
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / file).write_bytes(content)
    if "-of-" in file:
        write_index(folder, file)
    with pytest.raises(ModelError) as refused:
        check_weight_files(folder)
    assert str(refused.value).startswith(f"{file} in m {said}")
    assert "\n" not in str(refused.value)


def test_real_weights_and_folders_without_any_pass(tmp_path: Path) -> None:
    check_weight_files(TINY_SCREEN)
    check_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "../../x", "/etc/passwd", "a/../../x", "..\\x", "C:x", "", 5])
def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: Any) -> None:
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "x.safetensors")
    folder = write_index(tmp_path / "m", name)
    for refuses in (lambda: shards_of(folder, INDEX), lambda: check_weight_files(folder)):
        with pytest.raises(ModelError, match="which is not a file of that folder"):
            refuses()
    with pytest.raises(ModelError, match="which is not a file of that folder"):
        load_weights(folder, {"norm.weight": torch.zeros(3)}, tied=False)


def test_shards_that_are_links_are_read(tmp_path: Path) -> None:
    """The hub's cache keeps its files elsewhere, behind links with plain names."""
    save_file({"t": torch.ones(3)}, tmp_path / "blob")
    folder = write_index(tmp_path / "m", "a.safetensors")
    (folder / "a.safetensors").symlink_to(tmp_path / "blob")
    assert shards_of(folder, INDEX) == [folder / "a.safetensors"]
    check_weight_files(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """tiny-screen with its weights as a Git LFS pointer."""
    shutil.copytree(TINY_SCREEN, tmp_path / "clone")
    (tmp_path / "clone" / "model.safetensors").write_bytes(LFS)
    return tmp_path / "clone"


@pytest.mark.parametrize("backend", ["native", "hf"])
def test_every_engine_says_it_before_it_starts(model: Path, backend: str) -> None:
    with pytest.raises(ModelError, match=r"model.safetensors in clone is a Git LFS pointer.*git lfs pull"):
        visavis.load(str(model), backend=backend)


@pytest.mark.parametrize("backend", ["native", "hf"])
def test_no_engine_follows_an_index_out_of_the_folder(model: Path, backend: str) -> None:
    (model / "model.safetensors").unlink()
    shutil.copy(TINY_SCREEN / "model.safetensors", model.parent / "x.safetensors")
    write_index(model, "../x.safetensors")
    with pytest.raises(ModelError, match="which is not a file of that folder"):
        visavis.load(str(model), backend=backend)


def test_a_config_that_is_a_pointer_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(LFS)
    with pytest.raises(ModelError, match=r"config.json .* Git LFS pointer.*git lfs pull"):
        _ = ModelFolder(tmp_path, "m").config
