"""What a well-behaved client gets."""
import glob
import json
import math
import os
import tempfile
import threading
import unittest

from harness import DATA, STORIES, Daemon, OneDaemon, needs_model, running
from protocol import *


@needs_model
class Serving(OneDaemon):
    OPTIONS = ["--kv-type", "f16"]

    def setUp(self):
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def test_status_says_what_there_is(self):
        status = self.connection.status()
        self.assertEqual(status["pid"], self.daemon.process.pid)
        self.assertEqual(status["threads"], 2)
        self.assertEqual([model["name"] for model in status["models"]], ["stories"])
        model = status["models"][0]
        self.assertEqual((model["architecture"], model["loaded"], model["chat"], model["kv_type"]), ("llama", True, False, "f16"))
        self.assertGreater(model["parameters"], 250_000)
        self.assertEqual(model["kv_pages"], model["kv_pages_free"] + model["kv_pages_cached"])

    def test_reference_greedy(self):
        with open(os.path.join(DATA, "reference/greedy_stories260K.json")) as file:
            runs = [run for run in json.load(file)["runs"] if run["model"] == "stories260K"]
        self.assertGreater(len(runs), 0)
        for run in runs:
            answer = self.connection.generate(run["prompt"], max_tokens=len(run["out_tokens"]), ignore_eos=True)
            self.assertEqual(answer.tokens, run["out_tokens"])
            self.assertEqual(answer.usage[0], len(run["prompt_tokens"]))
            self.assertEqual(answer.usage[2], len(run["out_tokens"]))
            self.assertEqual(answer.text.strip(), run["text"].strip())
            self.assertEqual(answer.finish_reason, LENGTH)

    def test_reference_perplexity(self):
        expected = {}
        with open(os.path.join(DATA, "reference/ppl_tinystories_sample.txt")) as file:
            for line in file:
                words = line.split()
                if len(words) > 8 and words[0].endswith(".gguf"):
                    expected[words[0]] = (int(words[4]), float(words[-1]))
        used, perplexity = expected["models/stories260K.gguf"]
        with open(os.path.join(DATA, "text/tinystories_sample.txt")) as file:
            text = file.read()
        tokens = self.connection.reply(TOKENIZE, "", text)[2][:used]
        log_probs, top = self.score("", tokens=tokens, top=2)
        self.assertEqual(len(log_probs), used - 1)
        self.assertEqual(len(top), used)
        self.assertAlmostEqual(math.exp(-sum(log_probs) / len(log_probs)) / perplexity, 1, delta=0.005)
        self.assertTrue(all(len(best) == 2 and best[0][1] >= best[1][1] for best in top))

    def score(self, text, tokens=None, top=0):
        request = self.connection.begin(SCORE, "", text, tokens or [], tokens is not None, top)
        log_probs, best, ids = [], [], []
        while True:
            message = self.connection.receive()
            if message[0] == ERROR:
                raise Failed(message[1:])
            self.assertEqual(message[:2], [SCORE_REPLY, request])
            ids += message[2]
            log_probs += message[3]
            best += message[4]
            if message[5]:
                if tokens is not None:
                    self.assertEqual(ids, tokens)
                return log_probs, best

    def test_scores_of_an_answer_are_its_logprobs(self):
        answer = self.connection.generate("Once upon a time", max_tokens=40, want_logprobs=True, logprobs=3)
        self.assertEqual([entry[0] for entry in answer.logprobs], answer.tokens)
        prompt = self.connection.reply(TOKENIZE, "", "Once upon a time")[2]
        log_probs, top = self.score("", tokens=prompt + answer.tokens, top=3)
        for i, (token, logprob, best) in enumerate(answer.logprobs):
            self.assertAlmostEqual(logprob, log_probs[len(prompt) + i - 1], places=4)
            self.assertEqual(best[0][0], token)                     # greedy
            self.assertEqual([pair[0] for pair in best], [pair[0] for pair in top[len(prompt) + i - 1]])

    def test_tokenize_and_back(self):
        text = "The little dog ran. Größe 犬\n"
        reply = self.connection.reply(TOKENIZE, "stories", text)
        self.assertEqual(reply[2][0], 1)                            # BOS
        self.assertEqual(self.connection.reply(DETOKENIZE, "", reply[2])[2], text)
        pieces = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in reply[3][1:])
        self.assertEqual(pieces.decode().lstrip(" "), text)
        bare = self.connection.reply(TOKENIZE, "", text, False)
        self.assertEqual(bare[2], reply[2][1:])

    def test_stop_strings_across_token_borders(self):
        whole = self.connection.generate("Once upon a time", max_tokens=60, ignore_eos=True)
        for begin in (5, 23, 57):
            stop = whole.text[begin:begin + 9]
            answer = self.connection.generate("Once upon a time", max_tokens=60, stop=["never there", stop], ignore_eos=True)
            self.assertEqual(answer.text, whole.text[:whole.text.find(stop)])
            self.assertEqual(answer.finish_reason, STOP)
            self.assertEqual(answer.usage[2], len(answer.tokens))
            self.assertEqual(answer.tokens, whole.tokens[:len(answer.tokens)])
            self.assertLess(len(answer.tokens), 60)
        half = self.connection.generate("Once upon a time", max_tokens=60, stop=[whole.text[-3:] + "no"], ignore_eos=True)
        self.assertEqual(half.text, whole.text)                     # what was held back comes at the end

    def test_many_at_once_are_the_same_as_alone(self):
        prompts = ["Once upon a time", "The dog", "Lily saw", "A big red ball", "Tom and Sam", "She was"]
        options = dict(max_tokens=80, temperature=0.9, top_p=0.95, ignore_eos=True)
        alone = [self.connection.generate(prompt, seed=i, **options).tokens for i, prompt in enumerate(prompts)]
        for _ in range(3):
            ids = {self.connection.begin(GENERATE, "", prompt, [], False, sampling(seed=i, **options)): i
                   for i, prompt in enumerate(prompts)}
            got, left = [[] for _ in prompts], len(prompts)
            while left:
                message = self.connection.receive()
                self.assertIn(message[0], (TOKEN, DONE))
                if message[0] == TOKEN:
                    got[ids[message[1]]] += message[3]
                else:
                    left -= 1
            self.assertEqual(got, alone)

    def test_seed_is_echoed_and_decides(self):
        first = self.connection.generate("The", temperature=1.0, seed=7, max_tokens=30)
        again = self.connection.generate("The", temperature=1.0, seed=7, max_tokens=30)
        other = self.connection.generate("The", temperature=1.0, seed=8, max_tokens=30)
        self.assertEqual(first.seed, 7)
        self.assertEqual(first.tokens, again.tokens)
        self.assertNotEqual(first.tokens, other.tokens)

    def test_cancel(self):
        request = self.connection.begin(GENERATE, "", "Once", [], False, sampling(max_tokens=1500, ignore_eos=True))
        cancelled = []

        def cancel(out):
            if not cancelled:
                cancelled.append(self.connection.begin(CANCEL, request))

        answer = self.connection.finish(request, cancel)
        self.assertEqual(answer.finish_reason, CANCELLED)
        self.assertEqual(answer.usage[2], len(answer.tokens))
        self.assertLess(len(answer.tokens), 1500)
        with self.assertRaises(Failed) as failed:
            self.connection.reply(CANCEL, request)
        self.assertEqual(failed.exception.code, NO_SUCH_REQUEST)
        self.daemon.wait_idle()

    def test_cancel_while_the_model_is_loaded(self):
        with running(models={"one": STORIES}) as daemon, daemon.connect() as connection:
            connection.send_bytes(frame(GENERATE, 5, "one", "Once", [], False, sampling(max_tokens=2000, ignore_eos=True)) +
                                  frame(CANCEL, 6, 5))
            self.assertEqual(connection.receive()[:2], [OK, 6])
            self.assertEqual(connection.finish(5).finish_reason, CANCELLED)
            self.assertEqual(connection.generate("Once", max_tokens=3).model, "one")

    def test_cancel_of_one_leaves_the_others(self):
        options = dict(max_tokens=700, ignore_eos=True)
        expected = self.connection.generate("Tom", **options).tokens
        keep = self.connection.begin(GENERATE, "", "Tom", [], False, sampling(**options))
        drop = self.connection.begin(GENERATE, "", "Sam", [], False, sampling(**options))
        self.connection.send(CANCEL, 999, drop)
        got, reasons = {keep: [], drop: []}, {}
        while len(reasons) < 2:
            message = self.connection.receive()
            if message[0] == TOKEN:
                got[message[1]] += message[3]
            elif message[0] == DONE:
                reasons[message[1]] = message[2]
        self.assertEqual(reasons, {keep: LENGTH, drop: CANCELLED})
        self.assertEqual(got[keep], expected)

    def test_cancel_of_a_score(self):
        tokens = [1] + [403] * 2000
        request = self.connection.begin(SCORE, "", "", tokens, True, 100)
        self.connection.send(CANCEL, 999, request)
        while True:
            message = self.connection.receive()
            if message[0] == ERROR:
                self.assertEqual(message[1:3], [request, CANCELLED_ERROR])
                break
            self.assertIn(message[0], (OK, SCORE_REPLY))
            self.assertFalse(message[0] == SCORE_REPLY and message[5], "it was not cancelled in time")

    def test_a_client_that_goes_away_is_cancelled(self):
        for bytes_to_read in (0, 40):
            gone = self.daemon.connect()
            for _ in range(8):
                gone.begin(GENERATE, "", "Once", [], False, sampling(max_tokens=2000, ignore_eos=True))
            if bytes_to_read:
                gone.fill(bytes_to_read)
            gone.close()
        status = self.daemon.wait_idle()
        self.assertEqual(status["requests"], [])
        self.assertEqual(self.connection.generate("The dog", max_tokens=5).finish_reason, LENGTH)

    def test_status_while_running(self):
        request = self.connection.begin(GENERATE, "", "Once", [], False, sampling(max_tokens=1900, ignore_eos=True))
        with self.daemon.connect() as other:
            seen = None
            while True:
                status = other.status()
                if status["requests"] and status["requests"][0]["completion_tokens"]:
                    seen = seen or status["requests"][0]
                if not status["requests"] and status["running"] == 0 and seen:
                    break
        self.assertEqual((seen["uid"], seen["pid"], seen["kind"], seen["model"], seen["state"]),
                         (os.geteuid(), os.getpid(), "generate", "stories", "decode"))
        self.connection.finish(request)

    def test_many_connections(self):
        expected = self.connection.generate("The dog", max_tokens=30, ignore_eos=True).tokens
        failures = []

        def ask():
            try:
                with self.daemon.connect() as connection:
                    for _ in range(3):
                        if connection.generate("The dog", max_tokens=30, ignore_eos=True).tokens != expected:
                            failures.append("another answer")
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_list_load_unload(self):
        models = {"one": STORIES, "two": os.path.join(DATA, "models/stories260K-Q8_0.gguf")}
        with running(models=models) as daemon:
            with daemon.connect() as connection:
                self.assertEqual([(m["name"], m["loaded"]) for m in connection.models()], [("one", False), ("two", False)])
                with self.assertRaises(Failed) as failed:
                    connection.generate("x")                       # two models, no default
                self.assertEqual(failed.exception.code, NO_SUCH_MODEL)
                self.assertIn("one, two", failed.exception.message)
                answer = connection.generate("The", model="two", max_tokens=3)      # loads it
                self.assertEqual(answer.model, "two")
                self.assertEqual(connection.generate("The", max_tokens=3).model, "two")    # now the only one loaded
                loaded = connection.models(LOAD, "one")
                self.assertEqual([(m["name"], m["loaded"]) for m in loaded], [("one", True)])
                self.assertEqual(len(connection.status()["models"]), 2)
                self.assertEqual([m["name"] for m in connection.models(UNLOAD, "two")], ["one"])
                with self.assertRaises(Failed) as failed:
                    connection.models(UNLOAD, "two")
                self.assertIn("not loaded", failed.exception.message)
                self.assertEqual({m["name"]: m["loaded"] for m in connection.models()}, {"one": True, "two": False})

    def test_unload_ends_what_runs(self):
        with running(models={"one": STORIES}) as daemon, daemon.connect() as connection, daemon.connect() as admin:
            request = connection.begin(GENERATE, "one", "Once", [], False, sampling(max_tokens=2000, ignore_eos=True))
            connection.fill(1)
            admin.models(UNLOAD, "one")
            self.assertEqual(connection.finish(request).finish_reason, CANCELLED)
            self.assertEqual(connection.generate("Once", max_tokens=2).finish_reason, LENGTH)     # loaded again


@needs_model
class KvTypes(unittest.TestCase):
    def start(self, directory, *options):
        return Daemon(models={"stories": STORIES}, options=["--model", "stories", *options], directory=directory)

    def test_int8_unless_told_otherwise(self):
        with tempfile.TemporaryDirectory() as directory:
            daemon = self.start(directory)
            with daemon.connect() as connection:
                self.assertEqual(connection.status()["models"][0]["kv_type"], "int8")
                served = connection.generate("Once upon a time", max_tokens=8).tokens
            daemon.stop()
            kept = glob.glob(directory + "/.local/state/ellm/key-mean-*")   # measured once, then found
            self.assertEqual(len(kept), 1)
            before = os.stat(kept[0]).st_mtime_ns
            daemon = self.start(directory)
            with daemon.connect() as connection:
                self.assertEqual(connection.generate("Once upon a time", max_tokens=8).tokens, served)
            daemon.stop()
            self.assertEqual(os.stat(kept[0]).st_mtime_ns, before)
            with open(kept[0], "r+b") as file:                              # damaged: measured again
                file.seek(100)
                file.write(b"damage")
            daemon = self.start(directory)
            with daemon.connect() as connection:
                self.assertEqual(connection.generate("Once upon a time", max_tokens=8).tokens, served)
            daemon.stop()
            self.assertNotEqual(os.stat(kept[0]).st_mtime_ns, before)

    def test_k_and_v_apart(self):
        daemon = self.start(None, "--kv-type", "int4:f16")
        with daemon.connect() as connection:
            self.assertEqual(connection.status()["models"][0]["kv_type"], "int4:f16")
            self.assertEqual(len(connection.generate("Once upon a time", max_tokens=8, ignore_eos=True).tokens), 8)
        daemon.stop()


if __name__ == "__main__":
    unittest.main()
