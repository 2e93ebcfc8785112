"""ellmd's protocol from client/PROTOCOL.md alone: msgpack, frames and a connection. Shares no code with the daemon, so
that the two check each other."""
import socket
import struct

(HELLO, GENERATE, CHAT, TOKENIZE, DETOKENIZE, RENDER_TEMPLATE, SCORE, CANCEL, STATUS, MODELS) = range(1, 11)
CACHE, CACHE_REPLY = 12, 41
(TOKEN, DONE, ERROR, TOKENIZE_REPLY, TEXT_REPLY, SCORE_REPLY, STATUS_REPLY, MODELS_REPLY, OK) = range(32, 41)
STOP, LENGTH, CANCELLED, DEADLINE = 1, 2, 3, 4
INTERACTIVE, BATCH = 0, 1
LIST, LOAD, UNLOAD = 1, 2, 3
(BAD_REQUEST, UNKNOWN_MESSAGE, UNSUPPORTED_VERSION, TOO_LARGE, BUSY, NO_SUCH_MODEL, MODEL_FAILED, TEMPLATE_FAILED,
 NO_SUCH_REQUEST, SHUTTING_DOWN, INTERNAL, CANCELLED_ERROR, DENIED, DEADLINE_ERROR) = range(1, 15)

MODEL_FIELDS = ("name path architecture size_label weight_types tokenizer parameters file_bytes resident_bytes context "
                "loaded locked chat kv_type kv_pages kv_pages_free kv_pages_cached").split()
STATUS_FIELDS = ("id version kernels cpu threads pid uptime_s models requests running queued connections served "
                 "prompt_tokens completion_tokens warnings cached_tokens admin stats_page disk").split()
DISK_FIELDS = "bytes budget_bytes pages_written pages_read pages_damaged files_skipped writing".split()
USAGE_FIELDS = "prompt_tokens cached_tokens completion_tokens drafted_tokens accepted_tokens recomputed disk_tokens".split()
RECOMPUTED_FIELDS = "new last_token logits_needed evicted namespace fingerprint retokenised unsealed".split()
REQUEST_FIELDS = ("request uid pid model kind state prompt_tokens done_tokens completion_tokens age_ms "
                  "priority deadline_left_ms preemptions").split()


def pack(value):
    """msgpack of None, bool, int, float, str, bytes, list and tuple."""
    if value is None:
        return b"\xc0"
    if value is False or value is True:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(pack(item) for item in value)


class Unpacker:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        piece = self.data[self.at:self.at + count]
        assert len(piece) == count, "msgpack ends too early"
        self.at += count
        return piece

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def value(self):
        first = self.number("B")
        if first < 0x80:
            return first
        if first >= 0xe0:
            return first - 256
        if first < 0x90:
            raise AssertionError("maps are not part of the protocol")
        if first < 0xa0:
            return [self.value() for _ in range(first & 15)]
        if first < 0xc0:
            return self.take(first & 31).decode()
        if first in (0xc0, 0xc2, 0xc3):
            return {0xc0: None, 0xc2: False, 0xc3: True}[first]
        if first in (0xc4, 0xc5, 0xc6):
            return self.take(self.number("BHI"[first - 0xc4]))
        if first in (0xca, 0xcb):
            return self.number("fd"[first - 0xca])
        if 0xcc <= first <= 0xd3:
            return self.number("BHIQbhiq"[first - 0xcc])
        if first in (0xd9, 0xda, 0xdb):
            return self.take(self.number("BHI"[first - 0xd9])).decode()
        if first in (0xdc, 0xdd):
            return [self.value() for _ in range(self.number("HI"[first - 0xdc]))]
        raise AssertionError("unexpected msgpack type %#x" % first)


def frame(*fields):
    body = pack(list(fields))
    return struct.pack("<I", len(body)) + body


def sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
             frequency_penalty=0.0, seed=0, max_tokens=16, stop=(), logit_bias=(), logprobs=0, want_logprobs=False,
             ignore_eos=False):
    return [temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed, max_tokens,
            list(stop), list(logit_bias), logprobs, want_logprobs, ignore_eos]


class Failed(Exception):
    def __init__(self, fields):
        self.id, self.code, self.message, self.retry_after_ms = fields
        super().__init__("error %d: %s" % (self.code, self.message))


class Completion:
    def __init__(self):
        self.text, self.tokens, self.logprobs, self.events = "", [], [], 0
        self.finish_reason = self.usage = self.model = self.seed = self.timings = None

    @property
    def cached(self):
        return self.usage[1]

    @property
    def disk(self):
        return self.usage[6]

    @property
    def recomputed(self):
        """{reason: tokens}, those that are not 0. With the cached tokens the whole prompt."""
        recomputed = dict(zip(RECOMPUTED_FIELDS, self.usage[5]))
        assert self.cached + sum(recomputed.values()) == self.usage[0] or self.finish_reason in (CANCELLED, DEADLINE), self.usage
        return {reason: tokens for reason, tokens in recomputed.items() if tokens}


class Closed(Exception):
    pass


class Connection:
    def __init__(self, path, hello=True, timeout=20):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.buffer = b""
        self.next_id = 0
        if hello:
            self.send(HELLO, 1, "test", [])
            message = self.receive()
            assert message[0] == HELLO and message[1] == 1, message

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, *fields):
        self.send_bytes(frame(*fields))

    def send_bytes(self, data):
        self.socket.sendall(data)

    def fill(self, count):
        while len(self.buffer) < count:
            try:
                piece = self.socket.recv(1 << 16)
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Closed()
            self.buffer += piece

    def receive(self):
        self.fill(4)
        length = struct.unpack("<I", self.buffer[:4])[0]
        self.fill(4 + length)
        body, self.buffer = self.buffer[4:4 + length], self.buffer[4 + length:]
        unpacker = Unpacker(body)
        message = unpacker.value()
        assert unpacker.at == len(body), "bytes after the message"
        return message

    def begin(self, tag, *fields):
        self.next_id += 1
        self.send(tag, self.next_id, *fields)
        return self.next_id

    def reply(self, tag, *fields):
        """One request with one reply; an error is raised."""
        request = self.begin(tag, *fields)
        message = self.receive()
        assert message[1] == request, message
        if message[0] == ERROR:
            raise Failed(message[1:])
        return message

    def finish(self, request, on_token=None):
        """Collects the events of a completion; events of others are not expected."""
        [out] = self.finish_all(request, 1, on_token)
        return out

    def finish_all(self, request, n, on_token=None):
        """The same for n samples: a list of them."""
        samples = [Completion() for _ in range(n)]
        while True:
            message = self.receive()
            if message[0] == OK:
                continue
            assert message[1] == request, message
            if message[0] == ERROR:
                raise Failed(message[1:])
            if message[0] == DONE:
                out = samples[message[7]]
                assert out.finish_reason is None, "a sample ended twice"
                _, _, out.finish_reason, out.model, out.seed, out.usage, out.timings = message[:7]
                assert message[8] == sum(sample.finish_reason is None for sample in samples), message
                if message[8] == 0:
                    return samples
                continue
            assert message[0] == TOKEN, message
            out = samples[message[5]]
            assert out.finish_reason is None, "a piece of a sample that has ended"
            out.events += 1
            out.text += message[2]
            out.tokens += message[3]
            out.logprobs += message[4]
            if on_token:
                on_token(out)

    def generate(self, prompt="", model="", tokens=None, on_token=None, **options):
        request = self.begin(GENERATE, model, prompt, tokens or [], tokens is not None, sampling(**options))
        return self.finish(request, on_token)

    def samples(self, prompt, n, tokens=None, urgency=(INTERACTIVE, 0), **options):
        return self.finish_all(self.begin(GENERATE, "", prompt, tokens or [], tokens is not None, sampling(**options), *urgency, n), n)

    def status(self):
        status = dict(zip(STATUS_FIELDS, self.reply(STATUS)[1:]))
        status["models"] = [dict(zip(MODEL_FIELDS, model)) for model in status["models"]]
        status["disk"] = dict(zip(DISK_FIELDS, status["disk"]))
        status["requests"] = [dict(zip(REQUEST_FIELDS, request)) for request in status["requests"]]
        return status

    def models(self, action=LIST, name=""):
        return [dict(zip(MODEL_FIELDS, model)) for model in self.reply(MODELS, action, name)[2]]
