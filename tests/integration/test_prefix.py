"""Nothing is computed twice, over the wire: what a second request, turn or client finds of the first."""
import os
import subprocess
import json
import tempfile
import threading
import unittest

from gguf import with_string
from harness import STORIES, Daemon, environment, needs_model, running
from protocol import *

ELLM = os.environ.get("ELLM")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}" \
           "{% if add_generation_prompt %}<assistant>{% endif %}"


@needs_model
class Prefix(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "talks.gguf")
        with_string(STORIES, path, "tokenizer.chat_template", TEMPLATE)
        self.daemon = Daemon(models={"talks": path}, options=["--model", "talks"])
        self.addCleanup(self.daemon.stop)
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def chat(self, messages, **options):
        return self.connection.finish(self.connection.begin(CHAT, "", messages, "", "", sampling(**options)))

    def test_the_next_turn_finds_the_answer(self):
        messages = [["user", "Tell me of a dog that could not sleep."]]
        first = self.chat(messages, max_tokens=60, ignore_eos=True)
        self.assertEqual((first.cached, first.recomputed), (0, {"new": first.usage[0]}))
        messages += [["assistant", first.text, first.tokens], ["user", "And then?"]]
        second = self.chat(messages, max_tokens=30, ignore_eos=True)
        # The prompt, the answer but for its last token (which nobody has run), then what is new.
        self.assertEqual(second.cached, first.usage[0] + 59)
        self.assertEqual(second.recomputed, {"new": second.usage[0] - second.cached})
        with running(models={"talks": os.path.realpath(os.path.join(self.daemon.models_dir, "talks.gguf"))}) as other:
            with other.connect() as connection:
                cold = connection.finish(connection.begin(CHAT, "", messages, "", "", sampling(max_tokens=30, ignore_eos=True)))
        self.assertEqual((cold.cached, cold.tokens), (0, second.tokens))
        status = self.daemon.wait_idle()
        self.assertEqual(status["cached_tokens"], second.cached)
        self.assertGreater(status["models"][0]["kv_pages_cached"], 3)

    def test_ids_that_do_not_fit_their_text_are_said(self):
        messages = [["user", "Tell me of a dog that could not sleep."]]
        first = self.chat(messages, max_tokens=40, ignore_eos=True)
        changed = "Indeed, " + first.text
        second = self.chat(messages + [["assistant", changed, first.tokens], ["user", "And then?"]], max_tokens=1)
        without = self.chat(messages + [["assistant", "So. " + changed], ["user", "And then?"]], max_tokens=1)
        self.assertGreaterEqual(second.cached, first.usage[0] - 1)
        self.assertGreater(second.recomputed["retokenised"], 30)
        self.assertLess(second.recomputed["new"], 40)                    # the closing mark, the new question
        self.assertNotIn("retokenised", without.recomputed)              # it came without ids

    def test_another_connection_finds_it_too(self):
        tokens = [3 + i * i % 500 for i in range(200)]
        self.connection.generate(tokens=tokens, max_tokens=1)
        with self.daemon.connect() as other:
            answer = other.generate(tokens=tokens[:150] + [7, 8, 9], max_tokens=1)
        self.assertEqual((answer.cached, answer.recomputed), (150, {"new": 3}))

    def test_two_clients_with_one_new_prefix(self):
        common = [3 + i * i % 500 for i in range(1500)]
        answers, barrier = {}, threading.Barrier(2)

        def ask(number):
            with self.daemon.connect() as connection:
                barrier.wait()
                answers[number] = connection.generate(tokens=common + [10 + number] * 20, max_tokens=4, ignore_eos=True)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        computed = sum(answer.usage[0] - answer.cached for answer in answers.values())
        # Once but for the page where they part, whichever came first.
        self.assertLess(computed, 1500 + 2 * 20 + 32)
        self.assertEqual(min(answer.cached for answer in answers.values()), 0)

    def test_scores_say_why_they_compute(self):
        tokens = [3 + i for i in range(80)]
        self.connection.generate(tokens=tokens, max_tokens=1)
        request = self.connection.begin(SCORE, "", "", tokens + [5] * 10, True, 0)
        while True:
            message = self.connection.receive()
            self.assertEqual(message[:2], [SCORE_REPLY, request])
            if message[5]:
                break
        usage = dict(zip(USAGE_FIELDS, message[6]))
        recomputed = dict(zip(RECOMPUTED_FIELDS, usage["recomputed"]))
        self.assertEqual((usage["prompt_tokens"], usage["cached_tokens"]), (90, 0))
        self.assertEqual((recomputed["logits_needed"], recomputed["new"]), (80, 10))

    @unittest.skipUnless(ELLM, "ELLM is unset")
    def test_run_json_says_it(self):
        def run():
            command = [ELLM, "run", "--socket", self.daemon.socket, "--json", "-t", "0", "--max-tokens", "4", "--raw", "Once upon a time"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment(self.daemon.directory))
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        first, second = run(), run()
        prompt = first["usage"]["prompt_tokens"]
        self.assertEqual((first["usage"]["cached_tokens"], first["usage"]["recomputed"]["new"]), (0, prompt))
        self.assertEqual((second["usage"]["cached_tokens"], second["usage"]["recomputed"]["last_token"]), (prompt - 1, 1))
        self.assertEqual(first["tokens"], second["tokens"])

    def test_a_cache_that_is_too_small_gives_up_the_oldest(self):
        with running(models={"talks": STORIES}, options=["--model", "talks"],
                     config='[kv]\ntype = "f16"\nmemory = "%d"\n' % self.kv_bytes(2048)) as daemon:
            with daemon.connect() as connection:
                texts = [[3 + (i * i + j) % 500 for i in range(900)] for j in range(4)]
                for text in texts:
                    connection.generate(tokens=text, max_tokens=1)
                again = connection.generate(tokens=texts[0], max_tokens=1)
                self.assertGreater(again.recomputed.get("evicted", 0), 700, again.usage)
                last = connection.generate(tokens=texts[3], max_tokens=1)
                self.assertGreater(last.cached, 700, last.usage)
            daemon.wait_idle()

    def kv_bytes(self, tokens):
        geometry = dict(layers=5, kv_heads=4, head_dim=8)    # stories260K
        page = geometry["layers"] * geometry["kv_heads"] * 32 * 2 * (geometry["head_dim"] + 16)   # V is padded to 16
        return page * tokens // 32


if __name__ == "__main__":
    unittest.main()
