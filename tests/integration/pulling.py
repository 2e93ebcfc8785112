"""What the tests of `ellm pull` share: files to pull, and a case that runs it against a folder of its own."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest

from gguf import minimal
from harness import environment

PULL = os.environ.get("ELLM_PULL", "build/release/bin/ellm-pull")
USAGE, DATAERR, NOINPUT, UNAVAILABLE, CANTCREAT, IOERR, TEMPFAIL, NOPERM, INTERRUPTED = (
    64,
    65,
    66,
    69,
    73,
    74,
    75,
    77,
    130,
)
MODEL = minimal(200_000)  # 800 KB
OTHER = minimal(190_000)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Pull(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ellm")
        self.addCleanup(shutil.rmtree, self.dir)

    def start(self, *arguments, env=None, directory=None, prefix=(), **options):
        command = [*prefix, PULL, "--dir", directory or self.dir, *arguments]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=options.pop("stderr", subprocess.PIPE),
            stdin=subprocess.DEVNULL,
            text=True,
            env={**environment(self.dir), **(env or {})},
            **options,
        )

    def pull(self, *arguments, **options):
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def works(self, *arguments, **options):
        code, out, err = self.pull(*arguments, **options)
        self.assertEqual(code, 0, err)
        return out.strip(), err

    def fails(self, code, *arguments, says=(), **options):
        got, out, err = self.pull(*arguments, **options)
        self.assertEqual(got, code, err)
        self.assertEqual(out, "")
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertTrue(err.startswith("ellm pull: "), err)
        for part in says:
            self.assertIn(part, err)
        return err

    def visible(self):
        return sorted(name for name in os.listdir(self.dir) if not name.startswith("."))

    def hidden(self):
        return sorted(name for name in os.listdir(self.dir) if name.startswith(".pull"))

    def holds(self, name, data):
        with open(os.path.join(self.dir, name), "rb") as file:
            self.assertEqual(file.read() == data, True, name + " holds other bytes")
