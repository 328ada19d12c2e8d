"""Random requests and aborts for a while: memory stays flat, every block comes home, no request is lost.

    python benchmarks/soak.py [--minutes 20] [--clients 10] [--seed 0] [-m FOLDER] [--out result.json]

Clients, half of them threads and half asyncio tasks, submit requests of random length, with and without images, greedy
and sampled, of random priority, to one `AsyncNativeEngine`, and abort a fifth of them: at once, in the middle, or by
walking away. The engine has few blocks, a small encoder cache and a short queue, so that preemption, eviction and
back-pressure happen all the time. Every so often a request of known answer is asked. The record holds what happened,
resident memory once a second, and a verdict; the exit code is 1 when it is not kept:

- each request ended exactly once, as its client expected; the known answers came;
- at the end nothing runs or waits and all blocks are free;
- resident memory over the run, its first fifth left out, stays within 5 % of its median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from visavis.chat.types import Conversation, Image, Message, Text
from visavis.engine import AsyncNativeEngine, EngineConfig, NativeEngine, RequestStream
from visavis.errors import QueueFullError
from visavis.families import Family, load_family
from visavis.prompt import Prompt
from visavis.report.machine import describe
from visavis.sampling import ResolvedSampling

FLAT = 0.05
WARM_UP = 0.2  # of the time: caches fill, the allocator finds its size
ABORTED = 0.2
TEXT = "where is the search button please read this line and tell what it says about my open windows now"
WORDS = TEXT.split()


def main() -> None:
    arguments = parse()
    family = load_family(arguments.model)
    config = EngineConfig(
        num_blocks=arguments.blocks,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        encoder_cache_bytes=512 << 10,
        threads=arguments.threads,
    )
    loaded = NativeEngine(Path(family.folder.path), family.folder.config, config)
    engine = AsyncNativeEngine(loaded, max_waiting=3)
    load = Load(engine, family, arguments.seed, time.monotonic() + 60 * arguments.minutes)
    memory = Memory()
    started = time.time()
    load.run(arguments.clients, memory)
    left = engine.statistics()
    blocks_free = loaded.pool.num_free
    engine.close()
    verdict = load.verdict() | memory.verdict()
    verdict["nothing left"] = left.running == left.waiting == left.preparing == 0
    verdict["all blocks free"] = blocks_free == loaded.pool.num_blocks
    record = {
        "command": ["python", "benchmarks/soak.py", *sys.argv[1:]],
        "machine": describe(),
        "kernels": loaded.kernels,
        "minutes": round((time.time() - started) / 60, 2),
        "verdict": verdict,
        "requests": dict(load.counts),
        "known_answers": load.known,
        "errors": load.errors[:20],
        "engine": left.as_dict(),
        "memory": memory.summary(),
        "rss_mib_every_10_s": [round(mib, 1) for mib in memory.rss_mib[::10]],
    }
    text = json.dumps(record, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(json.dumps({k: record[k] for k in ("minutes", "verdict", "requests", "known_answers", "memory")}, indent=1))
    sys.exit(0 if all(verdict.values()) else 1)


class Memory:
    """Resident memory of this process, once a second."""

    def __init__(self) -> None:
        self.rss_mib: list[float] = []

    def sample(self) -> None:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        self.rss_mib.append(pages * 4096 / 2**20)

    def _counted(self) -> list[float]:
        return self.rss_mib[int(len(self.rss_mib) * WARM_UP) :]

    def summary(self) -> dict[str, float]:
        counted = self._counted()
        slope, _ = statistics.linear_regression(range(len(counted)), counted)
        middle = statistics.median(counted)
        return {
            "median_mib": round(middle, 1),
            "lowest": round(min(counted) / middle - 1, 4),
            "highest": round(max(counted) / middle - 1, 4),
            "slope_mib_per_minute": round(60 * slope, 3),
        }

    def verdict(self) -> dict[str, bool]:
        summary = self.summary()
        return {"memory flat": max(-summary["lowest"], summary["highest"]) <= FLAT}


class Load:
    """The clients, and what they saw."""

    def __init__(self, engine: AsyncNativeEngine, family: Family, seed: int, until: float) -> None:
        self.engine = engine
        self.family = family
        self.seed = seed
        self.until = until
        self.counts: Counter[str] = Counter()
        self.known = {"asked": 0, "right": 0}
        self.errors: list[str] = []
        self._lock = threading.Lock()
        draw = random.Random(seed)
        self.images = [self._image(draw) for _ in range(40)]  # some come again, so that caches have something to find
        self.probe = self._prompt("what does this screen show", [self.images[0]]), ResolvedSampling(max_tokens=24)
        self.answer: list[int] | None = None

    def run(self, clients: int, memory: Memory) -> None:
        self.answer = [token for output in self.engine.submit(*self.probe) for token in output.token_ids]
        threads = [threading.Thread(target=self._guarded, args=(self._threads_client, i)) for i in range(clients // 2)]
        threads.append(threading.Thread(target=self._guarded, args=(self._loops_clients, clients - clients // 2)))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            memory.sample()
            time.sleep(1)

    def verdict(self) -> dict[str, bool]:
        ended = self.counts["finished"] + self.counts["aborted"] + self.counts["finished before the abort"]
        return {
            "no request lost": ended == self.counts["submitted"] and not self.errors,
            "known answers right": self.known["asked"] == self.known["right"] > 0,
        }

    # ---- requests ----------------------------------------------------------------------------------------------

    @staticmethod
    def _image(draw: random.Random) -> Image:
        noise = np.random.default_rng(draw.getrandbits(32))
        height, width = draw.randrange(2, 9) * 28, draw.randrange(2, 9) * 28
        return Image(noise.integers(0, 256, (height, width, 3), dtype=np.uint8))

    def _prompt(self, text: str, images: list[Image]) -> Prompt:
        return self.family.prepare(Conversation((Message("user", (*images, Text(text))),)))

    def _request(self, draw: random.Random) -> Callable[[], tuple[Prompt, ResolvedSampling]]:
        text = " ".join(draw.choices(WORDS, k=draw.choice([3, 10, 40, 120])))
        images = draw.choices([*self.images, self._image(draw)], k=draw.choice([0, 0, 1, 1, 2]))
        sampling = ResolvedSampling(
            max_tokens=draw.choice([1, 8, 32, 128]),
            temperature=draw.choice([0.0, 0.9]),
            top_p=draw.choice([1.0, 0.9]),
            repetition_penalty=draw.choice([1.0, 1.1]),
            seed=draw.getrandbits(30),
            eos_token_ids=self.family.eos_token_ids,
            ignore_eos=draw.random() < 0.3,
        )
        return lambda: (self._prompt(text, images), sampling)

    def _count(self, *what: str) -> None:
        with self._lock:
            self.counts.update(what)

    def _over(self) -> bool:
        return time.monotonic() >= self.until or bool(self.errors)

    def _guarded(self, client: Callable[[int], None], number: int) -> None:
        try:
            client(number)
        except BaseException as error:
            self.errors.append(f"{client.__name__}: {type(error).__name__}: {error}")

    def _check(self, stream: RequestStream, tokens: list[int], reason: str | None, plan: str) -> None:
        """Each stream must have ended, once, and as planned."""
        if reason == "abort" and plan != "read":
            self._count("aborted")
        elif reason in ("stop", "length"):
            self._count("finished" if plan == "read" else "finished before the abort")
        else:
            self.errors.append(f"{stream.request_id} ({plan}) ended with {reason} after {len(tokens)} tokens")

    # ---- clients -----------------------------------------------------------------------------------------------

    def _threads_client(self, number: int) -> None:
        draw = random.Random(f"{self.seed}/thread/{number}")
        while not self._over():
            if draw.random() < 0.05:
                self._ask_probe()
                continue
            make, plan = self._request(draw), self._plan(draw)
            try:
                stream = self.engine.submit_from(
                    make, priority=draw.choice([-1, 0, 0, 0, 3]), wait_s=draw.choice([0.0, None])
                )
            except QueueFullError:
                self._count("turned away")
                time.sleep(draw.random() / 5)
                continue
            self._count("submitted")
            tokens: list[int] = []
            reason, patience = None, draw.randrange(0, 20)
            if plan == "abort at once":
                stream.abort()
            for output in stream:
                tokens += output.token_ids
                reason = output.finish_reason
                if plan == "abort in the middle" and len(tokens) >= patience:
                    stream.abort()
                if draw.random() < 0.002:
                    time.sleep(0.3)  # a slow reader
            self._check(stream, tokens, reason, plan)

    def _ask_probe(self) -> None:
        answer = [token for output in self.engine.submit(*self.probe, wait_s=None) for token in output.token_ids]
        with self._lock:
            self.known["asked"] += 1
            self.known["right"] += answer == self.answer

    def _loops_clients(self, count: int) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._tasks_client(i) for i in range(count)))

        asyncio.run(all_of_them())

    async def _tasks_client(self, number: int) -> None:
        draw = random.Random(f"{self.seed}/task/{number}")
        while not self._over():
            make, plan = self._request(draw), self._plan(draw)
            async with await self.engine.submit_from_async(make, priority=draw.choice([0, 1])) as stream:
                self._count("submitted")
                tokens: list[int] = []
                reason, patience = None, draw.randrange(0, 20)
                async for output in stream:
                    tokens += output.token_ids
                    reason = output.finish_reason
                    if plan != "read" and len(tokens) >= patience:
                        break  # walks away: leaving the stream aborts it
            if reason is None:
                reason = [output.finish_reason async for output in stream][-1]
            self._check(stream, tokens, reason, plan)

    @staticmethod
    def _plan(draw: random.Random) -> str:
        return draw.choice(["abort at once", "abort in the middle"]) if draw.random() < ABORTED else "read"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--blocks", type=int, default=40, help="KV blocks of 16 tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-m", "--model", default=None, help="default: the bundled model")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
