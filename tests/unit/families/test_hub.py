"""From names to folders: local ones without network, hub ids through a little hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from visavis.errors import ModelError
from visavis.families.hub import BUNDLED, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "qwen2", "max_position_embeddings": 64}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"w" * (60 * 2**20),
    "original/consolidated.00.pth": b"other runtime",
    "model.gguf": b"other runtime",
}


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub's protocol: model info, file heads and bodies (with ranges)."""

    log: list[str]

    def do_HEAD(self) -> None:
        self.respond(body=False)

    def do_GET(self) -> None:
        self.respond(body=True)

    def respond(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/tiny/model"):
            kind = path.removeprefix("/api/models/tiny/model").split("/")
            files = [{"rfilename": n, "size": len(c)} for n, c in FILES.items()]
            info: Any = {"id": "tiny/model", "sha": COMMIT, "siblings": files, "private": False}
            if "tree" in kind:
                info = [{"type": "file", "path": n, "size": len(c), "oid": digest(c)} for n, c in FILES.items()]
            self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body)
        elif path.startswith("/tiny/model/resolve/"):
            name = path.split("/", 5)[5]
            if name not in FILES:
                self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
                return
            if body:
                self.log.append(name)
            headers = {"ETag": f'"{digest(FILES[name])}"', "X-Repo-Commit": COMMIT}
            self.send(200, FILES[name], headers, body)
        else:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)

    def send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:40]


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """(endpoint, names of the files whose bodies were sent)."""
    sent: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("LoggedHub", (Hub,), {"log": sent}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()
    server.server_close()


def run(code: str, cache: Path, endpoint: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: huggingface_hub reads its settings once, at import."""
    names = {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    program = f"from visavis.errors import ModelError\nfrom visavis.families.hub import *\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=clean | names | environment, timeout=120
    )


SMALL = (
    "f = resolve_model('tiny/model'); print(f.model_type, f.name, f.repo_id, sorted(p.name for p in f.path.iterdir()))"
)
LARGE = "f = resolve_model('tiny/model', weights=True); print((f.path / 'model.safetensors').stat().st_size)"
REFUSED = "try:\n    resolve_model({!r}, weights={})\nexcept ModelError as error:\n    print('refused:', error)"


def test_small_files_first_weights_when_asked_and_offline_afterwards(hub: Any, tmp_path: Path) -> None:
    endpoint, sent = hub
    small = run(SMALL, tmp_path, endpoint)
    assert small.stdout.split() == [
        "qwen2", "tiny/model", "tiny/model", "['chat_template.jinja',", "'config.json',", "'tokenizer_config.json']",
    ], small.stderr  # fmt: skip
    assert sorted(sent) == ["chat_template.jinja", "config.json", "tokenizer_config.json"]
    assert "downloading" not in small.stderr

    offline = run(REFUSED.format("tiny/model", True), tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert "refused: tiny/model: the weights are not in the cache and the hub cannot be reached" in offline.stdout

    large = run(LARGE, tmp_path, endpoint)
    assert large.stdout.strip() == str(60 * 2**20), large.stderr
    assert "tiny/model: downloading 0.1 GiB of weights to " in large.stderr
    assert sent.count("model.safetensors") == 1
    assert not any("original" in name or "gguf" in name for name in sent)

    again = run(LARGE, tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert again.stdout.strip() == str(60 * 2**20), again.stderr
    assert sent.count("model.safetensors") == 1


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(tmp_path: Path) -> None:
    for environment in ({"HF_HUB_OFFLINE": "1"}, {}):
        done = run(REFUSED.format("tiny/model", False), tmp_path, "http://127.0.0.1:9", **environment)
        lines = done.stdout.strip().splitlines()
        assert len(lines) == 1, done.stdout + done.stderr
        assert lines[0].startswith(
            "refused: tiny/model: no folder here, not in the cache and the hub cannot be reached"
        )
        assert lines[0].endswith("connect once, or give a local folder (count and plan need no weights in it)")


def test_an_unknown_hub_id_is_told(hub: Any, tmp_path: Path) -> None:
    done = run(REFUSED.format("nobody/nothing", False), tmp_path, hub[0])
    assert "refused: nobody/nothing: no folder here and no such model on the hub" in done.stdout, done.stderr


def test_nothing_means_the_bundled_model() -> None:
    for name in (None, BUNDLED):
        folder = resolve_model(name)
        assert folder.name == BUNDLED
        assert folder.has("config.json")
        assert folder.repo_id is None


def test_a_local_folder_wins_and_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/name", weights=True).path == Path("owner/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/owner/name").path == tmp_path / "owner" / "name"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./models/qwen", r"no folder '\./models/qwen' here, and it is not a hub id"),
        ("/nowhere/at/all", r"no folder '/nowhere/at/all' here, and it is not a hub id \(owner/name\)"),
        ("qwen2", r"no folder 'qwen2' here, and it is not a hub id"),
        ("a/b/c", r"not a hub id"),
        ("mymodle", r"did you mean mymodel\?"),
        ("tiny-scren", r"did you mean tiny-screen\?"),
        ("weights.gguf", r"weights\.gguf is a file; give the model's folder \(GGUF"),
        ("empty", r"empty: config\.json is missing in empty"),
        ("", r"name is empty"),
    ],
)
def test_names_that_are_nothing_get_the_right_hint(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=message):
        resolve_model(name)


def test_a_name_too_long_for_a_folder_is_one_error() -> None:
    with pytest.raises(ModelError, match="cannot be read: File name too long") as caught:
        resolve_model("a" * 5000)
    assert len(str(caught.value)) < 200
