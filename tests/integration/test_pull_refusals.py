"""`ellm pull` against an HTTP server that does everything wrong that servers do, and without room."""

import hashlib
import os
import resource
import subprocess
import tempfile
import time
import unittest

from file_server import File, FileServer
from gguf import minimal
from pulling import CANTCREAT, DATAERR, IOERR, MODEL, NOINPUT, NOPERM, OTHER, UNAVAILABLE, Pull, sha256


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
                says=["401", "token was sent", "licence"],
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


if __name__ == "__main__":
    unittest.main()
