"""`ellm load`, `unload` and `rm`, and files that are handed over as descriptors: what the daemon takes, refuses and closes."""

import array
import fcntl
import os
import pty
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

from gguf import minimal
from harness import DATA, STORIES, Daemon, environment, needs_model, running
from protocol import *

ELLM = os.environ.get("ELLM", "build/release/bin/ellm")
ADD_MODEL, REMOVE, DENIED = 11, 4, 13
USAGE, DATAERR, NOINPUT, NOPERM = 64, 65, 66, 77
PARTS = [os.path.join(DATA or "", "models/stories260K-split-0000%d-of-00003.gguf" % (i + 1)) for i in range(3)]


def send_with(connection, frames, descriptors):
    connection.socket.sendmsg([frames], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def hand_over(connection, name, paths, install=False, replace=False, descriptors=None, sizes=None):
    """One add_model; returns the model's fields."""
    files = [os.open(path, os.O_RDONLY) for path in paths] if descriptors is None else descriptors
    sizes = sizes or [os.fstat(fd).st_size for fd in files]
    connection.next_id += 1
    announced = [[path, size] for path, size in zip(paths, sizes)]
    message = frame(ADD_MODEL, connection.next_id, name, announced, install, replace)
    send_with(connection, message, files) if files else connection.send_bytes(message)
    if descriptors is None:
        for fd in files:
            os.close(fd)
    reply = connection.receive()
    if reply[0] == ERROR:
        raise Failed(reply[1:])
    return dict(zip(MODEL_FIELDS, reply[2][0]))


@needs_model
class Descriptors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(models={"whole": STORIES})
        cls.before = cls.open_files()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    @classmethod
    def open_files(cls):
        """Regular files that the daemon holds open."""
        folder = "/proc/%d/fd" % cls.daemon.process.pid
        found = []
        for fd in os.listdir(folder):
            try:
                target = os.readlink(os.path.join(folder, fd))
            except FileNotFoundError:
                continue
            if target.startswith("/") and not target.startswith(("/dev/", "/memfd:ellm-kv")):
                found.append(target)
        return sorted(found)

    def setUp(self):
        self.connection = self.daemon.connect()
        self.addCleanup(self.nothing_stays_open)
        self.addCleanup(self.connection.close)

    def nothing_stays_open(self):
        deadline = time.monotonic() + 10
        while self.open_files() != self.before:
            self.assertLess(time.monotonic(), deadline, self.open_files())
            time.sleep(0.01)

    def refused(self, code, *arguments, says=(), **options):
        with self.assertRaises(Failed) as failed:
            hand_over(self.connection, *arguments, **options)
        self.assertEqual(failed.exception.code, code, failed.exception)
        for part in says:
            self.assertIn(part, failed.exception.message)
        self.connection.status()  # the connection goes on

    def test_loaded_from_descriptors(self):
        tokens = self.connection.generate("Once upon", model="whole").tokens
        model = hand_over(self.connection, "one", [STORIES])
        self.assertEqual((model["name"], model["path"], model["loaded"]), ("one", STORIES, True))
        model = hand_over(self.connection, "parts", PARTS)
        for name in ("one", "parts"):
            self.assertEqual(self.connection.generate("Once upon", model=name).tokens, tokens)
        self.refused(BAD_REQUEST, "one", [STORIES], says=["unload"])
        for name in ("one", "parts"):
            self.connection.models(UNLOAD, name)
        with self.assertRaises(Failed) as failed:
            self.connection.generate("x", model="one")
        self.assertEqual(failed.exception.code, NO_SUCH_MODEL)

    def test_a_file_without_a_name(self):
        """Neither path nor permission leads there: the descriptor alone does."""
        fd = os.memfd_create("model")
        with open(STORIES, "rb") as file:
            os.write(fd, file.read())
        hand_over(self.connection, "memory", ["nowhere"], descriptors=[fd])
        os.close(fd)
        self.assertEqual(len(self.connection.generate("Once", model="memory").tokens), 16)
        self.connection.models(UNLOAD, "memory")

    def test_installed(self):
        folder = self.daemon.models_dir
        model = hand_over(self.connection, "new", [STORIES], install=True)
        self.assertEqual((model["name"], model["path"]), ("new", folder + "/new.gguf"))
        with open(folder + "/new.gguf", "rb") as ours, open(STORIES, "rb") as theirs:
            self.assertEqual(ours.read() == theirs.read(), True)
        self.assertEqual(os.stat(folder + "/new.gguf").st_mode & 0o777, 0o644)
        self.refused(MODEL_FAILED, "new", [STORIES], install=True, says=["is there already", "ellm rm new"])
        hand_over(self.connection, "new", [STORIES], install=True, replace=True)
        hand_over(self.connection, "split", PARTS, install=True)
        self.assertEqual(
            self.connection.generate("Once", model="split").tokens, self.connection.generate("Once", model="new").tokens
        )
        names = {"whole.gguf", "new.gguf", *("split-0000%d-of-00003.gguf" % (i + 1) for i in range(3))}
        self.assertEqual(set(os.listdir(folder)), names)
        with self.assertRaises(Failed) as failed:
            self.connection.models(REMOVE, "split")  # it is loaded
        self.assertIn("ellm unload split", failed.exception.message)
        for name in ("new", "split"):
            self.connection.models(UNLOAD, name)
            self.connection.models(REMOVE, name)
        self.assertEqual(os.listdir(folder), ["whole.gguf"])
        with self.assertRaises(Failed) as failed:
            self.connection.models(REMOVE, "new")
        self.assertEqual(failed.exception.code, NO_SUCH_MODEL)

    def test_what_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            damaged = folder + "/damaged.gguf"
            with open(damaged, "wb") as file:
                file.write(minimal(100)[:200])
            for install in (False, True):
                self.refused(
                    MODEL_FAILED, "x", [damaged], install=install, says=["damaged.gguf" if not install else "x.gguf"]
                )
                self.refused(MODEL_FAILED, "x", [PARTS[0], PARTS[2], PARTS[1]], install=install, says=["part 3 of 3"])
                self.refused(MODEL_FAILED, "x", PARTS[:1], install=install, says=["part 1 of"])
                self.refused(BAD_REQUEST, "x", [STORIES], install=install, sizes=[5], says=["5 were announced"])
                for name in ("", "../x", ".x", "a/b", "x" * 300):
                    self.refused(BAD_REQUEST, name, [STORIES], install=install, says=["name"])
            self.refused(
                BAD_REQUEST,
                "x",
                [STORIES, STORIES],
                descriptors=[],
                sizes=[1, 1],
                says=["2 files are announced, 0 descriptors"],
            )
            self.refused(BAD_REQUEST, "x", [], says=["0 files"])
            write_only = os.open(folder + "/w", os.O_WRONLY | os.O_CREAT)
            path_only = os.open(STORIES, os.O_PATH)
            directory = os.open(folder, os.O_RDONLY)
            read_end, write_end = os.pipe()
            for fd in (write_only, path_only, directory, read_end, self.connection.socket.fileno()):
                self.refused(
                    BAD_REQUEST,
                    "x",
                    ["x"],
                    descriptors=[fd],
                    sizes=[0],
                    says=["regular file" if fd != write_only and fd != path_only else "open for reading"],
                )
            for fd in (write_only, path_only, directory, read_end, write_end):
                os.close(fd)
        self.assertEqual(os.listdir(self.daemon.models_dir), ["whole.gguf"])

    def test_what_was_not_announced_is_closed(self):
        file = os.open(STORIES, os.O_RDONLY)
        size = os.fstat(file).st_size
        hand_over(self.connection, "more", [STORIES], descriptors=[file] * 5, sizes=[size])
        self.nothing_stays_open()
        self.connection.models(UNLOAD, "more")
        send_with(self.connection, frame(STATUS, 90), [file] * 7)  # a frame that announces none
        self.assertEqual(self.connection.receive()[1], 90)
        self.nothing_stays_open()
        send_with(self.connection, frame(STATUS, 91)[:3], [file])  # and half of one, given up
        self.connection.close()
        self.nothing_stays_open()
        os.close(file)

    def test_they_belong_to_their_own_frame(self):
        file = os.open(STORIES, os.O_RDONLY)
        self.connection.send_bytes(frame(STATUS, 1))
        send_with(
            self.connection, frame(ADD_MODEL, 2, "own", [[STORIES, os.fstat(file).st_size]], False, False), [file]
        )
        self.connection.send_bytes(frame(STATUS, 3))
        replies = {}
        while len(replies) < 3:
            message = self.connection.receive()
            replies[message[1]] = message[0]
        self.assertEqual(replies, {1: STATUS_REPLY, 2: MODELS_REPLY, 3: STATUS_REPLY})
        self.connection.next_id = 3
        self.connection.models(UNLOAD, "own")
        os.close(file)

    def test_a_file_that_shrinks(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(STORIES, folder + "/m.gguf")
            fd = os.open(folder + "/m.gguf", os.O_RDWR)
            size = os.fstat(fd).st_size
            os.ftruncate(fd, size // 2)
            self.refused(MODEL_FAILED, "x", ["m.gguf"], descriptors=[fd], sizes=[size // 2], says=["m.gguf"])
            os.close(fd)


class Limits(unittest.TestCase):
    @needs_model
    def test_charged_to_the_user(self):
        file = os.open(STORIES, os.O_RDONLY)
        with running(models={"whole": STORIES}, config="[limits]\ndescriptors_per_user = 3\n") as daemon:
            with daemon.connect() as first, daemon.connect() as second:
                send_with(first, frame(STATUS, 1)[:3], [file] * 3)  # held until its frame is whole
                time.sleep(0.1)
                send_with(second, frame(STATUS, 1), [file])
                message = second.receive()
                self.assertEqual(message[:3], [ERROR, 0, BUSY])
                with self.assertRaises(Closed):
                    second.receive()
                first.send_bytes(frame(STATUS, 1)[3:])
                self.assertEqual(first.receive()[0], STATUS_REPLY)
                hand_over(first, "m", [STORIES], descriptors=[file])
        os.close(file)


class Program(unittest.TestCase):
    def ellm(self, daemon, *arguments, code=0, prefix=(), stdin=subprocess.DEVNULL, binary=ELLM):
        done = subprocess.run(
            [*prefix, binary, "--socket", daemon.socket, *arguments],
            capture_output=True,
            text=True,
            stdin=stdin,
            env=environment(daemon.directory),
            timeout=30,
        )
        self.assertEqual(done.returncode, code, done.stderr)
        if code:
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stdout + done.stderr

    @needs_model
    def test_load_unload_remove(self):
        with running(models={"stories": STORIES}) as daemon:
            self.assertEqual(self.ellm(daemon, "load", "stories"), "loaded stories\n")
            self.assertIn("ellm unload stories", self.ellm(daemon, "rm", "stories", code=USAGE))
            self.assertEqual(self.ellm(daemon, "load", STORIES, "--name", "mine"), "loaded mine\n")
            self.assertIn('"loaded": true', self.ellm(daemon, "load", PARTS[0], "--json"))
            self.assertIn("stories260K-split", self.ellm(daemon, "ps"))
            for name in ("stories", "mine", "stories260K-split"):
                self.assertEqual(self.ellm(daemon, "unload", name), "unloaded %s\n" % name)
            self.assertIn("not loaded", self.ellm(daemon, "unload", "mine", code=NOINPUT))
            self.assertIn("stories", self.ellm(daemon, "load", "nothing", code=NOINPUT))
            self.ellm(daemon, "load", "/nowhere/m.gguf", code=NOINPUT)
            self.ellm(daemon, "load", PARTS[1], code=DATAERR)
            self.ellm(daemon, "load", "stories", "--name", "x", code=USAGE)
            self.ellm(daemon, "load", code=USAGE)
            self.assertEqual(self.ellm(daemon, "rm", "stories"), "removed stories\n")
            self.assertTrue(os.path.exists(STORIES))  # what was there was a link
            self.assertEqual(os.listdir(daemon.models_dir), [])
            self.ellm(daemon, "rm", "stories", code=NOINPUT)

    @needs_model
    def test_rm_takes_what_an_interrupted_pull_left(self):
        with running(models={"stories": STORIES}) as daemon:
            folder = daemon.models_dir + "/.pull-half"
            os.mkdir(folder)
            for name in ("lock", "half.gguf"):
                with open(folder + "/" + name, "w") as file:
                    file.write("x")
            with open(folder + "/lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a pull is running
                self.assertIn("no model 'half'", self.ellm(daemon, "rm", "half", code=NOINPUT))
                self.assertEqual(sorted(os.listdir(folder)), ["half.gguf", "lock"])
            self.assertEqual(self.ellm(daemon, "rm", "half"), "removed half\n")
            self.assertEqual(os.listdir(daemon.models_dir), ["stories.gguf"])
            self.ellm(daemon, "rm", "half", code=NOINPUT)
            self.ellm(daemon, "rm", "../half", code=NOINPUT)

    def test_a_models_directory_that_cannot_be_read(self):
        with running() as daemon:
            self.assertIn("no models yet", self.ellm(daemon, "models"))
            os.rmdir(daemon.models_dir)
            self.assertIn("no models yet", self.ellm(daemon, "models"))
            with open(daemon.models_dir, "w"):
                pass
            fault = "ellmd cannot read %s: Not a directory" % daemon.models_dir
            self.assertEqual(self.ellm(daemon, "models", code=NOPERM), "ellm: %s\n" % fault)
            self.assertIn(fault, self.ellm(daemon, "load", "stories", code=NOINPUT))
            self.assertIn("Not a directory", self.ellm(daemon, "models", "--json", code=NOPERM))

    @needs_model
    def test_rm_asks_on_a_terminal(self):
        with running(models={"stories": STORIES}) as daemon:
            for answer, said, left in (
                (b"n\n", "kept stories", 1),
                (b"\n", "kept stories", 1),
                (b"y\n", "removed stories", 0),
            ):
                leader, follower = pty.openpty()
                os.write(leader, answer)
                self.assertIn(said, self.ellm(daemon, "rm", "stories", stdin=follower))
                os.close(leader)
                os.close(follower)
                self.assertEqual(len(os.listdir(daemon.models_dir)), left)

    @needs_model
    @unittest.skipUnless(os.geteuid() == 0, "needs root to be somebody else")
    def test_others_may_not(self):
        with running(models={"stories": STORIES}) as daemon, tempfile.TemporaryDirectory() as folder:
            os.chmod(daemon.directory, 0o755)
            os.chmod(folder, 0o755)
            binary = shutil.copy(ELLM, folder + "/ellm")
            shutil.copy(STORIES, folder + "/m.gguf")
            os.chmod(folder + "/m.gguf", 0o644)
            nobody = dict(
                prefix=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], binary=binary, code=NOPERM
            )
            for arguments in (
                ["load", "stories"],
                ["load", folder + "/m.gguf"],
                ["unload", "stories"],
                ["rm", "stories"],
            ):
                self.assertIn("only an administrator", self.ellm(daemon, *arguments, **nobody))
            self.assertIn("stories", self.ellm(daemon, "models", **{**nobody, "code": 0}))
            self.assertEqual(os.listdir(daemon.models_dir), ["stories.gguf"])

    @needs_model
    @unittest.skipUnless(os.geteuid() == 0, "needs root to be somebody else")
    def test_pull_hands_over_to_the_daemon_of_another_user(self):
        with running(user=65534) as daemon, tempfile.TemporaryDirectory() as home:   # which 65534 may not enter
            own = shutil.copy(STORIES, home + "/mine.gguf")
            variables = {**environment(home), "ELLM_SOCKET": daemon.socket}

            def pull():
                done = subprocess.run([ELLM, "pull", own], capture_output=True, text=True, env=variables, timeout=30)
                self.assertEqual(done.returncode, 0, done.stderr)
                return done

            there = daemon.models_dir + "/mine.gguf"
            self.assertEqual(pull().stdout, there + "\n")
            with open(there, "rb") as copy, open(STORIES, "rb") as original:
                self.assertEqual(copy.read(), original.read())
            self.assertEqual(os.stat(there).st_uid, 65534)
            self.assertEqual([name for _, _, names in os.walk(home) for name in names], ["mine.gguf"])   # no copy of root's
            self.assertIn("already there", pull().stderr)
            self.assertEqual(self.ellm(daemon, "load", "mine"), "loaded mine\n")


if __name__ == "__main__":
    unittest.main()
