"""ellm cache over the wire and as a command: what is listed, pinned, flushed and computed in advance; users and namespaces
of their own and shared ones, with real uids; and what a core dump of the daemon holds."""
import contextlib
import grp
import json
import math
import os
import random
import re
import resource
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from gguf import with_string
from harness import STORIES, Daemon, environment, needs_model, running
from protocol import *
from test_prefix import TEMPLATE

ELLM = os.environ.get("ELLM")
IS_ROOT = os.geteuid() == 0
ALICE, BOB, STAFF = 61001, 61002, 61500
PREFIX_FIELDS = "model namespace prefix tokens bytes pinned in_use age_s head tail".split()
OWNER_FIELDS = "model owner pages pinned_pages used_pages share_pages bytes cached_tokens computed_tokens evicted_pages".split()
CACHE_MODEL_FIELDS = ("model page_tokens page_bytes pages free_pages cached_pages pinned_pages most_pinned_pages "
                      "damaged_pages").split()
LIST_CACHE, STAT, PIN, UNPIN, FLUSH, WARM = range(1, 7)
DENIED = 13


class CacheClient(Connection):
    def hello(self):
        self.send(HELLO, 1, "test", ["denied"])
        assert self.receive()[0] == HELLO

    def cache(self, action, model="", namespace="", prefix="", cursor=0, whose="", pinned=False, text="", messages=(),
              tools="", variables=""):
        message = self.reply(CACHE, action, model, namespace, prefix, cursor, whose, pinned, text, list(messages), tools, variables)
        assert message[0] == CACHE_REPLY, message
        fields = dict(zip("prefixes next models owners pages bytes usage".split(), message[2:]))
        fields["prefixes"] = [dict(zip(PREFIX_FIELDS, prefix)) for prefix in fields["prefixes"]]
        fields["owners"] = {owner[1]: dict(zip(OWNER_FIELDS, owner)) for owner in fields["owners"]}
        fields["models"] = [dict(zip(CACHE_MODEL_FIELDS, model)) for model in fields["models"]]
        fields["usage"] = dict(zip(USAGE_FIELDS, fields["usage"]))
        return fields

    def prefixes(self, namespace="", model="talks"):
        found, cursor = [], 0
        while True:
            reply = self.cache(LIST_CACHE, model, namespace, cursor=cursor)
            found += reply["prefixes"]
            cursor = reply["next"]
            if cursor == 0:
                return found


def connect(daemon, uid=None, groups=()):
    """A connection of this user: the kernel notes who connects."""
    if uid is None:
        client = CacheClient(daemon.socket, hello=False)
    else:
        had = os.getgroups()
        os.setgroups(list(groups))
        os.setegid(uid)
        os.seteuid(uid)
        try:
            client = CacheClient(daemon.socket, hello=False)
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(had)
    client.hello()
    return client


def tokens_of(number, count=200):
    return [3 + (i * i + 31 * number + i // 7 * number) % 500 for i in range(count)]


class OneTalks(unittest.TestCase):
    CONFIG = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "talks.gguf")
        with_string(STORIES, path, "tokenizer.chat_template", TEMPLATE)
        self.daemon = Daemon(models={"talks": path}, options=["--model", "talks"], config=self.CONFIG)
        self.addCleanup(self.daemon.stop)
        os.chmod(self.daemon.directory, 0o711)
        self.client = self.connect()

    def connect(self, *who):
        client = connect(self.daemon, *who)
        self.addCleanup(client.close)
        return client


@needs_model
class Commands(OneTalks):
    def ellm(self, *arguments, code=0, stdin=None):
        done = subprocess.run([ELLM, "cache", arguments[0], "--socket", self.daemon.socket, *arguments[1:]], capture_output=True,
                              text=True, input=stdin, env=environment(self.daemon.directory))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_what_is_listed(self):
        self.assertEqual(self.client.prefixes(), [])
        for number in range(3):
            self.client.generate(tokens=tokens_of(number), max_tokens=1)
        self.client.generate("Once upon a time there was a girl who had a dog. The dog was big and loved to run in the park.",
                             max_tokens=1)
        found = self.client.prefixes()
        self.assertEqual(sorted(p["tokens"] for p in found)[1:], [200, 200, 200])
        story = min(found, key=lambda p: p["tokens"])
        self.assertIn("Once upon a time", story["head"])
        self.assertLess(story["age_s"], 60)
        self.assertTrue(all(p["bytes"] == 7 * self.client.cache(STAT)["models"][0]["page_bytes"] for p in found if p["tokens"] == 200))
        listed = [json.loads(line) for line in self.ellm("ls", "--json").splitlines()]
        self.assertEqual({p["prefix"] for p in listed}, {p["prefix"] for p in found})
        self.assertEqual(listed[0]["prefix"], story["prefix"])          # used last
        self.assertIn("Once upon a time", self.ellm("ls"))
        stat = json.loads(self.ellm("stat", "--json"))
        self.assertEqual([(owner["owner"], owner["computed_tokens"] > 600) for owner in stat["owners"]], [("uid %d" % os.geteuid(), True)])
        self.assertIn("uid %d" % os.geteuid(), self.ellm("stat", "--all"))

    def test_a_long_list_comes_in_pieces(self):
        for number in range(150):
            self.client.generate(tokens=[10 + number, 20, 30], max_tokens=1)
        self.assertLessEqual(len(self.client.cache(LIST_CACHE, "talks")["prefixes"]), 64)
        self.assertEqual(len({p["prefix"] for p in self.client.prefixes()}), 150)

    def test_pin_flush_unpin(self):
        self.client.generate(tokens=tokens_of(1), max_tokens=1)
        self.client.generate(tokens=tokens_of(2), max_tokens=1)
        name = self.client.prefixes()[0]["prefix"]
        self.assertIn("pinned", json.loads(self.ellm("pin", name[:8], "--json")))
        self.ellm("flush")
        self.assertEqual([(p["prefix"], p["pinned"]) for p in self.client.prefixes()], [(name, True)])
        self.assertEqual(self.client.cache(STAT)["models"][0]["pinned_pages"], 7)
        self.ellm("unpin", name)
        self.assertGreater(json.loads(self.ellm("flush", "--json"))["bytes"], 0)
        self.assertEqual(self.client.prefixes(), [])
        self.assertIn("no cached prefix", self.ellm("pin", name, code=64))
        self.assertIn("hexadecimal", self.ellm("pin", "nonsense", code=64))
        self.assertIn("which prefix", self.ellm("pin", code=64))
        self.assertIn("no meaning", self.ellm("ls", "--pin", code=64))
        self.assertIn("not loaded", self.ellm("ls", "-m", "other", code=66))

    def test_warm(self):
        text = "Once upon a time there was a girl who had a dog. The dog was big and loved to run in the park. "
        path = os.path.join(self.daemon.directory, "text")
        with open(path, "w") as file:
            file.write(text)
        usage = json.loads(self.ellm("warm", path, "--json"))["usage"]
        self.assertEqual((usage["cached_tokens"], usage["completion_tokens"]), (0, 0))
        answer = self.client.generate(text + "It ran.", max_tokens=2)
        self.assertGreater(answer.cached, usage["prompt_tokens"] - 4)
        self.ellm("warm", "-", "--system", "--pin", stdin=text * 3)
        chat = self.client.finish(self.client.begin(CHAT, "", [["system", text * 3], ["user", "Hi"]], "", "",
                                                    sampling(max_tokens=1)))
        self.assertLess(chat.usage[0] - chat.cached, 30)                 # the marks and the question
        self.ellm("flush")
        self.assertEqual([p["pinned"] for p in self.client.prefixes()], [True])
        self.assertIn("No such file", self.ellm("warm", path + "x", code=66))

    def test_pins_have_bounds_and_outlive_the_daemon(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as folder:
            config = '[kv]\nmemory = "%d"\npinned_percent = 30\n' % (self.page_bytes() * 100)
            start = lambda: Daemon(models={"talks": STORIES}, options=["--model", "talks"], config=config, directory=folder, keep=True)
            daemon = start()
            try:
                with connect(daemon) as client:
                    client.cache(WARM, text="A long text. " * 40, pinned=True)
                    pinned = client.cache(STAT)["models"][0]["pinned_pages"]
                    with self.assertRaises(Failed) as failed:
                        client.cache(WARM, text="Another text of many words. " * 60, pinned=True)
                    self.assertIn("kv.pinned_percent", failed.exception.message)
                daemon.process.send_signal(signal.SIGKILL)
                daemon.process.wait()
                daemon = start()
                with connect(daemon) as client:
                    self.assertEqual(client.cache(STAT)["models"][0]["pinned_pages"], pinned)
                    for number in range(40):
                        client.generate(tokens=tokens_of(number), max_tokens=1)
                    self.assertEqual(sum(p["pinned"] for p in client.prefixes()), 1)
                    self.assertLess(client.cache(WARM, text="A long text. " * 40)["usage"]["prompt_tokens"] -
                                    client.cache(WARM, text="A long text. " * 40)["usage"]["cached_tokens"], 2)
            finally:
                daemon.stop()
                subprocess.run([ELLM, "cache", "drop"], env=environment(folder), check=True, capture_output=True)

    def page_bytes(self):
        return self.client.cache(STAT)["models"][0]["page_bytes"]


@needs_model
class Users(OneTalks):
    """Real uids: root's to try. CI runs as root; elsewhere this fails, so that nobody takes a skip for a pass."""

    def setUp(self):
        self.assertTrue(IS_ROOT, "these tests connect as other users: run them as root")
        super().setUp()

    def test_one_finds_nothing_of_the_other(self):
        alice, bob = self.connect(ALICE), self.connect(BOB)
        prompt = tokens_of(5, 300)
        first = alice.generate(tokens=prompt, max_tokens=1)
        again = alice.generate(tokens=prompt, max_tokens=1)
        other = bob.generate(tokens=prompt, max_tokens=1)
        self.assertEqual((first.cached, again.cached, other.cached), (0, 299, 0))
        self.assertEqual(other.recomputed, {"new": 300})                 # not even why
        bob.cache(FLUSH, pinned=True)
        self.assertEqual(bob.prefixes(), [])
        secret = alice.prefixes()[0]["prefix"]
        for action in (PIN, UNPIN):
            with self.assertRaises(Failed) as failed:
                bob.cache(action, prefix=secret)
            self.assertIn("no cached prefix", failed.exception.message)
        for action in (STAT, FLUSH):
            for whose in ("all", str(ALICE)):
                with self.assertRaises(Failed) as failed:
                    bob.cache(action, whose=whose)
                self.assertEqual(failed.exception.code, DENIED)
        self.assertEqual(list(bob.cache(STAT)["owners"]), ["uid %d" % BOB])
        self.assertEqual(alice.generate(tokens=prompt, max_tokens=1).cached, 299)
        root = self.connect()
        self.assertEqual(set(root.cache(STAT, whose="all")["owners"]), {"uid %d" % ALICE, "uid %d" % BOB})
        self.assertGreater(root.cache(FLUSH, whose=str(ALICE))["pages"], 5)
        self.assertEqual(alice.generate(tokens=prompt, max_tokens=1).cached, 0)

    def test_the_time_tells_nothing(self):
        """Times to the first token of prompts that another user has cached, and of prompts that nobody has, are samples of one
        distribution: the Mann-Whitney test's |z| stays below 4 (by chance it does not once in 16,000 runs). The same test
        tells one's own cached prompts from new ones, so it would notice."""
        alice, bob = self.connect(ALICE), self.connect(BOB)
        count = 40
        for number in range(count):
            alice.generate(tokens=tokens_of(number, 1000), max_tokens=1)
        order = [(kind, number) for kind in ("hers", "new") for number in range(count)]
        random.Random(1).shuffle(order)
        times = {"hers": [], "new": [], "own": []}
        for kind, number in order:
            tokens = tokens_of(number + (250 if kind == "new" else 0), 1000)
            answer = bob.generate(tokens=tokens, max_tokens=1)
            self.assertEqual((answer.cached, answer.recomputed), (0, {"new": 1000}))
            times[kind].append(answer.timings[1])
            times["own"].append(bob.generate(tokens=tokens, max_tokens=1).timings[1])
        self.assertLess(abs(mann_whitney_z(times["hers"], times["new"])), 4)
        self.assertGreater(mann_whitney_z(times["new"], times["own"]), 4)


@needs_model
class Namespaces(OneTalks):
    GROUP = grp.getgrnam("users")
    CONFIG = '[namespaces]\ndocs = "group:%s"\nopen = "everybody"\n' % GROUP.gr_name

    def setUp(self):
        self.assertTrue(IS_ROOT, "these tests connect as other users: run them as root")
        super().setUp()

    def test_members_share_what_they_ask_for_there(self):
        alice, bob = self.connect(ALICE, [self.GROUP.gr_gid]), self.connect(BOB, [STAFF])
        text = "Once upon a time there was a girl who had a dog. The dog was big and loved to run in the park. "
        tokens = alice.cache(WARM, namespace="docs", text=text)["usage"]["prompt_tokens"]
        self.assertEqual([p["namespace"] for p in alice.prefixes("docs")], ["docs"])
        self.assertEqual(alice.prefixes(), [])
        again = alice.cache(WARM, namespace="docs", text=text)["usage"]
        self.assertEqual(again["cached_tokens"], tokens - 1)
        without = alice.generate(text, max_tokens=1)
        self.assertEqual((without.cached, without.recomputed), (0, {"namespace": tokens}))
        self.assertEqual(bob.generate(text, max_tokens=1).recomputed, {"new": tokens})   # not even told
        self.assertEqual(set(alice.cache(STAT)["owners"]), {"docs", "uid %d" % ALICE})
        self.assertEqual(set(bob.cache(STAT)["owners"]), {"uid %d" % BOB})
        for action in (LIST_CACHE, STAT, FLUSH, WARM):
            with self.assertRaises(Failed) as failed:
                bob.cache(action, "talks", namespace="docs", text="x")
            self.assertEqual(failed.exception.code, DENIED)
            self.assertIn(self.GROUP.gr_name, failed.exception.message)
        with self.assertRaises(Failed) as failed:
            bob.cache(WARM, namespace="nowhere", text="x")
        self.assertIn("no namespace 'nowhere'", failed.exception.message)

        def ask(client, namespace):
            return client.finish(client.begin(GENERATE, "", text + "It ran.", [], False, sampling(max_tokens=1), None, None, None, namespace))

        used = ask(alice, "docs")
        self.assertGreater(used.cached, tokens - 4)
        self.assertNotIn("namespace", used.recomputed)
        with self.assertRaises(Failed) as failed:
            ask(bob, "docs")
        self.assertEqual(failed.exception.code, DENIED)
        bob.cache(WARM, namespace="open", text=text)
        self.assertEqual(alice.cache(WARM, namespace="open", text=text)["usage"]["cached_tokens"], tokens - 1)


@needs_model
class Overload(OneTalks):
    def test_work_for_ten_caches(self):
        """60 requests at once of 400 tokens each, in a cache of 2,048: given up, queued, and answered to the bit."""
        page = self.client.cache(STAT)["models"][0]["page_bytes"]
        config = '[kv]\nmemory = "%d"\n' % (64 * page)
        with running(models={"talks": STORIES}, options=["--model", "talks"], config=config) as daemon:
            for round in range(2):
                with contextlib.ExitStack() as clients:
                    answers = []
                    for number in range(60):
                        client = clients.enter_context(connect(daemon))
                        answers.append((client, client.begin(GENERATE, "", "", tokens_of(number, 400), True,
                                                             sampling(max_tokens=20, ignore_eos=True))))
                    with daemon.connect() as other:
                        status = other.status()
                    self.assertGreater(status["queued"], 20)
                    for number, (client, request) in enumerate(answers):
                        answer = client.finish(request)
                        if round == 0 and number % 10 == 0:
                            alone = self.client.generate(tokens=tokens_of(number, 400), max_tokens=20, ignore_eos=True)
                            self.assertEqual(answer.tokens, alone.tokens)
                with connect(daemon) as client:
                    self.assertGreater(sum(owner["evicted_pages"] for owner in client.cache(STAT)["owners"].values()), 500)
            daemon.wait_idle()

    def test_a_request_larger_than_the_cache(self):
        page = self.client.cache(STAT)["models"][0]["page_bytes"]
        config = 'context = 1024\n[kv]\nmemory = "%d"\n' % (64 * page)
        with running(models={"talks": STORIES}, options=["--model", "talks"], config=config) as daemon:
            with connect(daemon) as client:
                with self.assertRaises(Failed) as failed:
                    client.generate(tokens=tokens_of(1, 1100), max_tokens=1)
                self.assertEqual(failed.exception.code, TOO_LARGE)
                self.assertIn("1100 tokens", failed.exception.message)
                self.assertIn("1024", failed.exception.message)
                # What is pinned leaves room for one full context: nobody can keep others from their answers.
                for number in range(3):
                    with contextlib.suppress(Failed):
                        client.cache(WARM, text="word %d " % number * 90, pinned=True)
                stat = client.cache(STAT)["models"][0]
                self.assertTrue(0 < stat["pinned_pages"] <= stat["most_pinned_pages"] <= 32, stat)
                self.assertEqual(len(client.generate(tokens=tokens_of(1, 1000), max_tokens=24, ignore_eos=True).tokens), 24)


def mann_whitney_z(a, b):
    """Of the hypothesis that both are samples of one distribution; above 0 where a's are larger. Ties count half."""
    u = sum((x > y) + 0.5 * (x == y) for x in a for y in b)
    n, m = len(a), len(b)
    return (u - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)


@needs_model
class Dumps(unittest.TestCase):
    MARKER = "the marker of a text that nobody may read in a core dump"

    def start(self, config):
        daemon = Daemon(models={"talks": STORIES}, config=config, options=["--model", "talks"], core=True)
        with daemon.connect() as connection:
            connection.generate(self.MARKER + " and more of it" * 30, max_tokens=4)
        return daemon

    def abort(self, daemon):
        """Aborts the daemon; its core, or None."""
        daemon.process.send_signal(signal.SIGABRT)
        self.assertEqual(daemon.process.wait(), -signal.SIGABRT)
        cores = [name for name in os.listdir(daemon.directory) if name.startswith("core")]
        data = None
        if cores:
            with open(os.path.join(daemon.directory, cores[0]), "rb") as file:
                data = file.read()
        daemon.discard()
        return data

    def test_there_is_none(self):
        daemon = self.start("")
        self.assertIsNone(self.abort(daemon))

    def test_pages_are_in_none(self):
        """Whoever wants cores for debugging gets them without the pages."""
        daemon = self.start('[memory]\ncore_dumps = "on"\n')
        with open("/proc/%d/smaps" % daemon.process.pid) as file:
            maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", file.read())
        kv = [one for one in maps if "ellm-kv" in one.split("\n")[0]]
        self.assertTrue(kv)
        for one in kv:
            self.assertIn(" dd", one[one.index("VmFlags:"):])            # what MADV_DONTDUMP sets
        with open("/proc/%d/mem" % daemon.process.pid, "rb") as memory:
            begin, end = (int(part, 16) for part in kv[0].split()[0].split("-"))
            memory.seek(begin)
            header = memory.read(48)
            memory.seek(begin + struct.unpack("<Q", header[40:48])[0])   # page_record.h: payload_offset
            page = memory.read(512)
        self.assertEqual((header[:8], any(page)), (b"ellmKV01", True))
        with open("/proc/sys/kernel/core_pattern") as file:
            is_file = not file.read().startswith(("|", "/"))
        is_sanitized = daemon.is_sanitized()                             # those write no cores
        core = self.abort(daemon)
        if is_file and not is_sanitized:
            self.assertIsNotNone(core, "no core although it was asked for")
            self.assertNotIn(header[8:], core)
            self.assertNotIn(page, core)
            self.assertIn(b"ellmd", core)


if __name__ == "__main__":
    unittest.main()
