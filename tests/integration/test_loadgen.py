"""tools/loadgen: its figures against Python's statistics module and by hand, its work against the built daemon and a small
server with OpenAI's API."""
import http.server
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import unittest

from harness import STORIES, Daemon, needs_model

LOADGEN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools/loadgen")
sys.path.insert(0, LOADGEN)
import plan                                             # noqa: E402
import report                                           # noqa: E402


def loadgen(*arguments, code=0):
    done = subprocess.run([sys.executable, "-B", LOADGEN, *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done
    return json.loads(done.stdout) if "--json" in arguments else done.stdout + done.stderr


class Figures(unittest.TestCase):
    def test_percentiles_are_those_of_the_statistics_module(self):
        rng = random.Random(3)
        for count in (2, 3, 10, 99, 1000):
            values = [rng.lognormvariate(0, 1) for _ in range(count)]
            expected = statistics.quantiles(values, n=100, method="inclusive")
            for point in (1, 25, 50, 90, 95, 99):
                self.assertAlmostEqual(report.percentile(values, point), expected[point - 1], places=12)
            self.assertEqual(report.percentile(values, 100), max(values))
            self.assertAlmostEqual(report.percentile(values, 50), statistics.median(values), places=12)
        self.assertEqual(report.percentile([4.0], 99), 4.0)
        self.assertIsNone(report.percentile([], 50))

    def test_jain_by_hand(self):
        self.assertEqual(report.jain([5, 5, 5]), 1)
        self.assertEqual(report.jain([1, 0, 0, 0]), 0.25)
        self.assertEqual(report.jain([1, 2, 3]), 36 / (3 * 14))
        self.assertEqual(report.jain([3, 1]), 0.8)
        self.assertIsNone(report.jain([0, 0]))

    def test_a_summary_by_hand(self):
        results = [report.Result(0, 0, 1.0, sent=1.001, ended=3.0, arrivals=[1.5, 2.0, 3.0], sizes=[1, 1, 2], prompt_tokens=10,
                                 cached_tokens=4, output_tokens=4),
                   report.Result(1, 1, 2.0, sent=2.0, ended=4.0, arrivals=[2.1, 4.0], sizes=[1, 1], prompt_tokens=5, output_tokens=2),
                   report.Result(2, 1, 2.5, "busy", "full", sent=2.5, ended=2.6)]
        got = report.summarise(results, [1, 2], [1000, 1001])
        self.assertEqual(got["outcomes"], {"ok": 2, "busy": 1})
        self.assertEqual((got["seconds"], got["output_tokens"], got["prompt_tokens"], got["cached_tokens"]), (4.0, 6, 15, 4))
        self.assertEqual((got["output_tokens_per_second"], got["requests_per_second"]), (1.5, 0.5))
        self.assertEqual((got["ttft_ms"]["p50"], got["ttft_ms"]["max"]), (300, 500))         # 500 and 100 ms
        self.assertEqual((got["time_per_token_ms"]["p50"], got["time_per_token_ms"]["max"]), (1200, 1900))   # 1.5 s / 3; 1.9 s / 1
        self.assertEqual(got["between_tokens_ms"]["p50"], 1000)                              # 0.5, 1.0 and 1.9 s
        self.assertEqual([user["tokens"] for user in got["users"]], [14, 7])
        self.assertEqual(got["jain"], 0.9)                                                   # 21² / (2 (14² + 7²))
        self.assertAlmostEqual(got["jain_of_asked"], 17.5 ** 2 / (2 * (14 ** 2 + 3.5 ** 2)), places=6)
        text = report.table(got)
        self.assertIn("3 requests in 4.0 s: 2 ok, 1 busy", text)
        self.assertRegex(text, r"time to first token +300\.0 .* 500\.0\n")

    def test_nothing_at_all(self):
        self.assertIn("0 requests", report.table(report.summarise([], [1], [0])))


class Plan(unittest.TestCase):
    def test_the_seed_decides(self):
        options = dict(rate=50, duration=20, prefixes=3, prefix_words=20, prefix_share=0.5, users=3, cancels=0.2, kills=0.1)
        work = plan.make_plan(plan.Options(**options))
        self.assertEqual(work, plan.make_plan(plan.Options(**options)))
        self.assertNotEqual(work, plan.make_plan(plan.Options(seed=2, **options)))
        more = plan.make_plan(plan.Options(**{**options, "max_tokens": "9"}))
        self.assertEqual([request.prompt for request in work], [request.prompt for request in more])
        self.assertEqual(len(plan.make_plan(plan.Options(requests=7, **options))), 7)

    def test_arrivals_are_a_poisson_process(self):
        work = plan.make_plan(plan.Options(rate=20, duration=500, prompt_words="1"))
        counts = [0] * 500
        for request in work:
            counts[int(request.at)] += 1
        self.assertAlmostEqual(statistics.mean(counts) / 20, 1, delta=4 * math.sqrt(20 / 500) / 20)
        self.assertAlmostEqual(statistics.variance(counts) / statistics.mean(counts), 1, delta=4 * math.sqrt(2 / 500))

    def test_shares_and_mixes(self):
        work = plan.make_plan(plan.Options(rate=100, duration=100, prompt_words="8-12:0.8,100:0.2", max_tokens="3", prefixes=2, prefix_words=7,
                                           prefix_share=0.25, users=2, user_weights=(9, 1), cancels=0.1, disconnects=0.2, kills=0.3))
        count = len(work)

        def share(true, expected):
            self.assertAlmostEqual(sum(map(true, work)) / count, expected, delta=4 * math.sqrt(expected * (1 - expected) / count))
        lengths = [len(request.prompt.split()) for request in work]
        self.assertEqual(set(lengths), {*range(8, 13), *range(15, 20), 100, 107})
        share(lambda request: len(request.prompt.split()) >= 100, 0.2)
        share(lambda request: request.user == 1, 0.1)
        share(lambda request: request.fate == "cancel", 0.1)
        share(lambda request: request.fate == "kill", 0.3)
        openings = [" ".join(request.prompt.split()[:7]) for request in work]
        common = [opening for opening in set(openings) if openings.count(opening) > 100]
        self.assertEqual(len(common), 2)
        share(lambda request: " ".join(request.prompt.split()[:7]) in common, 0.25)
        self.assertEqual({request.max_tokens for request in work}, {3})

    def test_nonsense(self):
        for wrong in (["--prompt-words", "0"], ["--max-tokens", "9-3"], ["--users", "2", "--user-weights", "1"], ["--kills", "2"],
                      ["--url", "ftp://x"]):
            self.assertIn("loadgen: ", loadgen(*wrong, code=1))
        for wrong in (["--rate", "0"], ["--rate", "-5"], ["--rate", "inf"], ["--duration", "nan"], ["--duration", "inf"], ["--users", "0"]):
            self.assertIn("loadgen: rate and duration are numbers above 0", loadgen(*wrong, code=1))


@needs_model
class Ellmd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"])
        os.chmod(cls.daemon.directory, 0o755)
        os.chmod(cls.daemon.socket, 0o666)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def test_everybody_is_served(self):
        got = loadgen("--socket", self.daemon.socket, "--rate", 40, "--duration", 2, "--users", 2, "--max-tokens", "10-20", "--prefixes", 2,
                      "--prefix-words", 100, "--ignore-eos", "--json")
        work = plan.make_plan(plan.Options(rate=40, duration=2, users=2, max_tokens="10-20", prefixes=2, prefix_words=100))
        self.assertEqual(got["outcomes"], {"ok": len(work)}, got)
        self.assertEqual(got["output_tokens"], sum(request.max_tokens for request in work))
        self.assertEqual([user["requests"] for user in got["users"]], [sum(request.user == user for request in work) for user in (0, 1)])
        self.assertEqual(len({user["uid"] for user in got["users"]}), 2 if os.geteuid() == 0 else 1)
        self.assertGreater(got["prompt_tokens"], 100 * len(work))
        self.assertGreater(got["jain_of_asked"], 0.5)
        for name in ("ttft_ms", "between_tokens_ms", "time_per_token_ms"):
            self.assertLessEqual(0, got[name]["p50"])
            self.assertLessEqual(got[name]["p50"], got[name]["max"])
        status = self.daemon.wait_idle()
        self.assertGreaterEqual(status["completion_tokens"], got["output_tokens"])

    def test_clients_that_do_not_wait(self):
        with self.daemon.connect() as connection:
            before = connection.generate("Once upon a time", max_tokens=30)
        text = loadgen("--socket", self.daemon.socket, "--rate", 30, "--duration", 1.5, "--max-tokens", 300, "--ignore-eos", "--cancels", 0.3,
                       "--disconnects", 0.3, "--kills", 0.1, "--fate-after", 0.01)
        for outcome in ("ok", "cancel", "disconnect", "kill"):
            self.assertRegex(text, r"[1-9]\d* " + outcome)
        self.assertNotIn("failed", text)
        self.daemon.wait_idle()
        with self.daemon.connect() as connection:
            self.assertEqual(connection.generate("Once upon a time", max_tokens=30).tokens, before.tokens)


class Handler(http.server.BaseHTTPRequestHandler):
    """Writes as many words as were asked for, a hundredth of a second apart. Some prompts make it fail."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((self.path, body))
            number = len(self.server.seen)
        if number % 10 == 3:
            self.send_response(429)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"full")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if self.server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = "messages" in body
        try:
            for i in range(body["max_tokens"]):
                time.sleep(0.02 if i == 0 else 0.01)
                self.event({"choices": [{"delta": {"content": "w "}} if chat else {"text": "w "}]})
            self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": body["max_tokens"],
                                                 "prompt_tokens_details": {"cached_tokens": 2}}})
            self.write(b"data: [DONE]\n\n")
            if self.server.chunked:
                self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.left += 1
        self.close_connection = True

    def event(self, event):
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        half = len(data) // 2                               # an event in two pieces
        self.write(data[:half])
        self.write(data[half:])

    def write(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if self.server.chunked else data)
        self.wfile.flush()


class OpenAi(unittest.TestCase):
    def serve(self, chunked):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.seen, server.left, server.chunked, server.lock = [], 0, chunked, threading.Lock()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server, "http://127.0.0.1:%d/v1" % server.server_port

    def test_the_same_work(self):
        work = plan.make_plan(plan.Options(rate=20, duration=1.5, max_tokens="5-9"))
        for chunked, chat in ((True, False), (False, True)):
            server, url = self.serve(chunked)
            got = loadgen("--url", url, "--rate", 20, "--duration", 1.5, "--max-tokens", "5-9", "--model", "m", "--json", *["--chat"] * chat)
            busy = sum(number % 10 == 3 for number in range(1, len(work) + 1))
            self.assertEqual(got["outcomes"], {"ok": len(work) - busy, "busy": busy}, got)
            self.assertEqual({path for path, _ in server.seen}, {"/v1/chat/completions" if chat else "/v1/completions"})
            asked = {(body["messages"][0]["content"] if chat else body["prompt"], body["max_tokens"], body["seed"]) for _, body in server.seen}
            self.assertEqual(asked, {(request.prompt, request.max_tokens, request.seed) for request in work})
            self.assertTrue(all(body["model"] == "m" and body["stream"] for _, body in server.seen))
            served = sum(body["max_tokens"] for i, (_, body) in enumerate(server.seen, 1) if i % 10 != 3)
            self.assertEqual((got["output_tokens"], got["prompt_tokens"], got["cached_tokens"]),
                             (served, 7 * (len(work) - busy), 2 * (len(work) - busy)))
            self.assertGreaterEqual(got["ttft_ms"]["p50"], 20)
            self.assertGreaterEqual(got["time_per_token_ms"]["p50"], 9.9)

    def test_cancels_close_the_connection(self):
        server, url = self.serve(True)
        got = loadgen("--url", url, "--rate", 40, "--duration", 0.5, "--max-tokens", "100", "--cancels", 1, "--fate-after", 0.05, "--json")
        self.assertGreater(got["outcomes"].get("cancel", 0), 5)
        deadline = time.monotonic() + 5
        while server.left < got["outcomes"]["cancel"] // 2:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_nobody_is_there(self):
        got = loadgen("--url", "http://127.0.0.1:1/v1", "--rate", 50, "--duration", 0.2, "--json")
        self.assertEqual(set(got["outcomes"]), {"failed"})
        self.assertIn("ConnectionRefusedError", got["failures"][0])


@needs_model
class Pace(unittest.TestCase):
    def test_it_runs(self):
        daemon = Daemon(models={"stories": STORIES}, options=["--model", "stories"])
        self.addCleanup(daemon.stop)
        done = subprocess.run([sys.executable, "-B", os.path.join(os.path.dirname(LOADGEN), "pace"), "--socket", daemon.socket,
                               "--prompt", "400", "--ids", "500", "long"], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found["prompt_tokens"], 400)
        self.assertGreater(found["prefill_alone"], 0)
        self.assertGreater(found["decode_alone"], 0)
        daemon.wait_idle()


if __name__ == "__main__":
    unittest.main()
