"""Building the CPU kernels: whatever is wrong with the machine, the engine must still run on torch and say why."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from visavis import compiling
from visavis.compiling import COMPILERS, BuildError, find_compiler
from visavis.engine.kernels.cpu.build import LIBRARY, find_library

COMPILER = next(filter(None, map(shutil.which, COMPILERS)), None)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("VISAVIS_CPU_KERNELS", raising=False)
    find_compiler.cache_clear()
    yield
    find_compiler.cache_clear()


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")


@needs_compiler
def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(BuildError, match=r"no home folder.*XDG_CACHE_HOME"):
        find_library()


@needs_compiler
def test_a_cache_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(BuildError, match="XDG_CACHE_HOME"):
        find_library()


@needs_compiler
def test_arguments_in_cxx_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPILER is not None
    plain = LIBRARY.path()
    monkeypatch.setenv("CXX", f"{os.path.basename(COMPILER)} -DONE='two words'")
    find_compiler.cache_clear()
    words, version = find_compiler()
    assert words == (COMPILER, "-DONE=two words")
    assert version
    assert LIBRARY.path() != plain


@needs_compiler
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-fno-such-flag"))
    with pytest.raises(BuildError, match="no-such-flag"):
        find_library()
    assert list((tmp_path / "visavis" / "kernels").iterdir()) == []


@pytest.mark.parametrize("cxx", ["no-such-compiler", "' unbalanced", " "])
def test_a_cxx_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, cxx: str) -> None:
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(BuildError):
        find_library()
