"""Clients of other releases at the built daemon: the golden frames of every released version of the protocol, requests with
fewer fields, with more, and messages of the future."""
import os
import re
import unittest

from harness import OneDaemon, needs_model
from protocol import *

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
FIRST_REPLY = 32


def golden_requests():
    """(path, frame) of every request that any released client can have sent."""
    for version in sorted(os.listdir(GOLDEN)):
        if not re.fullmatch(r"protocol_v\d+", version):
            continue
        for name in sorted(os.listdir(os.path.join(GOLDEN, version))):
            path = os.path.join(GOLDEN, version, name)
            with open(path) as file:
                frame = bytes.fromhex(file.read())
            if HELLO < Unpacker(frame[4:]).value()[0] < FIRST_REPLY:
                yield path, frame


@needs_model
class Versions(OneDaemon):
    def setUp(self):
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def test_every_released_request_is_understood(self):
        """Its values are arbitrary, so that most are refused: by what they say, and with their own id."""
        requests = list(golden_requests())
        self.assertGreaterEqual(len(requests), 9)
        for path, frame in requests:
            tag, number = Unpacker(frame[4:]).value()[:2]
            self.connection.send_bytes(frame)
            message = self.connection.receive()
            self.assertGreaterEqual(message[0], FIRST_REPLY, path)
            self.assertEqual(message[1], number, path)
            if message[0] == ERROR:
                self.assertIn(message[2], (BAD_REQUEST, NO_SUCH_MODEL, NO_SUCH_REQUEST), (path, message))
        self.assertEqual(self.connection.status()["running"], 0)

    def test_fields_that_are_missing_have_their_defaults(self):
        self.connection.send(GENERATE, 1, None, "Once", None, None, [0.0, None, None, None, None, None, None, None, 5])
        answer = self.connection.finish(1)
        self.assertEqual(answer.tokens, self.connection.generate("Once", max_tokens=5).tokens)
        self.connection.send(TOKENIZE, 8, "", "Once")
        self.assertEqual(self.connection.receive()[2], self.connection.reply(TOKENIZE, "", "Once", True, True)[2])

    def test_fields_of_the_future_are_ignored(self):
        def later(depth=3):
            return b"\x82\xa1a" + (later(depth - 1) if depth else b"\xc0") + b"\xa1b\xc7\x02\x05xy"     # maps, an extension
        plain = self.connection.generate("Once", max_tokens=5)
        known = [GENERATE, 3, "", "Once", [], False, sampling(max_tokens=5) + ["more", [1.5]], 0, 0, 1, ""]
        body = bytes([0x90 + len(known) + 2]) + pack(known)[5:] + later() + pack(["x"])
        self.connection.send_bytes(struct.pack("<I", len(body)) + body)
        self.assertEqual(self.connection.finish(3).tokens, plain.tokens)
        self.connection.send(*known[:-1], 5)
        with self.assertRaisesRegex(Failed, "generate.namespace: expected a string"):
            self.connection.finish(3)

    def test_messages_of_the_future_are_refused_alone(self):
        running = self.connection.begin(GENERATE, "", "Once", [], False, sampling(max_tokens=300, ignore_eos=True))
        self.connection.send(4321, 77, "payload")
        tokens, refusal = 0, None
        while (message := self.connection.receive())[0] != DONE:
            if message[0] == ERROR:
                refusal = message
            else:
                tokens += len(message[3])
        self.assertEqual((message[1], message[2], tokens), (running, LENGTH, 300))
        self.assertEqual(refusal[:3], [ERROR, 77, UNKNOWN_MESSAGE])
        self.assertIn("4321", refusal[3])

    def test_features_that_are_unknown_are_not_used(self):
        connection = self.daemon.connect(hello=False)
        connection.send(HELLO, 1, "a later client", ["telepathy"], None, "more")
        hello = connection.receive()
        self.assertEqual(hello[:2], [HELLO, 1])
        self.assertNotIn("telepathy", hello[3])
        self.assertEqual(len(connection.generate("Once", max_tokens=3).tokens), 3)
        connection.close()


if __name__ == "__main__":
    unittest.main()
