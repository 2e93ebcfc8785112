"""The Python package `ellm` against the built daemon: its README's examples, both clients, restarts, types, installing."""
import asyncio
import contextlib
import doctest
import gc
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from gguf import with_string
from harness import DATA, ELLMD, STORIES, Daemon, OneDaemon, environment, needs_model, running

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "client/python")
sys.path.insert(0, PACKAGE)
import ellm                                             # noqa: E402
from ellm import _codec, messages                       # noqa: E402

LONG = dict(max_tokens=1900, ignore_eos=True)


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
            answer = self.client.generate(run["prompt"], temperature=0, max_tokens=len(run["out_tokens"]), ignore_eos=True)
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
        with running(models={"stories": STORIES}, options=["--model", "stories"], config='[namespaces]\nopen = "everybody"\n') as daemon:
            with ellm.Client(daemon.socket) as client:
                client.score(text, namespace="open")
                asyncio.run(score())
                for tokens in (text, text[50:]):
                    self.assertEqual(client.generate(tokens, max_tokens=1).usage.cached_tokens, 0)
                    self.assertEqual(client.generate(tokens, max_tokens=1, namespace="open").usage.cached_tokens, len(tokens) - 1)
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

    def test_leaving_a_stream_cancels(self):
        for _ in self.client.generate_stream("Once", **LONG):
            break
        self.daemon.wait_idle()
        with self.client.generate_stream("Once", **LONG):
            pass
        self.daemon.wait_idle()
        self.client.generate_stream("Once", **LONG)             # dropped
        self.daemon.wait_idle()
        stream = self.client.generate_stream("Once", **LONG)
        for i, _ in enumerate(stream):
            if i == 3:
                stream.cancel()
        self.assertEqual(stream.completion.finish_reason, ellm.FinishReason.CANCELLED)
        self.assertLess(len(stream.completion.tokens), 1900)
        self.assertEqual(self.client.status().requests, [])

    def test_cancelling_a_task_cancels_its_request_alone(self):
        async def ask():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                keep = asyncio.create_task(client.generate("Tom", temperature=0, max_tokens=700, ignore_eos=True))
                drops = [asyncio.create_task(client.generate("Sam", **LONG))]

                async def read():
                    async for _ in client.generate_stream("Lily", **LONG):
                        pass
                drops.append(asyncio.create_task(read()))
                while len((await client.status()).requests) < 3:
                    await asyncio.sleep(0.001)
                # Not before: reading a score's answer would keep this thread busy until the others have ended.
                drops += [asyncio.create_task(call) for call in (
                    client.score([1] + [403] * 2000, top=100), client.chat("no template", **LONG))]
                await client.status()
                for task in drops:
                    task.cancel()
                # Score and chat may have been faster.
                results = await asyncio.gather(*drops, return_exceptions=True)
                self.assertTrue(all(isinstance(result, (asyncio.CancelledError, ellm.TemplateFailed, ellm.Scores)) for result in results), results)
                async for _ in client.generate_stream("Once", **LONG):
                    break
                gc.collect()
                while len((await client.status()).requests) > 1:
                    await asyncio.sleep(0.001)
                return await keep
        expected = self.client.generate("Tom", temperature=0, max_tokens=700, ignore_eos=True)
        self.assertEqual(asyncio.run(ask()).tokens, expected.tokens)
        self.daemon.wait_idle()

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
            expected = [sample.tokens for sample in connection.samples("Once", 4, temperature=1.0, top_p=0.95, seed=4, max_tokens=30)]
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


@contextlib.contextmanager
def folder():
    path = tempfile.mkdtemp(prefix="ellm")
    try:
        yield path
    finally:
        shutil.rmtree(path)


@needs_model
class Restarts(unittest.TestCase):
    def start(self, directory, **options):
        return Daemon(models={"stories": STORIES}, options=["--model", "stories"], directory=directory, **options)

    def kill(self, daemon):
        daemon.process.kill()
        daemon.process.wait()
        daemon.log.close()

    def test_a_daemon_that_comes_later(self):
        with folder() as directory:
            later = threading.Timer(0.15, lambda: started.append(self.start(directory)))
            started = []
            later.start()
            with ellm.Client(directory + "/s", wait=30) as client:
                self.assertEqual(client.generate("Once", max_tokens=3).model, "stories")
            later.join()

            async def ask():
                async with ellm.AsyncClient(directory + "/s", wait=30) as client:
                    return (await client.generate("Once", max_tokens=3)).model
            started[0].stop()
            later = threading.Timer(0.15, lambda: started.append(self.start(directory)))
            later.start()
            self.assertEqual(asyncio.run(ask()), "stories")
            later.join()
            started[1].stop()

    def test_the_wait_is_bounded(self):
        begin = time.monotonic()
        with self.assertRaises(ellm.Absent):
            ellm.Client("/nowhere/ellmd.sock", wait=0.1)
        with self.assertRaises(ellm.Absent):
            asyncio.run(ellm.AsyncClient("/nowhere/ellmd.sock", wait=0.1).status())
        self.assertGreaterEqual(time.monotonic() - begin, 0.2)

    def test_a_socket_that_is_activated(self):
        """As systemd does it: the socket is there first, the daemon starts because somebody connects."""
        with folder() as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(directory + "/s")
            listener.listen()
            answers = []
            caller = threading.Thread(target=lambda: answers.append(ellm.Client(directory + "/s", wait=0).status().pid))
            caller.start()
            time.sleep(0.1)                                     # it waits for hello by now
            with open(directory + "/config", "w") as file:
                file.write('models_dir = "%s"\n' % directory)
            command = 'import os, sys; os.environ["LISTEN_PID"] = str(os.getpid()); os.dup2(int(sys.argv[1]), 3); ' \
                      'os.set_inheritable(3, True); os.execv(sys.argv[2], sys.argv[2:])'
            process = subprocess.Popen(
                [sys.executable, "-c", command, str(listener.fileno()), ELLMD, "--config", directory + "/config", "--threads", "1",
                 "--kv-keep", "off", "--memory-keep", "off"],
                env={**environment(directory), "LISTEN_FDS": "1"}, stderr=subprocess.DEVNULL, pass_fds=[listener.fileno()])
            caller.join(30)
            process.terminate()
            self.assertEqual(process.wait(20), 0)
            self.assertEqual(answers, [process.pid])

    def test_killed_between_connect_and_request(self):
        with folder() as directory:
            daemon = self.start(directory)
            client = ellm.Client(daemon.socket, wait=30)
            for _ in range(2):
                pid = client.status().pid
                self.kill(daemon)
                daemon = self.start(directory, wait=False)
                self.assertNotEqual(client.status().pid, pid)

            async def ask(daemon):
                async with ellm.AsyncClient(daemon.socket, wait=30) as client:
                    pid = (await client.status()).pid
                    self.kill(daemon)
                    again = self.start(directory, wait=False)
                    self.assertNotEqual((await client.status()).pid, pid)
                    return again
            daemon = asyncio.run(ask(daemon))
            client.close()
            daemon.stop()

    def test_killed_in_the_middle_of_an_answer(self):
        with folder() as directory:
            daemon = self.start(directory)
            client = ellm.Client(daemon.socket, wait=30)
            others = [client.generate_stream("Tom", **LONG) for _ in range(12)]     # so that it takes a while
            with self.assertRaises(ellm.Lost) as raised:
                for i, _ in enumerate(client.generate_stream("Once", **LONG)):
                    if i == 0:
                        self.kill(daemon)
            self.assertTrue(raised.exception.request_sent)
            self.assertIn("it may have run", str(raised.exception))
            for other in others:
                with self.assertRaises(ellm.Lost):
                    list(other)
            daemon = self.start(directory)
            self.assertEqual(client.status().pid, daemon.process.pid)       # the client lives on

            async def ask():
                async with ellm.AsyncClient(daemon.socket, wait=30) as client:
                    others = [asyncio.create_task(client.generate("Tom", **LONG)) for _ in range(12)]
                    i = 0
                    try:
                        async for _ in client.generate_stream("Once", **LONG):
                            if i == 0:
                                self.kill(daemon)
                            i += 1
                    finally:
                        lost = await asyncio.gather(*others, return_exceptions=True)
                        self.assertEqual({type(error) for error in lost}, {ellm.Lost})
            with self.assertRaises(ellm.Lost) as raised:
                asyncio.run(ask())
            self.assertTrue(raised.exception.request_sent)
            client.close()

    def test_a_stopping_daemon_refuses_and_the_next_one_answers(self):
        with folder() as directory:
            daemon = self.start(directory)
            client = ellm.Client(daemon.socket, wait=30)
            stream = client.generate_stream("Once", **LONG)
            pieces = iter(stream)
            next(pieces)
            daemon.process.terminate()
            while os.path.exists(daemon.socket):                # it drains
                time.sleep(0.001)
            again = threading.Timer(0.1, lambda: started.append(self.start(directory)))
            started = []
            again.start()
            client.tokenize("x")                                # refused by the old one
            status = client.status()
            for _ in pieces:
                pass
            again.join()
            self.assertEqual(status.pid, started[0].process.pid)
            self.assertEqual(stream.completion.finish_reason, ellm.FinishReason.LENGTH)
            daemon.stop()
            started[0].stop()
            client.close()


class Protocol(unittest.TestCase):
    GOLDEN = os.path.join(ROOT, "tests/golden")

    def golden(self):
        """(path, name, bytes) of every golden frame of every released version."""
        for version in sorted(os.listdir(self.GOLDEN)):
            if re.fullmatch(r"protocol_v\d+", version):
                for name in sorted(os.listdir(os.path.join(self.GOLDEN, version))):
                    path = os.path.join(self.GOLDEN, version, name)
                    with open(path) as file:
                        yield path, name.split(".")[0], bytes.fromhex(file.read())

    def test_golden_frames(self):
        seen = set()
        for path, name, frame in self.golden():
            [body] = _codec.Frames().feed(frame)
            message = _codec.decode(body)
            if message is None:
                continue                                        # a message that this package does not offer
            self.assertEqual(re.sub("(?<!^)([A-Z])", r"_\1", type(message).__name__).lower(), name, path)
            wire = _codec.msgpack.unpackb(body, raw=True)
            ours = _codec.msgpack.unpackb(_codec.encode(message)[4:], raw=True)
            self.prefix(ours, wire, path)
            seen.add(type(message))
        self.assertEqual(seen, set(messages.ALL))

    def prefix(self, ours, wire, path):
        """Equal, but for fields that were appended on either side."""
        if not isinstance(ours, list):
            return self.assertEqual(ours, wire, path)
        for a, b in zip(ours, wire):
            self.prefix(a, b, path)

    def test_fields_are_those_of_the_protocol(self):
        with open(os.path.join(ROOT, "client/messages.h")) as file:
            text = re.sub(r"//[^\n]*", "", file.read())
        declared = {}
        for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", text, re.S):
            fields = re.search(r"ELLM_(?:MESSAGE\(\"\w+\", \d+,|FIELDS\()([^)]*)\)", body)
            if fields:
                declared[name] = re.findall(r"\w+", fields.group(1))
        kinds = [*messages.ALL, messages.Sampling, messages.ChatMessage, messages.Usage, messages.Recomputed, messages.Timings, messages.TokenLogprob,
                 messages.ModelInfo, messages.RequestInfo]
        for kind in kinds:
            ours = [name for name, _ in _codec._fields(kind)]
            self.assertEqual(ours, declared[kind.__name__][:len(ours)], kind)

    def test_fields_of_the_future_and_of_the_past(self):
        def body(*values):
            return _codec.msgpack.packb(list(values))
        self.assertEqual(_codec.decode(body(36, 1, "text", {"later": [1]}, 7)), messages.TextReply(1, "text"))
        self.assertEqual(_codec.decode(body(33, 1)), messages.Done(1))
        self.assertEqual(_codec.decode(body(33, 1, None, None, 5)), messages.Done(1, seed=5))
        self.assertEqual(_codec.decode(body(33, 1, 9)).finish_reason, 9)
        self.assertEqual(_codec.decode(body(36, 1, b"\xff")).text, "\udcff")
        self.assertEqual(_codec.encode(messages.TextReply(1, "\udcff"))[4:], body(36, 1, b"\xff"))
        self.assertIsNone(_codec.decode(body(999, 1, "x")))
        with self.assertRaises(ellm.ProtocolMismatch):
            _codec.decode(body(36, 1, 5))

    def test_a_daemon_of_the_future(self):
        def serve():
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(20)
                frames, bodies = _codec.Frames(), []

                def receive():
                    while not bodies:
                        bodies.extend(frames.feed(peer.recv(1 << 16)))
                    return _codec.msgpack.unpackb(bodies.pop(0))

                def send(*values):
                    body = _codec.msgpack.packb(list(values))
                    peer.sendall(len(body).to_bytes(4, "little") + body)
                receive()
                send(1, 1, "later 2", ["telepathy"], {"more": 1})
                number = receive()[1]
                send(999, number, "an event that nobody knows")
                send(32, number, "x", [5], [], 0, "more")
                send(33, number, 2, "m", 7, [1, 2, 3, 4, 5, [6], 7], [])
                send(34, receive()[1], 99, "an error of the future")
        with folder() as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(directory + "/s")
            listener.listen()
            server = threading.Thread(target=serve)
            server.start()
            with ellm.Client(directory + "/s") as client:
                self.assertEqual(client.server.software, "later 2")
                answer = client.generate("x")
                self.assertEqual((answer.text, answer.finish_reason, answer.seed, answer.usage.prompt_tokens),
                                 ("x", ellm.FinishReason.LENGTH, 7, 1))
                with self.assertRaises(ellm.DaemonError) as raised:
                    client.tokenize("x")
                self.assertEqual(str(raised.exception), "an error of the future")
            server.join()

    def test_the_version_is_the_projects(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
            version = re.search(r"project\(ellm VERSION ([\d.]+)", file.read()).group(1)
        with open(os.path.join(PACKAGE, "pyproject.toml")) as file:
            self.assertIn('version = "%s"' % version, file.read())
        self.assertEqual(ellm.__version__, version)


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
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index",
                            "--no-cache-dir", "--disable-pip-version-check", "--target", target + "/site", source],
                           check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            code = "import ellm, os; print(ellm.__version__, os.path.exists(os.path.dirname(ellm.__file__) + '/py.typed'))"
            done = subprocess.run([sys.executable, "-c", code], cwd=target, capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": target + "/site"})
            self.assertEqual(done.stdout, "%s True\n" % ellm.__version__, done.stderr)


if __name__ == "__main__":
    unittest.main()
