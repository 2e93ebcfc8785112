"""`ellm pull` goes on where it, or another run, was cut off, and clears away what nobody goes on with."""

import fcntl
import os
import signal
import time
import unittest

from file_server import File, FileServer
from gguf import minimal
from pulling import INTERRUPTED, MODEL, NOINPUT, OTHER, TEMPFAIL, UNAVAILABLE, Pull, sha256


class Resume(Pull):
    def ranges(self, server):
        return server.asked("range")

    def test_a_cut_connection_goes_on(self):
        file = File(MODEL, etag='"one"', cuts=[300_000, 0, 100_000])
        with FileServer({"/m.gguf": file}) as server:
            self.works(server.url + "/m.gguf", "--sha256", sha256(MODEL))
            self.holds("m.gguf", MODEL)
            self.assertEqual(self.ranges(server), [None, "bytes=300000-", "bytes=300000-", "bytes=400000-"])
            self.assertEqual(server.asked("if-range"), [None] + ['"one"'] * 3)

    def interrupted(self, server, **changes):
        """A pull that ends after 300,000 bytes."""
        server.files["/m.gguf"] = File(MODEL, **{"cuts": [300_000], **changes})
        err = self.fails(
            UNAVAILABLE,
            server.url + "/m.gguf",
            "--retries",
            "0",
            says=[server.url + "/m.gguf", "300000 of %d" % len(MODEL)],
        )
        self.assertIn("same command", err)
        self.assertEqual(self.visible(), [])

    def test_the_next_run_goes_on(self):
        for validator in ({"etag": '"one"'}, {"modified": "Mon, 02 Feb 2026 10:00:00 GMT", "etag": 'W/"weak"'}):
            with FileServer() as server:
                self.interrupted(server, **validator)
                server.files["/m.gguf"].cuts = []
                self.works(server.url + "/m.gguf")
                self.holds("m.gguf", MODEL)
                self.assertEqual(self.ranges(server), [None, None, "bytes=300000-"][-len(self.ranges(server)) :])
                self.assertEqual(server.asked("if-range")[-1], validator.get("modified", validator["etag"]))
                os.remove(self.dir + "/m.gguf")

    def test_a_changed_file_begins_anew(self):
        with FileServer() as server:
            self.interrupted(server, etag='"one"')
            server.files["/m.gguf"] = File(OTHER, etag='"two"')
            self.works(server.url + "/m.gguf")
            self.holds("m.gguf", OTHER)
            self.assertEqual(self.ranges(server)[-1], "bytes=300000-")

    def test_without_a_validator_it_begins_anew(self):
        with FileServer() as server:
            self.interrupted(server)
            server.files["/m.gguf"] = File(OTHER)
            self.works(server.url + "/m.gguf")
            self.holds("m.gguf", OTHER)
            self.assertEqual(self.ranges(server)[-1], None)

    def test_another_address_begins_anew(self):
        with FileServer() as server:
            self.interrupted(server, etag='"one"')
            server.files["/other/m.gguf"] = File(OTHER, etag='"one"')
            self.works(server.url + "/other/m.gguf")
            self.holds("m.gguf", OTHER)

    def test_a_server_without_ranges(self):
        with FileServer() as server:
            self.interrupted(server, etag='"one"', ranges=False)
            server.files["/m.gguf"].cuts = []
            self.works(server.url + "/m.gguf")
            self.holds("m.gguf", MODEL)

    def test_all_was_there_already(self):
        first, second = (minimal(60_000, split=(i, 2)) for i in range(2))
        names = ["/s-0000%d-of-00002.gguf" % i for i in (1, 2)]
        with FileServer({names[0]: File(first, etag='"a"')}) as server:
            self.fails(NOINPUT, server.url + names[0], says=["s-00002-of-00002.gguf", "404"])
            self.assertEqual(self.visible(), [])
            server.files[names[1]] = File(second, etag='"b"')
            sent = server.sent
            self.works(server.url + names[0])
            self.assertEqual(server.sent - sent, len(second))
            self.holds(names[0][1:], first)
            self.holds(names[1][1:], second)

    def test_interrupt(self):
        with FileServer({"/m.gguf": File(MODEL, etag='"one"', pace=0.2)}) as server:
            for number in (signal.SIGINT, signal.SIGTERM):
                process = self.start(server.url + "/m.gguf")
                sent = server.sent
                while server.sent <= sent + (1 << 16):
                    time.sleep(0.01)
                process.send_signal(number)
                out, err = process.communicate(timeout=20)
                self.assertEqual((process.returncode, out), (INTERRUPTED, ""), err)
                self.assertIn("same command", err)
                self.assertEqual(self.visible(), [])
            server.files["/m.gguf"].pace = 0
            self.works(server.url + "/m.gguf")
            self.holds("m.gguf", MODEL)
            self.assertGreater(int(server.asked("range")[-1][6:-1]), 1 << 16)

    def test_two_at_once(self):
        with FileServer({"/m.gguf": File(MODEL, etag='"one"', pace=0.05)}) as server:
            process = self.start(server.url + "/m.gguf")
            while server.sent == 0:
                time.sleep(0.01)
            self.fails(TEMPFAIL, server.url + "/m.gguf", says=["another pull"])
            _, err = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 0, err)
            self.holds("m.gguf", MODEL)


class Abandoned(Pull):
    def leave(self, name, days):
        folder = "%s/.pull-%s" % (self.dir, name)
        os.mkdir(folder)
        for file in ("lock", "m.gguf", "m.gguf.source"):
            with open(folder + "/" + file, "wb") as out:
                out.write(bytes(700_000 if file == "m.gguf" else 5))
            then = time.time() - days * 86400
            os.utime(folder + "/" + file, (then, then))
        return folder

    def test_the_next_pull_cleans_up(self):
        self.leave("old", 15), self.leave("young", 13)
        busy = self.leave("busy", 40)
        os.mkdir(self.dir + "/.pull-strange")  # has no lock: nobody knows whose it is
        os.symlink(self.home_of_link(), self.dir + "/.pull-link")
        with FileServer({"/m.gguf": File(MODEL)}) as server, open(busy + "/lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _, err = self.works(server.url + "/m.gguf")
            self.assertEqual(err, "removed the 1 MB that an interrupted pull of old left more than 14 days ago\n")
            self.assertEqual(self.hidden(), [".pull-busy", ".pull-link", ".pull-strange", ".pull-young"])
            self.assertEqual(sorted(os.listdir(busy)), ["lock", "m.gguf", "m.gguf.source"])
        self.assertTrue(os.path.exists(self.home_of_link() + "/m.gguf"))

    def home_of_link(self):
        """A folder elsewhere that looks abandoned."""
        if not hasattr(self, "elsewhere"):
            self.elsewhere = self.leave("link-target", 99)
            os.rename(self.elsewhere, self.dir + "/elsewhere")
            self.elsewhere = self.dir + "/elsewhere"
        return self.elsewhere

    def test_pulls_of_one_name_in_turn(self):
        """Each removes its folder, with the lock that the others wait for."""
        with FileServer({"/m.gguf": File(MODEL)}) as server:
            for _ in range(5):
                processes = [self.start(server.url + "/m.gguf", "--force") for _ in range(4)]
                codes = [process.wait(60) for process in processes]
                errors = [process.communicate()[1] for process in processes]
                self.assertIn(0, codes)
                self.assertLessEqual(set(codes), {0, TEMPFAIL}, errors)
                self.holds("m.gguf", MODEL)
                self.assertEqual(self.hidden(), [])


if __name__ == "__main__":
    unittest.main()
