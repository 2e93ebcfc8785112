"""The users: a process each, under a uid of its own where root starts them. A process holds its results until it ends, so
that writing them disturbs no measurement."""
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Union

from plan import Request
from report import Result
from targets import Ellmd, OpenAi, Refused, Usage

Target = Union[Ellmd, OpenAi]


async def ask(target: Target, request: Request, result: Result, clock: Callable[[], float]) -> None:
    async with aclosing(target.ask(request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Usage):
                result.prompt_tokens, result.cached_tokens, result.output_tokens = piece.prompt, piece.cached, piece.output
            else:
                result.arrivals.append(clock())
                result.sizes.append(piece)
                result.output_tokens += piece


async def ask_in_vain(make: Callable[[], Target], request: Request) -> None:
    target = make()
    with contextlib.suppress(Refused):
        await ask(target, request, Result(request.number, request.user, 0), time.monotonic)
    await target.close()


async def ask_killed(make: Callable[[], Target], request: Request) -> None:
    """In a process of its own, which is killed where it has not ended before."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(ask_in_vain(make, request))     # the parent's loop is not this process's
        finally:
            os._exit(0)
    await asyncio.sleep(request.fate_after)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def one(make: Callable[[], Target], target: Target, request: Request, timeout: float,
              clock: Callable[[], float]) -> Result:
    """A fate that comes after the answer has no effect."""
    result = Result(request.number, request.user, request.at)
    await asyncio.sleep(request.at - clock())
    result.sent = clock()
    try:
        if request.fate == "kill":
            result.outcome = "kill"
            await ask_killed(make, request)
        else:
            await asyncio.wait_for(ask(target, request, result, clock), request.fate_after if request.fate else timeout)
    except asyncio.TimeoutError:
        result.outcome = request.fate or "failed"
        result.message = "" if request.fate else "no whole answer in %g s" % timeout
    except Refused as error:
        result.outcome, result.message = "busy" if error.busy else "failed", str(error)
    except Exception as error:                          # a bug of ours, or an answer of an unknown kind
        result.outcome, result.message = "failed", "%s: %s" % (type(error).__name__, error)
    result.ended = clock()
    return result


async def run_user(make: Callable[[], Target], plan: Sequence[Request], timeout: float, start: float) -> list[Result]:
    def clock() -> float:
        return time.monotonic() - start
    target = make()
    try:
        return await asyncio.gather(*(one(make, target, request, timeout, clock) for request in plan))
    finally:
        await target.close()


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def run_users(make: Callable[[], Target], plan: Sequence[Request], uids: Sequence[int], timeout: float) -> list[Result]:
    """Forks a process per user; all start by one clock."""
    start = time.monotonic() + 0.1 + 0.02 * len(uids)
    readers = []
    for user, uid in enumerate(uids):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                if uid != os.getuid():
                    become(uid)
                own = [request for request in plan if request.user == user]
                results = asyncio.run(run_user(make, own, timeout, start))
                with os.fdopen(writer, "w") as file:
                    json.dump([asdict(result) for result in results], file)
                code = 0
            except Exception as error:
                print("loadgen: user %d: %s: %s" % (uid, type(error).__name__, error), file=sys.stderr)
            finally:
                os._exit(code)
        os.close(writer)
        readers.append((reader, pid))
    results, failed = [], False
    for reader, pid in readers:
        with os.fdopen(reader) as file:
            text = file.read()
        failed |= os.waitpid(pid, 0)[1] != 0
        results += [Result(**each) for each in json.loads(text)] if text else []
    if failed:
        sys.exit("loadgen: a user's process failed")
    return sorted(results, key=lambda result: result.number)
