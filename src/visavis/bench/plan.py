"""What to measure: the sweep and its rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

from visavis.bench.result import Cell, Workload
from visavis.bench.steady import Criterion
from visavis.errors import OptionError
from visavis.sampling import SamplingParams

__all__ = ["BenchPlan", "Lengths", "poisson", "sweep"]

TURNS = 4
"""Questions a user asks in a round at least: fewer would be all of them at once, with a tail."""
Lengths = Literal["fixed", "natural"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """The rules of a bench; the cells come apart. Times in seconds."""

    backends: tuple[str, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)  # without lengths
    lengths: Lengths = "fixed"
    rounds: int = 5
    latency_requests: int = 4  # one after the other in a round
    load_requests: int = 32  # in a round; of users at least, each asking `TURNS` times or more
    seed: int = 0
    repeat_prompts: bool = False  # the same prompts in every round, so that prefix and image caches may answer
    reload: bool = False  # each round starts the engine anew, one engine at a time
    criterion: Criterion = field(default_factory=Criterion)
    ttft_limit: float | None = None
    tpot_limit: float | None = None

    def requests_of_users(self, users: int) -> int:
        """In a round: as many turns for each user."""
        return users * max(TURNS, -(-self.load_requests // users))

    @property
    def goodput(self) -> bool:
        return self.ttft_limit is not None or self.tpot_limit is not None

    def sampling_of(self, cell: Cell) -> SamplingParams:
        """Fixed length: the end token is ignored and exactly `output_tokens` are asked for; natural: at most."""
        asked = {**self.sampling.asked(), "max_tokens": cell.output_tokens}
        if self.lengths == "fixed":
            asked["ignore_eos"] = True
        return SamplingParams(**asked)

    def cache(self, cell: Cell) -> str:
        """What caches may know of the prompts."""
        if cell.source != "made":
            return "repeated prompts"
        return "repeated prompts" if self.repeat_prompts else "unique prompts"

    def as_dict(self) -> dict[str, Any]:
        """For the result file."""
        plain = asdict(self)
        plain["sampling"] = self.sampling.asked()
        plain["criterion"] = {**asdict(self.criterion), "in_words": self.criterion.in_words()}
        return plain


def sweep(
    *,
    workloads: Sequence[Workload],
    images: Sequence[tuple[int, int] | None],
    prompt_tokens: Sequence[int | None],
    output_tokens: Sequence[int],
    concurrency: Sequence[int],
    rates: Sequence[float],
    users: Sequence[int] = (),
    source: str = "made",
) -> tuple[Cell, ...]:
    """Every combination, once. `concurrency` counts for throughput, `users` for users, `rates` for load. Raises
    OptionError for none."""
    cells: dict[str, Cell] = {}
    for workload in workloads:
        for image, prompt, output in product(images, prompt_tokens, output_tokens):
            common: Mapping[str, Any] = {
                "workload": workload,
                "image": image,
                "prompt_tokens": prompt,
                "output_tokens": output,
                "source": source,
            }
            if workload == "throughput":
                made = [Cell(**common, concurrency=c) for c in concurrency]
            elif workload == "users":
                made = [Cell(**common, concurrency=n) for n in users]
            elif workload == "load":
                made = [Cell(**common, rate=rate) for rate in rates]
            else:
                made = [Cell(**common)]
            cells |= {cell.id: cell for cell in made}
    if not cells:
        raise OptionError("nothing to measure: load needs --rates, users --users, throughput --concurrency")
    return tuple(cells.values())


def poisson(rate: float, requests: int, key: str) -> list[float]:
    """Arrival times from 0 on, with exponential gaps of mean 1 / `rate` seconds; an equal key gives equal times."""
    draw = random.Random(key)
    times = [0.0]
    while len(times) < requests:
        times.append(times[-1] + draw.expovariate(rate))
    return times
