#!/usr/bin/python3
"""recast.py ARCHITECTURE SOURCE.gguf TARGET.gguf: a llama model's own weights as a model of another architecture that computes
the same, so that real, trained models of architectures exist of which no small file is at hand.

phi3: Q, K and V become one tensor, gate and up another; rows of Q and K are put in the order of that RoPE.
qwen2moe: the feed-forward network is cut into two experts and the shared one. The router and the shared expert's gate are
zero (the gate nearly: llama.cpp divides by it), so that each counts half, for which their outputs are doubled; biases are zero.

llama.cpp v0.4.0 agrees: the perplexity of SmolLM2-135M is 4.0425 to it (1,280 tokens of Debian's policy), as phi3 4.0432, as
qwen2moe 4.0249.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import gguf  # noqa: E402

# Of GGUF types: values and bytes of a block, and how many f16 scales stand at its beginning.
BLOCKS = {0: (1, 4, 0), 2: (32, 18, 1), 3: (32, 20, 2), 8: (32, 34, 1)}


def blocks_of(tensor):
    """The bytes as (rows, blocks of a row, bytes of a block)."""
    (columns, rows), kind, data = tensor
    values, size, _ = BLOCKS[kind]
    return np.frombuffer(data, "u1", rows * columns // values * size).reshape(rows, columns // values, size)


def tensor_of(blocks, kind, depth=()):
    rows, count, _ = blocks.shape
    return [count * BLOCKS[kind][0], rows // int(np.prod(depth, initial=1)), *depth], blocks.tobytes(), kind


def doubled(blocks, kind):
    """Exact: scales, or values, are binary floating-point numbers."""
    scales = BLOCKS[kind][2]
    out = blocks.copy()
    if scales == 0:
        return np.ascontiguousarray(out).view("<f4").__mul__(np.float32(2)).view("u1")
    out[..., : 2 * scales] = (np.ascontiguousarray(out[..., : 2 * scales]).view("<f2") * np.float16(2)).view("u1")
    return out


def by_halves(blocks, heads):
    """Rows of neighbouring values that RoPE turns together, apart by half a head."""
    rows = np.arange(len(blocks)).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(-1)
    return blocks[rows]


def zeros(*dims):
    return list(dims), bytes(4 * int(np.prod(dims))), 0


class Recast:
    def __init__(self, architecture, source):
        self.architecture = architecture
        keys, self.source = gguf.read(source)
        self.keys = {name.replace("llama.", architecture + ".", 1) if name.startswith("llama.") else name: value
                     for name, value in keys.items()}
        self.keys["general.architecture"] = architecture
        self.tensors = {name: (dims, data, kind) for name, (dims, kind, data) in self.source.items()}
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.keys.get(f"{architecture}.attention.head_count_kv", self.heads)
        self.tensors.setdefault("output.weight", self.tensors["token_embd.weight"])   # llama.cpp wants one of qwen2moe
        for layer in range(self.key("block_count")):
            getattr(self, architecture)(f"blk.{layer}.")

    def key(self, name):
        return self.keys[f"{self.architecture}.{name}"]

    def take(self, name):
        """Out of the target: what becomes something else."""
        del self.tensors[name]
        return blocks_of(self.source[name]), self.source[name][1]

    def stacked(self, target, names, order=lambda blocks, name: blocks):
        parts = [(order(blocks, name), kind) for name in names for blocks, kind in [self.take(name)]]
        assert len({kind for _, kind in parts}) == 1, f"{names} are of different types"
        self.tensors[target] = tensor_of(np.concatenate([blocks for blocks, _ in parts]), parts[0][1])

    def rope_order(self, blocks, name):
        heads = {"q": self.heads, "k": self.kv_heads}.get(name.split("attn_")[1][0])
        return by_halves(blocks, heads) if heads else blocks

    def phi3(self, blk):
        self.stacked(blk + "attn_qkv.weight", [f"{blk}attn_{n}.weight" for n in "qkv"], self.rope_order)
        self.stacked(blk + "ffn_up.weight", [blk + "ffn_gate.weight", blk + "ffn_up.weight"])

    def qwen2moe(self, blk):
        for n in "qkv":
            name = f"{blk}attn_{n}.weight"
            self.stacked(name, [name], self.rope_order)
            self.tensors[f"{blk}attn_{n}.bias"] = zeros(self.tensors[name][0][1])
        embedding, hidden = self.key("embedding_length"), self.key("feed_forward_length")
        width = hidden // 3 // 32 * 32
        self.keys.update({f"qwen2moe.{name}": value for name, value in {
            "expert_count": 2, "expert_used_count": 2, "expert_feed_forward_length": width,
            "expert_shared_feed_forward_length": hidden - 2 * width}.items()})
        self.tensors[blk + "ffn_gate_inp.weight"] = zeros(embedding, 2)
        self.tensors[blk + "ffn_gate_inp_shexp.weight"] = [embedding], np.full(embedding, 1e-20, "<f4").tobytes(), 0
        for n in ("gate", "up"):
            blocks, kind = self.take(f"{blk}ffn_{n}.weight")
            self.tensors[f"{blk}ffn_{n}_exps.weight"] = tensor_of(blocks[: 2 * width], kind, (2,))
            self.tensors[f"{blk}ffn_{n}_shexp.weight"] = tensor_of(blocks[2 * width:], kind)
        blocks, kind = self.take(blk + "ffn_down.weight")
        blocks, width = doubled(blocks, kind), width // BLOCKS[kind][0]
        experts = np.concatenate([blocks[:, :width], blocks[:, width: 2 * width]])
        self.tensors[blk + "ffn_down_exps.weight"] = tensor_of(experts, kind, (2,))
        self.tensors[blk + "ffn_down_shexp.weight"] = tensor_of(np.ascontiguousarray(blocks[:, 2 * width:]), kind)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("phi3", "qwen2moe"):
        sys.exit(__doc__)
    recast = Recast(*sys.argv[1:3])
    gguf.write(sys.argv[3], recast.keys, recast.tensors)
