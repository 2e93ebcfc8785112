"""GGUF files read, written, and copied with one more key; from the format's specification."""
import struct

FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


class Parsed:
    """`keys` as {name: value}, `entries` of tensors as [(name, dims, type, offset)], and where in `data` each list ends."""

    def __init__(self, source):
        with open(source, "rb") as file:
            self.data = file.read()
        magic, version, tensors, keys = struct.unpack_from("<4sIQQ", self.data)
        assert (magic, version) == (b"GGUF", 3)
        self.at = self.begin = 24
        self.keys = {}
        for _ in range(keys):
            name = self.text()
            self.keys[name] = self.value(self.take("I"))
        self.end_of_keys = self.at
        self.entries = []
        for _ in range(tensors):
            name = self.text()
            dims = [self.take("Q") for _ in range(self.take("I"))]
            self.entries.append((name, dims, self.take("I"), self.take("Q")))
        self.end = self.at
        self.alignment = self.keys.get("general.alignment", 32)
        self.tensor_data = -(-self.end // self.alignment) * self.alignment

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode(errors="replace")

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            element, count = self.take("I"), self.take("Q")
            return [self.value(element) for _ in range(count)]
        return self.take(FORMS[kind])


def read(source):
    """Keys as {name: value} and tensors as {name: (dims, type, bytes)}."""
    file = Parsed(source)
    base = file.tensor_data
    ends = sorted(offset for *_, offset in file.entries) + [len(file.data) - base]
    following = dict(zip(ends, ends[1:]))
    return file.keys, {name: (dims, kind, file.data[base + offset:base + following[offset]])
                       for name, dims, kind, offset in file.entries}


def write(target, keys, tensors):
    """Keys as {name: value}: text, bool, int (u32, in a list i32), float (f32), or a list of one of them; tensors as {name: (dims, bytes)}, F32,
    or {name: (dims, bytes, type)}."""
    def typed(value):
        if isinstance(value, str):
            return STRING, text(value)
        if isinstance(value, list):
            kind = typed(value[0])[0]
            kind = 5 if kind == 4 else kind
            return ARRAY, struct.pack("<IQ", kind, len(value)) + b"".join(typed(item)[1] for item in value)
        kind = 7 if isinstance(value, bool) else 6 if isinstance(value, float) else 4
        return kind, struct.pack("<" + FORMS[kind], value)

    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    for name, value in keys.items():
        kind, data = typed(value)
        head += text(name) + struct.pack("<I", kind) + data
    body, size = [], 0
    for name, (dims, data, *kind) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, *(kind or [0]), size)
        body += [data, bytes(-len(data) % 32)]
        size += len(data) + len(body[-1])
    with open(target, "wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.writelines(body)


def with_string(source, target, key, value):
    """Writes `target`: `source` with the string `value` under `key`."""
    file = Parsed(source)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(file.entries), len(file.keys) + 1) + file.data[file.begin:file.end_of_keys]
    head += text(key) + struct.pack("<I", STRING) + text(value) + file.data[file.end_of_keys:file.end]
    with open(target, "wb") as out:
        out.write(head + bytes(-len(head) % file.alignment) + file.data[file.tensor_data:])


def minimal(weights, split=None, architecture="test"):
    """The bytes of a GGUF file with one F32 tensor of so many weights (each value another); `split`: (number, count) of
    a part, from 0."""
    keys = [text("general.architecture") + struct.pack("<I", STRING) + text(architecture)]
    number, count = split or (0, 1)
    if split:
        keys.append(text("split.no") + struct.pack("<IH", 2, number))
        keys.append(text("split.count") + struct.pack("<IH", 2, count))
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(keys)) + b"".join(keys)
    head += text("tensor%d" % number) + struct.pack("<IQIQ", 1, weights, 0, 0)
    return head + bytes(-len(head) % 32) + struct.pack("<%df" % weights, *range(weights))
