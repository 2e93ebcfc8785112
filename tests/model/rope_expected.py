#!/usr/bin/env python3
"""Prints rope_expected.inc: RoPE frequencies by the formulas of the papers and of transformers' modeling_rope_utils, in 40
decimal digits. Pair i of n/2, base b, stretch s, original context c:
  plain    f = b^(-2i/n)
  linear   f / s
  llama3   w = 2 pi / f; f where w < c / high; f / s where w > c / low; else with m = (c / w - low) / (high - low):
           (1 - m) f / s + m f       (GGUF stores factor = f / that in rope_freqs.weight, as f32)
  yarn     d(r) = n ln(c / (2 pi r)) / (2 ln b); lo = max(floor d(fast), 0), hi = min(ceil d(slow), n - 1);
           ramp = clamp((i - lo) / (hi - lo)), f / s * ramp + f * (1 - ramp); magnitude 0.1 ln s + 1
usage: rope_expected.py > rope_expected.inc"""
import struct
from decimal import Decimal as D, getcontext

getcontext().prec = 40
PI = D("3.14159265358979323846264338327950288419716939937511")


def f32(x):
    return struct.unpack("<f", struct.pack("<f", float(x)))[0]


def plain(n, base):
    return [D(base) ** (-D(2 * i) / n) for i in range(n // 2)]


def llama3(n, base, s, c, low, high):
    out = []
    for f in plain(n, base):
        w = 2 * PI / f
        if w < D(c) / high:
            out.append(f)
        elif w > D(c) / low:
            out.append(f / s)
        else:
            m = (c / w - low) / D(high - low)
            out.append((1 - m) * f / s + m * f)
    return out


def yarn(n, base, s, c, fast, slow):
    def d(r):
        return n * (D(c) / (2 * PI * r)).ln() / (2 * D(base).ln())

    lo = max(d(fast).__floor__(), 0)
    hi = min(d(slow).__ceil__(), n - 1)
    out = []
    for i, f in enumerate(plain(n, base)):
        ramp = min(max((D(i) - lo) / max(D(hi - lo), D("0.001")), D(0)), D(1))
        out.append(f / s * ramp + f * (1 - ramp))
    return out


def table(name, values, fmt="%.17g"):
    rows = ["".join((fmt % float(v)) + ", " for v in values[i:i + 4]).rstrip() for i in range(0, len(values), 4)]
    print("inline constexpr double %s[] = {\n    %s\n};" % (name, "\n    ".join(rows)))


print("// Made by rope_expected.py, which states the formulas.")
table("kPlain64", plain(64, 10000))
table("kPlain128Million", plain(128, 1000000))
table("kLinear20", [f / 4 for f in plain(20, 10000)])
table("kLlama3", llama3(64, 500000, 32, 8192, 1, 4))
table("kLlama3Factors", [f32(a / b) for a, b in zip(plain(64, 500000), llama3(64, 500000, 32, 8192, 1, 4))], "%.9g")
table("kYarnQwen", yarn(128, 1000000, 4, 32768, 32, 1))
table("kYarnLlama", yarn(128, 10000, 16, 4096, 32, 1))
print("inline constexpr double kYarnMagnitude4 = %.17g;" % float(1 + D("0.1") * D(4).ln()))
print("inline constexpr double kYarnMagnitude16 = %.17g;" % float(1 + D("0.1") * D(16).ln()))
