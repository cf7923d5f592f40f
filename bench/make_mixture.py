#!/usr/bin/env python3
"""Writes a GGUF of a mixture of experts with random weights: the shape and the bytes of a large one, for measuring speed.

    python3 bench/make_mixture.py MODEL.gguf OUT.gguf [--layers 48] [--type Q4_0]     the shape of Qwen3-30B-A3B otherwise

The vocabulary is MODEL's. What such a model says means nothing; its passes cost what a trained one's do, and the router spreads tokens over
the experts about evenly. Needs numpy.
"""
import argparse
import struct

import numpy

F32, F16, Q4_0, Q8_0, MXFP4 = 0, 1, 2, 8, 39
TYPES = {"Q4_0": (Q4_0, 32, 18), "Q8_0": (Q8_0, 32, 34), "MXFP4": (MXFP4, 32, 17)}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


class Head:
    """The key-value pairs of a GGUF, each as the bytes that the file has."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read(64 << 20)
        magic, version, _, pairs = struct.unpack_from("<4sIQQ", self.data, 0)
        if magic != b"GGUF" or version < 2:
            raise SystemExit(f"{path}: not a GGUF file of version 2 or 3")
        self.at, self.pairs = 24, {}
        for _ in range(pairs):
            (length,) = struct.unpack_from("<Q", self.data, self.at)
            name = self.data[self.at + 8:self.at + 8 + length].decode()
            self.at += 8 + length
            start = self.at
            (kind,) = struct.unpack_from("<I", self.data, self.at)
            self.at += 4
            self.skip(kind)
            self.pairs[name] = self.data[start:self.at]

    def skip(self, kind):
        if kind == STRING:
            (length,) = struct.unpack_from("<Q", self.data, self.at)
            self.at += 8 + length
        elif kind == ARRAY:
            inner, count = struct.unpack_from("<IQ", self.data, self.at)
            self.at += 12
            if inner in SCALARS:
                self.at += count * struct.calcsize(SCALARS[inner])
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.at += struct.calcsize(SCALARS[kind])


def shape_of(args, vocab):
    """(name, dimensions as GGUF writes them, quantised) of each tensor."""
    width, heads, kv, dim, experts, inner = 2048, 32, 4, 128, args.experts, 768
    yield "token_embd.weight", (width, vocab), True
    for i in range(args.layers):
        p = f"blk.{i}."
        for name, size in (("attn_norm", width), ("ffn_norm", width), ("attn_q_norm", dim), ("attn_k_norm", dim)):
            yield p + name + ".weight", (size,), False
        yield p + "attn_q.weight", (width, heads * dim), True
        yield p + "attn_k.weight", (width, kv * dim), True
        yield p + "attn_v.weight", (width, kv * dim), True
        yield p + "attn_output.weight", (heads * dim, width), True
        yield p + "ffn_gate_inp.weight", (width, experts), False
        yield p + "ffn_gate_exps.weight", (width, inner, experts), True
        yield p + "ffn_up_exps.weight", (width, inner, experts), True
        yield p + "ffn_down_exps.weight", (inner, width, experts), True
    yield "output_norm.weight", (width,), False
    yield "output.weight", (width, vocab), True


def blocks(random, kind, count):
    """Random blocks of a quantised type: any bits as quants, scales that keep activations of the order of one."""
    _, _, size = TYPES[kind]
    out = random.integers(0, 256, (count, size), dtype=numpy.uint8)
    if kind == "MXFP4":
        out[:, 0] = 127 - 7  # 2^-7
    else:
        out[:, :2] = numpy.frombuffer(numpy.float16(0.004 if kind == "Q4_0" else 0.0003).tobytes(), numpy.uint8)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    args = parser.parse_args()
    head = Head(args.model)
    tokens = head.pairs["tokenizer.ggml.tokens"]
    (vocab,) = struct.unpack_from("<Q", tokens, 8)
    keys = {k: v for k, v in head.pairs.items() if k.startswith("tokenizer.")}
    keys["general.architecture"] = struct.pack("<I", STRING) + text("qwen3moe")
    keys["general.name"] = struct.pack("<I", STRING) + text("random mixture")
    numbers = {"block_count": args.layers, "context_length": 40960, "embedding_length": 2048, "feed_forward_length": 6144,
               "attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128, "attention.value_length": 128,
               "expert_count": args.experts, "expert_used_count": 8, "expert_feed_forward_length": 768}
    for name, value in numbers.items():
        keys["qwen3moe." + name] = struct.pack("<II", 4, value)
    for name, value in {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}.items():
        keys["qwen3moe." + name] = struct.pack("<If", 6, value)
    ggml, per, size = TYPES[args.type]
    tensors, offset = [], 0
    for name, dims, quantised in shape_of(args, vocab):
        count = int(numpy.prod(dims))
        length = count // per * size if quantised else 4 * count
        tensors.append((name, dims, quantised, count, offset))
        offset += -(-length // ALIGNMENT) * ALIGNMENT
    random = numpy.random.default_rng(1)
    pool = blocks(random, args.type, 1 << 20)  # repeated: speed does not depend on the values
    with open(args.out, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)))
        for name, raw in keys.items():
            file.write(text(name) + raw)
        for name, dims, quantised, _, at in tensors:
            file.write(text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
                       + struct.pack("<IQ", ggml if quantised else F32, at))
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        for name, dims, quantised, count, at in tensors:
            file.write(b"\0" * (start + at - file.tell()))
            if not quantised:
                norm = "norm" in name
                file.write((numpy.ones(count) if norm else random.normal(0, 0.02, count)).astype(numpy.float32).tobytes())
                continue
            left = count // per
            while left > 0:
                first = int(random.integers(0, len(pool) // 2))
                part = pool[first:first + min(left, len(pool) // 2)]
                file.write(part.tobytes())
                left -= len(part)
    print(f"{args.out}: {args.layers} layers of {args.experts} experts, {start + offset:,} bytes")


if __name__ == "__main__":
    main()
