"""GGUF files read, written, and copied with one more key; from the format's specification."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def read(source):
    """Keys as {name: value} and tensors as {name: (dims, type, bytes)}."""
    with open(source, "rb") as file:
        data = file.read()
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    assert (magic, version) == (b"GGUF", 3)
    at = 24

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def take_text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode(errors="replace")

    def take_value(kind):
        if kind == STRING:
            return take_text()
        if kind == ARRAY:
            element, count = take("I"), take("Q")
            return [take_value(element) for _ in range(count)]
        return take(FORMS[kind])

    values = {}
    for _ in range(keys):
        name = take_text()
        values[name] = take_value(take("I"))
    entries = []
    for _ in range(tensors):
        name = take_text()
        dims = [take("Q") for _ in range(take("I"))]
        entries.append((name, dims, take("I"), take("Q")))
    alignment = values.get("general.alignment", 32)
    base = -(-at // alignment) * alignment
    ends = sorted(offset for *_, offset in entries) + [len(data) - base]
    following = dict(zip(ends, ends[1:]))
    return values, {name: (dims, kind, data[base + offset:base + following[offset]]) for name, dims, kind, offset in entries}


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
    with open(source, "rb") as file:
        data = file.read()
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    assert (magic, version) == (b"GGUF", 3)
    at = 24

    def skip_text(at):
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    def skip_value(at, kind):
        if kind == STRING:
            return skip_text(at)
        if kind != ARRAY:
            return at + SIZES[kind]
        element, count = struct.unpack_from("<IQ", data, at)
        at += 12
        if element != STRING:
            return at + count * SIZES[element]
        for _ in range(count):
            at = skip_text(at)
        return at

    alignment = 32
    for _ in range(keys):
        begin = at
        at = skip_text(at)
        kind = struct.unpack_from("<I", data, at)[0]
        if data[begin + 8:].startswith(b"general.alignment"):
            alignment = struct.unpack_from("<I", data, at + 4)[0]
        at = skip_value(at + 4, kind)
    end_of_keys = at
    for _ in range(tensors):
        at = skip_text(at)
        dimensions = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dimensions + 4 + 8
    tensor_data = data[-(-at // alignment) * alignment:]
    head = struct.pack("<4sIQQ", magic, version, tensors, keys + 1) + data[24:end_of_keys]
    head += text(key) + struct.pack("<I", STRING) + text(value) + data[end_of_keys:at]
    with open(target, "wb") as file:
        file.write(head + bytes(-len(head) % alignment) + tensor_data)


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
