"""A load generator for ellmd and for any endpoint with OpenAI's API: requests arrive at their own times (a Poisson
process), whether or not earlier ones have been answered.

  python3 tools/loadgen --rate 5 --duration 30                                       the local ellmd
  python3 tools/loadgen --url http://127.0.0.1:8080/v1 --rate 5 --duration 30        the same work for another server
  python3 tools/loadgen --prompt-words 32-64:0.9,2000:0.1 --max-tokens 16-128        mixes of lengths
  python3 tools/loadgen --prefixes 4 --prefix-words 1000                             requests that begin alike
  python3 tools/loadgen --users 2 --user-weights 20,1                                as root: two uids, one floods
  python3 tools/loadgen --cancels 0.1 --disconnects 0.1 --kills 0.05                 clients that do not wait
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any

import plan
import report
import targets
import users

FIRST_UID = 61000       # of nobody, on Debian (Policy, 9.2.2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 tools/loadgen", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = plan.Options()
    target = parser.add_argument_group("target")
    target.add_argument("--url", help="an OpenAI endpoint, such as http://127.0.0.1:8080/v1; its key: $OPENAI_API_KEY")
    target.add_argument("--socket", help="ellmd's socket; default: as for every client")
    target.add_argument("--model", default="", help="default: the server's")
    target.add_argument("--chat", action="store_true", help="chats instead of plain completions")
    target.add_argument("--temperature", type=float, default=0.0)
    target.add_argument("--ignore-eos", action="store_true", help="every answer has as many tokens as were asked for")
    target.add_argument("--timeout", type=float, default=600, help="seconds for an answer (default 600)")
    work = parser.add_argument_group("work; the same options give the same work")
    helps = {"rate": "arrivals a second", "duration": "seconds in which they arrive", "requests": "at most so many",
             "seed": "of everything random", "prompt_words": "a mix: 64, 16-128, or 32-64:0.9,2000:0.1",
             "max_tokens": "a mix", "prefixes": "shared openings of prompts", "prefix_words": "their length",
             "prefix_share": "how many of the requests have one", "users": "processes, as root each with a uid of its own",
             "cancels": "share of requests that are cancelled", "disconnects": "share whose connection is closed",
             "kills": "share whose process is killed", "fate_after": "mean of the seconds until then"}
    for name, text in helps.items():
        default = getattr(defaults, name)
        work.add_argument("--" + name.replace("_", "-"), type=type(default), default=default,
                          help="%s (default %s)" % (text, default))
    work.add_argument("--user-weights", default="", help="shares of the arrivals, such as 20,1 (default: equal)")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    return parser.parse_args()


def make_target(given: dict[str, Any]) -> users.Target:
    rest = (given["model"], given["chat"], given["temperature"], given["ignore_eos"])
    return targets.OpenAi(given["url"], *rest) if given["url"] else targets.Ellmd(given["socket"], *rest)


def main() -> None:
    options = arguments()
    given = vars(options)
    weights = tuple(float(weight) for weight in options.user_weights.split(",")) if options.user_weights else ()
    try:
        work = plan.Options(user_weights=weights, **{field.name: given[field.name] for field in dataclasses.fields(plan.Options)
                                                     if field.name != "user_weights"})
        requests = plan.make_plan(work)
        if options.url:
            make_target(given)
    except ValueError as error:
        sys.exit("loadgen: %s" % error)
    root = os.geteuid() == 0 and options.users > 1
    if options.users > 1 and not root:
        print("loadgen: not root: all users have one uid", file=sys.stderr)
    uids = [FIRST_UID + user if root else os.getuid() for user in range(options.users)]
    results = users.run_users(lambda: make_target(given), requests, uids, options.timeout)
    summary = report.summarise(results, weights or (1.0,) * options.users, uids)
    print(json.dumps(summary, indent=2) if options.json else report.table(summary), end="\n" if options.json else "")


if __name__ == "__main__":
    main()
