"""`ellm pull`: addresses, redirects, split models, the bar on a terminal."""

import os
import pty
import tempfile
import unittest

from file_server import File, FileServer
from gguf import minimal
from harness import DATA, STORIES, needs_model, running
from pulling import DATAERR, MODEL, NOINPUT, OTHER, UNAVAILABLE, USAGE, Pull, sha256


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
if __name__ == "__main__":
    unittest.main()
