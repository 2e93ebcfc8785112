"""What one sees of the daemon from outside: metrics for Prometheus, the page of totals, `ellm top`."""
import http.client
import json
import mmap
import os
import pty
import re
import select
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from prometheus_client.parser import text_string_to_metric_families

from harness import STORIES, Daemon, OneDaemon, environment, needs_model, running
from protocol import *

ELLM = os.environ.get("ELLM", "build/release/bin/ellm")
DASHBOARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/grafana-dashboard.json")
# client/stats_page.h's Totals, d: double, Q: unsigned.
TOTALS = ("Q:pid d:start_s d:updated_s Q:threads Q:connections Q:models Q:running Q:queued Q:served Q:steps Q:prompt_tokens "
          "Q:cached_tokens Q:completion_tokens Q:kv_tokens Q:kv_free_tokens Q:kv_cached_tokens Q:weight_bytes Q:prefill_rows "
          "Q:decode_rows d:step_ms Q:preemptions").split()


class UnixHttp(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("ellmd", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


def read_totals(path):
    """An even state of the page, by its description alone."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as page:
        while True:
            magic, layout, sequence, size = struct.unpack_from("<8sQQQ", page)
            assert (magic, layout, size) == (b"eLLMstat", 1, 8 * len(TOTALS)), (magic, layout, size)
            values = struct.unpack_from("<" + "".join(entry[0] for entry in TOTALS), page, 32)
            if sequence % 2 == 0 and struct.unpack_from("<Q", page, 16)[0] == sequence:
                return dict(zip((entry[2:] for entry in TOTALS), values))


@needs_model
class Scrape(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = os.path.join(tempfile.mkdtemp(prefix="ellm"), "metrics")
        cls.daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"],
                            config='[metrics]\nsocket = "%s"\n' % cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        assert not os.path.exists(cls.path)
        os.rmdir(os.path.dirname(cls.path))

    def get(self, target="/metrics", method="GET"):
        connection = UnixHttp(self.path)
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer, body

    def samples(self):
        """{(name, labels): value} and {family: type}, as Prometheus' own parser reads them."""
        answer, body = self.get()
        self.assertEqual(answer.status, 200)
        self.assertIn("version=0.0.4", answer.getheader("Content-Type"))
        families = list(text_string_to_metric_families(body))
        return ({(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples},
                {f.name: f.type for f in families})

    def test_requests_are_counted_as_they_end(self):
        def value(samples, name, **labels):
            return samples.get((name, tuple(sorted(labels.items()))), 0)
        before, types = self.samples()
        self.assertEqual(types["ellm_requests"], "counter")
        self.assertEqual(types["ellm_request_ttft_seconds"], "histogram")
        with self.daemon.connect() as connection:
            answers = [connection.generate("Once upon a time " + word, max_tokens=12, ignore_eos=True) for word in ("a", "b", "b")]
            with self.assertRaises(Failed):
                connection.generate("x", model="no-such-model")
        after, _ = self.samples()

        def more(name, **labels):
            return value(after, name, **labels) - value(before, name, **labels)
        self.assertEqual(more("ellm_requests_total", model="stories", kind="generate", finish_reason="length"), 3)
        self.assertEqual(more("ellm_errors_total", code="no_such_model"), 1)
        self.assertEqual(more("ellm_prompt_tokens_total"), sum(answer.usage[0] for answer in answers))
        self.assertEqual(more("ellm_cached_tokens_total"), sum(answer.cached for answer in answers))
        self.assertEqual(more("ellm_completion_tokens_total"), 36)
        for reason in RECOMPUTED_FIELDS:
            self.assertEqual(more("ellm_recomputed_tokens_total", model="stories", reason=reason),
                             sum(answer.recomputed.get(reason, 0) for answer in answers), reason)
        self.assertEqual(more("ellm_rows_total", phase="prefill"), sum(answer.usage[0] - answer.cached for answer in answers))
        self.assertEqual(more("ellm_rows_total", phase="decode"), 3 * 11)     # a request's last token is not run
        for name in ("queue", "ttft", "time_per_token"):
            self.assertEqual(more("ellm_request_%s_seconds_count" % name, model="stories"), 3)
        ttft = sum(answer.timings[1] for answer in answers) / 1e3
        self.assertLessEqual(more("ellm_request_ttft_seconds_sum", model="stories"), ttft)
        kv = sum(value(after, "ellm_kv_tokens", model="stories", state=state) for state in ("used", "cached", "free"))
        with self.daemon.connect() as connection:
            self.assertEqual(kv, 32 * connection.status()["models"][0]["kv_pages"])

    def test_the_dashboard_asks_for_what_there_is(self):
        with self.daemon.connect() as connection:
            connection.generate("Once", max_tokens=3, ignore_eos=True)
            with self.assertRaises(Failed):
                connection.generate("x", model="no-such-model")
        names = {name for name, _ in self.samples()[0]}
        with open(DASHBOARD) as file:
            board = json.load(file)
        asked = set(re.findall(r"\bellm_\w+", json.dumps([panel["targets"] for panel in board["panels"]])))
        self.assertTrue(asked)
        self.assertEqual(asked - names, set())

    def test_other_requests(self):
        for target, method, status in (("/", "GET", 404), ("/metrics/x", "GET", 404), ("/metrics?x=1", "GET", 200),
                                       ("/metrics", "POST", 405), ("/metrics", "HEAD", 200)):
            answer, body = self.get(target, method)
            self.assertEqual(answer.status, status, (target, method))
            self.assertEqual(body == "", method == "HEAD")
        connection = UnixHttp(self.path)                              # one connection, several scrapes
        for _ in range(3):
            connection.request("GET", "/metrics")
            self.assertEqual(connection.getresponse().read()[:2], b"# ")
        connection.close()

    def test_nonsense_and_idle_connections_disturb_nobody(self):
        idle = []
        for _ in range(40):                                           # more than are kept
            idle.append(socket.socket(socket.AF_UNIX))
            idle[-1].connect(self.path)
        for end in idle:
            end.close()
        for bytes_ in (b"\0" * 100, b"GET " + b"x" * 100000, b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 10000, b"\xff\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as nonsense:
                nonsense.settimeout(20)
                nonsense.connect(self.path)
                try:
                    nonsense.sendall(bytes_)
                    nonsense.shutdown(socket.SHUT_WR)
                    while nonsense.recv(65536):
                        pass
                except (ConnectionError, BrokenPipeError):
                    pass
        self.assertTrue(self.samples()[0])
        with self.daemon.connect() as connection:
            self.assertEqual(len(connection.generate("Once", max_tokens=3, ignore_eos=True).tokens), 3)


@needs_model
class StatsPage(OneDaemon):
    def test_totals_are_those_of_status(self):
        with self.daemon.connect() as connection:
            connection.generate("Once upon a time", max_tokens=20, ignore_eos=True)
            status = self.daemon.wait_idle()
            path = connection.status()["stats_page"]
            self.assertEqual(path, self.daemon.socket + ".stats")
            deadline = time.monotonic() + 20
            while (totals := read_totals(path))["served"] != status["served"] and time.monotonic() < deadline:
                time.sleep(0.01)
        for name in ("pid", "threads", "running", "queued", "served", "prompt_tokens", "cached_tokens", "completion_tokens"):
            self.assertEqual(totals[name], status[name], name)
        model = status["models"][0]
        self.assertEqual([totals[name] for name in ("kv_tokens", "kv_free_tokens", "kv_cached_tokens")],
                         [32 * model[name] for name in ("kv_pages", "kv_pages_free", "kv_pages_cached")])
        self.assertEqual(totals["weight_bytes"], model["resident_bytes"])
        self.assertLess(abs(totals["updated_s"] - time.clock_gettime(time.CLOCK_MONOTONIC)), 20)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o644)


@needs_model
class Pages(unittest.TestCase):
    def test_an_idle_daemon_writes_once_a_second(self):
        with running(models={"stories": STORIES}) as daemon:
            times = []
            while len(times) < 3:
                updated = read_totals(daemon.socket + ".stats")["updated_s"]
                if updated != 0 and updated not in times:
                    times.append(updated)
            self.assertGreater(times[2] - times[1], 0.9)

    def test_the_page_goes_with_the_daemon(self):
        with running(models={"stories": STORIES}) as daemon:
            path = daemon.socket + ".stats"
            totals = read_totals(path)
            with open(path, "rb") as held:
                daemon.process.terminate()
                daemon.process.wait(20)
                self.assertFalse(os.path.exists(path))
                self.assertEqual(len(held.read()), 32 + 8 * len(TOTALS))
        self.assertEqual(totals["models"], 0)


def top(daemon, *options):
    return subprocess.run([ELLM, "--socket", daemon.socket, "top", *options], env=environment(daemon.directory),
                          capture_output=True, text=True, timeout=60)


@needs_model
class Top(OneDaemon):
    def test_prints_states(self):
        with self.daemon.connect() as connection:
            request = connection.begin(GENERATE, "stories", "Once", [], False, sampling(max_tokens=400, ignore_eos=True))
            connection.fill(1)
            once = top(self.daemon, "--interval", "0.1")
            self.assertEqual((once.returncode, once.stderr), (0, ""))
            self.assertNotIn("\x1b", once.stdout)
            self.assertIn("tokens/s", once.stdout)
            states = top(self.daemon, "--json", "--interval", "0.1", "--count", "3")
            connection.finish(request)
        states = [json.loads(line) for line in states.stdout.splitlines()]
        self.assertEqual(len(states), 3)
        for state in states:
            self.assertEqual(state["kv_tokens"], 32 * state["models"][0]["kv_pages"])

    def test_a_terminal_is_left_as_it_was(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(ELLM, [ELLM, "--socket", self.daemon.socket, "top", "--interval", "0.1"],
                      {**environment(self.daemon.directory), "TERM": "xterm"})
        shown = b""
        while b"served" not in shown:
            self.assertTrue(select.select([terminal], [], [], 20)[0])
            shown += os.read(terminal, 65536)
        os.write(terminal, b"q")
        try:
            while piece := os.read(terminal, 65536):
                shown += piece
        except OSError:
            pass                                                      # closed by its end
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertTrue(shown.startswith(b"\x1b[?1049h"))
        self.assertTrue(shown.endswith(b"\x1b[?1049l"))

    def test_without_a_page_it_asks(self):
        path = self.daemon.socket + ".stats"
        os.rename(path, path + ".away")
        try:
            state = json.loads(top(self.daemon, "--json", "--interval", "0.1").stdout)
            self.assertEqual(state["kv_tokens"], 32 * state["models"][0]["kv_pages"])
        finally:
            os.rename(path + ".away", path)

    def test_wrong_options(self):
        for options in (["--interval", "0"], ["--interval", "x"], ["--count", "-1"]):
            self.assertEqual(top(self.daemon, *options).returncode, 64)


if __name__ == "__main__":
    unittest.main()
