#!/usr/bin/python3
"""A forward pass in float64 with numpy, written from the architectures' papers and the meaning of GGUF's keys and tensors.

float64_pass.py compare MODEL.gguf REFERENCE.json NAME   prints how far it is from logits that somebody else computed
float64_pass.py model MODEL.gguf TOKENS OUT              logits of comma-separated ids as doubles, (tokens, vocabulary)
float64_pass.py rounded MODEL.gguf FLOATS.gguf TOKENS OUT   the same of a quantised model whose weights FLOATS.gguf has as
                                                         F32, activations rounded as HACKING.md says
float64_pass.py generate KIND DIR                        DIR/model.gguf (random), DIR/tokens (u32), DIR/logits (f64)

KIND is phi3, phi3-window, qwen2moe, qwen2moe-q8 (matrices in Q8_0) or qwen3moe. Debian's python3-numpy belongs to Debian's interpreter.
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import gguf  # noqa: E402


F32, F16, Q8_0, BF16 = 0, 1, 8, 30   # Q8_0: blocks of 32 values, a scale and a code each
BLOCK_OF_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def to_q8_0(values):
    values = values.reshape(-1, 32)
    blocks = np.empty(len(values), BLOCK_OF_Q8_0)
    blocks["d"] = np.abs(values).max(1) / 127
    blocks["q"] = np.rint(values / blocks["d"].astype(np.float64)[:, None]).clip(-127, 127)
    return blocks.tobytes()


def rounded(x):
    """Activations as codes of 8 bits, 32 at a time, with the scale that fits best."""
    padded = np.zeros(x.shape[:-1] + (-(-x.shape[-1] // 32) * 32,))
    padded[..., :x.shape[-1]] = x
    blocks = padded.reshape(*x.shape[:-1], -1, 32)
    most = np.abs(blocks).max(-1, keepdims=True)
    codes = np.rint(blocks * (127 / np.maximum(most, 1e-30))).clip(-127, 127)
    scale = (blocks * codes).sum(-1, keepdims=True) / np.maximum((codes * codes).sum(-1, keepdims=True), 1)
    return (codes * scale).reshape(padded.shape)[..., :x.shape[-1]]


class Model:
    """`rounds`: the names of the matrices whose input is rounded."""

    def __init__(self, path, rounds=()):
        self.rounds = set(rounds)
        self.keys, tensors = gguf.read(path)
        self.architecture = self.keys["general.architecture"]
        self.tensors = {}
        for name, (dims, kind, data) in tensors.items():
            count = int(np.prod(dims))
            if kind == Q8_0:
                blocks = np.frombuffer(data, BLOCK_OF_Q8_0, count // 32)
                values = blocks["q"] * blocks["d"].astype(np.float64)[:, None]
            else:
                assert kind == F32, f"{name} is neither F32 nor Q8_0"
                values = np.frombuffer(data, "<f4", count).astype(np.float64)
            self.tensors[name] = values.reshape(dims[::-1])
        self.layers = self.key("block_count")
        self.embedding = self.key("embedding_length")
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        self.head_dim = self.key("attention.key_length", self.embedding // self.heads)
        self.epsilon = self.key("attention.layer_norm_rms_epsilon")
        self.gemma = self.architecture.startswith("gemma")

    def key(self, name, default=None):
        return self.keys.get(f"{self.architecture}.{name}", default)

    def get(self, name):
        return self.tensors.get(name)

    def product(self, x, name, expert=None):
        """Of rows x with the matrix, (rows, columns) or one expert's."""
        weights = self.tensors[name] if expert is None else self.tensors[name][expert]
        if name not in self.rounds:
            return x @ weights.T
        near = rounded(x)
        if name.endswith("attn_output.weight"):
            near += rounded(x - near)
        return near @ weights.T

    def windowed(self, layer):
        period = {"gemma2": 2, "gemma3": 6}.get(self.architecture, 0)
        return bool(self.key("attention.sliding_window", 0)) and (period == 0 or layer % period != period - 1)


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def cap(x, limit):
    return limit * np.tanh(x / limit) if limit else x


def rope(m, x, windowed, context):
    """x: (tokens, heads, head_dim)"""
    base = m.key("rope.freq_base", 10000.0)
    if m.architecture == "gemma3" and windowed:
        base = 10000.0
    n = m.key("rope.dimension_count", m.head_dim)
    frequency = base ** (-np.arange(0, n, 2) / n)
    magnitude = 1.0
    if m.get("rope_factors_long.weight") is not None:
        original = m.key("rope.scaling.original_context_length")
        which = "long" if (context or m.key("context_length")) > original else "short"
        frequency = frequency / m.get(f"rope_factors_{which}.weight")
        magnitude = m.key("rope.scaling.attn_factor", 1.0)
    angle = np.arange(len(x))[:, None, None] * frequency
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    out = x.copy()
    first, second = (slice(0, n, 2), slice(1, n, 2)) if m.architecture == "llama" else (slice(0, n // 2), slice(n // 2, n))
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def attention(m, blk, layer, x, context):
    tokens = len(x)
    q_dim, kv_dim = m.heads * m.head_dim, m.kv_heads * m.head_dim
    if m.get(blk + "attn_qkv.weight") is not None:
        q, k, v = np.split(m.product(x, blk + "attn_qkv.weight"), [q_dim, q_dim + kv_dim], axis=-1)
    else:
        q, k, v = (m.product(x, f"{blk}attn_{n}.weight") for n in "qkv")
        q, k, v = (y + m.tensors.get(f"{blk}attn_{n}.bias", 0) for n, y in zip("qkv", (q, k, v)))
    q, k, v = q.reshape(tokens, m.heads, -1), k.reshape(tokens, m.kv_heads, -1), v.reshape(tokens, m.kv_heads, -1)
    if m.get(blk + "attn_q_norm.weight") is not None:
        q, k = norm(q, m.get(blk + "attn_q_norm.weight"), m.epsilon), norm(k, m.get(blk + "attn_k_norm.weight"), m.epsilon)
    windowed = m.windowed(layer)
    q, k = rope(m, q, windowed, context), rope(m, k, windowed, context)
    group = m.heads // m.kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(m.head_dim)
    if m.architecture == "gemma2":
        scores = cap(scores, m.key("attn_logit_softcapping", 50.0))
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    hidden = distance < 0
    if windowed:
        hidden |= distance >= m.key("attention.sliding_window")
    out = np.einsum("hqk,khd->qhd", softmax(np.where(hidden, -np.inf, scores)), v)
    return m.product(out.reshape(tokens, q_dim), blk + "attn_output.weight") + m.tensors.get(blk + "attn_output.bias", 0)


narrowest_choice = np.inf    # how far the router's last chosen expert was from the first that it left out


def experts(m, blk, x):
    global narrowest_choice
    logits = m.product(x, blk + "ffn_gate_inp.weight")
    used = m.key("expert_used_count")
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, -1)
    narrowest_choice = min(narrowest_choice, (ranked[:, used - 1] - ranked[:, used]).min())
    weights = softmax(logits)
    if m.architecture == "qwen3moe":
        weights = weights / np.take_along_axis(weights, order[:, :used], -1).sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for row in range(len(x)):
        for e in order[row, :used]:
            hidden = silu(m.product(x[row], blk + "ffn_gate_exps.weight", e)) * m.product(x[row], blk + "ffn_up_exps.weight", e)
            out[row] += weights[row, e] * m.product(hidden, blk + "ffn_down_exps.weight", e)
    if m.get(blk + "ffn_gate_shexp.weight") is not None:
        hidden = silu(m.product(x, blk + "ffn_gate_shexp.weight")) * m.product(x, blk + "ffn_up_shexp.weight")
        gate = 1 / (1 + np.exp(-(x @ m.get(blk + "ffn_gate_inp_shexp.weight"))))
        out += gate[:, None] * m.product(hidden, blk + "ffn_down_shexp.weight")
    return out


def feed_forward(m, blk, x):
    if m.get(blk + "ffn_gate_inp.weight") is not None:
        return experts(m, blk, x)
    if m.get(blk + "ffn_gate.weight") is not None:
        gate, up = m.product(x, blk + "ffn_gate.weight"), m.product(x, blk + "ffn_up.weight")
    else:
        gate, up = np.split(m.product(x, blk + "ffn_up.weight"), 2, axis=-1)
    return m.product((gelu if m.gemma else silu)(gate) * up, blk + "ffn_down.weight")


def forward(m, tokens, context=None):
    h = m.get("token_embd.weight")[tokens] * (np.sqrt(m.embedding) if m.gemma else 1)
    for layer in range(m.layers):
        blk = f"blk.{layer}."
        for before, after, part in (("attn_norm", "post_attention_norm", lambda x: attention(m, blk, layer, x, context)),
                                    ("ffn_norm", "post_ffw_norm", lambda x: feed_forward(m, blk, x))):
            y = part(norm(h, m.get(f"{blk}{before}.weight"), m.epsilon))
            post = m.get(f"{blk}{after}.weight")
            h = h + (y if post is None else norm(y, post, m.epsilon))
    output = "output.weight" if "output.weight" in m.tensors else "token_embd.weight"
    logits = m.product(norm(h, m.get("output_norm.weight"), m.epsilon), output)
    return cap(logits, m.key("final_logit_softcapping", 30.0)) if m.architecture == "gemma2" else logits


def compare(path, reference, name):
    with open(reference) as file:
        reference = json.load(file)
    logits = forward(Model(path), np.array(reference["tokens"]))
    worst = max(np.abs(logits[int(position)] - row).max() for position, row in reference["models"][name]["logits"].items())
    print(f"{worst:.3g}")


EMBEDDING, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 64, 4, 2, 16, 96, 300


def random_model(kind, random):
    architecture = kind.split("-")[0]
    keys = {"general.architecture": architecture, "general.name": kind}

    def put(name, value):
        keys[f"{architecture}.{name}"] = value

    tensors = {}

    def matrix(name, *dims):
        """Values of about 1 in, values of about 1 out: the first dimension is summed over."""
        values = random.normal(size=dims[::-1]) / np.sqrt(dims[0])
        if kind.endswith("-q8"):
            tensors[name] = (list(dims), to_q8_0(values), Q8_0)
        else:
            tensors[name] = (list(dims), values.astype("<f4").tobytes())

    def vector(name, size, middle=1.0):
        tensors[name] = ([size], random.normal(middle, 0.2, size).astype("<f4").tobytes())

    layers, queries, kv = 3, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    put("context_length", 2048)
    put("block_count", layers)
    put("embedding_length", EMBEDDING)
    put("feed_forward_length", HIDDEN)
    put("attention.head_count", HEADS)
    put("attention.head_count_kv", KV_HEADS)
    put("attention.layer_norm_rms_epsilon", 1e-6)
    matrix("token_embd.weight", EMBEDDING, VOCABULARY)
    vector("output_norm.weight", EMBEDDING)
    matrix("output.weight", EMBEDDING, VOCABULARY)
    if architecture == "phi3":
        put("rope.dimension_count", HEAD_DIM - 4)
        put("rope.scaling.original_context_length", 64)
        put("rope.scaling.attn_factor", 1.19)
        for which, most in (("long", 6.0), ("short", 1.5)):
            tensors[f"rope_factors_{which}.weight"] = (
                [(HEAD_DIM - 4) // 2], np.sort(random.uniform(1, most, (HEAD_DIM - 4) // 2)).astype("<f4").tobytes())
        if kind == "phi3-window":
            put("attention.sliding_window", 37)
    experts, hidden, shared = 9, 48, 80      # no multiples of a block
    if kind.endswith("-q8"):
        hidden, shared = 64, 96
    if architecture.endswith("moe"):
        put("expert_count", experts)
        put("expert_used_count", 3)
        put("expert_feed_forward_length", hidden)
    if architecture == "qwen2moe":
        put("expert_shared_feed_forward_length", shared)
    for layer in range(layers):
        blk = f"blk.{layer}."
        vector(blk + "attn_norm.weight", EMBEDDING)
        vector(blk + "ffn_norm.weight", EMBEDDING)
        matrix(blk + "attn_output.weight", queries, EMBEDDING)
        if architecture == "phi3":
            matrix(blk + "attn_qkv.weight", EMBEDDING, queries + 2 * kv)
            matrix(blk + "ffn_up.weight", EMBEDDING, 2 * HIDDEN)
            matrix(blk + "ffn_down.weight", HIDDEN, EMBEDDING)
            continue
        for name, size in (("q", queries), ("k", kv), ("v", kv)):
            matrix(f"{blk}attn_{name}.weight", EMBEDDING, size)
            if architecture == "qwen2moe":
                vector(f"{blk}attn_{name}.bias", size, 0.0)
        if architecture == "qwen3moe":
            vector(blk + "attn_q_norm.weight", HEAD_DIM)
            vector(blk + "attn_k_norm.weight", HEAD_DIM)
        matrix(blk + "ffn_gate_inp.weight", EMBEDDING, experts)
        matrix(blk + "ffn_gate_exps.weight", EMBEDDING, hidden, experts)
        matrix(blk + "ffn_up_exps.weight", EMBEDDING, hidden, experts)
        matrix(blk + "ffn_down_exps.weight", hidden, EMBEDDING, experts)
        if architecture == "qwen2moe":
            vector(blk + "ffn_gate_inp_shexp.weight", EMBEDDING, 0.0)
            matrix(blk + "ffn_gate_shexp.weight", EMBEDDING, shared)
            matrix(blk + "ffn_up_shexp.weight", EMBEDDING, shared)
            matrix(blk + "ffn_down_shexp.weight", shared, EMBEDDING)
    keys["tokenizer.ggml.model"] = "llama"
    keys["tokenizer.ggml.tokens"] = [f"t{i}" for i in range(VOCABULARY)]
    keys["tokenizer.ggml.scores"] = [0.0] * VOCABULARY
    return keys, tensors


def generate(kind, folder):
    global narrowest_choice
    path = os.path.join(folder, "model.gguf")
    for seed in range(100):                  # until no router's choice hangs on a rounding error
        narrowest_choice = np.inf
        random = np.random.default_rng(seed)
        gguf.write(path, *random_model(kind, random))
        tokens = random.integers(0, VOCABULARY, 90)
        logits = forward(Model(path), tokens)
        if narrowest_choice > 1e-4:
            break
    tokens.astype("<u4").tofile(os.path.join(folder, "tokens"))
    logits.astype("<f8").tofile(os.path.join(folder, "logits"))
    short = forward(Model(path), tokens[:60], context=60)
    short.astype("<f8").tofile(os.path.join(folder, "short_logits"))


def quantised_matrices(path):
    return [name for name, (dims, kind, _) in gguf.read(path)[1].items() if kind not in (F32, F16, BF16)]


def write_logits(model, ids, out):
    forward(model, np.array([int(i) for i in ids.split(",")])).astype("<f8").tofile(out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare(*sys.argv[2:])
    elif sys.argv[1:2] == ["model"]:
        path, ids, out = sys.argv[2:]
        write_logits(Model(path), ids, out)
    elif sys.argv[1:2] == ["rounded"]:
        path, floats, ids, out = sys.argv[2:]
        write_logits(Model(floats, quantised_matrices(path)), ids, out)
    elif sys.argv[1:2] == ["generate"]:
        generate(*sys.argv[2:])
    else:
        sys.exit(__doc__)
