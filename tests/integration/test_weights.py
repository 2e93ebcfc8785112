"""Repacked weights outlive the daemon: the same bytes over restarts and kills, never another model's, never damaged ones."""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from harness import DATA, ELLMD, STORIES, Daemon, find_real_model, needs_model, running
from protocol import *
from survivor import Survivor, in_dev_shm_of, segments, weights
from test_survival import ELLM, DescriptorStore

TOKENS = [3 + i * i % 500 for i in range(100)]
HERE = os.path.dirname(os.path.abspath(__file__))
DATA_OFFSET = 2 << 20


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@needs_model
class Weights(Survivor):
    def setUp(self):
        super().setUp()
        self.model = self.directory + "/stories-file"
        shutil.copyfile(STORIES, self.model)

    def start(self, **more):
        return self.begun(Daemon(models={"stories": self.model}, options=["--model", "stories"], directory=self.directory,
                                 keep=True, **more))

    def ask(self, daemon):
        with daemon.connect() as connection:
            return connection.generate(tokens=TOKENS, model="stories", max_tokens=8, ignore_eos=True).tokens

    def object(self):
        [path] = weights() - self.before
        return path

    def log_since(self, daemon, text):
        """What was logged since `text` was logged the last time."""
        return daemon.output().rpartition(text)[2]

    def test_restart_and_kill_find_the_same_bytes(self):
        daemon = self.start()
        cold, bytes_before, inode = self.ask(daemon), digest(self.object()), os.stat(self.object()).st_ino
        daemon.stop()
        for end in (Daemon.stop, lambda daemon: self.kill(daemon)):
            daemon = self.start()
            self.assertIn("its weights are still there", daemon.output())
            self.assertEqual(self.ask(daemon), cold)
            self.assertEqual((digest(self.object()), os.stat(self.object()).st_ino), (bytes_before, inode))
            end(daemon)

    def test_a_load_that_was_killed_leaves_nothing(self):
        real = find_real_model("qwen-0.5b", "smollm2") or STORIES
        for wait in (0.02, 0.05, 0.1, 0.2, 0.4):
            daemon = Daemon(models={"real": real}, options=["--model", "real"], directory=self.directory, keep=True,
                            wait=False)
            time.sleep(wait)                                     # any instant is good
            self.kill(daemon)
            for path in weights() - self.before:                 # it had come to its end
                os.unlink(path)
        daemon = Daemon(models={"real": real}, options=["--model", "real"], directory=self.directory, keep=True)
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.stop())
        self.assertNotIn("weights are still there", daemon.output())  # pages of prefixes may be

    def test_a_damaged_one_is_never_used(self):
        daemon = self.start()
        cold = self.ask(daemon)
        daemon.stop()
        path = self.object()
        size = os.path.getsize(path)
        fields = dict(magic=0, version=8, fingerprint_bytes=12, object_bytes=16, data_offset=24, data_bytes=32, checks_offset=40,
                      check_count=48, digest=56, pad=64, fingerprint=85, data=DATA_OFFSET + 1000, late_data=size - 9000)
        for field, offset in fields.items():
            with self.subTest(field):
                with open(self.object(), "r+b") as file:
                    file.seek(offset)
                    byte = file.read(1)
                    file.seek(offset)
                    file.write(bytes([byte[0] ^ 4]))
                inode = os.stat(path).st_ino
                daemon = self.start()
                self.assertEqual(self.ask(daemon), cold)
                self.assertRegex(daemon.output(), "are dropped: |they are loaded anew")
                daemon.stop()
                self.assertNotEqual(os.stat(path).st_ino, inode)     # the old one is gone
        for name, change in dict(shorter=lambda: os.truncate(path, size - 4096), empty=lambda: os.truncate(path, 0),
                                 longer=lambda: os.truncate(path, size + 4096),
                                 hole=lambda: (os.truncate(path, DATA_OFFSET), os.truncate(path, size))).items():
            with self.subTest(name):
                change()
                daemon = self.start()
                self.assertIn("are dropped: ", daemon.output())
                self.assertEqual(self.ask(daemon), cold)
                daemon.stop()
                self.assertEqual(os.path.getsize(path), size)

    def test_another_file_frees_the_old(self):
        daemon = self.start()
        first = self.ask(daemon)
        daemon.stop()
        inode = os.stat(self.object()).st_ino
        shutil.copyfile(DATA + "/models/stories260K-Q8_0.gguf", self.model)
        daemon = self.start()
        self.assertIn("another file's", daemon.output())
        self.assertNotEqual(os.stat(self.object()).st_ino, inode)
        second = self.ask(daemon)
        with running(models={"stories": self.model}, options=["--model", "stories"]) as fresh:
            self.assertEqual(self.ask(fresh), second)
        daemon.stop()
        shutil.copyfile(STORIES, self.model)
        daemon = self.start()
        self.assertEqual(self.ask(daemon), first)

    def test_two_daemons_do_not_share_them(self):
        daemon = self.start()
        cold = self.ask(daemon)
        other = Daemon(models={"stories": self.model}, options=["--model", "stories"], keep=True,
                       variables={"HOME": self.directory})               # the same state directory
        self.addCleanup(other.stop)
        self.assertIn("a restart will load its weights anew", other.output())
        self.assertIn("another process's", other.output())
        self.assertEqual((self.ask(other), self.ask(daemon)), (cold, cold))

    @unittest.skipUnless(ELLM, "ELLM is unset")
    def test_what_frees_them(self):
        def drop():
            done = subprocess.run([ELLM, "cache", "drop", "--weights", "--json"], capture_output=True, text=True, check=True)
            return json.loads(done.stdout)
        daemon = self.start()
        drop()                                                   # of other daemons of this user
        self.assertEqual(len(weights() - self.before), 1)        # in use
        daemon.stop()
        self.assertEqual(drop()["dropped"], 2)
        self.assertEqual(weights() - self.before, set())
        daemon = self.start()
        self.assertNotIn("still there", self.log_since(daemon, "ended"))
        with daemon.connect() as connection:
            connection.models(UNLOAD, "stories")
        self.assertEqual(weights() - self.before, set())
        daemon.stop()
        daemon = self.start()
        daemon.stop()
        self.assertEqual(len(weights() - self.before), 1)
        daemon = Daemon(models={"stories": self.model}, directory=self.directory, keep=True)    # it is there, not loaded
        self.addCleanup(daemon.stop)
        subprocess.run([ELLM, "--socket", daemon.socket, "rm", "--yes", "stories"], check=True, capture_output=True)
        self.assertEqual(weights() - self.before, set())

    def test_the_benchmark_of_starts_runs(self):
        done = subprocess.run([sys.executable, "-B", HERE + "/../../tools/start-bench", "--ellmd", ELLMD, "--repetitions", "1", "--threads",
                               "2", "--json", self.model], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        for name in ("first", "restart", "kill", "mapping", "cold", "copy"):
            self.assertGreater(figures[name], 0, name)
        self.assertEqual(weights() - self.before, set())         # it keeps its own in a store

    def test_off(self):
        daemon = Daemon(models={"stories": self.model}, options=["--model", "stories", "--memory-keep", "off"],
                        directory=self.directory, keep=True)
        self.addCleanup(daemon.stop)
        self.assertEqual(weights() - self.before, set())

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "needs root and unshare")
    def test_a_full_dev_shm_is_a_warning(self):
        printed = in_dev_shm_of(self, "500k", (
            'for held in (0, 500 << 10):\n'
            '    with open("/dev/shm/others", "wb") as file: file.write(bytes(held))\n'
            '    d = Daemon(models={"stories": %r}, options=["--model", "stories"], directory=%r, keep=True)\n'
            '    d.connect().generate(tokens=[5], model="stories", max_tokens=4)\n'
            '    d.stop()\n'
            'print(open(d.log.name).read())' % (self.model, self.directory)))
        self.assertIn("a restart will load its weights anew: /dev/shm is full", printed)
        self.assertIn("a restart will load its weights anew: weights in shared memory: memory for its header: No space left",
                      printed)

    def test_in_a_descriptor_store_as_systemd_has(self):
        with DescriptorStore(self.directory) as store:
            with store.start() as connection:
                cold = connection.generate(tokens=TOKENS, model="stories", max_tokens=8, ignore_eos=True).tokens
            [name] = [name for name in store.stored if name.startswith("ellm-weights.")]
            fd = store.stored[name]
            with self.assertRaises(PermissionError):                 # the kernel vouches for them
                os.pwrite(fd, b"x", DATA_OFFSET)
            with self.assertRaises(PermissionError):
                os.ftruncate(fd, 0)
            inode = os.fstat(fd).st_ino
            for end in (signal.SIGTERM, signal.SIGKILL):
                store.end(end)
                with store.start() as connection:
                    warm = connection.generate(tokens=TOKENS, model="stories", max_tokens=8, ignore_eos=True).tokens
                    self.assertEqual(warm, cold)
                self.assertEqual(os.fstat(store.stored[name]).st_ino, inode)
            store.end(signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
