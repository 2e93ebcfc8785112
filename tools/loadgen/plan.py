"""What is asked, of whom and when, as a function of the options and the seed alone: two targets get the same work."""
from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

FATES = ("cancel", "disconnect", "kill")
WORDS = ("a", "and", "bird", "big", "boy", "cake", "can", "dog", "day", "fast", "find", "girl", "good", "happy", "he", "house", "in",
         "it", "jump", "know", "like", "little", "mom", "new", "of", "old", "on", "park", "play", "red", "run", "said", "saw", "see",
         "she", "sun", "the", "they", "to", "toy", "tree", "very", "walk", "was", "water", "went", "with", "you")


class Mix:
    """"64", "16-128" (each as likely), or parts with weights: "32-64:0.9,2000:0.1"."""

    def __init__(self, text: str) -> None:
        self.ranges: list[tuple[int, int]] = []
        weights: list[float] = []
        for part in text.split(","):
            sizes, _, weight = part.partition(":")
            low, _, high = sizes.partition("-")
            self.ranges.append((int(low), int(high or low)))
            weights.append(float(weight or 1))
            if not 0 < self.ranges[-1][0] <= self.ranges[-1][1] or weights[-1] < 0:
                raise ValueError("'%s' is no mix such as 64, 16-128 or 32-64:0.9,2000:0.1" % text)
        self.sums = list(itertools.accumulate(weights))

    def draw(self, rng: random.Random) -> int:
        at = bisect.bisect(self.sums, rng.random() * self.sums[-1])
        return rng.randint(*self.ranges[min(at, len(self.ranges) - 1)])


@dataclass
class Request:
    number: int
    at: float               # seconds after the start
    user: int
    prompt: str
    max_tokens: int
    seed: int
    fate: str = ""          # of FATES: what its client does to it …
    fate_after: float = 0   # … so many seconds after it was sent

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Options:
    """A prompt has about as many tokens as words; the report has the exact number."""
    rate: float = 2.0                     # arrivals a second, all users together
    duration: float = 10.0                # seconds in which they arrive
    requests: int = 0                   # at most so many; 0: no limit
    seed: int = 1
    prompt_words: str = "32-64"
    max_tokens: str = "16-32"
    prefixes: int = 0                   # shared openings …
    prefix_words: int = 256             # … so long …
    prefix_share: float = 1.0             # … with which this share of the requests begins
    users: int = 1
    user_weights: tuple[float, ...] = ()   # shares of the arrivals; none: equal
    cancels: float = 0.0                  # shares of the requests
    disconnects: float = 0.0
    kills: float = 0.0
    fate_after: float = 0.5             # mean of seconds


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def arrivals(rng: random.Random, rate: float, duration: float) -> Iterator[float]:
    """A Poisson process: exponential gaps."""
    at = rng.expovariate(rate)
    while at < duration:
        yield at
        at += rng.expovariate(rate)


def make_plan(options: Options) -> list[Request]:
    """Every property has a random stream of its own, so that changing one leaves the others as they are."""
    streams = {name: random.Random("%d %s" % (options.seed, name)) for name in ("at", "user", "prompt", "tokens", "prefix", "fate")}
    prompts, tokens = Mix(options.prompt_words), Mix(options.max_tokens)
    prefixes = [words(random.Random("%d prefix %d" % (options.seed, i)), options.prefix_words) for i in range(options.prefixes)]
    if not 0 < options.rate < math.inf or not 0 < options.duration < math.inf or options.users < 1:
        raise ValueError("rate and duration are numbers above 0, and there is one user at least")
    weights = options.user_weights or (1.0,) * options.users
    if len(weights) != options.users or min(weights) < 0 or sum(weights) <= 0:
        raise ValueError("%d weights for %d users" % (len(weights), options.users))
    shares = (options.cancels, options.disconnects, options.kills)
    if min(shares) < 0 or sum(shares) > 1:
        raise ValueError("the shares of cancels, disconnects and kills are from 0 to 1 together")
    plan: list[Request] = []
    for at in arrivals(streams["at"], options.rate, options.duration):
        if options.requests and len(plan) == options.requests:
            break
        prompt = words(streams["prompt"], prompts.draw(streams["prompt"]))
        shared, which = streams["prefix"].random() < options.prefix_share, streams["prefix"].random()
        if prefixes and shared:
            prompt = prefixes[int(which * len(prefixes))] + " " + prompt
        user = streams["user"].choices(range(options.users), weights)[0]
        fate = streams["fate"].choices((*FATES, ""), (*shares, 1 - sum(shares)))[0]
        after = streams["fate"].expovariate(1 / options.fate_after) if options.fate_after > 0 else 0.0
        plan.append(Request(len(plan), at, user, prompt, tokens.draw(streams["tokens"]), len(plan) + 1, fate, after if fate else 0))
    return plan
