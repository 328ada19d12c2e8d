"""The figures of a request, by definitions that are printed with every report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from visavis.bench.result import RequestRecord

__all__ = ["DEFINITIONS", "deliveries", "e2e", "itl", "tokens_per_delivery", "tpot", "ttft"]

DEFINITIONS = {
    "TTFT": "time to first token: from submission (under load: from the arrival; of a user: from the end of the last "
    "answer) to the first token; the image is prepared before",
    "TPOT": "time per output token: (last − first token time) / (tokens − tokens of the first delivery)",
    "ITL": "inter-token latency: the gap between two deliveries of one answer; a delivery is what came at one instant, "
    "one token or a chunk of several",
    "E2E": "end to end: from submission (or arrival) to the last token",
    "tokens/s": "output tokens of a round / (last token of the round − its first submission); failed requests never "
    "count",
    "goodput": "requests a second that kept every limit given (--ttft, --tpot), over the same time",
    "client": "the same as this process saw it, transfer between the processes included; all else is stamped where the "
    "engine runs",
    "p50, p90, p99": "over all requests of all timed rounds, nearest rank; below 100 values p99 is the slowest",
    "spread": "quartiles of the rounds' own figures (the extremes below 4 rounds)",
}


def ttft(request: RequestRecord) -> float | None:
    return request.token_times_s[0] if request.token_times_s else None


def e2e(request: RequestRecord) -> float | None:
    return request.token_times_s[-1] if request.token_times_s else None


def deliveries(times: Sequence[float]) -> list[tuple[float, int]]:
    """(time, how many tokens came then)."""
    return [(time, sum(1 for _ in group)) for time, group in groupby(times)]


def tpot(request: RequestRecord) -> float | None:
    """Tokens of the first delivery came for free, so an engine that answers in chunks is not flattered. A server that
    gives text and no ids does not say how many tokens a piece has: the first is then counted as one."""
    times = request.token_times_s
    if not times or times[-1] <= times[0]:
        return None
    first = deliveries(times)[0][1] if request.counted_by == "ids" else 1
    later = request.tokens - first
    return (times[-1] - times[0]) / later if later > 0 else None


def itl(request: RequestRecord) -> list[float]:
    times = [time for time, _ in deliveries(request.token_times_s)]
    return [b - a for a, b in pairwise(times)]


def tokens_per_delivery(request: RequestRecord) -> float | None:
    """Mean; None where the tokens of a piece are not known."""
    found = deliveries(request.token_times_s)
    return request.tokens / len(found) if found and request.counted_by == "ids" else None
