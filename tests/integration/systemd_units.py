"""Runs inside a booted systemd (boot_systemd.sh) with ellm installed: socket activation, notify, watchdog, drain, restart,
crash, hardening. Arguments: a small model, perhaps a model with a byte-level tokenizer and a long text (gzip) for it."""
import gzip
import os
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from protocol import *                                               # noqa: E402

SOCKET = "/run/ellm/ellmd.sock"
SMALL = sys.argv[1]
LARGE, TEXT = (sys.argv[2:4] + [None, None])[:2]
LONG = dict(max_tokens=1900, ignore_eos=True)


def systemctl(*arguments, check=True):
    return subprocess.run(["systemctl", *arguments], check=check, capture_output=True, text=True).stdout.strip()


def show(name, unit="ellmd.service"):
    return systemctl("show", "-P", name, unit)


def wait_for(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain for %s; %s\n%s" % (what, show("StatusText"), journal()))
        time.sleep(0.02)


def journal():
    return subprocess.run(["journalctl", "-u", "ellmd", "--no-pager", "-o", "cat"], capture_output=True, text=True).stdout


def as_user(ask):
    """What `ask` gets over a connection of the user nobody; connecting is enough for the kernel to say who it is."""
    os.seteuid(65534)
    try:
        connection = Connection(SOCKET)
    finally:
        os.seteuid(0)
    with connection:
        return ask(connection)


class Units(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run(["systemd-sysusers"], check=True)
        subprocess.run(["systemd-tmpfiles", "--create"], check=False, capture_output=True)
        for name, path in (("small", SMALL), ("large", LARGE)):
            if path:
                shutil.copyfile(path, "/var/lib/ellm/models/%s.gguf" % name)
                os.chmod("/var/lib/ellm/models/%s.gguf" % name, 0o644)
        systemctl("daemon-reload")
        systemctl("start", "ellmd.socket")

    def setUp(self):
        systemctl("reset-failed", "ellmd.service", "ellmd.socket", check=False)
        systemctl("start", "ellmd.socket")

    def test_1_a_connection_starts_the_service(self):
        self.assertEqual(show("ActiveState"), "inactive")
        said = subprocess.run(["ellm", "status"], check=True, capture_output=True, text=True).stdout
        self.assertIn("ellmd", said)
        with Connection(SOCKET) as connection:
            status = connection.status()
        self.assertEqual(show("ActiveState"), "active")
        self.assertEqual(show("MainPID"), str(status["pid"]))
        self.assertIn("listening on " + SOCKET, show("StatusText"))
        self.assertEqual(show("WatchdogUSec"), "1min")
        self.assertNotEqual(show("WatchdogTimestampMonotonic"), "0")
        with open("/proc/%d/status" % status["pid"]) as file:
            fields = dict(line.split(":", 1) for line in file)
        self.assertNotEqual(fields["Uid"].split()[0], "0")
        self.assertEqual(int(fields["CapEff"], 16), 0)
        self.assertEqual(fields["NoNewPrivs"].strip(), "1")
        self.assertEqual(fields["Seccomp"].strip(), "2")             # filters: system calls, executable memory
        self.assertIn("listening on " + SOCKET, journal())
        self.assertNotIn("<5>", journal())                           # the priority is understood, not printed

    def test_2_models_are_served_and_locked(self):
        with Connection(SOCKET) as connection:
            answer = connection.generate("Once upon a time", model="small", max_tokens=20)
            self.assertEqual(len(answer.tokens), 20)
            model = next(model for model in connection.status()["models"] if model["name"] == "small")
            self.assertTrue(model["locked"])
            status = connection.status()
            with open("/proc/%d/limits" % status["pid"]) as file:
                unlimited = "unlimited" in next(line for line in file if line.startswith("Max locked memory"))
            if unlimited:                                            # a container may not let systemd raise it
                self.assertEqual(status["warnings"], [])

    def test_2_users_may_use_and_administrators_may_load(self):
        with Connection(SOCKET) as mine:
            request = mine.begin(GENERATE, "small", "Once", [], False, sampling(**LONG))
            mine.fill(1)
            self.assertEqual(as_user(lambda theirs: theirs.status()["requests"]), [])        # nobody else's
            with self.assertRaises(Failed) as failed:
                as_user(lambda theirs: theirs.models(UNLOAD, "small"))
            self.assertIn("administrator", failed.exception.message)
            self.assertEqual(as_user(lambda theirs: theirs.generate("The", model="small", max_tokens=3).finish_reason), LENGTH)
            mine.finish(request)
            self.assertEqual(mine.models(UNLOAD, "small"), [])

    def test_3_the_tokenizer_works_without_executable_memory(self):
        if not LARGE:
            self.skipTest("no model with a byte-level tokenizer")
        with gzip.open(TEXT, "rt") as file:
            text = file.read()
        with Connection(SOCKET, timeout=60) as connection:
            connection.reply(TOKENIZE, "large", "loads the model")
            begin = time.monotonic()
            connection.begin(TOKENIZE, "large", text)
            connection.fill(4)
            took = time.monotonic() - begin
            tokens = len(connection.receive()[2])
        print("%d bytes are %d tokens in %.2f s" % (len(text.encode()), tokens, took))
        self.assertGreater(tokens, 500_000)
        self.assertLess(took, 2 * float(os.environ.get("ELLM_TIME_SCALE", "1")))

    def test_4_stopping_lets_requests_end(self):
        connection = Connection(SOCKET)
        connection.generate("x", model="small", max_tokens=1)
        request = connection.begin(GENERATE, "small", "Once", [], False, sampling(**LONG))
        connection.fill(1)
        systemctl("stop", "--no-block", "ellmd.service")
        answer = connection.finish(request)
        self.assertEqual((answer.finish_reason, answer.usage[2]), (LENGTH, 1900))
        wait_for(lambda: show("ActiveState") in ("inactive", "active"), "the stop")
        self.assertEqual((show("Result"), show("ExecMainStatus")), ("success", "0"))
        connection.close()

    def test_5_clients_wait_in_the_socket_while_it_restarts(self):
        with Connection(SOCKET) as connection:
            first = connection.status()["pid"]
        systemctl("restart", "--no-block", "ellmd.service")
        pids = set()
        deadline = time.monotonic() + 20
        while pids <= {first} and time.monotonic() < deadline:
            try:
                with Connection(SOCKET) as connection:
                    pids.add(connection.status()["pid"])
            except (Closed, ConnectionResetError, BrokenPipeError):
                pass                                                 # accepted by the old one; never refused
        self.assertGreater(len(pids | {first}), 1)

    def test_6_a_crash_is_followed_by_a_restart(self):
        with Connection(SOCKET) as connection:
            first = connection.status()["pid"]
            connection.begin(GENERATE, "small", "Once", [], False, sampling(**LONG))
            restarts = int(show("NRestarts"))
            os.kill(first, 9)
            with self.assertRaises(Closed):
                while True:
                    connection.receive()
        with Connection(SOCKET) as connection:                       # waits in the socket
            self.assertNotEqual(connection.status()["pid"], first)
            self.assertEqual(len(connection.generate("The", model="small", max_tokens=5).tokens), 5)
        self.assertEqual(int(show("NRestarts")), restarts + 1)

    def test_6_prefixes_outlive_restart_and_crash(self):
        tokens = [3 + i * i % 500 for i in range(500)]

        def ask():
            with Connection(SOCKET) as connection:
                answer = connection.generate(tokens=tokens, model="small", max_tokens=4, ignore_eos=True)
                return answer, connection.status()["pid"]
        first, pid = ask()
        systemctl("restart", "ellmd.service")
        second, restarted = ask()
        self.assertNotEqual(pid, restarted)
        self.assertEqual((second.cached, second.tokens), (499, first.tokens))
        os.kill(restarted, 9)
        third, crashed = ask()
        self.assertNotEqual(restarted, crashed)
        self.assertEqual((third.cached, third.tokens), (499, first.tokens))
        systemctl("stop", "ellmd.service")                           # gives the memory back
        fourth, _ = ask()                                            # the socket starts it
        self.assertEqual((fourth.cached, fourth.disk, fourth.tokens), (499, 499, first.tokens))
        self.assertEqual(show("NFileDescriptorStore"), "2")          # and the weights
        self.assertGreaterEqual(journal().count("'small': its weights are still there"), 2)
        with Connection(SOCKET) as connection:
            connection.models(UNLOAD, "small")
        wait_for(lambda: show("NFileDescriptorStore") == "0", "the descriptor's removal")

    def test_7_the_watchdog_ends_a_daemon_that_hangs(self):
        os.makedirs("/run/systemd/system/ellmd.service.d", exist_ok=True)
        with open("/run/systemd/system/ellmd.service.d/test.conf", "w") as file:
            file.write("[Service]\nWatchdogSec=1\nWatchdogSignal=SIGKILL\n")
        systemctl("daemon-reload")
        systemctl("restart", "ellmd.service")
        with Connection(SOCKET) as connection:
            first = connection.status()["pid"]
        time.sleep(2.5)
        self.assertEqual(show("MainPID"), str(first))                # it gives signs of life
        os.kill(first, 19)
        wait_for(lambda: show("MainPID") not in (str(first), "0"), "the watchdog")
        os.remove("/run/systemd/system/ellmd.service.d/test.conf")
        systemctl("daemon-reload")
        with Connection(SOCKET) as connection:
            self.assertNotEqual(connection.status()["pid"], first)

    def test_8_a_wrong_configuration_fails_clearly(self):
        systemctl("stop", "ellmd.service", "ellmd.socket")
        os.makedirs("/etc/ellm", exist_ok=True)
        with open("/etc/ellm/ellmd.toml", "w") as file:
            file.write("treads = 2\n")
        try:
            systemctl("start", "ellmd.service", check=False)
            wait_for(lambda: show("ExecMainStatus") == "78", "the exit code")
            self.assertIn("/etc/ellm/ellmd.toml, line 1: unknown key 'treads'; did you mean 'threads'?", journal())
        finally:
            os.remove("/etc/ellm/ellmd.toml")
            systemctl("stop", "ellmd.service", "ellmd.socket", check=False)

    def test_9_the_units_are_clean_and_closed(self):
        unit = systemctl("show", "-P", "FragmentPath", "ellmd.service")
        verify = subprocess.run(["systemd-analyze", "verify", unit, unit.replace(".service", ".socket")],
                                capture_output=True, text=True)
        said = "\n".join(line for line in (verify.stdout + verify.stderr).splitlines() if "ellm" in line)
        self.assertEqual((verify.returncode, said), (0, ""))
        exposure = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", unit],
                                  capture_output=True, text=True)
        print(exposure.stdout.strip().splitlines()[-1])
        self.assertEqual(exposure.returncode, 0, exposure.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
