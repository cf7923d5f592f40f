#!/usr/bin/env python3
"""Writes tests/tensor/block_vectors.h: blocks of every quantised type with their values, as the `gguf` package (PyPI)
converts them, and blocks quantised by it. Run: tools/make_block_vectors.py > tests/tensor/block_vectors.h"""
import gguf
import numpy as np

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
# Byte offsets of the 16-bit scales of a block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
# Types that came later, each from a generator of its own, so that the vectors above stay as they were.
LATER = ["MXFP4", "IQ4_NL", "IQ4_XS"]


def random_blocks(rng, name, count):
    """Random codes and inner scales; outer scales of ordinary size and either sign."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(112, 128, count)
        blocks[0, 0] = 1
    for at in SCALES.get(name, []):
        scale = rng.normal(0, 0.1, (count, 1)).astype(np.float16)
        blocks[:, at:at + 2] = scale.view(np.uint8)
    return blocks


def rows(values, form, per_line):
    texts = [form.format(v) for v in values]
    return ",\n    ".join(", ".join(texts[i:i + per_line]) for i in range(0, len(texts), per_line))


def print_vectors(rng, name):
    kind = gguf.GGMLQuantizationType[name]
    elements, _ = gguf.GGML_QUANT_SIZES[kind]
    blocks = random_blocks(rng, name, 64 // elements or 1)
    values = gguf.dequantize(blocks, kind).astype(np.float32).ravel()
    print(f"inline constexpr uint8_t k{name}Blocks[] = {{\n    {rows(blocks.ravel(), '{}', 22)}}};")
    print(f"inline constexpr uint32_t k{name}Values[] = {{\n    {rows(values.view(np.uint32), '0x{:08x}', 9)}}};\n")


def main():
    rng = np.random.default_rng(7)
    print("// Made by tools/make_block_vectors.py; do not edit. Blocks of every type and their values (bits of floats) as the")
    print("// `gguf` package converts them.\n#pragma once\n#include <cstdint>\n\nnamespace sx::vectors {\n")
    for name in TYPES:
        print_vectors(rng, name)
    source = rng.normal(0, 1, 96).astype(np.float32)
    source[32:64] = np.abs(source[32:64]) * 1e-3
    source[64:96] = 0
    print(f"inline constexpr uint32_t kSource[] = {{\n    {rows(source.view(np.uint32), '0x{:08x}', 9)}}};")
    for name in ["Q8_0", "Q4_0", "Q4_1"]:
        packed = gguf.quantize(source.reshape(1, -1), gguf.GGMLQuantizationType[name]).ravel()
        print(f"inline constexpr uint8_t k{name}Packed[] = {{\n    {rows(packed, '{}', 22)}}};")
    for seed, name in enumerate(LATER):
        print_vectors(np.random.default_rng(100 + seed), name)
    packed = gguf.quantize(source.reshape(1, -1), gguf.GGMLQuantizationType.MXFP4).ravel()
    print(f"inline constexpr uint8_t kMXFP4Packed[] = {{\n    {rows(packed, '{}', 22)}}};")
    print("\n}  // namespace sx::vectors")


if __name__ == "__main__":
    main()
