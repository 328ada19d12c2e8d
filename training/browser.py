"""Plain HTML forms rendered by Chromium, the out-of-domain test: ``python -m training.browser`` writes 20 pages.

Needs Debian's chromium. Each page is opened twice, for its picture and for the boxes its own script measures.
"""

from __future__ import annotations

import html
import json
import random
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from training import words
from training.questions import GROUND, READ, ground_answer, thousandths

PAGES = Path(__file__).parent / "browser_pages"
SEED, COUNT = 770_000, 20
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
STYLES = (
    "",
    "body{font-family:sans-serif;margin:16px} input,select,button{font-size:14px;padding:4px 8px;margin:3px 0}",
    "body{font-family:sans-serif;background:#1e1f24;color:#eee;margin:20px} a{color:#8ab4f8} "
    "input,select{background:#2a2b31;color:#fff;border:1px solid #555;padding:5px} button{padding:6px 14px}",
)
MEASURE = """<script>
window.addEventListener('load', () => {
  const out = [...document.querySelectorAll('[data-name]')].map(e => {
    const r = e.getBoundingClientRect();
    return {name: e.dataset.name, text: e.dataset.text, kind: e.dataset.kind, box: [r.left, r.top, r.right, r.bottom],
            size: parseFloat(getComputedStyle(e).fontSize)};
  });
  const pre = document.createElement('pre');
  pre.id = 'measured'; pre.style.display = 'none';
  pre.textContent = JSON.stringify({width: innerWidth, height: innerHeight, elements: out});
  document.body.append(pre);
});
</script>"""


def page(seed: int) -> str:
    """One form's HTML."""
    rng = random.Random(seed)
    used: list[frozenset[str]] = []

    def caption() -> str:
        while True:
            text = rng.choice((*words.PHRASES, *words.CONCEPTS)) if rng.random() < 0.7 else words.caption(rng, "eval")
            key = words.key(text)
            if not any(key <= k or k <= key for k in used):
                used.append(key)
                return text

    def marks(name: str, text: str, kind: str) -> str:
        return f'data-name="{html.escape(name)}" data-text="{html.escape(text)}" data-kind="{kind}"'

    parts = [f"<h2>{html.escape(words.sentence(rng, 'eval', 3))}</h2>", "<form>"]
    above = rng.random() < 0.5
    for _ in range(rng.randint(4, 9)):
        name = caption()
        shown = html.escape(name)
        kind = rng.random()
        gap = "<br>" if above else " "
        if kind < 0.45:
            value = words.caption(rng, "eval") if rng.random() < 0.5 else ""
            own = f'value="{html.escape(value)}" {marks(name, value, "field")}'
            parts.append(f"<p><label>{shown}</label>{gap}<input {own}></p>")
        elif kind < 0.6:
            choice = words.caption(rng, "eval")
            options = f"<option>{html.escape(choice)}</option><option>{shown}</option>"
            parts.append(f"<p><label>{shown}</label>{gap}<select {marks(name, choice, 'field')}>{options}</select></p>")
        elif kind < 0.85:
            box = rng.choice(("checkbox", "radio"))
            parts.append(f'<p><label {marks(name, name, "check")}><input type="{box}"> {shown}</label></p>')
        else:
            parts.append(f'<p><a href="#" {marks(name, name, "link")}>{shown}</a></p>')
    for _ in range(rng.randint(1, 3)):
        name = caption()
        parts.append(f'<button type="button" {marks(name, name, "button")}>{html.escape(name)}</button>')
    style = STYLES[seed % len(STYLES)]
    body = "\n".join([*parts, "</form>"])
    return f"<!doctype html><meta charset=utf-8><style>{style}</style><body>{body}{MEASURE}</body>"


def _chromium(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", *FLAGS, f"--user-data-dir={profile}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def render() -> list[dict[str, Any]]:
    """Write pictures and ``pages.json``."""
    PAGES.mkdir(exist_ok=True)
    out = []
    for i in range(COUNT):
        rng = random.Random(SEED + i)
        size = (rng.randrange(520, 880), rng.randrange(480, 880))  # Chromium's windows are 500 px wide or more
        source = PAGES / f"{i:02d}.html"
        source.write_text(page(SEED + i))
        picture = source.with_suffix(".png")
        window = f"--window-size={size[0]},{size[1]}"
        dom = _chromium(window, "--dump-dom", source.as_uri())
        measured = json.loads(html.unescape(re.search(r'<pre id="measured"[^>]*>(.*?)</pre>', dom, re.DOTALL)[1]))  # type: ignore[index]
        view = (measured["width"], measured["height"])
        _chromium(window, f"--screenshot={picture}", source.as_uri())
        with Image.open(picture) as image:
            image.convert("RGB").crop((0, 0, *view)).save(picture)
        inside = [e for e in measured["elements"] if e["box"][3] <= view[1] and e["box"][2] <= view[0]]
        out.append({"image": picture.name, "size": view, "elements": inside})
    (PAGES / "pages.json").write_text(json.dumps(out, indent=1))
    return out


def load_pages() -> list[tuple[Image.Image, str, str, str, tuple[int, int, int, int], int]]:
    """(image, task, question, answer, box, text size) for every element of every page; empty without pages."""
    index = PAGES / "pages.json"
    if not index.is_file():
        return []
    out = []
    for number, entry in enumerate(json.loads(index.read_text())):
        rng = random.Random(SEED + number)
        image = Image.open(PAGES / entry["image"]).convert("RGB")
        for e in entry["elements"]:
            box = tuple(round(v) for v in e["box"])
            size = round(e["size"])
            frame = rng.choice(
                ("{}", "click on {}", "open {}") if e["kind"] != "field" else ("{}", "fill in {}", "type into {}")
            )
            relative = thousandths(box, *image.size)  # type: ignore[arg-type]
            asked = GROUND.format(frame.format(e["name"]))
            out.append((image, "ground", asked, ground_answer(e["name"], relative), box, size))
            if e["text"].strip():
                out.append((image, "read", READ.format(*relative), e["text"], box, size))
    return out  # type: ignore[return-value]


if __name__ == "__main__":
    rendered = render()
    print(f"{len(rendered)} pages, {sum(len(p['elements']) for p in rendered)} elements in {PAGES}")
