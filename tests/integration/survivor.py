"""For tests of what outlives a daemon: one after another over one directory, and what they leave in /dev/shm."""
import glob
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from harness import DATA, ELLMD, STORIES, running
from protocol import UNLOAD, Closed, Failed


def segments():
    return set(glob.glob("/dev/shm/ellm-kv.%d.*" % os.geteuid()))


def weights():
    return set(glob.glob("/dev/shm/ellm-weights.%d.*" % os.geteuid()))


def in_dev_shm_of(test, size, body):
    """What a program in Python prints whose /dev/shm is its own and holds no more. It has what harness.py has."""
    script = ("import os, sys; sys.path.insert(0, %r); os.environ.update(ELLMD=%r, ELLM_TEST_DATA=%r)\nfrom harness import *\n%s" %
              (os.path.dirname(os.path.abspath(__file__)), os.path.abspath(ELLMD), DATA, body))
    done = subprocess.run(["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=%s none /dev/shm && exec "$0" -B -c "$1"' % size,
                           sys.executable, script], capture_output=True, text=True)
    if "mount" in done.stderr:
        test.skipTest(done.stderr)
    test.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout


class Survivor(unittest.TestCase):
    """What appears in /dev/shm meanwhile goes with the test; so no two of these may run at once (CMakeLists.txt)."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name
        self.before = segments() | weights()
        self.addCleanup(lambda: [os.unlink(path) for path in (segments() | weights()) - self.before])

    def begun(self, daemon):
        """The daemon, which is stopped after the test if it still runs."""
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.stop())
        return daemon

    def kill(self, daemon):
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        daemon.log.close()


def ask_until_killed(daemon, base, rng):
    """A thread's work: answers to texts that begin like `base`, over fresh connections, until the daemon is gone."""
    try:
        while True:
            with daemon.connect() as connection:
                for _ in range(5):
                    connection.generate(tokens=base[:rng.randrange(1, 300)] + [rng.randrange(500)], max_tokens=40)
    except (OSError, Closed, Failed):
        pass


class ColdAnswers:
    """Six tokens of answer to token ids by a daemon that has nothing cached: [tokens], within a `with` block."""

    def __init__(self):
        self.daemon = running(models={"stories": STORIES}, options=["--model", "stories"])
        self.known = {}

    def __enter__(self):
        self.fresh = self.daemon.__enter__()
        return self

    def __exit__(self, *failure):
        return self.daemon.__exit__(*failure)

    def __getitem__(self, tokens):
        if tuple(tokens) not in self.known:
            with self.fresh.connect() as connection:
                connection.models(UNLOAD, "stories")     # and with it all that it had computed
                answer = connection.generate(tokens=tokens, model="stories", max_tokens=6, ignore_eos=True)
            assert answer.cached == 0, answer.cached
            self.known[tuple(tokens)] = answer.tokens
        return self.known[tuple(tokens)]
