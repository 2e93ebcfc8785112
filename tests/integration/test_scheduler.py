"""Many clients at once: who is served when, as users see it."""
import os
import threading
import unittest

from harness import STORIES, needs_model, run, running
from protocol import *

AS_ROOT = os.geteuid() == 0


def texts(count):
    return ["One day %s met a %s and said" % (name, thing) for name in ("Tim", "Lily", "Ben", "Mia") for thing in
            ("dog", "bird", "ball", "cake", "frog", "tree", "car", "hat")][:count]


@needs_model
class Scheduler(unittest.TestCase):
    def start(self, config):
        daemon = running(models={"stories": STORIES}, config='models = ["stories"]\n' + config)
        self.addCleanup(daemon.__exit__)
        return daemon.__enter__()

    def flood(self, connection, prompts, **options):
        """All at once: request id -> prompt."""
        return {connection.begin(GENERATE, "", prompt, [], False, sampling(ignore_eos=True, **options)): prompt for prompt in prompts}

    def collect(self, connection, requests):
        """Texts of the finished ones by prompt, errors of the others."""
        said, refused, left = {}, [], dict(requests)
        while left:
            message = connection.receive()
            if message[0] == TOKEN:
                said[message[1]] = said.get(message[1], "") + message[2]
            elif message[0] == ERROR:
                refused.append(message)
                del left[message[1]]
            elif message[0] == DONE:
                del left[message[1]]
        return {requests[request]: text for request, text in said.items()}, refused

    def test_a_full_queue_says_when_to_try_again(self):
        for limit in ("queued", "queued_per_user"):
            daemon = self.start("[limits]\nrunning = 1\n%s = 4\n" % limit)
            with daemon.connect() as connection:
                said, refused = self.collect(connection, self.flood(connection, texts(30), max_tokens=60))
                self.assertGreater(len(refused), 5)
                self.assertEqual(len(said) + len(refused), 30)
                for message in refused:
                    self.assertEqual(message[2], BUSY)
                    self.assertGreaterEqual(message[4], 50)
                    self.assertLessEqual(message[4], 60000)
                for prompt, text in said.items():   # what was refused cost the others nothing
                    self.assertEqual(text, connection.generate(prompt, max_tokens=60, ignore_eos=True).text)
            daemon.wait_idle()

    @unittest.skipUnless(AS_ROOT, "needs root")
    def test_one_users_flood_does_not_hold_up_another(self):
        """Two places: the flood has both until another user comes, whose requests get one at once; what gave back goes on
        where it was, and every answer is what it is alone."""
        daemon = self.start("[limits]\nrunning = 2\n")
        os.chmod(daemon.directory, 0o711)
        os.chmod(daemon.socket, 0o666)
        with daemon.connect() as connection:
            alone = {prompt: connection.generate(prompt, max_tokens=200, ignore_eos=True).text for prompt in texts(12)}
            requests = self.flood(connection, texts(12) * 4, max_tokens=200)
            answered, pid = os.pipe(), os.fork()
            if pid == 0:
                code = 1
                try:
                    os.setuid(61001)
                    with daemon.connect() as other:
                        answers = [other.generate(prompt, max_tokens=5, ignore_eos=True).text for prompt in texts(4)]
                        waiting = other.status()["queued"]
                    os.write(answered[1], ("%d\n" % waiting + "\0".join(answers)).encode())
                    code = 0
                finally:
                    os._exit(code)
            os.close(answered[1])
            with os.fdopen(answered[0]) as pipe:
                waiting, answers = pipe.read().split("\n", 1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertGreater(int(waiting), 20)         # of the flood, when the other had its answers
            for prompt, text in zip(texts(4), answers.split("\0")):
                self.assertTrue(alone[prompt].startswith(text), text)
            self.assertEqual(self.collect(connection, requests), (alone, []))
        daemon.wait_idle()

    def test_answers_are_the_same_whatever_gives_back(self):
        """Few pages and places, many at once: to the byte what each says alone."""
        daemon = self.start('[kv]\nmemory = "2M"\n[limits]\nrunning = 5\ntoken_ms = 1\n')
        with daemon.connect() as connection:
            alone = {prompt: connection.generate(prompt, max_tokens=80, ignore_eos=True).text for prompt in texts(32)}
        results = []

        def client():
            with daemon.connect() as mine:
                results.append(self.collect(mine, self.flood(mine, texts(32), max_tokens=80)))

        threads = [threading.Thread(target=client) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [(alone, [])] * 3)
        daemon.wait_idle()

    def test_one_that_gave_back_ends_where_it_waits(self):
        """One place: a batch request has it until an interactive one comes, which notices nothing of what becomes of the other."""
        daemon = self.start("[limits]\nrunning = 1\n")
        long = dict(max_tokens=1900, ignore_eos=True)
        with daemon.connect() as connection, daemon.connect() as watcher:
            alone = {prompt: connection.generate(prompt, **long).text for prompt in texts(2)}
            for disconnects in (False, True):
                with daemon.connect() as other:
                    request = other.begin(GENERATE, "", texts(2)[1], [], False, sampling(**long), BATCH, 0, 1)
                    first = other.receive()
                    self.assertEqual(first[0], TOKEN, first)
                    mine = connection.begin(GENERATE, "", texts(2)[0], [], False, sampling(**long), INTERACTIVE, 600_000, 1)
                    while set(rows := {row["state"]: row for row in watcher.status()["requests"]}) != {"decode", "preempted"}:
                        pass
                    self.assertEqual([rows["preempted"][name] for name in ("priority", "deadline_left_ms", "preemptions")], [BATCH, 0, 1])
                    self.assertEqual([rows["decode"][name] for name in ("priority", "preemptions")], [INTERACTIVE, 0])
                    self.assertTrue(0 < rows["decode"]["deadline_left_ms"] < 600_000, rows)
                    if not disconnects:
                        other.begin(CANCEL, request)
                        ended = other.finish(request)
                        self.assertEqual(ended.finish_reason, CANCELLED)
                        said = first[2] + ended.text
                        self.assertTrue(alone[texts(2)[1]].startswith(said), said)
                while len(rows := watcher.status()["requests"]) != 1:
                    pass
                self.assertEqual(rows[0]["state"], "decode")                # the other one's end took no more than a step of it
                self.assertEqual(connection.finish(mine).text, alone[texts(2)[0]])
        daemon.wait_idle()

    def test_weights_that_are_wrong(self):
        for weights, fault in (('"nobody-of-this-name:3"', "there is no user 'nobody-of-this-name'"),
                               ('"root:2", "0:3"', "twice"), ('"root"', "expected USER:WEIGHT"), ('"root:0"', "expected USER:WEIGHT")):
            code, _, error = run("--check-config", config="[shares]\nweights = [%s]\n" % weights)
            self.assertEqual(code, 78, error)
            self.assertIn("shares.weights", error)
            self.assertIn(fault, error)


if __name__ == "__main__":
    unittest.main()
