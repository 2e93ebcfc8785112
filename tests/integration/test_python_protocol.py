"""The Python package's messages and codec against the released versions' frames and client/messages.h."""
import os
import re
import socket
import tempfile
import threading
import unittest

from python_package import PACKAGE, ROOT, ellm
from ellm import _codec, messages


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
        kinds = [*messages.ALL, messages.Sampling, messages.ChatMessage, messages.Usage, messages.Recomputed,
                 messages.Timings, messages.TokenLogprob, messages.ModelInfo, messages.RequestInfo]
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
        with tempfile.TemporaryDirectory(prefix="ellm") as directory, socket.socket(socket.AF_UNIX) as listener:
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


if __name__ == "__main__":
    unittest.main()
