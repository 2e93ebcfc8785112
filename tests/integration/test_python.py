"""The Python package `ellm` against the built daemon: its README's examples, both clients, types, installing."""
import asyncio
import doctest
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

from gguf import with_string
from harness import DATA, STORIES, OneDaemon, needs_model, running
from python_package import LONG, PACKAGE, ellm


@needs_model
class Readme(unittest.TestCase):
    def test_examples(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "stories.gguf")
            with_string(STORIES, model, "tokenizer.chat_template",
                        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
            with running(models={"stories": model}, options=["--model", "stories"]) as daemon:
                os.environ["ELLM_SOCKET"] = daemon.socket
                try:
                    failed, tried = doctest.testfile(os.path.join(PACKAGE, "README.md"), module_relative=False)
                finally:
                    del os.environ["ELLM_SOCKET"]
                self.assertEqual(failed, 0)
                self.assertGreater(tried, 20)


@needs_model
class Clients(OneDaemon):
    OPTIONS = ["--kv-type", "f16"]

    def setUp(self):
        self.client = ellm.Client(self.daemon.socket)
        self.addCleanup(self.client.close)

    def test_reference_greedy(self):
        with open(os.path.join(DATA, "reference/greedy_stories260K.json")) as file:
            runs = [run for run in json.load(file)["runs"] if run["model"] == "stories260K"]
        for run in runs:
            answer = self.client.generate(run["prompt"], temperature=0, max_tokens=len(run["out_tokens"]),
                                          ignore_eos=True)
            self.assertEqual(answer.tokens, run["out_tokens"])
            self.assertEqual(answer.text.strip(), run["text"].strip())

        async def ask():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                return await asyncio.gather(*(client.generate(run["prompt"], temperature=0, ignore_eos=True,
                                                              max_tokens=len(run["out_tokens"])) for run in runs))
        self.assertEqual([answer.tokens for answer in asyncio.run(ask())], [run["out_tokens"] for run in runs])

    def test_a_score_in_a_namespace(self):
        text = list(range(3, 103))

        async def score():
            async with ellm.AsyncClient(daemon.socket) as client:
                return await client.score(text[50:], namespace="open")
        with running(models={"stories": STORIES}, options=["--model", "stories"],
                     config='[namespaces]\nopen = "everybody"\n') as daemon:
            with ellm.Client(daemon.socket) as client:
                client.score(text, namespace="open")
                asyncio.run(score())
                for tokens in (text, text[50:]):
                    self.assertEqual(client.generate(tokens, max_tokens=1).usage.cached_tokens, 0)
                    shared = client.generate(tokens, max_tokens=1, namespace="open").usage
                    self.assertEqual(shared.cached_tokens, len(tokens) - 1)
                with self.assertRaisesRegex(ellm.DaemonError, "no namespace 'nowhere'"):
                    client.score(text, namespace="nowhere")

    def test_scores_are_the_logprobs_of_an_answer(self):
        answer = self.client.generate("Once upon a time", temperature=0, max_tokens=40, logprobs=2)
        self.assertEqual([entry.id for entry in answer.logprobs], answer.tokens)
        prompt = self.client.tokenize("Once upon a time").tokens
        scores = self.client.score(prompt + answer.tokens, top=2)
        self.assertEqual(scores.tokens, prompt + answer.tokens)
        for entry, logprob in zip(answer.logprobs, scores.log_probs[len(prompt) - 1:]):
            self.assertAlmostEqual(entry.logprob, logprob, places=4)

        async def ask():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                return await client.score(prompt + answer.tokens, top=2)
        self.assertEqual(asyncio.run(ask()), scores)

    def test_many_threads_share_a_client(self):
        expected = self.client.generate("The dog", temperature=0, max_tokens=30).tokens
        wrong = []

        def ask():
            for _ in range(5):
                if self.client.generate("The dog", temperature=0, max_tokens=30).tokens != expected:
                    wrong.append(1)
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_samples_deadlines_and_priorities(self):
        options = dict(temperature=1, seed=4, max_tokens=30)
        with self.daemon.connect() as connection:
            samples = connection.samples("Once", 4, temperature=1.0, top_p=0.95, seed=4, max_tokens=30)
            expected = [sample.tokens for sample in samples]
        answer = self.client.generate("Once", n=4, priority="batch", deadline=60, **options)
        self.assertEqual([sample.tokens for sample in answer.samples], expected)
        self.assertEqual([sample.sample for sample in answer.samples], [0, 1, 2, 3])
        self.assertEqual([sample.usage.prompt_tokens > 0 for sample in answer.samples], [True, False, False, False])
        self.assertEqual(self.client.generate("Once", **options).tokens, expected[0])
        texts = [""] * 4
        for piece in self.client.generate_stream("Once", n=4, **options):
            texts[piece.sample] += piece.text
        self.assertEqual(texts, [sample.text for sample in answer.samples])

        async def ask():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                late = await client.generate("Once", n=2, deadline=0.001, **LONG)
                return await client.generate("Once", n=4, priority="batch", deadline=60, **options), late
        again, late = asyncio.run(ask())
        self.assertEqual([sample.tokens for sample in again.samples], expected)
        self.assertEqual([sample.finish_reason for sample in late.samples], [ellm.FinishReason.DEADLINE] * 2)
        with self.assertRaises(ellm.DeadlinePassed):
            self.client.score([403] * 2000, deadline=0.001, top=100)
        for wrong in (0, -1, float("nan"), float("inf"), 1e9):
            with self.assertRaises(ellm.BadRequest) as raised:
                self.client.generate("Once", deadline=wrong)
            self.assertIn("more than 0 and at most 4294967", str(raised.exception))
        with self.assertRaises(ellm.BadRequest):
            self.client.generate("Once", priority="urgent")
        with self.assertRaises(ellm.BadRequest) as raised:
            self.client.generate("Once", n=10 ** 6)
        self.assertIn("allowed is 1 to 64", str(raised.exception))

    def test_errors(self):
        with self.assertRaises(ellm.BadRequest) as raised:
            self.client.generate("x", temperature=-1)
        self.assertIn("temperature", str(raised.exception))
        with self.assertRaises(ellm.NoSuchModel):
            self.client.tokenize("x", model="nowhere")
        with self.assertRaises(ellm.TooLarge):
            self.client.generate("x " * 3000)
        with self.assertRaises(ellm.TooLarge):
            self.client.generate("x" * (65 << 20))
        self.assertEqual(self.client.status().running, 0)       # the connection lives on

    def test_models(self):
        with running(models={"one": STORIES, "two": STORIES}) as daemon, ellm.Client(daemon.socket) as client:
            self.assertEqual([(m.name, m.loaded) for m in client.models()], [("one", False), ("two", False)])
            self.assertEqual([m.name for m in client.load("two")], ["two"])
            self.assertEqual([m.name for m in client.status().models], ["two"])
            client.unload("two")
            self.assertEqual(client.status().models, [])

    def test_models_that_are_handed_over(self):
        with running(models={"one": STORIES}) as daemon, ellm.Client(daemon.socket) as client:
            self.assertTrue(client.add_model("loaded", STORIES).loaded)
            client.unload("loaded")
            installed = client.add_model("installed", [STORIES], install=True)
            self.assertEqual(installed.path, os.path.join(daemon.models_dir, "installed.gguf"))
            with self.assertRaises(ellm.ModelFailed):
                client.add_model("installed", STORIES, install=True)

            async def ask():
                async with ellm.AsyncClient(daemon.socket) as client:
                    await asyncio.gather(*(client.add_model("m%d" % i, STORIES, install=True) for i in range(3)),
                                         client.add_model("installed", STORIES, replace=True))
                    cancelled = asyncio.create_task(client.add_model("never", STORIES))
                    await asyncio.sleep(0)
                    cancelled.cancel()
                    await asyncio.gather(cancelled, return_exceptions=True)
                    await client.remove_model("m1")
                    return [model.name for model in await client.models()]
            self.assertLessEqual({"installed", "m0", "m2", "one"}, set(asyncio.run(ask())))
            client.remove_model("installed")
            self.assertNotIn("installed", [model.name for model in client.models()])
            with self.assertRaises(ellm.NoSuchModel):
                client.remove_model("installed")
            with self.assertRaises(FileNotFoundError):
                client.add_model("x", "/nowhere/x.gguf")


class Package(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_types(self):
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "ellm"], cwd=PACKAGE,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("wheel"), "wheel is not installed")
    def test_pip_install(self):
        with tempfile.TemporaryDirectory() as target:
            source = shutil.copytree(PACKAGE, target + "/source")       # building leaves files behind
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps",
                            "--no-index", "--no-cache-dir", "--disable-pip-version-check",
                            "--target", target + "/site", source],
                           check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            code = ("import ellm, os; "
                    "print(ellm.__version__, os.path.exists(os.path.dirname(ellm.__file__) + '/py.typed'))")
            done = subprocess.run([sys.executable, "-c", code], cwd=target, capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": target + "/site"})
            self.assertEqual(done.stdout, "%s True\n" % ellm.__version__, done.stderr)


if __name__ == "__main__":
    unittest.main()
