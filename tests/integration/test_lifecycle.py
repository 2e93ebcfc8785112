"""Starting, stopping and what can be wrong at either end."""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from harness import ELLMD, STORIES, Daemon, environment, needs_model, run, running
from protocol import *

EX_USAGE, EX_NOINPUT, EX_SOFTWARE, EX_OSERR, EX_CANTCREAT, EX_CONFIG = 64, 66, 70, 71, 73, 78


class Start(unittest.TestCase):
    def fails(self, code, *parts, options=(), config=None, **more):
        got, out, err = run(*options, config=config, **more)
        self.assertEqual(got, code, err)
        for part in parts:
            self.assertIn(part, err)
        self.assertEqual(out, "")
        lines = [line for line in err.splitlines() if ", kernels " not in line]     # the greeting
        self.assertEqual(len(lines), 1, err)

    def test_wrong_configuration(self):
        for text, *parts in (("threads = -1", "line 1", "threads", "negative"),
                             ("\nthreads = 70000", "line 2", "threads is 70000", "4096"),
                             ("treads = 2", "line 1", "unknown key 'treads'", "did you mean 'threads'"),
                             ("[kv]\ntpye = 'f16'", "line 2", "unknown key 'kv.tpye'", "did you mean 'kv.type'"),
                             ("[kw]\ntype = 'f16'", "line 1", "unknown key 'kw'", "did you mean 'kv'"),
                             ("[kv]\ntype = 'f17'", "line 2", "'f17'", "f16, int8, int4"),
                             ("[kv]\ntype = 3", "line 2", "kv.type is an integer", "a string"),
                             ("[kv]\nmemory = '8Q'", "line 2", "8Q", "8G"),
                             ("models = 'one'", "line 1", "models is a string", "an array"),
                             ("models = ['one', 2]", "line 1", "models is an integer"),
                             ("kv = 1", "line 1", "kv is an integer", "[kv]"),
                             ("threads = ", "line 1"), ("[memory]\npolicy = 'bind:999'", "bind:999", "NUMA")):
            self.fails(EX_CONFIG, "given.toml", *parts, config=text)
            self.fails(EX_CONFIG, *parts, options=["--check-config"], config=text)
        self.fails(EX_CONFIG, "admin_group", "no-such-group", config="admin_group = 'no-such-group'")
        self.fails(EX_CONFIG, "/nowhere.toml", options=["--config", "/nowhere.toml"])
        self.fails(EX_CONFIG, "/tmp: cannot be read", "directory", options=["--config", "/tmp"])
        self.fails(EX_CONFIG, "/dev/zero", "1048576 bytes", options=["--config", "/dev/zero"])

    def test_wrong_options(self):
        self.fails(EX_USAGE, "--nonsense", options=["--nonsense"])
        self.fails(EX_CONFIG, "--threads", "many", "0 to 4096", options=["--threads", "many"])
        self.fails(EX_CONFIG, "--kv-type", "f16, int8, int4", options=["--kv-type", "q4"])
        self.fails(EX_CONFIG, "--kernels", "avx2", options=["--kernels", "avx9"])

    def test_check_and_print(self):
        code, out, err = run("--check-config", config="threads = 3")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("good", out)
        self.assertEqual(run("--print-config", config="")[:2], run("--print-config", "--config", "/dev/null")[:2])
        code, printed, _ = run("--print-config", config="threads = 3\n[kv]\nmemory = '3G'")
        self.assertEqual(code, 0)
        self.assertIn("\nthreads = 3\n", printed)
        self.assertIn('\nmemory = "3G"\n', printed)
        again = run("--print-config", config=printed)[1]
        self.assertEqual(again, printed)

    def test_help_and_version(self):
        code, out, _ = run("--help")
        self.assertEqual(code, 0)
        self.assertIn("Examples", out)
        self.assertRegex(run("--version")[1], r"^ellmd \d+\.\d+\.\d+\n$")

    def test_missing_and_damaged_models(self):
        with tempfile.TemporaryDirectory() as directory:
            socket_option = ["--socket", directory + "/s"]
            self.fails(EX_NOINPUT, "'nothing'", "ellm pull", options=[*socket_option, "--model", "nothing"])
            self.fails(EX_NOINPUT, "/nowhere.gguf", options=[*socket_option, "--model", "/nowhere.gguf"])
            with open(directory + "/garbage.gguf", "wb") as file:
                file.write(b"GARBAGE!" * 100)
            self.fails(EX_NOINPUT, "garbage.gguf", options=[*socket_option, "--model", directory + "/garbage.gguf"])
            if STORIES:
                with open(STORIES, "rb") as good, open(directory + "/cut.gguf", "wb") as file:
                    file.write(good.read()[:500_000])
                self.fails(EX_NOINPUT, "cut.gguf", options=[*socket_option, "--model", directory + "/cut.gguf"])
                self.fails(EX_OSERR, "kv.memory is", "tokens of keys and values need", config="[kv]\nmemory = 20000",
                           options=[*socket_option, "--model", STORIES])

    def test_sockets_that_cannot_be(self):
        with tempfile.TemporaryDirectory() as directory:
            with open(directory + "/file", "w") as file:
                file.write("precious")
            self.fails(EX_CANTCREAT, "not a socket", options=["--socket", directory + "/file"])
            with open(directory + "/file") as file:
                self.assertEqual(file.read(), "precious")
            self.fails(EX_CANTCREAT, "107", options=["--socket", directory + "/" + "x" * 120])
            self.fails(EX_CANTCREAT, options=["--socket", "/proc/nowhere/s"])

    def test_zero_options(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            process = subprocess.Popen([ELLMD], env=environment(directory), stderr=subprocess.PIPE, text=True)
            try:
                path = directory + "/ellm/ellmd.sock"
                deadline = time.monotonic() + 30
                while not os.path.exists(path):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.01)
                with Connection(path) as connection:
                    with self.assertRaises(Failed) as failed:
                        connection.generate("x")
                    self.assertEqual(failed.exception.code, NO_SUCH_MODEL)
                    self.assertIn("ellm pull", failed.exception.message)
                self.assertEqual(os.stat(directory + "/ellm").st_mode & 0o777, 0o700)
            finally:
                process.terminate()
                self.assertEqual(process.wait(20), 0)
                process.stderr.close()


class Sockets(unittest.TestCase):
    def test_a_second_daemon(self):
        with running() as daemon:
            for _ in range(2):
                code, _, err = run("--socket", daemon.socket)
                self.assertEqual(code, EX_CANTCREAT)
                self.assertIn("another ellmd (pid %d) listens on %s" % (daemon.process.pid, daemon.socket), err)
            with daemon.connect() as connection:
                connection.status()
            os.unlink(daemon.socket)
            code, _, err = run("--socket", daemon.socket)
            self.assertEqual(code, EX_CANTCREAT)
            self.assertIn("another ellmd holds %s.lock" % daemon.socket, err)

    def test_a_stale_socket_is_replaced(self):
        directory = tempfile.mkdtemp(prefix="ellm")
        try:
            daemon = Daemon(directory=directory)
            daemon.process.kill()                                    # leaves its socket and its lock behind
            daemon.process.wait()
            daemon.log.close()
            self.assertTrue(os.path.exists(daemon.socket))
            again = Daemon(directory=directory)
            with again.connect() as connection:
                self.assertEqual(connection.status()["pid"], again.process.pid)
            again.stop()
            self.assertFalse(os.path.exists(daemon.socket))
            self.assertFalse(os.path.exists(daemon.socket + ".lock"))
        finally:
            shutil.rmtree(directory)

    def test_many_daemons_at_once(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            started = [subprocess.Popen([ELLMD, "--socket", directory + "/s", "--threads", "1"], env=environment(directory),
                                        stderr=subprocess.PIPE, text=True) for _ in range(6)]
            lost = []
            deadline = time.monotonic() + 30
            while len(lost) < 5:
                self.assertLess(time.monotonic(), deadline)
                lost = [process for process in started if process.poll() is not None]
                time.sleep(0.01)
            self.assertTrue(all(process.returncode == EX_CANTCREAT for process in lost))
            winner = next(process for process in started if process.poll() is None)
            with Connection(directory + "/s") as connection:
                self.assertEqual(connection.status()["pid"], winner.pid)
            winner.terminate()
            self.assertEqual(winner.wait(20), 0)
            for process in started:
                process.stderr.close()


@needs_model
class Stop(unittest.TestCase):
    LONG = dict(max_tokens=1900, ignore_eos=True)

    def test_sigterm_lets_requests_end(self):
        daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"])
        connection, other = daemon.connect(), daemon.connect()
        request = connection.begin(GENERATE, "", "Once", [], False, sampling(**self.LONG))
        connection.fill(1)
        daemon.process.send_signal(signal.SIGTERM)
        answer = connection.finish(request)
        self.assertEqual((answer.finish_reason, answer.usage[2]), (LENGTH, 1900))
        self.assertEqual(daemon.process.wait(20), 0)
        connection.close()
        other.close()
        daemon.stop()

    def test_new_requests_are_refused_while_draining(self):
        daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"])
        connection = daemon.connect()
        request = connection.begin(GENERATE, "", "Once", [], False, sampling(**self.LONG))
        connection.fill(1)
        daemon.process.send_signal(signal.SIGTERM)
        codes = []
        while not codes:
            late = connection.begin(TOKENIZE, "", "x")
            while (message := connection.receive())[1] != late:
                self.assertEqual((message[0], message[1]), (TOKEN, request), "the answer ended before the signal was seen")
            if message[0] == ERROR:
                codes.append(message[2])
        self.assertEqual(codes, [SHUTTING_DOWN])
        with self.assertRaises(OSError):
            daemon.connect()
        self.assertEqual(connection.finish(request).finish_reason, LENGTH)
        connection.close()
        daemon.stop()

    def test_drain_seconds_end_in_cancelling(self):
        daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"], config="drain_seconds = 0\n")
        connection = daemon.connect()
        request = connection.begin(GENERATE, "", "Once", [], False, sampling(**self.LONG))
        connection.fill(1)
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(connection.finish(request).finish_reason, CANCELLED)
        self.assertEqual(daemon.process.wait(20), 0)
        connection.close()
        daemon.stop()

    def test_a_second_signal_is_immediate(self):
        daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"])
        connection = daemon.connect()
        for _ in range(30):
            connection.begin(GENERATE, "", "Once", [], False, sampling(**self.LONG))
        connection.fill(1)
        daemon.process.send_signal(signal.SIGTERM)
        while "stopping" not in daemon.output():
            time.sleep(0.002)
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(5), 0)
        self.assertIn("at once", daemon.output())
        self.assertFalse(os.path.exists(daemon.socket))
        connection.close()
        daemon.stop()

    def test_idle_daemon_ends_quickly_and_sighup_is_harmless(self):
        daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"])
        connection = daemon.connect()
        daemon.process.send_signal(signal.SIGHUP)
        connection.status()
        begin = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(20), 0)
        self.assertLess(time.monotonic() - begin, 5)
        connection.close()
        daemon.stop()

    def test_idle_daemon_uses_no_processor(self):
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon:
            with daemon.connect() as connection:
                connection.generate("Once", max_tokens=10)

                def ticks():
                    with open("/proc/%d/stat" % daemon.process.pid) as file:
                        return sum(int(word) for word in file.read().rsplit(")", 1)[1].split()[11:13])

                time.sleep(0.3)                                      # workers park
                before = ticks()
                time.sleep(1)
                self.assertLessEqual(ticks() - before, 2)            # of 100

    def test_the_log_holds_no_prompts(self):
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon:
            with daemon.connect() as connection:
                answer = connection.generate("Secretword once upon", max_tokens=30)
                with self.assertRaises(Failed):
                    connection.generate("Secretword " * 3000, max_tokens=30)
            output = daemon.output()
            self.assertNotIn("Secretword", output)
            self.assertNotIn(answer.text[:12], output)

    def test_a_log_that_nobody_reads_holds_up_nobody(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            process = subprocess.Popen([ELLMD, "--socket", directory + "/s"], env=environment(directory), stderr=subprocess.PIPE)
            try:
                deadline = time.monotonic() + 30
                while not os.path.exists(directory + "/s"):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.01)
                with Connection(directory + "/s") as connection:
                    for i in range(300):                             # each is logged with its long name
                        with self.assertRaises(Failed):
                            connection.models(LOAD, directory + "/" + "x" * 500 + str(i))
            finally:
                process.terminate()
                self.assertEqual(process.wait(20), 0)
                process.stderr.close()

    def test_no_memory_for_the_model(self):
        with tempfile.TemporaryDirectory() as directory:
            code, _, err = run("--socket", directory + "/s", "--model", STORIES, config="[kv]\nmemory = '900T'\n")
            self.assertEqual(code, EX_OSERR)
            self.assertRegex(err, r"needs \d+ KB for weights, .*together .* of memory; .* are available")


if __name__ == "__main__":
    unittest.main()
