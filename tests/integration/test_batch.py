"""`ellm batch`: every line once and in order, whatever interrupts it; each result is that of the same request alone."""
import json
import os
import pty
import select
import signal
import subprocess
import tempfile
import time
import unittest

from gguf import with_string
from harness import STORIES, Daemon, environment, needs_model, running
from protocol import *

ELLM = os.environ.get("ELLM", "build/release/bin/ellm")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
OPENINGS = ["Once upon a time", "The dog", "Lily saw a big", "Tom and Sam went", "She was", "One day the little bear"]


def plain(name, prompt, **body):
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}


def chat(name, messages, **body):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": messages, **body}}


def text_of(result):
    choice = result["response"]["body"]["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@needs_model
class Batch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = tempfile.TemporaryDirectory(prefix="ellm")
        with_string(STORIES, cls.models.name + "/chat.gguf", "tokenizer.chat_template", TEMPLATE)
        cls.daemon = Daemon(models={"stories": STORIES, "chat": cls.models.name + "/chat.gguf"}, options=["--model", "stories", "--model", "chat"])

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        cls.models.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ellm")
        self.addCleanup(folder.cleanup)
        self.folder, self.input, self.output = folder.name, folder.name + "/in.jsonl", folder.name + "/in.out.jsonl"

    def write(self, lines):
        with open(self.input, "w") as file:
            file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)

    def start(self, *arguments, daemon=None, **options):
        command = [ELLM, "--socket", (daemon or self.daemon).socket, "batch", self.input, *arguments]
        return subprocess.Popen(command, env=environment(self.folder), **options)

    def batch(self, *arguments, code=0, **options):
        """Results, or what went to stdout; stderr is kept."""
        process = self.start(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        out, error = process.communicate(timeout=60)
        self.error = error.decode()
        self.assertEqual(process.returncode, code, self.error)
        if code not in (0, 130):
            self.assertRegex(self.error, r"(?m)^ellm: .+\n\Z")
        return out.decode()

    def results(self):
        with open(self.output) as file:
            return [json.loads(line) for line in file]

    def check_order(self, lines):
        results = self.results()
        self.assertEqual([result["custom_id"] for result in results], [line["custom_id"] for line in lines])
        self.assertEqual(os.listdir(self.folder).count("in.out.jsonl.ahead"), 0)
        return results

    # ---- answers

    def test_each_result_equals_the_request_alone(self):
        lines, alone = [], []
        with self.daemon.connect() as connection:
            for i in range(60):
                prompt = OPENINGS[i % 6] + " and" * (i % 5)
                options = dict(temperature=0.5 + i % 3 / 2, top_p=0.75, seed=i, max_tokens=5 + i % 20)
                body = dict(options, stop=["Lily", "the end"]) if i % 4 == 0 else options
                if i % 2:
                    lines.append(plain("p%d" % i, prompt, model="stories", **body))
                else:
                    lines.append(chat("c%d" % i, prompt, model="chat", **body))
                given = sampling(stop=body.get("stop", ()), **options)
                if i % 2:
                    request = connection.begin(GENERATE, "stories", prompt, [], False, given)
                else:
                    request = connection.begin(CHAT, "chat", [["user", prompt, [], ""]], "", "", given)
                answer = connection.finish(request)
                alone.append((answer.text, {STOP: "stop", LENGTH: "length"}[answer.finish_reason], answer.usage[0], answer.usage[2]))
        self.write(lines)
        self.batch("--in-flight", "16")
        self.assertRegex(self.error, r"\A60 results in .*in\.out\.jsonl, \d+ prompt tokens \(\d+ cached\), \d+ tokens in")
        results = self.check_order(lines)
        got = []
        for line, result in zip(lines, results):
            self.assertIsNone(result["error"])
            self.assertEqual(result["response"]["status_code"], 200)
            body = result["response"]["body"]
            usage = body["usage"]
            got.append((text_of(result), body["choices"][0]["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]))
            self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
            self.assertEqual(body["model"], line["body"]["model"])
            self.assertEqual(body["object"], "chat.completion" if "messages" in line["body"] else "text_completion")
        self.assertEqual(got, alone)
        self.assertEqual(len({result["id"] for result in results}), len(lines))

    def test_samples_are_choices(self):
        options = dict(temperature=1, seed=6, max_tokens=15)
        self.write([plain("p", "Once upon a time", n=3, **options), plain("one", "Once upon a time", n=1, **options),
                    chat("c", "Hi", n=2, logprobs=True, model="chat", **options), plain("none", "x", n=0), plain("many", "x", n=10 ** 6)])
        self.batch("--deadline", "60", code=65)
        several, one, talk, none, many = self.results()
        with self.daemon.connect() as connection:
            expected = connection.samples("Once upon a time", 3, temperature=1.0, top_p=0.95, seed=6, max_tokens=15)
        body = several["response"]["body"]
        self.assertEqual([(choice["index"], choice["text"]) for choice in body["choices"]],
                         [(i, sample.text) for i, sample in enumerate(expected)])
        self.assertEqual(body["usage"]["completion_tokens"], sum(len(sample.tokens) for sample in expected))
        self.assertEqual(body["usage"]["prompt_tokens"], expected[0].usage[0])
        self.assertEqual([choice["text"] for choice in one["response"]["body"]["choices"]], [expected[0].text])
        self.assertEqual([choice["index"] for choice in talk["response"]["body"]["choices"]], [0, 1])
        self.assertTrue(all(choice["logprobs"]["content"] for choice in talk["response"]["body"]["choices"]))
        self.assertIn("n must be at least 1", none["error"]["message"])
        self.assertIn("n is 1000000; allowed is 1 to 64", many["response"]["body"]["error"]["message"])

    def test_prefixes_of_a_namespace(self):
        text = "Once upon a time there was a girl who had a dog."
        self.write([plain("one", text, max_tokens=1)])
        with running(models={"stories": STORIES}, options=["--model", "stories"], config='[namespaces]\nopen = "everybody"\n') as daemon:
            self.batch("--namespace", "open", daemon=daemon)
            with daemon.connect() as connection:
                own = connection.generate(text, max_tokens=1)
                self.assertEqual((own.cached, list(own.recomputed)), (0, ["namespace"]))
                there = connection.finish(connection.begin(GENERATE, "", text, [], False, sampling(max_tokens=1), None, None, None, "open"))
                self.assertEqual(there.cached, there.usage[0] - 1)
            self.batch("--namespace", "nowhere", "--restart", code=65, daemon=daemon)
            self.assertIn("no namespace 'nowhere'", self.results()[0]["response"]["body"]["error"]["message"])

    def test_a_deadline_holds_for_each_request(self):
        self.write([plain("long", "Once", max_tokens=1900, ignore_eos=True), plain("short", "Once", max_tokens=1)])
        self.batch("--deadline", "0.001", "--in-flight", "1")
        self.assertEqual(self.results()[0]["response"]["body"]["choices"][0]["finish_reason"], "deadline")
        said = subprocess.run([ELLM, "batch", "--help"], capture_output=True, text=True, timeout=60).stdout
        self.assertNotIn("exit code 75", said)             # that is of `ellm run`

    def test_logprobs_spell_the_text(self):
        self.write([plain("p", "Once upon", max_tokens=12, temperature=0, logprobs=2),
                    chat("c", "Hi", max_tokens=12, temperature=0, logprobs=True, top_logprobs=3, model="chat"),
                    plain("ids", [1, 403], max_tokens=3, temperature=0, logprobs=0)])
        self.batch()
        first, second, ids = self.results()
        logprobs = first["response"]["body"]["choices"][0]["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), text_of(first))
        with self.daemon.connect() as connection:
            alone = connection.generate("Once upon", max_tokens=12, want_logprobs=True, logprobs=2)
        for got, (_, expected, _) in zip(logprobs["token_logprobs"], alone.logprobs):
            self.assertAlmostEqual(got, expected, places=5)
        self.assertTrue(all(len(top) == 2 and max(top.values()) == best
                            for top, best in zip(logprobs["top_logprobs"], logprobs["token_logprobs"])))
        content = second["response"]["body"]["choices"][0]["logprobs"]["content"]
        self.assertEqual(bytes(byte for token in content for byte in token["bytes"]).decode(), text_of(second))
        self.assertTrue(all(len(token["top_logprobs"]) == 3 and token["top_logprobs"][0]["token"] == token["token"] for token in content))
        self.assertEqual(ids["response"]["body"]["usage"]["prompt_tokens"], 2)

    def test_chat_messages_reach_the_template(self):
        parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
        messages = [{"role": "system", "content": "Be."}, {"role": "user", "content": parts}, {"role": "assistant", "content": None},
                    {"role": "user", "content": "Größe\n"}]
        self.write([chat("x", messages, max_tokens=4, temperature=0, user="me", n=1, stream=False, metadata={"a": 1}, stop=None)])
        self.batch("--model", "chat")
        with self.daemon.connect() as connection:
            messages = [["system", "Be.", [], ""], ["user", "a b", [], ""], ["assistant", "", [], ""], ["user", "Größe\n", [], ""]]
            alone = connection.finish(connection.begin(CHAT, "chat", messages, "", "", sampling(max_tokens=4)))
            other = connection.finish(connection.begin(CHAT, "chat", messages[1:], "", "", sampling(max_tokens=4)))
        self.assertEqual(text_of(self.results()[0]), alone.text)
        self.assertEqual(self.results()[0]["response"]["body"]["usage"]["prompt_tokens"], alone.usage[0])
        self.assertNotEqual(alone.usage[0], other.usage[0])

    # ---- interruptions

    def many(self, count=300, tokens=24):
        lines = [plain("r%d" % i, OPENINGS[i * 7 % 6] + " so" * (i % 9), seed=i, temperature=1, max_tokens=tokens) for i in range(count)]
        self.write(lines)
        return lines

    def wait_for_lines(self, process, count):
        deadline = time.monotonic() + 30
        while True:
            have = 0
            for path in (self.output, self.output + ".ahead"):
                if os.path.exists(path):
                    with open(path, "rb") as file:
                        have += file.read().count(b"\n")
            if have >= count:
                return
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.002)

    def test_kill_and_resume(self):
        lines = self.many()
        self.batch()
        whole = [(r["id"], r["custom_id"], text_of(r), r["response"]["body"]["usage"]["completion_tokens"]) for r in self.check_order(lines)]
        served_before = self.served()
        self.batch("--restart")
        a_whole_run = self.served() - served_before
        self.assertEqual(a_whole_run, len(lines))
        os.remove(self.output)
        served_before, kills = self.served(), 0
        for at in (20, 90, 200):
            process = self.start(stderr=subprocess.DEVNULL)
            self.wait_for_lines(process, at)
            process.kill()
            kills += process.wait() == -signal.SIGKILL
            with open(self.output, "ab") as file:           # as if it had been killed in the middle of a line
                file.write(b'{"id": "batch_req_12')
            with open(self.output + ".ahead", "ab") as file:
                file.write(b'{"id": "batch')
        self.assertEqual(kills, 3)
        self.batch()
        self.assertRegex(self.error, r"\A300 results in .* \([1-9]\d* were there\)")
        again = [(r["id"], r["custom_id"], text_of(r), r["response"]["body"]["usage"]["completion_tokens"]) for r in self.check_order(lines)]
        self.assertEqual(again, whole)
        self.assertLessEqual(self.served() - served_before, len(lines) + 3 * 2 * 32)    # but for what was in flight
        before = self.served()
        self.batch()                                        # nothing is left to do
        self.assertIn("300 were there", self.error)
        self.assertEqual(self.served(), before)

    def served(self):
        self.daemon.wait_idle()
        with self.daemon.connect() as connection:
            return connection.status()["served"]

    def test_requests_that_begin_alike_run_beside_each_other(self):
        lines = [plain("s%d" % i, OPENINGS[i % 3] + " and then %03d" % (i * 37 % 100), max_tokens=40, seed=i) for i in range(90)]
        self.write(lines)
        process = self.start("--in-flight", "1", stderr=subprocess.DEVNULL)
        self.wait_for_lines(process, 40)
        process.kill()
        process.wait()
        done = []
        for path in (self.output, self.output + ".ahead"):
            with open(path) as file:
                done += [json.loads(line)["custom_id"] for line in file if line.endswith("\n")]
        order = [line["custom_id"] for line in sorted(lines, key=lambda line: line["body"]["prompt"])]
        self.assertEqual(set(done), set(order[:len(set(done))]))
        self.batch()
        self.check_order(lines)

    def test_interrupt_and_resume(self):
        lines = self.many(200, 60)
        process = self.start(stderr=subprocess.PIPE)
        self.wait_for_lines(process, 10)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=20)[1].decode()
        self.assertEqual(process.returncode, 130, error)
        self.assertRegex(error, r"interrupted: \d+ of 200 results are there; the same command goes on")
        self.daemon.wait_idle()
        self.batch()
        self.check_order(lines)

    def test_a_daemon_that_ends_and_comes_back(self):
        lines = self.many(120, 40)
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon:
            process = self.start("--wait", "20", daemon=daemon, stderr=subprocess.PIPE)
            self.wait_for_lines(process, 10)
            daemon.process.kill()
            daemon.process.wait()
            again = Daemon(directory=daemon.directory, options=["--model", "stories"])
            daemon.process = again.process
            again.log.close()
            error = process.communicate(timeout=60)[1].decode()
            self.assertEqual(process.returncode, 0, error)
        results = self.check_order(lines)
        self.assertTrue(all(result["response"]["status_code"] == 200 for result in results))

    def test_no_daemon(self):
        self.many(3)
        process = subprocess.run([ELLM, "--socket", self.folder + "/none", "batch", self.input, "--wait", "0"], capture_output=True)
        self.assertEqual(process.returncode, 69, process)
        self.assertIn(b"0 of 3 results are there; the same command goes on", process.stderr)

    def test_a_busy_daemon_is_asked_again(self):
        lines = self.many(60, 8)
        with running(models={"stories": STORIES}, options=["--model", "stories"], config="[limits]\nrequests_per_user = 3\n") as daemon:
            self.batch("--in-flight", "20", daemon=daemon)
        self.assertTrue(all(result["response"]["status_code"] == 200 for result in self.check_order(lines)))

    # ---- what is wrong with an input

    def test_broken_lines_are_reported_and_the_others_run(self):
        good = plain("good", "The", max_tokens=2)
        bad = [
            ('{"custom_id": "a", ', "invalid_json", "line 2: is not JSON"),
            ("[1]", "invalid_request", "line 3: the line must be an object"),
            ({**good, "custom_id": ""}, "invalid_request", "line 4: there is no custom_id"),
            ({**good, "custom_id": "b", "method": "GET"}, "invalid_request", "method is 'GET'"),
            ({**good, "custom_id": "c", "url": "/v1/embeddings"}, "invalid_request", "url is '/v1/embeddings'"),
            ({**good, "custom_id": "d", "extra": 1}, "unknown_member", "line 7: the line has members that are not known: 'extra'"),
            (plain("e", "x", max_tokns=3, foo=1), "unknown_member", "body has members that are not known: 'max_tokns', 'foo'"),
            (plain("f", "x", temperature="hot"), "invalid_request", 'body.temperature must be a number, is "hot"'),
            (plain("g", "x", max_tokens=0), "invalid_request", "body.max_tokens must be at least 1, is 0"),
            (plain("h", "x", max_tokens=-1), "invalid_request", "body.max_tokens must be a whole number"),
            (plain("i", "x", n=2, best_of=3), "invalid_request", "body.best_of must be absent or 2"),
            (plain("j", ["a", "b"]), "invalid_request", "body.prompt must be one string"),
            (chat("k", [{"role": "user", "content": [{"type": "image_url"}]}]), "invalid_request", "part of type 'image_url'"),
            (chat("l", [{"content": "x"}]), "invalid_request", "body.messages[0] has no role"),
            ('{"custom_id": "m", "body": {"prompt": "\xff"}}'.encode("latin-1").decode("utf-8", "surrogateescape"), "invalid_json", "line 16"),
            ("[" * 500, "invalid_json", "line 17"),
        ]
        refused = [(plain("n", "x", temperature=-1), 400, "bad_request"), (plain("o", "x", model="none"), 404, "no_such_model"),
                   (plain("p", "a " * 20000), 413, "too_large"), (chat("q", "x", model="stories"), 400, "template_failed")]
        with open(self.input, "w", errors="surrogateescape") as file:
            for line in [good, *(line for line, _, _ in bad), "", "  ", *(line for line, _, _ in refused), plain("last", "The", max_tokens=2)]:
                file.write((line if isinstance(line, str) else json.dumps(line)) + "\r\n")
        self.batch(code=65)
        self.assertRegex(self.error, r"ellm: 20 of 22 lines failed, see their errors: 22 results in")
        results = self.results()
        self.assertEqual(len(results), 22)
        for (line, code, message), result in zip(bad, results[1:]):
            self.assertEqual((result["response"], result["error"]["code"]), (None, code), result)
            self.assertIn(message, result["error"]["message"])
            self.assertIn("line %d: " % result["error"]["line"], result["error"]["message"])
        self.assertEqual([result["error"]["line"] for result in results[1:17]], list(range(2, 18)))
        for (line, status, code), result in zip(refused, results[17:]):
            self.assertEqual((result["custom_id"], result["error"]), (line["custom_id"], None))
            self.assertEqual((result["response"]["status_code"], result["response"]["body"]["error"]["code"]), (status, code), result)
            self.assertRegex(result["response"]["body"]["error"]["message"], r"\Aline (20|21|22|23): .")
        self.assertEqual(text_of(results[0]), text_of(results[-1]))
        self.batch(code=65)                                 # the failures of the earlier run count
        self.assertIn("20 of 22 lines failed", self.error)

    def test_the_second_line_of_a_custom_id_is_broken(self):
        good = plain("a", "The", max_tokens=2)
        self.write([plain("b", "x", max_tokens=2), good, "", good, plain("a", "y", max_tokens=2), plain("c", "x", max_tokens=2)])
        self.batch(code=65)
        self.assertIn("2 of 5 lines failed", self.error)
        results = self.results()
        self.assertEqual([result["custom_id"] for result in results], ["b", "a", "a", "a", "c"])
        for result, number in zip(results[2:4], (4, 5)):
            self.assertEqual((result["response"], result["error"]),
                             (None, {"code": "duplicate_custom_id", "line": number,
                                     "message": "line %d: has the custom_id of line 2: 'a'" % number}))
        self.assertTrue(text_of(results[1]) and text_of(results[4]))
        # The error of a line that repeats another to the byte is not taken for that one's answer.
        whole = open(self.output).read().splitlines(keepends=True)
        for ahead in (2, 3, 1), (1, 2):
            with open(self.output, "w") as file, open(self.output + ".ahead", "w") as beside:
                file.write(whole[0][:40])                   # and what an earlier run had in the making
                beside.writelines(whole[i] for i in ahead)
            self.batch(code=65)
            self.assertIn("2 of 5 lines failed", self.error)
            self.assertEqual(self.results()[1:4], results[1:4])

    def test_a_changed_input_is_noticed(self):
        lines = self.many(5, 2)
        self.batch()
        before = open(self.output).read()
        for change, message in (([lines[0], lines[2], lines[1]], "line 2 is the result of 'r1', but line 2 of .* is 'r2'"),
                                (lines[:3], "more results than lines"),
                                ([plain("r0", "other")] + lines[1:], "result of 'r0', which has changed since")):
            self.write(change)
            self.batch(code=65)
            self.assertRegex(self.error, message)
            self.assertIn("--restart", self.error)
            self.assertEqual(open(self.output).read(), before)
        self.write(lines + [plain("more", "x", max_tokens=2)])     # lines behind the others are welcome
        self.batch()
        self.assertTrue(open(self.output).read().startswith(before))
        self.assertEqual(len(self.results()), 6)
        self.write([plain("new", "x", max_tokens=2)])
        self.batch("--restart")
        self.check_order([plain("new", "x")])

    def test_what_is_no_result_is_not_touched(self):
        self.write([plain("a", "x", max_tokens=1)])
        for content in ("my notes", "my notes\n", '{"id": "x"}\n'):
            with open(self.output, "w") as file:
                file.write(content)
            self.batch(code=65)
            self.assertEqual(open(self.output).read(), content)
        self.batch("--output", self.input, code=64)
        os.remove(self.input)
        self.batch(code=66)

    # ---- where it goes

    def test_outputs(self):
        lines = self.many(4, 3)
        self.assertEqual([json.loads(line)["custom_id"] for line in self.batch("-o", "-").splitlines()], ["r0", "r1", "r2", "r3"])
        self.assertFalse(os.path.exists(self.output))
        self.batch("-o", "/dev/full", code=74)
        self.assertIn("cannot write /dev/full: No space left on device", self.error)
        read, write = os.pipe()
        os.close(read)
        process = self.start("-o", "-", stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        self.assertIn(process.wait(20), (141, -signal.SIGPIPE))
        process.stderr.close()
        self.write([])
        self.batch()
        self.assertEqual(self.results(), [])

    def test_a_full_disk_leaves_whole_lines(self):
        lines = self.many(100, 4)
        import resource
        limit = lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)))
        self.batch("--in-flight", "1", code=74, preexec_fn=limit)
        self.assertIn("the same command goes on", self.error)
        there = len(self.results())                         # each of them whole
        self.assertLess(there, 100)
        self.batch()
        self.check_order(lines)

    def test_one_run_at_a_time(self):
        self.many(200, 60)
        process = self.start(stderr=subprocess.DEVNULL)
        self.wait_for_lines(process, 1)
        self.batch(code=75)
        self.assertIn("another `ellm batch` writes", self.error)
        process.kill()
        process.wait()

    def test_progress_on_a_terminal_only(self):
        lines = self.many(150, 30)
        primary, secondary = pty.openpty()
        process = self.start(stderr=secondary)
        os.close(secondary)
        seen = b""
        while select.select([primary], [], [], 30)[0]:
            try:
                seen += os.read(primary, 65536)
            except OSError:
                break
        os.close(primary)
        self.assertEqual(process.wait(20), 0)
        self.assertRegex(seen, rb"\r\x1b\[K\[#* *\] \d+/150, \d+ in flight")
        self.assertIn(b"150 results in", seen)
        self.check_order(lines)
        self.batch("--restart")
        self.assertNotIn("\x1b", self.error)


if __name__ == "__main__":
    unittest.main()
