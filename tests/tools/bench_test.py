"""ellm-bench as a user runs it: bench_test.py ELLM_BENCH. On a tiny synthetic model, and stories260K of $ELLM_TEST_DATA; llama.cpp
where tools like the project's get-peer have put it. Figures are held against counts from the file, never against a clock."""
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import gguf  # noqa: E402

BENCH = sys.argv.pop(1)
TINY = json.dumps({"name": "tiny", "type": "q4_k_m", "architecture": "llama", "layers": 2, "embedding": 256, "feed_forward": 512,
                   "heads": 8, "kv_heads": 2, "head_dim": 32, "vocabulary": 1500, "context": 4096, "tied": False})
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210)}   # type id: weights, bytes
NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K"}
PEER = os.environ.get("ELLM_PEER", os.path.expanduser("~/.cache/ellm-test/peer/bin"))
STORIES = os.path.join(os.environ.get("ELLM_TEST_DATA", "/nowhere"), "models/stories260K.gguf")


class Server(http.server.ThreadingHTTPServer):
    """OpenAI's API, a word a token. Remembers what it was asked."""

    def __init__(self, strict):
        super().__init__(("127.0.0.1", 0), Handler)
        self.strict, self.requests, self.lock, self.now, self.most = strict, [], threading.Lock(), 0, 0
        self.together = None   # a barrier that so many requests must reach
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, json.dumps({"data": [{"id": "some-model"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.strict and "ignore_eos" in body:
            return self.answer(400, b'{"error": "unknown argument ignore_eos"}')
        with self.server.lock:
            self.server.requests.append((self.path, self.headers.get("Authorization"), body))
        words = len(body["prompt"].split())
        self.send_response(200)
        self.end_headers()
        count = body["max_tokens"]
        if self.server.together and count > 1:
            self.server.together.wait(timeout=30)
        for _ in range(count):
            self.event({"choices": [{"text": "x"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": words + 1, "completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


class BenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="ellm-bench-")

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def run_bench(self, *arguments, status=0, **more):
        environment = dict(os.environ, XDG_CACHE_HOME=self.directory.name, XDG_STATE_HOME=self.directory.name,
                           XDG_DATA_HOME=self.directory.name, **more)
        done = subprocess.run([BENCH, "-t", "2", "--kernels", "auto", *arguments], capture_output=True, text=True, timeout=250, env=environment)
        self.assertEqual(done.returncode, status, done)
        return done

    def report(self, *arguments, **more):
        repetitions = [] if "-r" in arguments else ["-r", "2"]
        return json.loads(self.run_bench("--json", *repetitions, *arguments, **more).stdout)

    def tiny(self, *arguments, **more):
        return self.report("--shape", TINY, *arguments, **more)

    # ---- what the figures are made of

    def counts(self, path):
        """Bytes and weights of a file's matrices: {name: (type, bytes, weights, rows)}."""
        tensors = gguf.read(path)[1]
        result = {}
        for name, (dims, kind, _) in tensors.items():
            weights = 1
            for dim in dims:
                weights *= dim
            result[name] = (kind, weights // BLOCKS[kind][0] * BLOCKS[kind][1], weights if len(dims) > 1 else 0, dims[-1])
        return result

    def check_decode(self, report, row, layers, heads, kv_heads, head_dim, kv_bytes):
        steps, batch, depth = row["generate"], row["batch"], row["depth"]
        tensors = self.counts(report["models"][0]["path"])
        tied = "output.weight" not in tensors
        weight_bytes, operations = 0, {}
        for name, (kind, size, weights, rows) in tensors.items():
            if name == "token_embd.weight" and not tied:
                weight_bytes += size / rows * batch * steps
                continue
            weight_bytes += size * steps
            if weights:
                operations[NAMES[kind]] = operations.get(NAMES[kind], 0) + 2 * weights * batch * steps
        self.assertAlmostEqual(row["weight_bytes"] / weight_bytes, 1, places=9)
        self.assertEqual({k: round(v) for k, v in row["operations"].items()}, operations)
        seen = sum(depth + step + 1 for step in range(steps)) * batch * layers
        self.assertAlmostEqual(row["attention_operations"], seen * 4 * heads * head_dim)
        self.assertAlmostEqual(row["kv_bytes"], seen * kv_heads * kv_bytes)
        self.check_fractions(report, row)

    def check_fractions(self, report, row):
        limits, median = report["limits"], sum(row["seconds"]) / 2
        memory = (row["weight_bytes"] + row["kv_bytes"]) / limits["bytes_per_second"]
        self.assertAlmostEqual(row["of_bandwidth"] * median / memory, 1, places=6)
        integers, floats = limits["integer_operations_per_second"], limits["float_operations_per_second"]
        peaks = {"F32": floats, "F16": floats, "Q8_0": integers["1"], "Q6_K": integers["2"], "Q4_0": integers["8"], "Q4_K": integers["8"]}
        compute = sum(n / peaks[name] for name, n in row["operations"].items())
        compute += row["attention_operations"] / (floats if row["kv"] == "f16" else integers["1"])
        self.assertAlmostEqual(row["of_peak"] * median / compute, 1, places=6)
        self.assertEqual(row["bound"], "memory" if memory > compute else "compute")
        self.assertAlmostEqual(row["of_limit"], max(row["of_bandwidth"], row["of_peak"]), places=9)
        self.assertAlmostEqual(row["tokens_per_second"] * median / row["tokens"], 1, places=6)

    def test_counts_come_from_the_file(self):
        report = self.tiny("-n", "3", "-d", "0,96", "-b", "1,4", "--kv-type", "int8,f16")
        self.assertEqual(len(report["results"]), 8)
        for row in report["results"]:
            # A token's K and V of one head: int8 32 bytes and a scale of 4, twice; f16 64, twice.
            self.check_decode(report, row, layers=2, heads=8, kv_heads=2, head_dim=32, kv_bytes=72 if row["kv"] == "int8" else 128)
        self.assertEqual([r["work"] for r in report["results"]][:4], ["decode 3", "decode 3 x4", "decode 3 @96", "decode 3 x4 @96"])

    def test_a_shared_prefix_is_read_and_held_once(self):
        for depth, own in ((512, 1), (520, 1)):   # of the last, each sequence has the ninth token's page to itself
            rows = self.tiny("-n", "3", "-d", str(depth), "-b", "1,4", "--shared")["results"]
            self.assertEqual([r["work"] for r in rows], [f"decode 3 @{depth}", f"decode 3 x4 @{depth}", f"decode 3 x4 @{depth} shared"])
            read = 2 * 2 * 32 * 72                # of a page: layers, heads, tokens, K and V of 32 bytes and a scale
            pages = depth // 32
            self.assertEqual([r["kv_bytes_read"] for r in rows], [3 * read * n for n in (pages + own, 4 * (pages + own), pages + 4 * own)])
            page = rows[0]["kv_bytes_held"] / (pages + own)
            self.assertEqual(rows[1]["kv_bytes_held"], 4 * (pages + own) * page)
            self.assertEqual(rows[2]["kv_bytes_held"], (pages + 4 * own + (depth % 32 > 0)) * page)
            self.assertEqual(rows[1]["kv_bytes"] - rows[2]["kv_bytes"], 3 * 3 * depth * read / 32)

    def test_prompts_of_a_batch_share_steps(self):
        report = self.tiny("--end-to-end", "40:2", "-d", "512", "-b", "3")
        tensors = self.counts(report["models"][0]["path"])
        _, table, _, rows = tensors.pop("token_embd.weight")
        weights = sum(size for _, size, _, _ in tensors.values())       # of three steps; 3 * 40 rows, then 2 * 3
        self.assertAlmostEqual(report["results"][0]["weight_bytes"] / (3 * weights + table / rows * (120 + 6)), 1, places=9)

    def test_stories(self):
        if not os.path.exists(STORIES):
            self.skipTest("$ELLM_TEST_DATA is not set")
        report = self.report(STORIES, "-n", "4", "-p", "64", "--end-to-end", "16:4", "-b", "1,2")
        decode = [r for r in report["results"] if r["kind"] == "decode"]
        for row in decode:   # heads of 8 values
            self.check_decode(report, row, layers=5, heads=8, kv_heads=4, head_dim=8, kv_bytes=8 + 4 + 16 + 4)
        for row in report["results"]:
            self.check_fractions(report, row)
        self.assertEqual([(r["kind"], r["tokens"]) for r in report["results"]],
                         [("prefill", 64), ("decode", 4), ("end_to_end", 4), ("decode", 8), ("end_to_end", 8)])
        self.assertEqual(report["models"][0]["model"], "stories260K")

    def test_schema(self):
        report = self.tiny("--set", "quick", "--cold-start")
        self.assertEqual(sorted(report), sorted(["version", "machine", "repetitions", "fill", "peer", "peer_conditions", "price", "peer_price",
                                                 "limits", "models", "results", "warnings"]))
        read = report["limits"]["read"]
        self.assertEqual([(b["threads"], b["streams"]) for b in read], [(t, s) for t in (1, 2) for s in (1, 2, 4)])
        self.assertEqual(report["limits"]["bytes_per_second"], max(b["bytes_per_second"] for b in read))
        self.assertGreater(report["models"][0]["cold_start"]["of_copy"], 0)
        for row in report["results"]:
            self.assertEqual(len(row["seconds"]), 2)
            self.assertLessEqual(row["low"], row["tokens_per_second"])
            self.assertGreaterEqual(row["high"], row["tokens_per_second"])
            self.assertIsNone(row["ratio"])

    def test_work_that_does_not_fit_is_named(self):
        rows = self.tiny("-n", "2", "-d", "0,8192")["results"]
        self.assertNotIn("skipped", rows[0])
        self.assertEqual(rows[1]["skipped"], "skipped: the model's context is 4096 tokens")

    def test_fill_by_prefill(self):
        report = self.tiny("-n", "2", "-d", "64", "--fill", "prefill")
        self.assertEqual(report["fill"], "a prefill of all")
        self.assertGreater(report["results"][0]["tokens_per_second"], 0)

    # ---- what is said

    def test_html_stands_alone(self):
        path = self.directory.name + "/report.html"
        self.run_bench("--shape", TINY, "-r", "1", "-n", "2", "-d", "0,64,512", "-b", "1,2",
                       "--kv-type", "int8,f16", "--html", path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        root = xml.etree.ElementTree.fromstring(text)
        self.assertEqual([len(chart.findall("polyline")) for chart in root.findall(".//svg")], [2, 6],
                         "decode over context; over batch, a line for each context")
        for chart in root.findall(".//svg"):
            strokes = [line.get("stroke") for line in chart.findall("polyline")]
            names = [text.get("style") for text in chart.findall("text") if text.get("style")]
            self.assertEqual(names, ["fill:" + stroke for stroke in strokes], "a line's name has its colour")
            self.assertEqual(len(set(strokes)), len(strokes))
        self.assertEqual(len(root.findall(".//tr")), 13)
        self.assertNotRegex(text, r"https?:|<script|src=|href=")

    def test_table(self):
        text = self.run_bench("--shape", TINY, "-r", "1", "-n", "2", "--price", "3.6").stdout
        self.assertRegex(text, r"read GB/s \(threads x streams\):  1x1 [\d.]+  1x2")
        self.assertRegex(text, r"tiny:q4_k_m +decode 2 +int8 +[\d.]+ +[\d.]+% +[\d.]+ +[\d.]+ +[\d.]+")

    def test_bad_arguments(self):
        for arguments, expected in (
                (["--shape", "nothing:q4_0"], "no shape is called 'nothing'; there are smollm2-135m"),
                (["/no/such.gguf"], "/no/such.gguf"),
                (["--shape", TINY, "--peer", "/no/such"], "neither llama-bench nor llama-batched-bench is in /no/such"),
                (["--shape", TINY, "--peer", "http://127.0.0.1:1/v1"], "http://127.0.0.1:1/v1"),
                (["--shape", TINY, "--end-to-end", "12"], "not PROMPT:GENERATE"),
                (["--shape", TINY, "-n", "2", "--html", "/no/such/report.html"], "cannot write /no/such/report.html")):
            with self.subTest(arguments):
                self.assertIn(expected, self.run_bench("-r", "1", *arguments, status=70).stderr)

    def test_a_lesser_level_is_said(self):
        done = subprocess.run([BENCH, "--limits", "--kernels", "scalar"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done)
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = file.read()
        if "avx2" in flags:
            self.assertRegex(done.stderr, "kernels scalar as asked for; this machine's best are a(vx|mx)")

    # ---- others

    def test_a_server_gets_the_same_work(self):
        server = Server(strict=False)
        report = self.tiny("--end-to-end", "300:5", "-n", "6", "-p", "200", "-d", "0", "--peer", server.url, "--price", "1,2",
                           OPENAI_API_KEY="secret")
        self.assertEqual({(path, key) for path, key, _ in server.requests}, {("/v1/completions", "Bearer secret")})
        bodies = [body for *_, body in server.requests]
        self.assertTrue(all(b["model"] == "some-model" and b["stream"] and b["ignore_eos"] for b in bodies))
        asked = [(len(b["prompt"].split()) + 1, b["max_tokens"]) for b in bodies[2:]]   # behind two that measure words
        self.assertEqual(sorted(set(asked)), [(2, 7), (200, 1), (300, 5)])
        self.assertEqual(len(asked), 6)
        prompts = [b["prompt"] for b in bodies]
        self.assertEqual(len(set(prompts)), len(prompts), "no prompt twice")
        for row in report["results"]:
            self.assertEqual([len(p["seconds"]) for p in row["peers"]], [2])
            ours, theirs = row["price_per_million"], row["peer_price_per_million"]
            seconds = sum(row["seconds"]) / 2
            self.assertAlmostEqual(ours["output"] / (seconds / 3600 / row["tokens"] * 1e6), 1, places=6)
            self.assertAlmostEqual(theirs["output"] / ours["output"] * row["ratio"] ** -1 / 2, 1, places=6)
        whole = [r for r in report["results"] if r["kind"] == "end_to_end"][0]
        self.assertAlmostEqual(whole["price_per_million"]["output"] * 5 / 305 / whole["price_per_million"]["all"], 1, places=6)

    def test_a_batch_is_requests_at_once(self):
        server = Server(strict=True)   # refuses ignore_eos, as OpenAI does
        server.together = threading.Barrier(3)
        report = self.tiny("--end-to-end", "32:4", "-b", "3", "--peer", server.url, "-r", "1")
        self.assertFalse(server.together.broken)
        self.assertNotIn("ignore_eos", server.requests[-1][2])
        self.assertEqual([p["variant"] for p in report["results"][0]["peers"]], [""])

    def test_llama_cpp_loads_what_is_made(self):
        if not os.path.exists(PEER + "/llama-bench"):
            self.skipTest("no llama.cpp in " + PEER)
        report = self.tiny("-p", "32", "-n", "2", "-b", "1,2", "--end-to-end", "16:2", "--peer", PEER, "-r", "1")
        # Of so small a model batched-bench often ends before it has printed: then there is no figure of batches.
        self.assertEqual([r["work"] for r in report["results"] if not r["peers"] and r["batch"] == 1 and r["kind"] != "end_to_end"], [], report)
        deep = self.tiny("-n", "2", "-d", "2048", "--peer", PEER, "-r", "1")["results"][0]
        self.assertEqual(sorted(p["variant"] for p in deep["peers"]), ["f16", "q8_0"])
        best = max(p["tokens_per_second"] for p in deep["peers"])
        self.assertAlmostEqual(deep["ratio"], deep["tokens_per_second"] / best, places=6)

    def test_llama_cpp_loads_every_architecture(self):
        if not os.path.exists(PEER + "/llama-bench"):
            self.skipTest("no llama.cpp in " + PEER)
        for architecture, more in (("qwen2", {}), ("qwen3", {}), ("qwen3moe", {"experts": 4, "experts_used": 2, "expert_feed_forward": 256}),
                                   ("gemma2", {"window": 64, "tied": True}), ("gemma3", {"window": 64, "tied": True}), ("phi3", {"window": 64})):
            with self.subTest(architecture):
                shape = dict(json.loads(TINY), name=architecture, architecture=architecture, **more)
                report = self.report("--shape", json.dumps(shape), "-n", "2", "--peer", PEER, "-r", "1")
                self.assertGreater(report["results"][0]["ratio"], 0)


if __name__ == "__main__":
    unittest.main()
