"""What a request may ask for beyond its prompt and its sampling: several samples, a deadline, a priority."""
import json
import os
import subprocess
import time
import unittest

from harness import OneDaemon, needs_model, running, STORIES
from protocol import *

ELLM = os.environ.get("ELLM", "build/release/bin/ellm")
LONG = dict(max_tokens=1900, ignore_eos=True)


def ids(length, salt):
    """A prompt of its own."""
    return [3 + (salt * 131 + i * 7919 + i * i) % 500 for i in range(length)]


@needs_model
class Samples(OneDaemon):
    def setUp(self):
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def computed(self):
        """Tokens of prompts that were run so far."""
        status = self.daemon.wait_idle()
        return status["prompt_tokens"] - status["cached_tokens"]

    def test_the_prompt_is_computed_once(self):
        n = 8
        for salt, length in enumerate((1, 2, 31, 32, 33, 64, 100, 301)):
            before = self.computed()
            samples = self.connection.samples("", n, tokens=ids(length, salt), temperature=1.0, max_tokens=20, ignore_eos=True)
            self.assertEqual([len(sample.tokens) for sample in samples], [20] * n)
            self.assertEqual(self.computed() - before, length + (n - 1), length)     # each has its own first logits
            self.assertEqual([sample.usage[0] for sample in samples], [length] + [0] * (n - 1))
            self.assertEqual([sample.usage[2] for sample in samples], [20] * n)
            self.assertEqual(sum(samples[0].recomputed.values()), length)

    def test_a_sample_is_the_same_whatever_n_is(self):
        options = dict(temperature=1.0, seed=3, max_tokens=60, want_logprobs=True, logprobs=2)
        five = self.connection.samples("Once upon a time", 5, **options)
        self.assertGreater(len({tuple(sample.tokens) for sample in five}), 3)
        for n in (1, 2, 4):
            for mine, theirs in zip(self.connection.samples("Once upon a time", n, **options), five):
                self.assertEqual((mine.tokens, mine.text, mine.logprobs, mine.finish_reason),
                                 (theirs.tokens, theirs.text, theirs.logprobs, theirs.finish_reason))
        plain = self.connection.generate("Once upon a time", **options)
        self.assertEqual((plain.tokens, plain.logprobs), (five[0].tokens, five[0].logprobs))
        greedy = self.connection.samples("Once upon a time", 3, temperature=0.0, max_tokens=30)
        self.assertEqual(greedy[1].tokens, greedy[0].tokens)

    def test_a_stop_string_ends_its_sample_alone(self):
        options = dict(temperature=1.0, seed=9, max_tokens=80)
        whole = self.connection.samples("Once upon a time", 6, **options)
        cut = self.connection.samples("Once upon a time", 6, stop=[" and"], **options)
        self.assertTrue(any(" and" in sample.text for sample in whole))
        for before, after in zip(whole, cut):
            self.assertEqual(after.text, before.text.split(" and")[0])

    def test_cancelling_ends_all(self):
        def cancel(out):
            if not asked:
                asked.append(self.connection.begin(CANCEL, request))
        asked = []
        request = self.connection.begin(GENERATE, "", "Once", [], False, sampling(**LONG), 0, 0, 6)
        samples = self.connection.finish_all(request, 6, cancel)
        self.assertEqual({sample.finish_reason for sample in samples}, {CANCELLED})
        self.daemon.wait_idle()
        # At once, and by leaving.
        request = self.connection.begin(GENERATE, "", "Once", [], False, sampling(**LONG), 0, 0, 6)
        self.connection.begin(CANCEL, request)
        self.assertEqual({sample.finish_reason for sample in self.connection.finish_all(request, 6)}, {CANCELLED})
        with self.daemon.connect() as other:
            other.begin(GENERATE, "", "Once", [], False, sampling(**LONG), 0, 0, 6)
        self.daemon.wait_idle()

    def test_too_many_are_refused(self):
        for n in (0, 65, 10 ** 6, 2 ** 32 - 1):
            with self.assertRaises(Failed) as raised:
                self.connection.finish(self.connection.begin(GENERATE, "", "Once", [], False, sampling(), 0, 0, n))
            self.assertEqual(raised.exception.code, BAD_REQUEST)
            self.assertIn("n is %d; allowed is 1 to 64 (limits.samples)" % n, raised.exception.message)
        for n in (2 ** 32, -1, "x"):
            with self.assertRaises(Failed) as raised:
                self.connection.finish(self.connection.begin(GENERATE, "", "Once", [], False, sampling(), 0, 0, n))
            self.assertEqual(raised.exception.code, BAD_REQUEST)
            self.assertIn("generate.n", raised.exception.message)
        self.assertEqual(len(self.connection.samples("Once", 64, max_tokens=2, ignore_eos=True)), 64)

    def test_each_counts_as_a_request_of_its_user(self):
        with running(models={"stories": STORIES}, options=["--model", "stories"],
                     config="[limits]\nsamples = 100\nrequests_per_user = 8\n") as daemon, daemon.connect() as connection:
            with self.assertRaises(Failed) as raised:
                connection.samples("Once", 9)
            self.assertIn("allowed is 1 to 8", raised.exception.message)
            with daemon.connect() as other:
                running_one = other.begin(GENERATE, "", "Tom", [], False, sampling(**LONG), 0, 0, 6)
                while not connection.status()["running"]:
                    time.sleep(0.001)
                with self.assertRaises(Failed) as raised:
                    connection.samples("Once", 3)
                self.assertEqual(raised.exception.code, BUSY)
                connection.samples("Once", 2, max_tokens=2)
                other.begin(CANCEL, running_one)
                other.finish_all(running_one, 6)
            daemon.wait_idle()
            self.assertEqual(len(connection.samples("Once", 8, max_tokens=2)), 8)

    def test_the_command(self):
        def run(*options):
            done = subprocess.run([ELLM, "run", "--socket", self.daemon.socket, "--raw", "Once upon a time", *options],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done)
            return done.stdout
        options = ["-t", "1", "--top-p", "1", "--seed", "5", "--max-tokens", "25", "-n", "3"]
        expected = self.connection.samples("Once upon a time", 3, temperature=1.0, seed=5, max_tokens=25)
        answers = [json.loads(line) for line in run(*options, "--json").splitlines()]
        self.assertEqual([answer["tokens"] for answer in answers], [sample.tokens for sample in expected])
        events = [json.loads(line) for line in run(*options, "--json", "--events").splitlines()]
        self.assertEqual([event["tokens"] for event in events[-3:]], [sample.tokens for sample in expected])
        pieces = [event for event in events if "finish_reason" not in event]
        self.assertEqual(len(pieces), len(events) - 3)
        for i, sample in enumerate(expected):
            self.assertEqual("".join(piece["text"] for piece in pieces if piece["sample"] == i), sample.text)
            self.assertEqual(sum((piece["tokens"] for piece in pieces if piece["sample"] == i), []), sample.tokens)
        self.assertEqual(run(*options), "".join("--- sample %d ---\n%s\n" % (i, sample.text) for i, sample in enumerate(expected)))


@needs_model
class Deadlines(OneDaemon):
    def setUp(self):
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def test_an_answer_ends_with_what_there_is(self):
        whole = self.connection.generate("Once upon a time", **LONG)
        for deadline_ms in (1, 20, 100):
            with self.daemon.connect() as other:
                for i in range(6):                          # so that it takes longer
                    other.begin(GENERATE, "", "Tom", [], False, sampling(**LONG), 0, 0, 6)
                [late] = self.connection.samples("Once upon a time", 1, urgency=(INTERACTIVE, deadline_ms), **LONG)
            self.assertEqual(late.finish_reason, DEADLINE)
            self.assertEqual(late.tokens, whole.tokens[:len(late.tokens)])
            self.assertTrue(whole.text.startswith(late.text))
            self.daemon.wait_idle()

    def test_one_that_is_in_time_is_as_without(self):
        plain = self.connection.generate("Once", max_tokens=20)
        for deadline_ms in (60000, 2 ** 32 - 1):
            [answer] = self.connection.samples("Once", 1, urgency=(BATCH, deadline_ms), max_tokens=20)
            self.assertEqual((answer.tokens, answer.finish_reason), (plain.tokens, plain.finish_reason))

    def test_every_sample_ends(self):
        samples = self.connection.samples("Once", 8, urgency=(INTERACTIVE, 30), temperature=1.0, **LONG)
        self.assertEqual({sample.finish_reason for sample in samples}, {DEADLINE})
        self.daemon.wait_idle()

    def test_a_score_that_is_late_is_an_error(self):
        request = self.connection.begin(SCORE, "", "", [403] * 2000, True, 100, INTERACTIVE, 1)
        while (message := self.connection.receive())[0] == SCORE_REPLY:
            self.assertFalse(message[5])
        self.assertEqual(message[:3], [ERROR, request, DEADLINE_ERROR])
        self.assertIn("1 ms", message[3])
        self.daemon.wait_idle()
        self.assertTrue(self.connection.reply(SCORE, "", "Once upon", [], False, 0, BATCH, 60000))

    def test_it_passes_while_a_model_is_loaded(self):
        with running(models={"stories": STORIES}) as daemon, daemon.connect() as connection:
            request = connection.begin(GENERATE, "stories", "Once", [], False, sampling(**LONG), 0, 1, 2)
            self.assertEqual({sample.finish_reason for sample in connection.finish_all(request, 2)}, {DEADLINE})
            daemon.wait_idle()

    def test_impossible_values(self):
        for priority, deadline_ms, field in ((2, 0, "priority"), (-1, 0, "priority"), ("batch", 0, "priority"),
                                             (0, -1, "deadline_ms"), (0, 2 ** 32, "deadline_ms"), (0, 1.5, "deadline_ms")):
            with self.assertRaises(Failed) as raised:
                self.connection.finish(self.connection.begin(GENERATE, "", "Once", [], False, sampling(), priority, deadline_ms, 1))
            self.assertEqual(raised.exception.code, BAD_REQUEST)
            self.assertIn("generate." + field, raised.exception.message)
        self.assertEqual(len(self.connection.generate("Once", max_tokens=2).tokens), 2)

    def test_the_command(self):
        with self.daemon.connect() as other:
            for i in range(6):
                other.begin(GENERATE, "", "Tom", [], False, sampling(**LONG), 0, 0, 6)
            done = subprocess.run([ELLM, "run", "--socket", self.daemon.socket, "--raw", "Once upon a time", "-t", "0", "--json",
                                   "--ignore-eos", "--deadline", "0.05"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 75, done)
        self.assertEqual(json.loads(done.stdout)["finish_reason"], "deadline")
        self.assertEqual(done.stderr, "ellm: the deadline of 0.05 s has passed: the answer is not complete\n")


if __name__ == "__main__":
    unittest.main()
