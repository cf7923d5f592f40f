#!/usr/bin/env python3
"""Writes tests/model/data/nearest.safetensors: weights and what training/quantise.py makes of them, for the test of
model/convert/nearest.h. Needs PyTorch and safetensors.

The blocks are of the kinds that tell roundings apart: bf16 values (many ties, among them values half-way between two
codes and extremes of both signs), small multiples of a power of two, zeros, and floats of all sizes."""
import pathlib
import sys

import torch
from safetensors.torch import save_file

root = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "training"))
sys.dont_write_bytecode = True
import quantise  # noqa: E402

COLUMNS = 32


def main():
    make = torch.Generator().manual_seed(7)
    normal = lambda rows: torch.randn(rows, COLUMNS, generator=make)
    halves = torch.randint(-16, 17, (96, COLUMNS), generator=make).float()
    rows = [(0.05 * normal(96)).bfloat16().float(),
            (halves * torch.randn(96, 1, generator=make).bfloat16().float() / 16),
            torch.randint(-254, 255, (64, COLUMNS), generator=make).float() * 0.5 ** 9,
            normal(16) * torch.logspace(-4, 3, 16)[:, None],
            torch.zeros(1, COLUMNS)]
    weight = torch.cat(rows).contiguous()
    tensors = dict(weight=weight, q4_0=quantise.q4_0(weight), q8_0=quantise.q8_0(weight))
    path = root / "tests" / "model" / "data" / "nearest.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    print(f"{path.relative_to(root)}: {len(weight)} rows")


if __name__ == "__main__":
    main()
