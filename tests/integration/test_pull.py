"""`ellm pull` against an HTTP server that does everything wrong that servers do."""

import hashlib
import os
import pty
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from file_server import File, FileServer
from gguf import minimal
from harness import DATA, STORIES, environment, needs_model, running

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


class Addresses(Pull):
    def test_a_file_arrives_under_its_name(self):
        with FileServer({"/a b.gguf": File(MODEL)}) as server:
            out, err = self.works(server.url + "/a%20b.gguf?download=true")
            self.assertEqual((out, err), (self.dir + "/a b.gguf", ""))  # no progress where there is no terminal
            self.holds("a b.gguf", MODEL)
            self.assertEqual(self.hidden(), [])
            self.assertEqual(os.stat(out).st_mode & 0o777, 0o644)

    def test_name(self):
        with FileServer({"/download": File(MODEL)}) as server:
            self.fails(USAGE, server.url + "/download", says=["--name"])
            self.works(server.url + "/download", "--name", "mine")
            self.holds("mine.gguf", MODEL)
            for name in ("../x", ".x", "", "x" * 201, "a\nb"):
                self.fails(USAGE, server.url + "/download", "--name=" + name)
            self.assertEqual(self.visible(), ["mine.gguf"])

    def test_what_is_there_is_not_fetched_again(self):
        with FileServer({"/m.gguf": File(MODEL)}) as server:
            self.works(server.url + "/m.gguf")
            asked = len(server.requests)
            _, err = self.works(server.url + "/m.gguf", "--sha256", sha256(MODEL).upper())
            self.assertIn("already there", err)
            self.fails(DATAERR, server.url + "/m.gguf", "--sha256", sha256(OTHER), says=["checksum", sha256(MODEL)])
            self.assertEqual(len(server.requests), asked)
            server.files["/m.gguf"] = File(OTHER)
            self.works(server.url + "/m.gguf", "--force")
            self.holds("m.gguf", OTHER)

    def test_hub(self):
        with FileServer(
            {"/owner/repo/resolve/main/sub/m 1.gguf": File(MODEL), "/owner/repo/resolve/v2/m.gguf": File(OTHER)}
        ) as hub:
            env = {"HF_ENDPOINT": hub.url + "/"}
            self.works("hf:owner/repo/sub/m 1.gguf", env=env)
            self.holds("m 1.gguf", MODEL)
            self.works("hf:owner/repo@v2/m.gguf", env=env)
            self.holds("m.gguf", OTHER)
            os.remove(self.dir + "/m.gguf")
            self.works(hub.url + "/owner/repo/blob/v2/m.gguf", env=env)  # the page in a browser
            self.holds("m.gguf", OTHER)

    def test_usage(self):
        for address in (
            "hf:",
            "hf:owner",
            "hf:owner/repo",
            "hf:owner/repo/",
            "hf:/repo/f.gguf",
            "ftp://x/m.gguf",
            "file:///etc/m.gguf",
            "http://x:99999/m.gguf",
            "https://h/.gguf",
        ):
            self.fails(USAGE, address)
        self.fails(USAGE, "http://h/m.gguf", "--sha256", "abc", says=["64 hexadecimal"])
        self.fails(USAGE, "smollm2", "--sha256", "0" * 64)
        self.fails(USAGE, "smollm2", "--name", "x")
        self.fails(USAGE, "--nonsense", says=["--help"])
        self.fails(NOINPUT, "nothing-like-that", says=["hf:OWNER/REPO/FILE", "smollm2"])
        self.assertEqual(os.listdir(self.dir), [])

    def test_own_file(self):
        with tempfile.TemporaryDirectory() as elsewhere:
            for i in range(2):
                with open(elsewhere + "/s-%05d-of-00002.gguf" % (i + 1), "wb") as file:
                    file.write(minimal(10, split=(i, 2)))
            self.works(elsewhere + "/s-00001-of-00002.gguf", "--name", "t")
            self.assertEqual(self.visible(), ["t-00001-of-00002.gguf", "t-00002-of-00002.gguf"])
            with open(elsewhere + "/bad.gguf", "wb") as file:
                file.write(MODEL[:1000])
            self.fails(DATAERR, elsewhere + "/bad.gguf", says=["bad.gguf"])


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


class Redirects(Pull):
    def test_the_token_stays_at_the_hub(self):
        with FileServer(token="hf_secret") as hub, FileServer({"/store": File(MODEL)}) as store:
            hub.files["/o/r/resolve/main/m.gguf"] = File(redirect="/moved.gguf")
            hub.files["/moved.gguf"] = File(redirect=store.url + "/store")
            env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
            self.works("hf:o/r/m.gguf", env=env)
            self.holds("m.gguf", MODEL)
            self.assertEqual(hub.asked("authorization"), ["Bearer hf_secret"] * 2)
            self.assertEqual(store.asked("authorization"), [None])
            self.works(store.url + "/store", "--name", "n", env=env)  # an address elsewhere: not even at first
            self.assertEqual(store.asked("authorization"), [None, None])
            os.remove(self.dir + "/m.gguf")
            self.works(hub.url + "/o/r/resolve/main/m.gguf", env=env)  # an address of the hub is the hub
            hub.files["/o/r/resolve/main/n2.gguf"] = File(redirect="http://localhost:%d/store" % store.port)
            self.works("hf:o/r/n2.gguf", env=env)
            self.assertEqual([a for a in store.asked("authorization") if a], [])

    def test_a_cut_behind_a_redirect(self):
        with FileServer() as hub, FileServer({"/store": File(MODEL, etag='"x"', cuts=[250_000])}) as store:
            hub.files["/m.gguf"] = File(redirect=store.url + "/store?signature=1")
            self.works(hub.url + "/m.gguf")
            self.holds("m.gguf", MODEL)
            self.assertEqual(store.asked("range"), [None, "bytes=250000-"])

    def test_a_circle_ends(self):
        with FileServer() as server:
            server.files["/m.gguf"] = File(redirect="/m.gguf")
            self.fails(UNAVAILABLE, server.url + "/m.gguf", says=["redirects"])
            server.files["/m.gguf"] = File(redirect="file:///etc/passwd")
            self.fails(UNAVAILABLE, server.url + "/m.gguf")


class Split(Pull):
    NAMES = ["s-0000%d-of-00003.gguf" % (i + 1) for i in range(3)]

    def test_all_parts(self):
        parts = [minimal(1000 + i, split=(i, 3)) for i in range(3)]
        with FileServer({"/d/" + name: File(part) for name, part in zip(self.NAMES, parts)}) as server:
            out, _ = self.works(server.url + "/d/" + self.NAMES[1] + "?download=true")  # whichever part is named
            self.assertEqual(out, os.path.join(self.dir, self.NAMES[0]))
            for name, part in zip(self.NAMES, parts):
                self.holds(name, part)
            for name in self.NAMES:
                os.remove(os.path.join(self.dir, name))
            sums = [argument for part in parts for argument in ("--sha256", sha256(part))]
            self.works(server.url + "/d/" + self.NAMES[0], "--name", "t", *sums)
            self.assertEqual(self.visible(), [name.replace("s-", "t-") for name in self.NAMES])
            self.fails(USAGE, server.url + "/d/" + self.NAMES[0], *sums[:4], says=["2 checksums for 3 files"])
            self.fails(
                DATAERR, server.url + "/d/" + self.NAMES[0], *sums[:4], "--sha256", "0" * 64, says=[self.NAMES[2]]
            )
            self.assertEqual(len(self.visible()), 3)

    def test_parts_that_do_not_belong_together(self):
        parts = [minimal(10, split=(0, 3)), minimal(10, split=(1, 3)), minimal(10, split=(1, 3))]
        with FileServer({"/" + name: File(part) for name, part in zip(self.NAMES, parts)}) as server:
            self.fails(DATAERR, server.url + "/" + self.NAMES[0], says=["refused: " + self.NAMES[2], "part 2 of 3"])
            self.assertEqual(os.listdir(self.dir), [])

    @needs_model
    def test_loaded_as_one(self):
        files = {}
        for i in range(3):
            name = "/stories260K-split-0000%d-of-00003.gguf" % (i + 1)
            with open(os.path.join(DATA, "models") + name, "rb") as file:
                files["/o/r/resolve/main" + name] = File(file.read())
        with FileServer(files) as hub, running(models={"whole": STORIES}) as daemon:
            self.works(
                "hf:o/r/stories260K-split-00001-of-00003.gguf",
                "--name",
                "parts",
                env={"HF_ENDPOINT": hub.url},
                directory=daemon.models_dir,
            )
            with daemon.connect() as connection:
                whole, parts = (connection.generate("Once upon", model=name).tokens for name in ("whole", "parts"))
            self.assertEqual(len(whole), 16)
            self.assertEqual(whole, parts)


class Refused(Pull):
    def test_wrong_length(self):
        hub_file = "/o/r/resolve/main/m.gguf"
        with FileServer({hub_file: File(MODEL, headers={"X-Linked-Size": "5"})}) as server:
            self.fails(
                DATAERR,
                "hf:o/r/m.gguf",
                env={"HF_ENDPOINT": server.url},
                says=["wrong length", "5 bytes", str(len(MODEL))],
            )
            server.files[hub_file] = File(MODEL, length=False, headers={"X-Linked-Size": str(len(MODEL) + 1)})
            self.fails(UNAVAILABLE, "hf:o/r/m.gguf", "--retries", "0", env={"HF_ENDPOINT": server.url})
            server.files["/m.gguf"] = File(MODEL, declared=len(MODEL) + 10, etag='"x"')  # never sends the last ten
            self.fails(
                UNAVAILABLE, server.url + "/m.gguf", "--retries", "1", says=["%d of %d" % (len(MODEL), len(MODEL) + 10)]
            )
            self.assertEqual(self.visible(), [])

    def test_wrong_checksum(self):
        with FileServer({"/m.gguf": File(MODEL)}) as server:
            self.fails(
                DATAERR,
                server.url + "/m.gguf",
                "--sha256",
                sha256(OTHER),
                says=["wrong checksum", sha256(MODEL), sha256(OTHER)],
            )
            self.assertEqual(os.listdir(self.dir), [])
            self.works(server.url + "/m.gguf", "--sha256", sha256(MODEL))

    def test_the_hubs_checksum(self):
        with FileServer() as hub, FileServer({"/store": File(MODEL, etag='"%s"' % sha256(OTHER))}) as store:
            env = {"HF_ENDPOINT": hub.url}

            def linked(digest):
                hub.files["/o/r/resolve/main/m.gguf"] = File(
                    redirect=store.url + "/store", headers={"X-Linked-ETag": '"%s"' % digest}
                )

            linked(sha256(OTHER))
            self.fails(DATAERR, "hf:o/r/m.gguf", env=env, says=["wrong checksum"])
            self.assertEqual(os.listdir(self.dir), [])
            linked(sha256(MODEL))  # the store's ETag is some other sum
            self.works("hf:o/r/m.gguf", env=env)
            hub.files["/o/r/resolve/main/n.gguf"] = File(MODEL, etag='"%s"' % sha256(OTHER))
            self.fails(DATAERR, "hf:o/r/n.gguf", env=env, says=["wrong checksum"])
            hub.files["/o/r/resolve/main/n.gguf"] = File(MODEL, etag='"%s"' % hashlib.sha1(MODEL).hexdigest())
            self.works("hf:o/r/n.gguf", env=env)

    def test_no_model(self):
        with FileServer(
            {
                "/m.gguf": File(
                    b"<!DOCTYPE html><p>Log in, please" + bytes(50 << 20), headers={"Content-Type": "text/html"}
                )
            }
        ) as server:
            self.fails(DATAERR, server.url + "/m.gguf", says=["not a GGUF file", "<!DOCTYPE html>", "text/html"])
            self.assertLess(server.sent, 20 << 20)  # it did not wait for the end
            server.files["/m.gguf"] = File(MODEL[:-5000])
            self.fails(DATAERR, server.url + "/m.gguf", says=["refused: m.gguf", "tensor0"])
            server.files["/m.gguf"] = File(b"")
            self.fails(DATAERR, server.url + "/m.gguf", says=["refused: m.gguf"])
            self.assertEqual(os.listdir(self.dir), [])

    def test_http_errors(self):
        with FileServer(token="hf_right") as hub:
            env = {"HF_ENDPOINT": hub.url}
            self.fails(NOINPUT, "hf:o/r/m.gguf", env=env, says=["404", "check the address"])
            hub.files["/o/r/resolve/main/m.gguf"] = File(MODEL)
            self.fails(NOPERM, "hf:o/r/m.gguf", env=env, says=["401", "HF_TOKEN may be needed"])
            self.fails(
                NOPERM,
                "hf:o/r/m.gguf",
                env={**env, "HF_TOKEN": "hf_wrong"},
                says=["401", "HF_TOKEN was sent", "licence"],
            )
            self.fails(NOPERM, hub.url + "/o/r/resolve/main/m.gguf", env={"HF_TOKEN": "hf_right"}, says=["HF_ENDPOINT"])
            hub.files["/o/r/resolve/main/m.gguf"].statuses = [503, 429, 500]
            self.works("hf:o/r/m.gguf", env={**env, "HF_TOKEN": "hf_right"})
            hub.files["/o/r/resolve/main/n.gguf"] = File(MODEL, statuses=[503, 503])
            self.fails(
                UNAVAILABLE,
                "hf:o/r/n.gguf",
                "--retries",
                "1",
                env={**env, "HF_TOKEN": "hf_right"},
                says=["503", "later"],
            )
        self.fails(UNAVAILABLE, hub.url + "/gone.gguf", "--retries", "0", says=["connect"])  # nobody listens any more

    def test_timeout(self):
        with FileServer({"/m.gguf": File(MODEL, pace=30)}) as server:
            begin = time.monotonic()
            self.fails(
                UNAVAILABLE,
                server.url + "/m.gguf",
                "--timeout",
                "1",
                "--retries",
                "0",
                says=["nothing came for 1 s", "65536 of"],
            )
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(self.visible(), [])


def in_small_file_system(size):
    """A prefix that runs a command in a namespace of its own where $SMALL is a tmpfs of this size."""
    script = 'mount -t tmpfs -o size=%s none "$SMALL" && exec "$@"' % size
    return ["unshare", "-rm", "sh", "-c", script, "sh"]


def may_mount():
    with tempfile.TemporaryDirectory() as directory:
        return (
            subprocess.run(
                [*in_small_file_system("1m"), "true"], env={**os.environ, "SMALL": directory}, capture_output=True
            ).returncode
            == 0
        )


class DiskFull(Pull):
    def test_limit_on_file_size(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

        with FileServer({"/m.gguf": File(MODEL, etag='"x"')}) as server:
            self.fails(IOERR, server.url + "/m.gguf", preexec_fn=limit, says=["ulimit -f"])
            self.assertEqual(self.visible(), [])
            self.works(server.url + "/m.gguf")
            self.holds("m.gguf", MODEL)
            self.assertEqual(server.asked("range")[-1], "bytes=500000-")

    @unittest.skipUnless(may_mount(), "no user namespaces")
    def test_small_file_system(self):
        with FileServer({"/m.gguf": File(MODEL)}) as server:
            options = dict(prefix=in_small_file_system("600k"), env={"SMALL": self.dir})
            self.fails(
                CANTCREAT, server.url + "/m.gguf", says=["782 KiB are needed", "KiB are free", "--dir"], **options
            )
            self.assertLessEqual(server.sent, len(MODEL))
            server.files["/m.gguf"] = File(MODEL, length=False)  # nobody says how much there will be
            self.fails(IOERR, server.url + "/m.gguf", says=["No space left", "0 KiB are free"], **options)
        # Another server: the first may still be sending what nobody reads.
        parts = {"/s-0000%d-of-00003.gguf" % (i + 1): File(minimal(60_000, split=(i, 3))) for i in range(3)}
        with FileServer(parts) as server:
            self.fails(CANTCREAT, server.url + "/s-00001-of-00003.gguf", says=["704 KiB are needed"], **options)
            self.assertEqual(server.sent, 0)  # all parts were added up before the first


class Terminal(Pull):
    def test_a_bar_on_a_terminal(self):
        leader, follower = pty.openpty()
        with FileServer({"/m.gguf": File(MODEL, pace=0.02)}) as server:
            process = self.start(server.url + "/m.gguf", stderr=follower)
            os.close(follower)
            shown = b""
            while True:
                try:
                    piece = os.read(leader, 4096)
                except OSError:
                    break
                if not piece:
                    break
                shown += piece
            os.close(leader)
            out, _ = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 0)
            self.assertEqual(out, self.dir + "/m.gguf\n")
            self.assertIn(b"%% of %.1f MB" % (len(MODEL) / 1e6), shown)
            self.assertTrue(shown.endswith(b"\r\x1b[K"), shown[-50:])


if __name__ == "__main__":
    unittest.main()
