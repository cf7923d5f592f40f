"""The GGUF block formats Q4_0 and Q8_0 simulated in PyTorch: blocks of 32 values along the input dimension, one
16-bit scale each. Used while training (gradients pass straight through) and in the evaluation."""
import torch

BITS = {"q4_0": 4.5, "q8_0": 8.5, None: 16.0}  # per value, scales included; unquantised: bf16


def q4_0(weight):
    """the value of largest magnitude of a block becomes -8 steps; values are -8..7 steps"""
    blocks = weight.float().reshape(-1, 32)
    extreme = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    step = extreme / -8
    inverse = torch.where(step == 0, 0.0, 1 / step)
    levels = (blocks * inverse + 8.5).floor().clamp(0, 15) - 8
    return (levels * step.half().float()).reshape(weight.shape).to(weight.dtype)


def q8_0(weight):
    blocks = weight.float().reshape(-1, 32)
    step = blocks.abs().amax(1, keepdim=True) / 127
    inverse = torch.where(step == 0, 0.0, 1 / step)
    return ((blocks * inverse).round() * step.half().float()).reshape(weight.shape).to(weight.dtype)


FORMATS = {"q4_0": q4_0, "q8_0": q8_0}


def simulate(weight, kind):
    """weight as it is after quantising and reading back; the gradient is that of the identity"""
    if kind is None:
        return weight
    with torch.no_grad():
        change = FORMATS[kind](weight) - weight
    return weight + change
