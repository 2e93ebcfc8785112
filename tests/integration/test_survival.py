"""Prefixes outlive the daemon: over restarts and kills at any instant, never wrong, never unaccounted for."""
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from harness import ELLMD, STORIES, Daemon, environment, needs_model
from protocol import *
from survivor import ColdAnswers, Survivor, ask_until_killed, in_dev_shm_of, segments, weights

ELLM = os.environ.get("ELLM")
ROUNDS = int(os.environ.get("ELLM_KILLS", "30"))


class DescriptorStore:
    """What systemd does for a unit with FileDescriptorStoreMax: takes descriptors by notification, hands them to the next."""
    WRAPPER = """
import os, sys
count = int(sys.argv[1])
for i, fd in enumerate(map(int, sys.argv[2:2 + count])):
    os.dup2(fd, 3 + i)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""

    def __init__(self, directory):
        self.directory, self.stored, self.process = directory, {}, None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self):
        self.socket.bind(self.directory + "/notify")
        os.makedirs(self.directory + "/models")
        os.symlink(STORIES, self.directory + "/models/stories.gguf")
        with open(self.directory + "/config", "w") as file:
            file.write('models_dir = "%s/models"\n' % self.directory)
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
        for fd in self.stored.values():
            os.close(fd)
        self.socket.close()

    def start(self, *options):
        fds = [os.dup(fd) for fd in self.stored.values()]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
        environ = {**environment(self.directory), "NOTIFY_SOCKET": self.directory + "/notify"}
        if fds:
            environ.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=":".join(self.stored))
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.WRAPPER, str(len(high)), *map(str, high), ELLMD, "--config", self.directory + "/config",
             "--socket", self.directory + "/s", "--model", "stories", "--threads", "2", "--cache-disk", "off", *options],
            env=environ, pass_fds=high, stderr=subprocess.DEVNULL)
        for fd in fds + high:
            os.close(fd)
        while "READY=1" not in self.receive():
            pass
        return Connection(self.directory + "/s")

    def receive(self):
        self.socket.settimeout(20)
        message, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
        lines = message.decode().split("\n")
        names = [line[len("FDNAME="):] for line in lines if line.startswith("FDNAME=")]
        if "FDSTORE=1" in lines:
            self.stored[names[0]], = fds
        if "FDSTOREREMOVE=1" in lines and names[0] in self.stored:
            os.close(self.stored.pop(names[0]))
        return lines

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(20)


@needs_model
class Survival(Survivor):
    def start(self, keep=True, **more):
        return self.begun(Daemon(models={"stories": STORIES}, options=["--model", "stories", "--cache-disk", "off"],
                                 directory=self.directory, keep=keep, **more))

    def ask(self, daemon, tokens, count=8):
        with daemon.connect() as connection:
            return connection.generate(tokens=tokens, max_tokens=count, ignore_eos=True)

    def test_restart_and_kill_keep_every_page(self):
        tokens = [3 + i * i % 500 for i in range(1000)]
        daemon = self.start()
        cold = self.ask(daemon, tokens)
        self.assertEqual(cold.cached, 0)
        pages = daemon.wait_idle()["models"][0]["kv_pages_cached"]
        daemon.stop()
        daemon = self.start()
        self.assertIn("%d pages of prefixes are still there" % pages, daemon.output())
        warm = self.ask(daemon, tokens)
        self.assertEqual((warm.cached, warm.tokens), (999, cold.tokens))
        self.kill(daemon)
        daemon = self.start()
        self.assertEqual(daemon.connect().status()["models"][0]["kv_pages_cached"], pages)
        again = self.ask(daemon, tokens)
        self.assertEqual((again.cached, again.tokens), (999, cold.tokens))
        with daemon.connect() as connection:                     # unloading gives the memory back
            connection.models(UNLOAD, "stories")
            self.assertEqual(connection.generate(tokens=tokens, model="stories", max_tokens=1).cached, 0)

    def test_another_setting_is_a_fresh_segment(self):
        tokens = [3 + i * i % 500 for i in range(200)]
        daemon = self.start()
        self.ask(daemon, tokens)
        daemon.stop()
        before = segments()
        daemon = self.start(config='[kv]\ntype = "f32"\n')
        self.assertEqual(self.ask(daemon, tokens).cached, 0)
        self.assertIn("another model or setting", daemon.output())
        self.assertEqual(segments(), before)                     # the old one is gone, the new one has its name
        self.assertEqual(self.ask(daemon, tokens).cached, 199)

    def test_two_daemons_do_not_share_a_segment(self):
        tokens = [3 + i * i % 500 for i in range(200)]
        daemon = self.start()
        self.ask(daemon, tokens)
        other = Daemon(models={"stories": STORIES}, options=["--model", "stories"], keep=True,
                       variables={"HOME": self.directory})               # the same state directory
        self.addCleanup(other.stop)
        self.assertIn("another process", other.output())
        self.assertEqual(self.ask(other, tokens).cached, 0)
        self.assertEqual(self.ask(daemon, tokens).cached, 199)

    @unittest.skipUnless(ELLM, "ELLM is unset")
    def test_cache_drop_frees_what_ended_daemons_keep(self):
        def drop():
            done = subprocess.run([ELLM, "cache", "drop", "--json"], capture_output=True, text=True, check=True)
            return json.loads(done.stdout)
        tokens = [3 + i * i % 500 for i in range(200)]
        drop()
        daemon = self.start()
        self.ask(daemon, tokens)
        self.assertEqual(drop(), {"dropped": 0, "bytes": 0, "in_use": 1})
        self.assertEqual(self.ask(daemon, tokens).cached, 199)
        daemon.stop()
        dropped = drop()
        self.assertEqual((dropped["dropped"], dropped["in_use"]), (1, 0))
        self.assertGreater(dropped["bytes"], 200 * 960)
        self.assertEqual(segments(), set())

    def test_damage_costs_only_what_was_damaged(self):
        tokens = [3 + i * i % 500 for i in range(300)]
        daemon = self.start()
        cold = self.ask(daemon, tokens)
        daemon.stop()
        [path] = segments()
        with open(path, "r+b") as file:                          # a byte of every page's payload from the fifth on
            offset, page_bytes = struct_at(file, 40), struct_at(file, 48)
            for page in range(4, 10):
                file.seek(offset + page * page_bytes + 17)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
        daemon = self.start()
        again = self.ask(daemon, tokens)
        self.assertEqual((again.cached, again.tokens), (128, cold.tokens))
        self.assertIn("6 cached pages were damaged", daemon.output())
        daemon.wait_idle()

    def test_a_full_dev_shm(self):
        """Pages that have memory are given up for others, whoever finds none waits: no answer is lost."""
        printed = in_dev_shm_of(self, "40m", (
            'import concurrent.futures\n'
            'd = Daemon(models={"stories": STORIES}, options=["--model", "stories", "--cache-disk", "off", "--memory-keep", "off"],\n'
            '           config="[kv]\\nmemory = \\"30M\\"\\n", directory=%r, keep=True)\n'
            'room = os.statvfs("/dev/shm")\n'
            'with open("/dev/shm/others", "wb") as file:\n'
            '    os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - (3 << 20))\n'
            'def ask(salt, prompt, answer):\n'
            '    tokens = [3 + (i * i + salt * i) %% 500 for i in range(prompt)]\n'
            '    return d.connect(timeout=200).generate(tokens=tokens, max_tokens=answer, ignore_eos=True).tokens[:6]\n'
            'try:\n'
            '    for salt in range(20):\n'
            '        print(ask(salt, 300, 6))\n'
            '    with concurrent.futures.ThreadPoolExecutor(10) as pool:\n'
            '        for tokens in pool.map(ask, range(10), [600] * 10, [100] * 10):\n'
            '            print(tokens)\n'
            '    model, = d.wait_idle()["models"]\n'
            '    print(model["kv_pages"], model["kv_pages_cached"])\n'
            'finally:\n'
            '    d.stop()' % self.directory))
        *answers, pages = printed.splitlines()
        asked = [(salt, 300) for salt in range(20)] + [(salt, 600) for salt in range(10)]
        with ColdAnswers() as cold:
            self.assertEqual(answers, [str(cold[[3 + (i * i + salt * i) % 500 for i in range(count)]]) for salt, count in asked])
        total, cached = map(int, pages.split())
        self.assertTrue(22 < cached < total / 4, pages)          # the rest found no memory

    def test_no_memory_for_any_page(self):
        """A request that finds none is told when to try again, and later ones are answered."""
        printed = in_dev_shm_of(self, "40m", (
            'd = Daemon(models={"stories": STORIES}, options=["--model", "stories", "--cache-disk", "off", "--memory-keep", "off"],\n'
            '           config="[kv]\\nmemory = \\"30M\\"\\n", directory=%r, keep=True)\n'
            'room = os.statvfs("/dev/shm")\n'
            'with open("/dev/shm/others", "wb") as file:\n'
            '    os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)\n'
            'from protocol import Failed\n'
            'try:\n'
            '    d.connect().generate(tokens=[3, 4, 5], max_tokens=6, ignore_eos=True)\n'
            'except Failed as failed:\n'
            '    print(failed.code, failed.retry_after_ms > 0, failed.message)\n'
            'os.unlink("/dev/shm/others")\n'
            'print(d.connect().generate(tokens=[3, 4, 5], max_tokens=6, ignore_eos=True).tokens)\n'
            'd.stop()' % self.directory))
        with ColdAnswers() as cold:
            self.assertEqual(printed.splitlines(), [
                "%d True the machine has no memory left for the request's keys and values" % BUSY, str(cold[[3, 4, 5]])])

    def test_in_a_descriptor_store_as_systemd_has(self):
        tokens = [3 + i * i % 500 for i in range(500)]
        with DescriptorStore(self.directory) as store:
            with store.start() as connection:
                cold = connection.generate(tokens=tokens, model="stories", max_tokens=8, ignore_eos=True)
                self.assertEqual(cold.cached, 0)
            self.assertEqual(sorted(name.split(".")[0] for name in store.stored), ["ellm-kv", "ellm-weights"])
            for end in (signal.SIGTERM, signal.SIGKILL):
                store.end(end)
                with store.start() as connection:
                    warm = connection.generate(tokens=tokens, model="stories", max_tokens=8, ignore_eos=True)
                    self.assertEqual((warm.cached, warm.tokens), (499, cold.tokens))
                self.assertEqual(len(store.stored), 2)
            store.end(signal.SIGTERM)
            with store.start("--kv-type", "f32") as connection:          # another setting: another segment under the name
                self.assertEqual(connection.generate(tokens=tokens, model="stories", max_tokens=8).cached, 0)
                self.assertEqual(connection.generate(tokens=tokens, model="stories", max_tokens=8).cached, 499)
                self.assertEqual(len(store.stored), 2)
                connection.models(UNLOAD, "stories")
            store.receive()
            store.receive()
            self.assertEqual(store.stored, {})
            store.end(signal.SIGTERM)
        self.assertEqual(segments(), set())

    def test_killed_at_any_instant(self):
        """After each restart all pages are accounted for, and every answer is a cold run's to the bit."""
        rng = random.Random(7)
        bases = [[3 + rng.randrange(500) for _ in range(300)] for _ in range(10)]
        with ColdAnswers() as cold:
            cached = 0
            for _ in range(ROUNDS):
                daemon = self.start(config='[kv]\nmemory = "1600K"\n')     # too few pages for all
                with daemon.connect() as connection:
                    model = connection.status()["models"][0]
                    self.assertEqual(model["kv_pages_free"] + model["kv_pages_cached"], model["kv_pages"])
                    for base in rng.sample(bases, 4):
                        tokens = base[:rng.randrange(1, 300)] + [rng.randrange(3, 6) for _ in range(rng.randrange(3))]
                        answer = connection.generate(tokens=tokens, max_tokens=6, ignore_eos=True)
                        self.assertEqual(answer.tokens, cold[tokens])
                        answer.recomputed                        # adds up
                        cached += answer.cached
                threads = [threading.Thread(target=ask_until_killed, args=(daemon, base, random.Random(rng.random()))) for base in rng.sample(bases, 4)]
                for thread in threads:
                    thread.start()
                time.sleep(rng.uniform(0, 0.15))
                self.kill(daemon)
                for thread in threads:
                    thread.join()
                self.assertNotIn("damaged", open(daemon.log.name).read())
            self.assertGreater(cached, ROUNDS * 100)


def struct_at(file, offset):
    file.seek(offset)
    return int.from_bytes(file.read(8), "little")


if __name__ == "__main__":
    unittest.main()
