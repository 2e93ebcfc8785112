"""The ellm program against a fake daemon: cli_test.py ELLM FAKE_ELLMD (unittest's own arguments follow)."""
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from fake_daemon import WithFakeDaemon

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
from gguf import write as write_gguf  # noqa: E402

ELLM, FAKE = sys.argv[1:3]
del sys.argv[1:3]


class CliTest(WithFakeDaemon):
    FAKE = FAKE

    def ellm(self, *arguments, stdin=b"", code=0, environment=None):
        """Runs to the end; returns stdout. Failures must be one line on stderr that begins with "ellm: "."""
        done = subprocess.run([ELLM, *arguments], input=stdin, capture_output=True, timeout=30, env=environment or self.environment())
        self.assertEqual(done.returncode, code, done)
        self.error = done.stderr.decode()
        if code not in (0, 130, 141):
            self.assertRegex(self.error, r"\Aellm: [^\n]+\n\Z")
        return done.stdout.decode(errors="surrogateescape")

    # ---- run

    def test_run_sends_a_chat_with_one_message(self):
        text = self.ellm("run", "hello")
        self.assertTrue(text.startswith("chat model= user=<hello> temperature=0.7 top_k=0 top_p=0.95 min_p=0 repetition=1 presence=0 frequency=0 seed=0 max=0"), text)
        self.assertTrue(text.endswith("\n"))
        self.assertEqual(self.error, "")

    def test_run_joins_argument_and_stdin(self):
        self.assertIn("user=<ask>", self.ellm("run", stdin=b"ask\n"))
        self.assertIn("user=<sum up\n\nline 1\nline 2>", self.ellm("run", "sum up", stdin=b"line 1\nline 2\n"))
        self.assertIn("prompt=<raw \n>", self.ellm("run", "--raw", stdin=b"raw \n"))
        self.assertIn("prompt=<[1,2]>", self.ellm("run", "--raw", "[1,2]"))
        self.assertIn("user=<-5 degrees>", self.ellm("run", "--", "-5 degrees"))
        self.assertIn("user=<status>", self.ellm("run", "status"))
        self.assertIn("user=<\udcff\udcfe>", self.ellm("run", stdin=b"\xff\xfe"))

    def test_run_passes_every_sampling_option(self):
        text = self.ellm("run", "x", "--system", "be brief", "--model", "tiny", "--temperature", "0", "--top-k", "40", "--top-p", "0.5",
                         "--min-p", "0.05", "--repetition-penalty", "1.1", "--presence-penalty", "-0.5", "--frequency-penalty", "0.25",
                         "--seed", "18446744073709551615", "--max-tokens", "9", "--stop", "a b", "--stop", "", "--stop", "[c,d]",
                         "--logit-bias", "5=-100", "--logit-bias", "6=+7", "--ignore-eos")
        self.assertEqual(text, "chat model=tiny system=<be brief> user=<x> temperature=0 top_k=40 top_p=0.5 min_p=0.05 repetition=1.1 "
                         "presence=-0.5 frequency=0.25 seed=18446744073709551615 max=9 stop=<a b> stop=<> stop=<[c,d]> bias=5:-100 bias=6:7 ignore_eos\n")

    def test_template_variables(self):
        def variables(*arguments, **more):
            return json.loads(re.search(r"variables=(\{.*\}) temperature", self.ellm(*arguments, **more)).group(1))
        given = ["--template-var", "enable_thinking=false", "--template-var", "tools=[{\"a\": 1.0}]", "--template-var", 's="x=y"']
        expected = {"enable_thinking": False, "tools": [{"a": 1.0}], "s": "x=y"}
        self.assertEqual(variables("run", "hi", *given), expected)
        self.assertEqual(variables("chat", *given, stdin=b"hi\n"), expected)
        self.assertIsInstance(variables("run", "hi", *given)["tools"][0]["a"], float)
        self.assertEqual(variables("run", "hi", "--template-var", "a=1", "--template-var", "a=2"), {"a": 2})
        self.assertEqual(json.loads(self.ellm("template", '{"messages": [], "a": 1}', "--template-var", "a=2").removeprefix("rendered ")),
                         {"messages": [], "a": 2})
        self.assertNotIn("variables", self.ellm("run", "hi"))
        for wrong in ("a", "=1", "a=", "a=yes", "a={", "messages=[]", "a=" + "[" * 1000):
            self.ellm("run", "hi", "--template-var", wrong, code=64)
            self.assertIn("--template-var", self.error)
        self.ellm("run", "hi", "--raw", "--template-var", "a=1", code=64)

    def test_run_ids_are_taken_as_they_are(self):
        self.assertIn("generate model= tokens=1 2 3 temp", self.ellm("run", "--ids", "1 2,3"))
        self.assertIn("tokens=4 5", self.ellm("run", "--ids", stdin=b"[4, 5]\n"))
        self.ellm("run", "--ids", "1 x2", code=65)
        self.assertIn("'x2' is not a token id", self.error)
        self.ellm("run", "--ids", "4294967296", code=65)
        self.ellm("run", "--ids", "--raw", "1", code=64)
        self.ellm("run", "--raw", "--system", "s", "1", code=64)

    def test_run_json(self):
        answer = json.loads(self.ellm("run", "--json", "--logprobs", "2", "hi"))
        self.assertIn("logprobs=2", answer["text"])
        del answer["text"]
        self.assertEqual(answer, {
            "model": "tiny", "seed": 5, "sample": 0, "tokens": [11, 12], "finish_reason": "stop",
            "usage": {"prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 2, "drafted_tokens": 0, "accepted_tokens": 0,
                      "recomputed": {"new": 1, "last_token": 1, "logits_needed": 0, "evicted": 0, "namespace": 0,
                                     "fingerprint": 0, "retokenised": 0, "unsealed": 0},
                      "disk_tokens": 0},
            "timings": {"queue_ms": 0, "ttft_ms": 12.5, "total_ms": 0, "prefill_tokens_per_second": 0, "decode_tokens_per_second": 40},
            "logprobs": [{"id": 11, "logprob": -0.1, "top": [[11, -0.1], [4, -3]]}, {"id": 12, "logprob": -0.25, "top": []}]})
        self.assertNotIn("logprobs", json.loads(self.ellm("run", "--json", "hi")))
        self.assertEqual(json.loads(self.ellm("run", "--json", "bytes"))["text"], "\ufffd\ufffd")
        self.assertEqual(json.loads(self.ellm("run", "--json", "escape"))["text"], "a\x1b[31mb\x9bc\td")

    def test_run_samples(self):
        text = self.ellm("run", "-n", "3", "hi")
        self.assertRegex(text, r"\A--- sample 0 ---\nchat model= user=<hi> [^\n]* n=3\n--- sample 1 ---\nsample 1\n--- sample 2 ---\nsample 2\n\Z")
        answers = [json.loads(line) for line in self.ellm("run", "--samples=3", "--json", "--raw", "hi").splitlines()]
        self.assertEqual([(answer["sample"], answer["tokens"]) for answer in answers], [(0, [11, 12]), (1, [1]), (2, [2])])
        self.assertEqual(answers[1]["text"], "sample 1")
        for wrong in ("0", "-1", "x", "4294967296"):
            self.ellm("run", "-n", wrong, "hi", code=64)
            self.assertIn("'%s' is not a number of answers from 1 to 4294967295" % wrong, self.error)

    def test_deadlines_and_priorities(self):
        for command in (["run", "x"], ["run", "--raw", "x"], ["chat"]):
            text = self.ellm(*command, "--deadline", "1.5", "--priority", "batch", stdin=b"" if command[0] == "run" else b"x\n")
            self.assertRegex(text, r" batch deadline=1500\n\Z")
            self.assertNotRegex(self.ellm(*command, stdin=b"" if command[0] == "run" else b"x\n"), "batch|deadline")
        self.assertEqual(self.ellm("run", "late", "--deadline", "10", code=75), "half an \n")
        self.assertEqual(self.error, "ellm: the deadline of 10 s has passed: the answer is not complete\n")
        self.assertEqual(self.ellm("chat", "--deadline", "10", stdin=b"late\nmore\n", code=75), "half an \n")
        self.assertEqual(json.loads(self.ellm("run", "late", "--deadline", "10", "--json", code=75))["finish_reason"], "deadline")
        for wrong in ("0", "-1", "1e9", "4294968", "nan", "inf", "soon"):
            for command in ("run", "chat", "score", "batch"):
                self.ellm(command, "x", "--deadline=" + wrong, code=64)
                self.assertIn("--deadline: '%s' is not a number of seconds, more than 0 and at most 4294967" % wrong, self.error)
        self.ellm("run", "x", "--deadline", "4294967")
        self.ellm("run", "x", "--priority", "urgent", code=64)
        self.assertIn("--priority", self.error)

    def test_run_logprobs_and_statistics_without_json(self):
        text = self.ellm("run", "--logprobs", "2", "-v", "hi")
        self.assertIn("\n    11  -0.1000       11  -0.1000       4  -3.0000\n    12  -0.2500 \n", text)
        self.assertIn("3 prompt tokens (1 cached), first token after 12 ms, 2 tokens at 40.0/s, stop", self.error)

    def test_text_is_left_alone_where_it_goes_to_no_terminal(self):
        self.assertEqual(self.ellm("run", "escape"), "a\x1b[31mb\x9bc\td\n")

    def test_daemon_errors_have_their_exit_codes(self):
        for code, exit_code in {1: 64, 2: 76, 3: 76, 4: 65, 5: 75, 6: 66, 7: 65, 8: 65, 9: 70, 10: 75, 11: 70, 12: 130, 13: 77, 14: 75}.items():
            self.ellm("run", f"error {code}", code=exit_code)
            self.assertTrue(self.error.startswith("ellm: said by the daemon"), self.error)
        self.ellm("run", "error 5", code=75)
        self.assertIn("try again in 1.5 s", self.error)

    def test_a_daemon_that_dies_is_reported(self):
        self.assertEqual(self.ellm("run", "die", code=69), "half an ")
        self.assertIn("after the request was sent: it may have run", self.error)

    def test_no_daemon(self):
        for arguments in (["run", "x"], ["status"], ["models"], ["ps"], ["tokenize", "x"], ["score", "xy"], ["chat"], ["inspect"]):
            self.ellm(*arguments, "--wait", "0", "--socket", "/nowhere/x.sock", code=69)
            self.assertIn("no ellmd at /nowhere/x.sock: start it with `ellmd`", self.error)
        self.ellm("--socket", "/nowhere/y.sock", "status", "--wait=0", code=69)
        self.ellm("--socket=/nowhere/y.sock", "status", "--wait", "0.05", code=69)
        self.assertIn("/nowhere/y.sock", self.error)

    def test_a_daemon_that_starts_is_waited_for(self):
        later = self.directory.name + "/later.sock"
        waiting = subprocess.Popen([ELLM, "status", "--wait", "20", "--socket", later], stdout=subprocess.PIPE, env=self.environment())
        time.sleep(0.1)
        daemon = subprocess.Popen([FAKE, later], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertIn(b"9.9", waiting.communicate(timeout=20)[0])
        self.assertEqual(waiting.returncode, 0)
        daemon.communicate()

    def test_usage_errors(self):
        for arguments in ([], ["--nonsense"], ["nonsense"], ["run", "--nonsense", "x"], ["run", "a", "b"], ["run", "--top-k", "x", "a"], ["run", "--top-k", "-1", "a"],
                          ["run", ""], ["run", "--logit-bias", "5", "a"], ["run", "--logit-bias", "5=x", "a"], ["run", "--seed"], ["run", "--seed", "-1", "a"],
                          ["run", "--seed", "18446744073709551616", "a"], ["status", "now"], ["score", "--top", "-1", "x"],
                          ["tokenize", "--model", "a", "--model-file", "b", "x"], ["models", "--load", "a"]):
            if arguments:
                self.ellm(*arguments, code=64)
            else:
                self.assertIn("Usage:", subprocess.run([ELLM], capture_output=True, timeout=30).stdout.decode())
        self.ellm("run", stdin=b"", code=66)

    def test_help_teaches_by_example(self):
        overview = self.ellm("--help")
        for command in ("run", "chat", "models", "ps", "status", "tokenize", "detokenize", "template", "inspect", "score"):
            self.assertIn(f"\n  {command} ", overview)
            text = self.ellm(command, "--help")
            self.assertIn("Usage: ellm " + command, text)
            self.assertIn("Examples:\n  ", text)
            self.assertIn("--socket PATH", text)
            self.assertEqual(text, self.ellm("help", command))
        self.assertRegex(self.ellm("--version"), r"^ellm \d+\.\d+")

    def test_ctrl_c_cancels_and_ends_with_130(self):
        process = subprocess.Popen([ELLM, "run", "slow"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment())
        self.assertEqual(process.stdout.read(10), b"tick tick ")   # it streams
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130)
        self.assertTrue(out.endswith(b"\n"), out)             # the daemon's done has been read
        self.assertEqual(error, b"")
        process = subprocess.Popen([ELLM, "run", "--json", "slow"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self.environment())
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
        self.assertEqual(json.loads(out)["finish_reason"], "cancelled")

    def test_a_closed_pipe_ends_quietly(self):
        for restore in (True, False):                              # with and without SIGPIPE's default
            process = subprocess.Popen([ELLM, "run", "slow"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=self.environment(), restore_signals=restore)
            process.stdout.read(5)
            process.stdout.close()
            with process.stderr as error:
                self.assertEqual(error.read(), b"")
            self.assertIn(process.wait(timeout=10), (-signal.SIGPIPE, 141))

    def test_closed_standard_streams_are_no_sockets(self):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            done = subprocess.run(["sh", "-c", f'exec "$0" status {closed}', ELLM], capture_output=True, timeout=30, env=self.environment())
            self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_a_full_disk_is_reported(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([ELLM, "status"], stdout=full, stderr=subprocess.PIPE, env=self.environment(), timeout=30)
        self.assertEqual(done.returncode, 74)
        self.assertIn(b"cannot write the output: No space left", done.stderr)

    # ---- the other commands

    def test_tokenize_and_detokenize(self):
        self.assertEqual(self.ellm("tokenize", "Hi"), "1 72 105\n")
        self.assertEqual(self.ellm("tokenize", "--no-special", stdin=b"Hi\n"), "72 105 10\n")
        self.assertEqual(self.ellm("tokenize", ""), "1\n")
        self.assertEqual(self.ellm("tokenize", "--pieces", "H\n"), '     1 "<s>"\n    72 "H"\n    10 "\\n"\n')
        self.assertEqual(json.loads(self.ellm("tokenize", "--json", "\xe9")), {"ids": [1, 0xC3, 0xA9], "pieces": ["<s>", "\ufffd", "\ufffd"]})
        self.assertEqual(self.ellm("detokenize", "1", "72", "105"), "Hi")
        self.assertEqual(self.ellm("detokenize", "--special", "[1,72]"), "<s>H")
        self.assertEqual(self.ellm("detokenize", stdin=b"72 105\n"), "Hi")
        self.assertEqual(json.loads(self.ellm("detokenize", "--json", "72")), {"text": "H"})
        self.ellm("detokenize", "72", "-1", code=65)
        self.ellm("tokenize", "--model-file", "/nowhere.gguf", "x", code=66)
        self.ellm("tokenize", "--model-file", "/dev/null", "x", code=65)

    def test_score(self):
        answer = json.loads(self.ellm("score", "--json", "--top", "2", stdin=b"abc"))
        self.assertAlmostEqual(answer["perplexity"], 1.6487212707)
        self.assertEqual(answer["tokens"], [97, 98, 99])
        self.assertEqual(answer["log_probs"], [-0.5, -0.5])
        self.assertEqual(answer["top"], [[[7, -0.1], [8, -2.5]]] * 3)
        self.assertEqual(json.loads(self.ellm("score", "--json", "--ids", "5 6"))["tokens"], [5, 6])
        self.assertEqual(self.ellm("score", "abc"), "perplexity 1.6487 over 2 tokens\n")
        self.ellm("score", "a", code=65)
        self.assertIn("at least 2 tokens", self.error)

    def test_template(self):
        self.assertEqual(self.ellm("template", '{"messages": []}'), 'rendered {"messages": []}')
        self.assertEqual(self.ellm("template", stdin=b' {"a": 1}\n'), 'rendered  {"a": 1}\n')
        path = self.directory.name + "/t.jinja"
        with open(path, "w") as file:
            file.write("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}{{ now_what }}")
        chat = '{"messages": [{"role": "user", "content": "h\\u00e9"}], "now_what": 5}'
        self.assertEqual(self.ellm("template", "--template-file", path, chat).encode(errors="surrogateescape").decode(), "[user: h\u00e9]5")
        for bad in ("[1]", '{"a": ', '{"a": 1} x', "nonsense", "", '{"a":' * 200):
            self.ellm("template", "--template-file", path, bad, code=65)
        self.ellm("template", "--template-file", "/nowhere.jinja", "{}", code=66)
        with open(path, "w") as file:
            file.write("line\n{% if %}")
        self.ellm("template", "--template-file", path, "{}", code=65)
        self.assertIn("line 2", self.error)

    def test_hostile_templates_end_with_an_error(self):
        path = self.directory.name + "/bomb.jinja"
        loop = "{% for i in range(100000) %}"
        for source, message in (("{% if 1 %}" * 60_000, "nested too deeply"), ("{{ " + "(" * 60_000, "nested too deeply"),
                                (loop * 3 + "{% endfor %}" * 3, "too long"), ("{{ 'x' * 4000000000 }}", "text longer than the limit"),
                                ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply"),
                                ("{% set l = [1] %}{% for i in l %}{% do l.append(i) %}{% endfor %}", ""),
                                ("\n{{ raise_exception('only two roles') }}", "line 2: only two roles")):
            with open(path, "w") as file:
                file.write(source)
            self.ellm("template", "--template-file", path, "{}", code=65)
            self.assertIn(message, self.error)

    def test_models_ps_status_inspect(self):
        text = self.ellm("models")
        self.assertRegex(text, r"NAME +SIZE .*\ntiny +1\.5 GiB +1\.5B +Q8_0 100 % +llama +4096 +loaded\nlarge .*on disk\n\Z")
        self.assertEqual([m["name"] for m in json.loads(self.ellm("models", "--json"))["models"]], ["tiny", "large"])
        self.ellm("load", "tiny")
        self.ellm("unload", "other", code=66)
        self.assertIn("there is no model 'other' (`ellm pull` fetches models)", self.error)
        self.assertRegex(self.ellm("ps"), r"tiny .*320 +128 +64\n\n.*REQUEST.*\n.*1000 .*chat +batch +decode .* 7 s +3\n")
        self.assertEqual(json.loads(self.ellm("ps", "--json"))["requests"][0]["state"], "decode")
        text = self.ellm("status")
        for part in ("ellmd 9.9, process 77, up 83 min", "4 threads, avx2 kernels, a CPU", "1 running", "warning: memory could not be locked"):
            self.assertIn(part, text)
        status = json.loads(self.ellm("status", "--json"))
        self.assertEqual((status["version"], status["models"][0]["kv_pages"], status["served"]), ("9.9", 10, 12))
        self.assertIn("name          tiny\n", self.ellm("inspect"))
        self.assertIn("on disk", self.ellm("inspect", "large"))
        self.ellm("inspect", "other", code=66)
        self.ellm("inspect", "tiny", "--keys", code=77)
        self.assertIn("cannot read /models/tiny.gguf", self.error)
        self.ellm("inspect", "./nowhere.gguf", code=66)
        self.assertEqual(self.ellm("models", "--names"), "tiny\nlarge\n")

    def gguf(self, **keys):
        """A file without tensors."""
        path = self.directory.name + "/m.gguf"
        text = lambda s: struct.pack("<Q", len(s)) + s.encode()
        number = lambda n: struct.pack("<II", 4, n)
        with open(path, "wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)))
            for key, value in keys.items():
                file.write(text(key.replace("__", ".")) + (number(value) if isinstance(value, int) else struct.pack("<I", 8) + text(value)))
            file.write(bytes(64))
        return path

    def test_inspect_a_file(self):
        path = self.gguf(general__architecture="mamba", mamba__block_count=3, mamba__embedding_length=64, mamba__context_length=2048,
                         mamba__attention__head_count=4, mamba__attention__head_count_kv=2, tokenizer__ggml__model="gpt2",
                         tokenizer__ggml__pre="nosuch", tokenizer__chat_template="{% if tools %}\n{{")
        text = self.ellm("inspect", path)                               # what is not supported is said, not failed at
        for part in ("context       2048 tokens\n", "not supported architecture 'mamba': not supported (", "unknown pre-tokenizer 'nosuch'",
                     "not supported chat template, line 2", "chat template yes (tools)\n", "0 B for weights"):
            self.assertIn(part, text)
        facts = json.loads(self.ellm("inspect", "--model-file", path, "--json"))
        self.assertEqual(facts["kv_bytes_per_token"]["f16"], 2 * 2 * 3 * 2 * 16)     # K and V, bytes, layers, heads, values
        self.assertEqual(facts["kv_bytes_per_token"]["f32"], 2 * facts["kv_bytes_per_token"]["f16"])
        self.assertEqual(len(facts["unsupported"]), 3)
        self.assertIn("general.architecture = \"mamba\"", self.ellm("inspect", path, "--keys"))
        with open(path, "r+b") as file:
            file.write(b"JUNK")
        self.ellm("inspect", path, code=65)

    def test_inspect_experts(self):
        path = self.directory.name + "/moe.gguf"
        keys = {"general.architecture": "qwen3moe", "qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 2}
        write_gguf(path, keys, {"token_embd.weight": ([32, 10], bytes(1280)), "blk.0.ffn_up_exps.weight": ([32, 4, 8], bytes(4096))})
        text = self.ellm("inspect", path)
        self.assertIn("experts       8, 2 of them for each token\n", text)
        self.assertIn("parameters    1344 (1.3K), 576 for each token\n", text)
        self.assertEqual(json.loads(self.ellm("inspect", path, "--json"))["active_parameters"], 320 + 2 * 128)

    def test_what_a_file_says_commands_no_terminal_and_poses_as_no_line(self):
        path = self.gguf(general__architecture="llama", general__name="a\x1b[2J\nfile          b", tokenizer__chat_template="x")
        text = self.ellm("inspect", path, "--keys")
        self.assertIn("name          a^[[2J^Jfile          b\n", text)
        self.assertIn('general.name = "a^[[2J^Jfile          b"\n', text)
        with open(self.directory.name + "/e.jinja", "w") as file:
            file.write("{{ raise_exception('no\x1b]0;title\x07') }}")
        done = subprocess.run([ELLM, "template", "--template-file", file.name], input=b"{}", capture_output=True)
        self.assertEqual(done.stderr, b"ellm: chat template, line 1: no^[]0;title^G\n")

    @unittest.skipUnless(os.environ.get("ELLM_TEST_DATA"), "ELLM_TEST_DATA is not set")
    def test_inspect_a_real_file(self):
        facts = json.loads(self.ellm("inspect", os.environ["ELLM_TEST_DATA"] + "/models/stories260K.gguf", "--json"))
        self.assertEqual((facts["architecture"], facts["layers"], facts["heads"], facts["kv_heads"], facts["head_dim"]), ("llama", 5, 8, 4, 8))
        self.assertEqual((facts["weights"][0]["type"], facts["unsupported"], facts["tokenizer"]), ("F32", [], "spm, 512 tokens"))
        self.assertEqual(sum(share["bytes"] for share in facts["weights"]), 4 * facts["parameters"])
        self.assertGreater(facts["weight_memory_bytes"], 4 * (facts["parameters"] - 64 * 11))   # all but the norms, in whole panels

    # ---- chat

    def test_chat_from_a_pipe_sends_the_conversation_with_its_ids(self):
        text = self.ellm("chat", "--system", "s", stdin=b"one\n\ntwo\\\nlines\n")
        first, second = text.split("\n", 1)
        self.assertIn("system=<s> user=<one> temperature", first)
        self.assertIn("system=<s> user=<one> assistant=<" + first + ">[11 12] user=<two\nlines> temp", second)
        self.ellm("chat", stdin=b"error 6\nnever\n", code=66)

    def terminal(self, *arguments, **environment):
        """ellm on a pseudo-terminal: (pid, fd)."""
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(ELLM, [ELLM, *arguments], self.environment(**environment))
        self.addCleanup(os.close, fd)
        self.unread = {}
        return pid, fd

    def exit_code(self, pid):
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.fail("it did not end")

    def read_until(self, fd, wanted):
        """What comes up to `wanted`; the rest is kept for the next call."""
        seen = self.unread.pop(fd, b"")
        deadline = time.monotonic() + 15
        while wanted not in seen:
            ready, _, _ = select.select([fd], [], [], max(0, deadline - time.monotonic()))
            self.assertTrue(ready, f"{wanted} did not come after {seen}")
            try:
                piece = os.read(fd, 4096)
            except OSError:
                piece = b""
            self.assertTrue(piece, f"the end came instead of {wanted} after {seen}")
            seen += piece
        end = seen.index(wanted) + len(wanted)
        self.unread[fd] = seen[end:]
        return seen[:end]

    def test_chat_on_a_terminal(self):
        pid, fd = self.terminal("chat")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"hel\x7flo \xc3\xa9\n")                      # a key was wrong, another is no ASCII
        self.read_until(fd, "user=<helo \u00e9>".encode())
        self.read_until(fd, b"\n> ")
        os.write(fd, b"slow\n")
        self.read_until(fd, b"tick tick")
        os.write(fd, b"\x03")                                     # Ctrl-C: the answer stops, the program does not
        self.read_until(fd, b"(stopped)")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"half a li\x03")                            # and at the prompt it clears the line
        self.read_until(fd, b"\n> ")
        os.write(fd, b"whole\n")
        self.read_until(fd, b"user=<whole>")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"/reset\n")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"fresh\n")
        self.read_until(fd, b"chat model= user=<fresh>")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"die\n")                                    # a failed turn is reported, the next connects again
        self.read_until(fd, b"ellmd closed the connection")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"\x1b[A\x1b[A\n")                           # arrow up twice: the one before
        self.read_until(fd, b"user=<fresh>")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"\x04")
        self.assertEqual(self.exit_code(pid), 0)
        history = self.directory.name + "/.local/state/ellm/history"
        self.assertEqual(os.stat(history).st_mode & 0o777, 0o600)
        pid, fd = self.terminal("chat")                           # the history outlives the program
        self.read_until(fd, b"\n> ")
        os.write(fd, b"\x1b[A\n")
        self.read_until(fd, b"user=<fresh>")
        os.write(fd, b"/quit\n")
        self.assertEqual(self.exit_code(pid), 0)

    def test_a_pasted_text_is_one_message(self):
        pid, fd = self.terminal("chat", XDG_STATE_HOME=self.directory.name + "/state")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"first line\nsecond line\n")
        self.read_until(fd, b"user=<first line\r\nsecond line>")
        self.read_until(fd, b"\n> ")
        os.write(fd, b"\x04")
        self.assertEqual(self.exit_code(pid), 0)
        self.assertTrue(os.path.exists(self.directory.name + "/state/ellm/history"))

    def test_text_cannot_command_the_terminal(self):
        pid, fd = self.terminal("run", "escape")
        seen = self.read_until(fd, b"d\r\n")
        self.assertIn("a^[[31mb\ufffdc\td".encode(), seen)
        self.assertEqual(self.exit_code(pid), 0)
        pid, fd = self.terminal("tokenize")
        self.read_until(fd, b"give a text as an argument or on stdin")
        self.assertEqual(self.exit_code(pid), 64)


if __name__ == "__main__":
    unittest.main()
