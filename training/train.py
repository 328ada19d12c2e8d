"""Train tiny-screen: ``python -m training.train --minutes 22``. Stops by the clock, resumes from its checkpoint.

``torchrun --nproc-per-node 2 -m training.train …`` shares the work between GPUs: each draws and answers its own
screens, the gradients are averaged, and the first one's clock decides.

Progress (learning rate, curriculum) runs over the wall-clock seconds trained so far, so that a run may be cut into
several calls: ``--minutes`` is the length of the whole training, ``--call-minutes`` that of this call.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.func import functional_call

from training import fonts
from training import tokenizer as bpe
from training.config import HELPERS, RUNS, SHAPE
from training.data import Batch, ask_about, draw, loader
from training.export import write_weights
from training.losses import WEIGHTS, Taught
from training.model import Model
from training.optim import Flat, Optimizer, rate
from training.packing import close_id, head_ids

# Figures that the log repeats for held-out screens.
PROBED = ("read", "token", "answer", "chars", "ring", "first", "count", "follow")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--minutes", type=float, default=22.0, help="length of the whole training")
    p.add_argument("--call-minutes", type=float, default=1e9, help="stop this call after so long; run again to go on")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--cells", type=int, default=16000, help="28 px cells in a batch")
    p.add_argument("--questions", type=int, default=24, help="questions a screen and batch")
    p.add_argument("--reading", type=float, default=0.65, help="share of reading questions")
    p.add_argument("--invented", type=float, default=0.6, help="share of made-up words in captions")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--adam-lr", type=float, default=1e-3)
    p.add_argument("--workers", type=int, default=14, help="processes that draw, for each GPU")
    p.add_argument("--out", type=Path, default=RUNS / "main", help="folder of the checkpoint and log")
    p.add_argument("--init", type=Path, help="start from the weights in this folder")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--report", type=int, default=100, help="steps between lines of the log")
    p.add_argument("--probe", type=int, default=1000, help="steps between figures on held-out screens")
    return p.parse_args(argv)


class Trainer:
    """Model, helpers, optimizers and clock of one run."""

    def __init__(self, o: argparse.Namespace) -> None:
        self.o = o
        self.part, self.parts = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device(o.device, self.part) if o.device == "cuda" else torch.device(o.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.parts > 1:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        torch.manual_seed(o.seed)
        self.taught = Taught(SHAPE).to(self.device)
        self.flat = Flat(self.taught)
        self.optimizer = Optimizer(self.flat)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.step, self.seconds = 0, 0.0
        vocab = bpe.load()
        self.head = torch.tensor(head_ids(vocab), device=self.device)
        self.close = close_id(vocab)

    @property
    def progress(self) -> float:
        return min(1.0, self.seconds / (self.o.minutes * 60))

    def train_step(self, batch: Batch) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """One update. Returns losses and figures as device tensors."""
        args = (batch, self.head, self.close, self.dtype)
        parts, figures = functional_call(self.taught, self.flat.cast(self.dtype), args)
        late = 0.3 if self.progress > 0.8 else 1.0
        total = torch.stack([parts[k] * (w if k in ("answer", "z") else w * late) for k, w in WEIGHTS.items()]).sum()
        total.backward()
        if self.parts > 1:
            dist.all_reduce(self.flat.value.grad)
            self.flat.value.grad.div_(self.parts)
        share = rate(self.progress)
        average = min(0.998, 1 - 10 / (self.step + 20))
        norm = self.optimizer.step(self.o.lr * share, self.o.adam_lr * share, average)
        self.step += 1
        return parts, figures | {"norm": norm}

    def agree(self, stop: bool) -> bool:
        """Wait for the GPU; all parts take the first one's clock and its decision to stop, which is returned."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if self.parts == 1:
            return stop
        told = torch.tensor([self.seconds, float(stop)], dtype=torch.float64, device=self.device)
        dist.broadcast(told, 0)
        self.seconds, stop = told[0].item(), bool(told[1].item())
        return stop

    @torch.no_grad()
    def probe(self, batch: Batch) -> dict[str, float]:
        """Figures of the averaged weights on one batch."""
        args = (batch, self.head, self.close, self.dtype)
        weights = {n: w.to(self.dtype) for n, w in self.flat.averaged().items()}
        parts, figures = functional_call(self.taught, weights, args)
        return {f"held_{k}": round(float(v), 4) for k, v in (parts | figures).items() if k in PROBED}

    def trained(self) -> Model:
        """A model with the averaged weights."""
        model = Model(SHAPE).to(self.device)
        weights = {n.removeprefix("model."): w for n, w in self.flat.averaged().items() if n.startswith("model.")}
        model.load_state_dict(weights)
        return model

    def begin(self, folder: Path) -> None:
        """Take the weights of an earlier run; the shipped folder's helpers lie in ``training/data``."""
        saved = {f"model.{k}": v for k, v in load_file(folder / "model.safetensors").items()}
        own = folder / "helpers.safetensors"
        helpers = load_file(own if own.is_file() else HELPERS)
        saved |= {f"helpers.{k}": v for k, v in helpers.items()}
        fresh = {f"helpers.{k}": v for k, v in self.taught.helpers.state_dict().items()}  # heads that are new
        flat = torch.cat([(saved.get(n, fresh.get(n))).flatten().float().to(self.device) for n in self.flat.names])
        with torch.no_grad():
            self.flat.value.copy_(flat)
            self.flat.average.copy_(flat)

    def export(self) -> None:
        """Averaged weights of model and helpers in bf16."""
        write_weights(self.o.out, self.trained())
        own = {n: w.to("cpu", torch.bfloat16) for n, w in self.flat.averaged().items() if n.startswith("helpers.")}
        save_file(
            {n.removeprefix("helpers."): w.contiguous() for n, w in own.items()}, self.o.out / "helpers.safetensors"
        )

    def save(self) -> None:
        self.o.out.mkdir(parents=True, exist_ok=True)
        state = {"optimizer": self.optimizer.state_dict(), "step": self.step, "seconds": self.seconds}
        torch.save(state, self.o.out / "next.pt")
        (self.o.out / "next.pt").replace(self.o.out / "last.pt")

    def resume(self) -> None:
        path = self.o.out / "last.pt"
        if not path.is_file():
            if self.o.init:
                self.begin(self.o.init)
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        print(f"resumed at step {self.step}, {self.seconds:.0f} s trained")


def held_out_batch(device: torch.device, screens: int = 48) -> Batch:
    """Screens of 560 px with held-out fonts, layouts and words; seeds apart from those of ``training.evaluate``."""
    rng = random.Random(0)
    return ask_about(rng, draw(rng, "eval", 650_000, screens, 20, 20), 16, 1.0).to(device)


def main(argv: list[str] | None = None) -> None:
    o = parse(argv)
    if fonts.missing():
        raise SystemExit("fonts missing: run python -m training.fonts first")
    began = time.time()
    torch.backends.cuda.matmul.allow_tf32 = True
    t = Trainer(o)
    t.resume()
    shared = multiprocessing.Value("d", t.progress)
    batches = iter(loader(o.seed + t.step, o, shared, t.part))
    held = held_out_batch(t.device) if t.part == 0 and o.probe else None
    sums: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), device=t.device))
    waited, screens, mark, last = 0.0, 0, time.time(), t.step
    o.out.mkdir(parents=True, exist_ok=True)
    log = (o.out / "log.jsonl").open("a") if t.part == 0 else None
    tick, stop = time.time(), False
    while not stop:
        w = time.time()
        batch = next(batches).to(t.device)
        waited += time.time() - w
        parts, figures = t.train_step(batch)
        screens += batch.images.shape[0] * t.parts
        for k, v in {**parts, **figures}.items():
            sums[k] += v.detach().nan_to_num()
        if t.step % 20 == 0:
            now = time.time()
            t.seconds, tick = t.seconds + now - tick, now
            stop = t.agree(t.progress >= 1 or now - began > o.call_minutes * 60)
        shared.value = t.progress
        if log and t.step % o.report == 0:
            n = t.step - last
            line: dict[str, float] = {k: round(float(v) / n, 4) for k, v in sums.items()}
            took = time.time() - mark
            line |= {"step": t.step, "progress": round(t.progress, 4), "screens_s": round(screens / took, 1)}
            line |= {"step_ms": round(took / n * 1000, 1), "waiting": round(waited / took, 3)}
            if held is not None and t.step % o.probe == 0:
                line |= t.probe(held)
            print(" ".join(f"{k} {v:g}" for k, v in line.items()), flush=True)
            log.write(json.dumps(line) + "\n")
            log.flush()
            sums.clear()
            waited, screens, mark, last = 0.0, 0, time.time(), t.step
    if t.part == 0:
        t.save()
        t.export()
        print(f"stopped at step {t.step}, {t.seconds:.0f} s trained, progress {t.progress:.3f}", flush=True)
    if t.parts > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
