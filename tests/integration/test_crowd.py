"""Two hundred client processes that finish, cancel, run into deadlines, leave and are killed at random: every answer that
comes is that of the same request alone, and afterwards the daemon holds what it held before."""
import os
import random
import signal
import sys
import time
import traceback
import unittest

from harness import STORIES, needs_model, running
from protocol import *

CLIENTS = 200
SECONDS = float(os.environ.get("ELLM_CROWD_SECONDS", "15"))
FATES = ["finish"] * 6 + ["cancel"] * 3 + ["deadline"] * 3 + ["leave"] * 2 + ["kill"] * 2 + ["unread"]
PROMPTS = ["Once upon a time", "The dog", "Lily and Tom went to the park. " * 9, "One day, a little girl named Sue " * 3]


def begin(connection, key, priority=0, deadline_ms=0):
    prompt, n, seed, max_tokens = key
    options = sampling(temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True)
    return connection.begin(GENERATE, "", prompt, [], False, options, priority, deadline_ms, n)


def answers(daemon):
    """What each request gets alone."""
    keys = [(prompt, n, seed, 5 + 20 * seed) for prompt in PROMPTS for n, seed in ((1, 1), (1, 2), (1, 5), (3, 3))]
    with daemon.connect() as connection:
        return {key: [sample.tokens for sample in connection.finish_all(begin(connection, key), key[1])] for key in keys}


class Client:
    """One process."""

    def __init__(self, socket, seed, expected):
        self.socket, self.random, self.expected = socket, random.Random(seed), expected

    def run(self, until):
        while time.monotonic() < until:
            with Connection(self.socket, timeout=120) as connection:
                for _ in range(self.random.randrange(1, 5)):
                    if not self.ask(connection):
                        break

    def ask(self, connection):
        """False: this connection is not wanted any more."""
        key, fate = self.random.choice(list(self.expected)), self.random.choice(FATES)
        deadline_ms = self.random.randrange(1, 400) if fate == "deadline" else 0
        request = begin(connection, key, self.random.randrange(2), deadline_ms)
        if fate == "unread":
            time.sleep(self.random.random() / 10)
            return False
        samples, after = [[] for _ in range(key[1])], self.random.randrange(25)
        while True:
            if after == 0:
                if fate == "leave":
                    return False
                if fate == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fate == "cancel":
                    connection.begin(CANCEL, request)
                    connection.begin(CANCEL, 4_000_000_000)      # nobody's
            after -= 1
            message = connection.receive()
            if message[0] == ERROR and message[1] == request:
                assert message[2] == BUSY, message
                time.sleep(message[4] / 1000)
                return True
            if message[0] == TOKEN:
                samples[message[5]] += message[3]
            if message[0] == DONE:
                self.check(key, message, samples[message[7]])
                if message[8] == 0:
                    return True

    def check(self, key, done, tokens):
        expected = self.expected[key][done[7]]
        if done[2] in (CANCELLED, DEADLINE):
            expected = expected[:len(tokens)]
        assert tokens == expected, (key, done, tokens, expected)


def crowd(daemon, expected, seconds, seed):
    """Keeps CLIENTS processes alive that long; how many were killed."""
    until, alive, killed = time.monotonic() + seconds, set(), 0
    while alive or time.monotonic() < until:
        while len(alive) < CLIENTS and time.monotonic() < until:
            seed += 1
            pid = os.fork()
            if pid == 0:
                try:
                    Client(daemon.socket, seed, expected).run(until)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
            alive.add(pid)
        pid, status = os.wait()
        alive.discard(pid)
        killed += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or status == 0, "a client saw what it should not: see above"
    return killed


def held(daemon):
    """Descriptors, resident kilobytes."""
    with open("/proc/%d/status" % daemon.process.pid) as file:
        rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return len(os.listdir("/proc/%d/fd" % daemon.process.pid)), rss


def settle(daemon):
    """What it holds when the last connections but one are gone, which stays open meanwhile and so is always counted."""
    daemon.wait_idle()
    deadline = time.monotonic() + 30
    with daemon.connect() as connection:
        while (status := connection.status())["connections"] > 1:
            assert time.monotonic() < deadline, status
            time.sleep(0.01)
        return held(daemon)


@needs_model
class Crowd(unittest.TestCase):
    def test_nothing_is_left_of_them(self):
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon:
            expected = answers(daemon)
            crowd(daemon, expected, SECONDS / 3, 1)             # what it keeps for the next ones, it has now
            fds, rss = settle(daemon)
            killed = crowd(daemon, expected, SECONDS, 1_000_000)
            self.assertGreater(killed, 10)
            after_fds, after_rss = settle(daemon)
            self.assertEqual(after_fds, fds)
            if not daemon.is_sanitized():
                self.assertLess(after_rss, rss + 24_000)        # an allocator's slack: not what 200 clients take
            self.assertEqual(daemon.wait_idle()["requests"], [])
            self.assertEqual(answers(daemon), expected)


if __name__ == "__main__":
    unittest.main()
