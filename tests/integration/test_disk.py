"""Prefixes on disk: after a reboot or `systemctl stop` (the memory is gone) they are read, to the bit; killed at any instant
nothing is wrong; a full, forbidden or damaged disk costs time alone."""
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from harness import STORIES, Daemon, needs_model
from protocol import *
from survivor import ColdAnswers, ask_until_killed, segments

ROUNDS = int(os.environ.get("ELLM_KILLS", "30"))


def tokens_of(count, salt=0):
    return [3 + (i * i + salt * i) % 500 for i in range(count)]


@needs_model
class Disk(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name
        self.prefixes = self.directory + "/.local/state/ellm/prefixes"
        self.segments, self.before = set(), segments()
        self.addCleanup(self.reboot)

    def start(self, disk="1G", config="", **more):
        options = ["--model", "stories", "--memory-keep", "off"] + (["--cache-disk", disk] if disk else [])
        daemon = Daemon(options=options, config=config, keep=True,
                        **{"models": {"stories": STORIES}, "directory": self.directory, **more})
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.stop())
        try:
            with open("/proc/%d/maps" % daemon.process.pid) as maps:
                self.segments |= set(re.findall("/dev/shm/ellm-kv.*", maps.read()))
        except PermissionError:                                  # who is not root may not look into it
            self.segments |= segments() - self.before
        return daemon

    def reboot(self):
        """All memory goes."""
        for path in self.segments:
            if os.path.exists(path):
                os.unlink(path)

    def ask(self, daemon, tokens, count=8):
        with daemon.connect() as connection:
            return connection.generate(tokens=tokens, max_tokens=count, ignore_eos=True)

    def files(self):
        return sorted(glob.glob(self.prefixes + "/*.kv"))

    def test_after_a_reboot_prefixes_come_from_disk(self):
        tokens = tokens_of(1000)
        daemon = self.start()
        cold = self.ask(daemon, tokens)
        self.assertEqual((cold.cached, cold.disk), (0, 0))
        daemon.stop()
        self.reboot()
        self.assertTrue(self.files())
        for path in self.files():
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(self.prefixes).st_mode & 0o777, 0o700)
        daemon = self.start()
        warm = self.ask(daemon, tokens)
        self.assertEqual((warm.cached, warm.disk, warm.tokens), (999, 999, cold.tokens))
        again = self.ask(daemon, tokens)
        self.assertEqual((again.cached, again.disk, again.tokens), (999, 0, cold.tokens))
        with daemon.connect() as connection:
            disk = connection.status()["disk"]
        self.assertGreater(disk["bytes"], 600_000)
        self.assertEqual((disk["budget_bytes"], disk["pages_read"], disk["pages_damaged"], disk["writing"]), (1 << 30, 32, 0, True))
        daemon.stop()
        daemon = self.start()                                    # memory is there, and goes before the disk
        kept = self.ask(daemon, tokens)
        self.assertEqual((kept.cached, kept.disk, kept.tokens), (999, 0, cold.tokens))

    def test_off_is_off(self):
        for config in ('[cache]\ndisk = "off"\n', '[kv]\nkeep = "off"\n'):
            daemon = self.start(disk=None, config=config)
            self.ask(daemon, tokens_of(300))
            with daemon.connect() as connection:
                self.assertEqual(connection.status()["disk"]["budget_bytes"], 0)
            daemon.stop()
            self.reboot()
            self.assertFalse(os.path.exists(self.prefixes))

    def test_damaged_and_old_files_are_skipped(self):
        daemon = self.start()
        cold = [self.ask(daemon, tokens_of(400, salt)) for salt in range(4)]
        daemon.stop()
        self.reboot()
        files = self.files()
        self.assertEqual(len(files), 4)
        for path, offset in zip(files, (50, 8, -100, None)):     # header, layout version, payload, cut
            with open(path, "r+b") as file:
                if offset is None:
                    file.truncate(5000)
                    continue
                file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 4]))
        daemon = self.start()
        for salt in range(4):
            answer = self.ask(daemon, tokens_of(400, salt))
            self.assertEqual(answer.tokens, cold[salt].tokens)
            self.assertLess(answer.cached, 399)
        output = daemon.output()
        self.assertEqual(output.count("files skipped: 2 damaged (removed), 1 of another layout version"), 1, output)
        self.assertEqual(output.count("was damaged"), 1, output)
        with daemon.connect() as connection:
            status = connection.status()
        self.assertEqual(status["disk"]["files_skipped"], 3)
        self.assertTrue(any("files skipped" in warning for warning in status["warnings"]))

    @unittest.skipUnless(os.geteuid() == 0, "a file system of a few pages is root's to mount")
    def test_a_full_disk(self):
        os.makedirs(self.prefixes)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", self.prefixes], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("no mounts here")
        self.addCleanup(lambda: subprocess.run(["umount", self.prefixes], check=True))
        daemon = self.start()
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.stop())
        cold = [self.ask(daemon, tokens_of(300, salt)) for salt in range(3)]
        daemon.stop()
        self.assertEqual(daemon_log(self.directory).count("not written to disk any more: %s: No space left" % self.prefixes), 1)
        self.reboot()
        daemon = self.start()
        for salt in range(3):
            self.assertEqual(self.ask(daemon, tokens_of(300, salt)).tokens, cold[salt].tokens)
        daemon.stop()

    def test_no_rights(self):
        os.makedirs(os.path.dirname(self.prefixes))
        with open(self.prefixes, "w"):                           # root may write everywhere, but not into a file
            pass
        daemon = self.start()
        cold = self.ask(daemon, tokens_of(300))
        self.assertEqual(self.ask(daemon, tokens_of(300)).cached, 299)
        self.assertEqual(daemon.output().count("prefixes are not kept on disk: %s: Not a directory" % self.prefixes), 1)
        with daemon.connect() as connection:
            self.assertTrue(any("not kept on disk" in warning for warning in connection.status()["warnings"]))
        daemon.stop()
        daemon = self.start()
        self.assertEqual(self.ask(daemon, tokens_of(300)).tokens, cold.tokens)

    @unittest.skipUnless(os.geteuid() == 0, "only root may run it as another user")
    def test_a_state_directory_of_others(self):
        os.makedirs(os.path.dirname(self.prefixes))              # root's
        model = shutil.copy(STORIES, self.directory + "/stories-file")
        daemon = self.start(user=61001, models={"stories": model})
        cold = self.ask(daemon, tokens_of(300))
        again = self.ask(daemon, tokens_of(300))
        self.assertEqual((again.cached, again.tokens), (299, cold.tokens))
        self.assertEqual(daemon.output().count("prefixes are not kept on disk: %s: Permission denied" % self.prefixes), 1)

    def test_two_daemons_do_not_share_a_directory(self):
        daemon = self.start()
        other = self.start(directory=None, variables={"HOME": self.directory})    # the same state directory
        self.assertIn("prefixes: another process uses it", other.output())
        other.stop()
        self.ask(daemon, tokens_of(100))

    def test_killed_at_any_instant(self):
        """Under load or while it writes what is left; then memory may be gone. Every answer is a cold run's."""
        rng = random.Random(11)
        bases = [[3 + rng.randrange(500) for _ in range(300)] for _ in range(10)]
        from_disk = 0
        with ColdAnswers() as cold:
            for _ in range(ROUNDS):
                daemon = self.start(disk="800K", config='[kv]\nmemory = "1600K"\n')      # too little of both for all
                with daemon.connect() as connection:
                    for base in rng.sample(bases, 4):
                        tokens = base[:rng.randrange(1, 300)] + [rng.randrange(3, 6) for _ in range(rng.randrange(3))]
                        answer = connection.generate(tokens=tokens, max_tokens=6, ignore_eos=True)
                        self.assertEqual(answer.tokens, cold[tokens])
                        from_disk += answer.disk
                    model, disk = connection.status()["models"][0], connection.status()["disk"]
                    self.assertLessEqual(disk["bytes"], 800 << 10)
                daemon.wait_idle()                               # free + cached = all
                threads = [threading.Thread(target=ask_until_killed, args=(daemon, base, random.Random(rng.random())))
                           for base in rng.sample(bases, 3)]
                for thread in threads:
                    thread.start()
                time.sleep(rng.uniform(0, 0.1))
                if rng.random() < 0.7:                           # it writes now what is not written
                    daemon.process.send_signal(signal.SIGTERM)
                    time.sleep(rng.uniform(0, 0.08))
                daemon.process.kill()
                daemon.process.wait()
                daemon.log.close()
                for thread in threads:
                    thread.join()
                if rng.random() < 0.7:
                    self.reboot()
                log = daemon_log(self.directory)
                self.assertNotIn("damaged", log)
                self.assertNotIn("skipped", log)
            self.assertGreater(from_disk, ROUNDS * 20)


def daemon_log(directory):
    with open(directory + "/log") as file:
        return file.read()


if __name__ == "__main__":
    unittest.main()
