"""Results in sum: percentiles, rates, fairness; as a table and as JSON."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

POINTS = (50, 90, 95, 99, 100)


@dataclass
class Result:
    """Times in seconds after the start. Delays count from when a request should have been sent, so that a generator (or a
    peer) that falls behind hides nothing."""
    number: int
    user: int
    due: float
    outcome: str = "ok"             # ok | busy | failed | cancel | disconnect | kill
    message: str = ""
    sent: float = 0
    ended: float = 0
    arrivals: list[float] = field(default_factory=list)   # of pieces of the answer
    sizes: list[int] = field(default_factory=list)        # their tokens
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def ttft(self) -> Optional[float]:
        return self.arrivals[0] - self.due if self.arrivals else None

    def time_per_token(self) -> Optional[float]:
        """Over the tokens behind the first piece."""
        rest = self.output_tokens - self.sizes[0] if self.sizes else 0
        return (self.arrivals[-1] - self.arrivals[0]) / rest if rest > 0 and len(self.arrivals) > 1 else None

    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:])]


def percentile(values: Sequence[float], point: float) -> Optional[float]:
    """Linear between the two values around it (Hyndman and Fan's type 7, numpy's default)."""
    if not values:
        return None
    ordered = sorted(values)
    at = (len(ordered) - 1) * point / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def jain(shares: Sequence[float]) -> Optional[float]:
    """Jain, Chiu, Hawe 1984: 1 where all are equal, 1/n where one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def points(values: Sequence[float]) -> dict[str, Optional[float]]:
    """Milliseconds."""
    named = {}
    for point in POINTS:
        value = percentile(values, point)
        named["max" if point == 100 else "p%d" % point] = None if value is None else round(1000 * value, 3)
    return named


def summarise(results: Sequence[Result], weights: Sequence[float], uids: Sequence[int]) -> dict[str, Any]:
    """`weights`: each user's part of the arrivals."""
    good = [result for result in results if result.outcome == "ok"]
    seconds = max((result.ended for result in results), default=0.0)
    per_second = (lambda amount: round(amount / seconds, 3)) if seconds else (lambda amount: 0.0)
    users = []
    for user in range(len(weights)):
        own = [result for result in results if result.user == user]
        ttfts = [t for result in own if result.outcome == "ok" and (t := result.ttft()) is not None]
        users.append({"uid": uids[user], "requests": len(own), "ok": sum(result.outcome == "ok" for result in own),
                      "tokens": sum(result.prompt_tokens + result.output_tokens for result in own), "ttft_ms": points(ttfts)})
    asked = [(user["tokens"], weight) for user, weight in zip(users, weights) if weight > 0]
    return {
        "requests": len(results),
        "outcomes": {name: sum(result.outcome == name for result in results)
                     for name in sorted({result.outcome for result in results}, key=lambda name: (name != "ok", name))},
        "failures": sorted({result.message for result in results if result.outcome == "failed"})[:10],
        "seconds": round(seconds, 3),
        "late_ms": points([result.sent - result.due for result in results if result.sent]),
        "ttft_ms": points([t for result in good if (t := result.ttft()) is not None]),
        "time_per_token_ms": points([t for result in good if (t := result.time_per_token()) is not None]),
        "between_tokens_ms": points([gap for result in good for gap in result.gaps()]),
        "latency_ms": points([result.ended - result.due for result in good]),
        "output_tokens": sum(result.output_tokens for result in results),
        "prompt_tokens": sum(result.prompt_tokens for result in results),
        "cached_tokens": sum(result.cached_tokens for result in results),
        "output_tokens_per_second": per_second(sum(result.output_tokens for result in results)),
        "requests_per_second": per_second(len(good)),
        "users": users,
        "jain": None if not asked else rounded(jain([tokens for tokens, _ in asked])),
        "jain_of_asked": None if not asked else rounded(jain([tokens / weight for tokens, weight in asked])),
    }


def rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 6)


def cell(value: Any) -> str:
    return "-" if value is None else "%.1f" % value if isinstance(value, float) else str(value)


def columns(rows: Sequence[Sequence[Any]]) -> str:
    texts = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts)]
    return "".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + "\n" for row in texts)


def table(summary: dict[str, Any]) -> str:
    outcomes = ", ".join("%d %s" % (count, name) for name, count in summary["outcomes"].items())
    text = "%d requests in %.1f s: %s\n" % (summary["requests"], summary["seconds"], outcomes or "none")
    text += "".join("  %s\n" % message for message in summary["failures"])
    names = [("time to first token", "ttft_ms"), ("time per output token", "time_per_token_ms"),
             ("between pieces", "between_tokens_ms"), ("whole answer", "latency_ms"), ("sent late", "late_ms")]
    heads = list(summary["ttft_ms"])
    text += "\n" + columns([["ms", *heads], *([name, *summary[key].values()] for name, key in names)])
    text += "\n%.1f output tokens/s, %.2f answers/s; %d output tokens, %d prompt tokens (%d cached)\n" % (
        summary["output_tokens_per_second"], summary["requests_per_second"], summary["output_tokens"],
        summary["prompt_tokens"], summary["cached_tokens"])
    if len(summary["users"]) > 1:
        text += "\n" + columns([["uid", "requests", "ok", "tokens", "TTFT p50", "p95"],
                                *([str(user["uid"]), user["requests"], user["ok"], user["tokens"], user["ttft_ms"]["p50"],
                                   user["ttft_ms"]["p95"]] for user in summary["users"])])
        text += "Jain's index of tokens: %s, of tokens as a part of what was asked: %s\n" % tuple(
            "-" if summary[key] is None else "%.4f" % summary[key] for key in ("jain", "jain_of_asked"))
    return text
