"""What clients do wrong. Every case ends in a clear error or a clean close, and the daemon keeps serving the others."""
import math
import os
import random
import resource
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from gguf import read as read_gguf
from harness import STORIES, Daemon, environment, find_real_model, needs_model, running
from protocol import *

ELLM = os.environ.get("ELLM", "../../build/release/bin/ellm")
CONFIG = """
[limits]
frame = "8M"
bytes_per_user = "20M"
connections_per_user = 40
requests_per_connection = 16
queued = 30
"""


@needs_model
class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(models={"stories": STORIES}, config=CONFIG, options=["--model", "stories"])
        with cls.daemon.connect() as connection:
            cls.expected = connection.generate("The dog", max_tokens=20).tokens

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def setUp(self):
        self.connection = self.daemon.connect()                     # the others
        self.addCleanup(self.still_serving)

    def still_serving(self):
        self.assertIsNone(self.daemon.process.poll(), "ellmd has died:\n" + self.daemon.output())
        self.assertEqual(self.connection.generate("The dog", max_tokens=20).tokens, self.expected)
        self.connection.close()
        self.daemon.wait_idle()

    def closes(self, connection, code=None):
        """The daemon says why, or nothing, and closes. Returns the message."""
        message = None
        try:
            while True:
                message = connection.receive()
        except (Closed, ConnectionResetError, BrokenPipeError):
            pass
        if code is not None:
            self.assertIsNotNone(message)
            self.assertEqual(message[:3], [ERROR, 0, code])
        connection.close()
        return message and message[3]

    def fails(self, code, *parts, **options):
        with self.assertRaises(Failed) as failed:
            self.connection.generate(**{"prompt": "x", "max_tokens": 2, **options})
        self.assertEqual(failed.exception.code, code, failed.exception.message)
        for part in parts:
            self.assertIn(part, failed.exception.message)

    # ---- frames --------------------------------------------------------------------------------------------------------

    def test_garbage(self):
        seeded = random.Random(1)
        for i in range(200):
            connection = self.daemon.connect(hello=i % 2 == 0)
            data = seeded.randbytes(seeded.choice([1, 4, 5, 60, 5000]))
            try:
                connection.send_bytes(data)
                connection.socket.shutdown(socket.SHUT_WR)
                self.closes(connection)
            except (BrokenPipeError, ConnectionResetError):
                connection.close()

    def test_garbage_in_good_frames(self):
        seeded = random.Random(2)
        for i in range(300):
            connection = self.daemon.connect()
            body = seeded.randbytes(seeded.choice([0, 1, 7, 300]))
            if i % 3 == 0:
                body = b"\x93" + bytes([seeded.randrange(1, 12)]) + body
            connection.send_bytes(struct.pack("<I", len(body)) + body)
            connection.socket.shutdown(socket.SHUT_WR)
            self.closes(connection)

    def test_mutated_requests(self):
        seeded = random.Random(3)
        good = frame(GENERATE, 5, "", "Once", [], False, sampling(max_tokens=3, stop=["x"], logit_bias=[[3, 1.0]]))
        for _ in range(400):
            data = bytearray(good)
            for _ in range(seeded.choice([1, 1, 2, 8])):
                data[seeded.randrange(4, len(data))] = seeded.randrange(256)
            connection = self.daemon.connect()
            connection.send_bytes(bytes(data))
            connection.socket.shutdown(socket.SHUT_WR)
            self.closes(connection)

    def test_half_frames(self):
        good = frame(GENERATE, 1, "", "Once", [], False, sampling(max_tokens=3))
        for length in range(1, len(good), 7):
            connection = self.daemon.connect()
            connection.send_bytes(good[:length])
            connection.close()
        # And one whose second half comes late, beside others.
        connection = self.daemon.connect()
        for i in range(0, len(good), 11):
            connection.send_bytes(good[i:i + 11])
            self.connection.status()
        connection.next_id = 1
        self.assertEqual(connection.finish(1).finish_reason, LENGTH)
        connection.close()

    def test_huge_frames(self):
        for length in (100 << 20, (8 << 20) + 1, 0xffffffff):
            connection = self.daemon.connect()
            connection.send_bytes(struct.pack("<I", length))
            said = self.closes(connection, TOO_LARGE)
            self.assertIn(str(length), said)
            self.assertIn(str(8 << 20), said)
        connection = self.daemon.connect()
        try:                                                        # one that really comes
            connection.send_bytes(struct.pack("<I", 100 << 20) + bytes(100 << 20))
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.closes(connection)

    def test_a_claimed_length_allocates_nothing(self):
        def resident():
            with open("/proc/%d/statm" % self.daemon.process.pid) as file:
                return int(file.read().split()[1]) * 4096

        before = resident()
        claims = [self.daemon.connect() for _ in range(20)]
        for connection in claims:
            connection.send_bytes(struct.pack("<I", 8 << 20) + b"\x97")
        self.connection.status()
        self.assertLess(resident() - before, 20 << 20)              # not 160 MB
        for connection in claims:
            connection.close()

    def test_bytes_of_one_user_are_bounded(self):
        held, refused = [], 0
        body = bytes(6 << 20)
        for _ in range(6):
            connection = self.daemon.connect()
            held.append(connection)
            try:
                connection.send_bytes(struct.pack("<I", 7 << 20) + body)
            except (BrokenPipeError, ConnectionResetError):
                pass
        for connection in held:
            connection.socket.settimeout(0.3)
            try:
                self.assertEqual(connection.receive()[2], BUSY)
                refused += 1
            except TimeoutError:
                pass
            except Closed:
                refused += 1
            connection.close()
        self.assertGreaterEqual(refused, 3)
        self.assertLess(refused, 6)

    def test_deep_and_wide_msgpack(self):
        for body in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x92\x02\xdd\xff\xff\xff\xff",
                     b"\x98\x02\x01\xa0\xa0\xdd\x00\xff\xff\xff\xc2\x90", b"\x92\x02\xdb\xff\xff\xff\xff"):
            connection = self.daemon.connect()
            connection.send_bytes(struct.pack("<I", len(body)) + body)
            connection.socket.shutdown(socket.SHUT_WR)
            self.assertIsNotNone(self.closes(connection))

    def test_large_frames(self):
        text = "word " * 40_000                                     # decoded beside the others
        ids = [self.connection.begin(TOKENIZE, "", text) for _ in range(3)]
        self.assertEqual(sorted(self.connection.receive()[1] for _ in ids), ids)
        connection = self.daemon.connect()
        connection.send(TOKENIZE, 1, "", text, "not a boolean")
        self.assertEqual(connection.receive()[:3], [ERROR, 1, BAD_REQUEST])
        connection.send(TOKENIZE, 2, "", text)
        connection.close()

    # ---- messages ------------------------------------------------------------------------------------------------------

    def test_hello(self):
        connection = self.daemon.connect(hello=False)
        connection.send(STATUS, 1)
        self.assertIn("hello", self.closes(connection, BAD_REQUEST))
        connection = self.daemon.connect(hello=False)
        connection.send(HELLO, 99, "from the future", [])
        self.assertIn("99", self.closes(connection, UNSUPPORTED_VERSION))
        connection = self.daemon.connect()
        connection.send(HELLO, 1, "again", [])
        self.closes(connection, BAD_REQUEST)

    def test_wrong_types(self):
        for fields in ((GENERATE, 1, 5), (GENERATE, 1, "", [1]), (GENERATE, 1, "", "x", "y"), (GENERATE, 1, "", "x", [1.5]),
                       (CHAT, 1, "", "not a list"), (CHAT, 1, "", [["user", 3]]), (TOKENIZE, 1, "", "x", "maybe"),
                       (SCORE, 1, "", "x", [-1], True), (CANCEL, 1, "x"), (GENERATE, 1, "", "x", [], False, [1e300])):
            self.connection.send(*fields)
            message = self.connection.receive()
            self.assertEqual(message[:3], [ERROR, 1, BAD_REQUEST], fields)
            self.assertGreater(len(message[3]), 10)

    def test_unknown_enums_and_messages(self):
        with self.assertRaises(Failed) as failed:
            self.connection.reply(MODELS, 77, "")
        self.assertEqual(failed.exception.code, BAD_REQUEST)
        self.assertIn("77", failed.exception.message)
        with self.assertRaises(Failed) as failed:
            self.connection.reply(12345, "whatever")
        self.assertEqual(failed.exception.code, UNKNOWN_MESSAGE)
        connection = self.daemon.connect()
        connection.send(DONE, 1, STOP)
        self.assertIn("done", self.closes(connection, BAD_REQUEST))

    def test_ids(self):
        connection = self.daemon.connect()
        connection.send(TOKENIZE, 0, "", "x")
        self.assertIn("id", self.closes(connection, BAD_REQUEST))
        connection = self.daemon.connect()
        connection.send(GENERATE, 4, "", "x", [], False, sampling(max_tokens=2000, ignore_eos=True))
        connection.send(TOKENIZE, 4, "", "x")
        while (message := connection.receive())[0] == TOKEN:
            pass
        self.assertEqual(message[:3], [ERROR, 0, BAD_REQUEST])
        connection.close()
        with self.assertRaises(Failed) as failed:
            self.connection.reply(CANCEL, 77)
        self.assertEqual(failed.exception.code, NO_SUCH_REQUEST)

    def test_sampling_out_of_range(self):
        for name, value, allowed in (("temperature", -0.5, "0 to 100"), ("temperature", math.nan, "0 to 100"),
                                     ("temperature", math.inf, "0 to 100"), ("top_p", 0.0, "0 to 1"), ("top_p", 1.5, "0 to 1"),
                                     ("top_p", math.nan, "0 to 1"), ("min_p", -0.1, "0 to 1"), ("min_p", 2.0, "0 to 1"),
                                     ("repetition_penalty", 0.0, "0 to 100"), ("presence_penalty", math.nan, "-100 to 100"),
                                     ("frequency_penalty", 101.0, "-100 to 100"), ("logprobs", 129, "0 to 128")):
            said = "nan" if value != value else "inf" if value == math.inf else "%g" % value
            self.fails(BAD_REQUEST, name + " is " + said, allowed, **{name: value})
        self.fails(BAD_REQUEST, "stop[1] is empty", stop=["a", ""])
        self.fails(BAD_REQUEST, "stop[0]", "1025", "1024", stop=["a" * 1025])
        self.fails(BAD_REQUEST, "logit_bias of token 3", "nan", logit_bias=[[3, math.nan]])
        self.fails(BAD_REQUEST, "logit_bias of token 512", "512 tokens", logit_bias=[[512, 1.0]])

    def test_prompt_too_long(self):
        self.fails(TOO_LARGE, "2048 tokens", "context of 2048", tokens=[1] * 2048)
        prompt = "a dog " * 3000
        tokens = len(self.connection.reply(TOKENIZE, "", prompt)[2])
        self.fails(TOO_LARGE, "%d tokens" % tokens, "context of 2048", prompt=prompt)
        with self.assertRaises(Failed) as failed:
            self.connection.reply(SCORE, "", "", [1] * 2049, True, 0)
        self.assertIn("2049 tokens", failed.exception.message)
        self.assertEqual(self.connection.generate(tokens=[1] * 2047, max_tokens=50).usage[2], 1)

    def test_empty_and_impossible_tokens(self):
        self.fails(BAD_REQUEST, "empty", tokens=[])
        self.fails(BAD_REQUEST, "tokens[2] is 512", "vocabulary of 512", tokens=[1, 2, 512])
        with self.assertRaises(Failed) as failed:
            self.connection.reply(DETOKENIZE, "", [5, 4_000_000_000])
        self.assertIn("tokens[1] is 4000000000", failed.exception.message)

    def test_invalid_utf8(self):
        self.fails(BAD_REQUEST, "prompt: invalid UTF-8 at byte 3", prompt=b"abc\xffdef")
        self.fails(BAD_REQUEST, "stop[0]: invalid UTF-8 at byte 0", stop=[b"\x80"])
        for request in ((TOKENIZE, "", b"ab\xc3"), (SCORE, "", b"ab\xed\xa0\x80"), (TOKENIZE, b"\xff", "x"),
                        (CHAT, "", [["user", b"ab\xc0\x80"]])):
            with self.assertRaises(Failed) as failed:
                self.connection.reply(*request)
            self.assertIn(failed.exception.code, (BAD_REQUEST, NO_SUCH_MODEL))
            if failed.exception.code == BAD_REQUEST:
                self.assertIn("invalid UTF-8 at byte 2", failed.exception.message)

    def test_models_that_are_not_there(self):
        self.fails(NO_SUCH_MODEL, "'nothing'", "stories", model="nothing")
        self.fails(NO_SUCH_MODEL, model="../../etc/passwd")
        self.fails(NO_SUCH_MODEL, model=STORIES)                    # a path is an administrator's affair: models load
        self.fails(NO_SUCH_MODEL, model="x" * 100_000)
        for name in ("", "nothing", "/nowhere/x.gguf", "/etc/passwd", "\0"):
            with self.assertRaises(Failed):
                self.connection.models(LOAD, name)

    def test_chat_without_template(self):
        with self.assertRaises(Failed) as failed:
            self.connection.reply(CHAT, "", [["user", "Hello"]])
        self.assertEqual(failed.exception.code, TEMPLATE_FAILED)
        self.assertIn("'stories' has no chat template", failed.exception.message)

    # ---- behaviour -----------------------------------------------------------------------------------------------------

    def test_a_client_that_never_reads(self):
        with running(models={"stories": STORIES}, config='models = ["stories"]\n[limits]\nunread = "256K"\nunread_seconds = 1\n') as daemon:
            with daemon.connect() as other, daemon.connect(timeout=20) as lazy:
                # The limit of requests in flight keeps it from sending more than so many at once: the rest is answered busy.
                with self.assertRaises((BrokenPipeError, ConnectionResetError)):
                    for i in range(100_000):
                        lazy.begin(TOKENIZE, "", "word " * 2000)
                        if i % 50 == 0:
                            other.status()                          # nobody else waits
            self.assertRegex(daemon.output(), r"disconnected: pid %d of uid %d (does not read|leaves)" % (os.getpid(), os.geteuid()))

    def test_too_many_requests(self):
        options = sampling(max_tokens=1500, ignore_eos=True)
        busy = self.daemon.connect()
        for _ in range(40):
            busy.begin(GENERATE, "", "Once", [], False, options)
        errors = []
        while len(errors) < 24:
            message = busy.receive()
            if message[0] == ERROR:
                errors.append(message)
        self.assertEqual({message[2] for message in errors}, {BUSY})
        self.assertTrue(all(message[4] > 0 for message in errors))   # when to come back
        busy.close()

    def test_too_many_connections(self):
        held = [self.daemon.connect(hello=False) for _ in range(60)]
        refused = []
        for connection in held:
            connection.socket.settimeout(0.3)
            try:
                connection.send(HELLO, 1, "test", [])
            except (BrokenPipeError, ConnectionResetError):
                pass                                                 # what it was told can be read all the same
            message = connection.receive()
            if message[0] == ERROR:
                self.assertEqual(message[1:3], [0, BUSY])
                refused.append(connection)
        self.assertEqual(len(refused), 60 - 39)                      # one is open already
        self.connection.status()
        for connection in held:
            connection.close()
        deadline = time.monotonic() + 10
        while True:                                                  # their places are free again
            try:
                return self.daemon.connect().close()
            except (AssertionError, Closed, OSError):
                self.assertLess(time.monotonic(), deadline)

    def test_clients_killed_in_the_middle(self):
        for i in range(30):
            pid = os.fork()
            if pid == 0:
                try:
                    connection = self.daemon.connect()
                    for _ in range(4):
                        connection.begin(GENERATE, "", "Once", [], False, sampling(max_tokens=1000, ignore_eos=True))
                    connection.fill(1 + 50 * (i % 5))
                finally:
                    os.kill(os.getpid(), 9)
            os.waitpid(pid, 0)
        self.daemon.wait_idle()

    def test_descriptors_run_out(self):
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon, daemon.connect() as other:
            pid = daemon.process.pid
            if daemon.is_sanitized():
                self.skipTest("a sanitizer looks at memory through a pipe, and takes having none for a bad object")
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir("/proc/%d/fd" % pid)) + 4, limits[1]))
            held = []
            for _ in range(12):
                client = socket.socket(socket.AF_UNIX)
                client.connect(daemon.socket)                        # waits in the kernel
                held.append(client)
            deadline = time.monotonic() + 10
            while "cannot accept connections" not in daemon.output():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            self.assertEqual(other.generate("The dog", max_tokens=20).tokens, self.expected)
            self.assertEqual(daemon.output().count("cannot accept connections"), 1)
            for client in held:
                client.close()
            with daemon.connect() as connection:
                connection.status()

    def test_cancelled_messages_are_paid_for_while_they_wait(self):
        slow = find_real_model("qwen-0.5b", "smollm2")
        if slow is None:
            self.skipTest("no real model is there")
        with running(models={"slow": slow}, config='[limits]\nbytes_per_user = "1M"\n') as daemon, daemon.connect() as client:
            text = "x" * 60_000
            pairs = [frame(TOKENIZE, 2 * i + 1, "slow", text) + frame(CANCEL, 2 * i + 2, 2 * i + 1) for i in range(40)]
            client.send_bytes(b"".join(pairs))                       # all of it before the model is there
            codes = [message[2] for message in (client.receive() for _ in range(80)) if message[0] == ERROR and message[1] % 2]
            self.assertEqual(len(codes), 40)
            self.assertIn(BUSY, codes)
            self.assertGreater(codes.count(CANCELLED_ERROR), 10)
            client.next_id = 100
            deadline = time.monotonic() + 60
            while True:                                              # when the load has ended, nothing is held any more
                try:
                    return self.assertGreater(len(client.reply(TOKENIZE, "slow", text)[2]), 1000)
                except Failed as failed:
                    self.assertEqual(failed.code, BUSY)
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.05)

    def test_memory_runs_out(self):
        """Allocations fail all over the daemon, its address space being as large as it may get."""
        with running(models={"stories": STORIES}, options=["--model", "stories"]) as daemon, daemon.connect() as other:
            pid = daemon.process.pid
            self.assertEqual(other.generate("The dog", max_tokens=20).tokens, self.expected)
            unlimited = resource.prlimit(pid, resource.RLIMIT_AS)
            if daemon.is_sanitized():
                self.skipTest("a sanitizer ends the process where memory ends")
            size = daemon.address_space()
            seeded = random.Random(4)
            refused = 0
            for spare in [0, 1 << 16, 1 << 20, 3 << 20, 8 << 20]:
                resource.prlimit(pid, resource.RLIMIT_AS, (size + spare, unlimited[1]))
                for _ in range(6):
                    text = "a dog " * seeded.choice([100_000, 600_000])
                    try:
                        with daemon.connect(timeout=10) as client:
                            client.begin(seeded.choice([TOKENIZE, SCORE]), "", text)
                            refused += client.receive()[0] == ERROR
                    except (Closed, AssertionError, ConnectionError):
                        refused += 1
                    except TimeoutError:
                        self.fail("no answer:\n" + daemon.output())
                    self.assertIsNone(daemon.process.poll(), "ellmd has died:\n" + daemon.output())
            self.assertGreater(refused, 5)
            resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
            with daemon.connect() as client:
                self.assertEqual(client.generate("The dog", max_tokens=20).tokens, self.expected)
            daemon.wait_idle()


@needs_model
class NoNumbers(unittest.TestCase):
    def test_a_model_that_computes_nan(self):
        """Its requests fail and say so, and nobody else's."""
        with open(STORIES, "rb") as file:
            data = file.read()
        _, tensors = read_gguf(STORIES)
        norm = tensors["output_norm.weight"][2]
        self.assertEqual(data.count(norm), 1)
        with tempfile.TemporaryDirectory(prefix="ellm") as folder:
            broken = folder + "/broken.gguf"
            with open(broken, "wb") as file:
                file.write(data.replace(norm, struct.pack("<f", math.nan) * (len(norm) // 4)))
            with running(models={"stories": STORIES, "broken": broken}, options=["--model", "stories"]) as daemon, daemon.connect() as other:
                expected = other.generate("The dog", max_tokens=20).tokens
                running_beside = other.begin(GENERATE, "stories", "The dog", [], False, sampling(max_tokens=20))
                with daemon.connect() as client:
                    for temperature in (0.0, 0.7):
                        with self.assertRaises(Failed) as failed:
                            client.generate("Once", model="broken", temperature=temperature, max_tokens=5)
                        self.assertEqual(failed.exception.code, MODEL_FAILED)
                        self.assertIn("NaN", failed.exception.message)
                    client.begin(SCORE, "broken", "Once upon a time")
                    self.assertEqual(client.receive()[2], MODEL_FAILED)
                self.assertEqual(other.finish(running_beside).tokens, expected)
                done = subprocess.run([ELLM, "--socket", daemon.socket, "run", "--model", "broken", "--raw", "Once"],
                                      env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stdout), (65, ""), done.stderr)
                self.assertRegex(done.stderr, "^ellm: .*NaN.*\n$")
                daemon.wait_idle()


if __name__ == "__main__":
    unittest.main()
