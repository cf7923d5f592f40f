#!/usr/bin/env python3
"""Makes the tiny DFlash, DSpark and P-EAGLE drafters and their golden logits of tests/golden/heads with PyTorch.

Requirements (PyPI): torch, safetensors.
Usage: python tools/make_dflash_golden.py [output folder, default tests/golden/heads]

The drafter is written down here from its published description, independently of the engine: keys and values of the
text and of the block are made in one go, for every layer, and put side by side. The target is tests/golden/heads/target.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from make_head_golden import (CHAIN, DRAFT_VOCAB, EPS, HEAD_DIM, HEADS, KV_HEADS, TARGET_LAYERS, VOCAB, WIDTH, Eagle3, Target, attend,
                              cell_config, feed_forward, generator, linear, random_layer, random_matrix, random_norm,
                              rms_norm, rotate, write)

BASE, BLOCK, MASK, RANK, LAYERS, WINDOW = 20000.0, 5, 39, 4, 3, 7


class DFlash:
    """speculators: a nested configuration and EAGLE's layer ids. sliding: layers with a window, causal in the block."""

    def __init__(self, seed, speculators=False, markov=False, sliding=(), own_head=False):
        gen = generator(seed)
        self.markov, self.sliding, self.anchor = markov, sliding, markov
        self.features = [2, 4, TARGET_LAYERS]  # inputs of these layers
        self.files = {"fc.weight": random_matrix(gen, WIDTH, WIDTH * len(self.features)),
                      "hidden_norm.weight": random_norm(gen, WIDTH), "norm.weight": random_norm(gen, WIDTH)}
        for i in range(LAYERS):
            self.files.update(random_layer(gen, f"layers.{i}", WIDTH, True))
            for part in ("q", "k"):
                self.files[f"layers.{i}.self_attn.{part}_norm.weight"] = random_norm(gen, HEAD_DIM)
        if markov:
            self.files["markov_head.markov_w1.weight"] = torch.randn(VOCAB, RANK, generator=gen)
            self.files["markov_head.markov_w2.weight"] = torch.randn(VOCAB, RANK, generator=gen)
            self.files["confidence_head.proj.weight"] = torch.randn(1, WIDTH + RANK, generator=gen)
        cell = dict(cell_config(), model_type="qwen3", num_hidden_layers=LAYERS, rope_theta=BASE)
        if sliding:
            cell["layer_types"] = ["sliding_attention" if i in sliding else "full_attention" for i in range(LAYERS)]
            cell["sliding_window"] = WINDOW
        if own_head:
            ids = torch.randperm(VOCAB, generator=gen)[:DRAFT_VOCAB].sort().values
            self.files["lm_head.weight"] = random_matrix(gen, DRAFT_VOCAB, WIDTH)
            self.files["d2t"] = ids - torch.arange(DRAFT_VOCAB)
        if speculators:
            self.config = dict(speculators_model_type="dspark" if markov else "dflash", transformer_layer_config=cell,
                               aux_hidden_state_layer_ids=self.features, block_size=BLOCK, mask_token_id=MASK)
            if own_head:
                self.config["draft_vocab_size"] = DRAFT_VOCAB
            if markov:
                self.config.update(markov_rank=RANK, sample_from_anchor=True)
        else:
            self.config = dict(cell, architectures=["DFlashDraftModel"], block_size=BLOCK, dflash_config=dict(
                mask_token_id=MASK, target_layer_ids=[i - 1 for i in self.features]))

    def logits(self, target, taps, pending):
        """taps: [features, rows, width]. One row for each token that the block predicts, without DSpark's bias."""
        w = {k: v.double() for k, v in self.files.items()}
        context = rms_norm(linear(torch.cat(list(taps), -1), w, "fc"), w["hidden_norm.weight"], EPS)
        x = target.embedding[torch.tensor([pending] + [MASK] * (BLOCK - 1))]
        rows = len(context)
        positions = torch.arange(rows + BLOCK)
        for i in range(LAYERS):
            attn = f"layers.{i}.self_attn"
            h = rms_norm(x, w[f"layers.{i}.input_layernorm.weight"], EPS)
            both = torch.cat([context, h])

            def heads(part, inputs, count, at):
                out = linear(inputs, w, f"{attn}.{part}_proj").view(len(inputs), count, -1)
                return out if part == "v" else rotate(rms_norm(out, w[f"{attn}.{part}_norm.weight"], EPS), at, BASE)

            mask = torch.ones(BLOCK, rows + BLOCK, dtype=torch.bool)
            if i in self.sliding:
                gap = positions[rows:, None] - positions[None, :]
                mask = (gap >= 0) & (gap < WINDOW)
            x = x + linear(attend(heads("q", h, HEADS, positions[rows:]), heads("k", both, KV_HEADS, positions),
                                  heads("v", both, KV_HEADS, positions), mask), w, f"{attn}.o_proj")
            x = x + feed_forward(w, f"layers.{i}.mlp",
                                 rms_norm(x, w[f"layers.{i}.post_attention_layernorm.weight"], EPS))
        after = rms_norm(x, w["norm.weight"], EPS)
        return (after if self.anchor else after[1:]) @ w.get("lm_head.weight", target.head).T

    def bias(self, tokens):
        w = {k: v.double() for k, v in self.files.items()}
        return w["markov_head.markov_w1.weight"][tokens] @ w["markov_head.markov_w2.weight"].T


def golden(head, target, seed):
    gen = generator(seed)
    taps = torch.randn(len(head.features), CHAIN, WIDTH, generator=gen).double()
    pending = int(torch.randint(0, VOCAB, (1,), generator=gen))
    i32 = lambda x: torch.as_tensor(x, dtype=torch.int32)
    logits = head.logits(target, taps, pending)
    out = {"features": i32(head.features), "taps": taps.float(), "pending": i32([pending]), "logits": logits.float()}
    if head.markov:  # nodes: which level of the block follows them, and their tokens
        levels, tokens = torch.tensor([0, 1, 1, 4, 2]), torch.randint(0, VOCAB, (5,), generator=gen)
        out.update(levels=i32(levels), tokens=i32(tokens), node_logits=(logits[levels] + head.bias(tokens)).float())
    return out


def parallel_head():
    """P-EAGLE: an EAGLE-3 head with a token and a state that stand for what is not known yet."""
    head = Eagle3(95, {"ptd_token_id": MASK}, layers=2, layer="layers.0", own_embedding=True)
    head.files["mask_hidden"] = torch.randn(1, WIDTH * len(head.features), generator=generator(96))
    return head


def parallel_golden(head, target, seed):
    """Logits after a text, of the token behind it and of those further on, from one causal pass."""
    gen = generator(seed)
    taps = torch.randn(len(head.features), CHAIN, WIDTH, generator=gen).double()
    tokens = torch.randint(0, VOCAB, (CHAIN,), generator=gen)
    masks = head.files["mask_hidden"].double().view(len(head.features), 1, WIDTH).repeat(1, BLOCK - 1, 1)
    states = head.fuse(target, torch.cat([taps, masks], 1))
    rows = CHAIN + BLOCK - 1
    logits, _ = head.cell(target, torch.cat([tokens, torch.full((BLOCK - 1,), MASK)]), states, torch.arange(rows),
                          torch.tril(torch.ones(rows, rows, dtype=torch.bool)))
    return {"taps": taps.float(), "tokens": tokens.int(), "logits": logits[CHAIN - 1:].float()}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "tests/golden/heads")
    heads = {"dflash": DFlash(91), "dflash-sliding": DFlash(92, sliding=(0, 2)),
             "dflash-speculators": DFlash(93, speculators=True, own_head=True),
             "dspark": DFlash(94, speculators=True, markov=True)}
    for seed, (name, head) in enumerate(heads.items(), 600):
        write(out / name, head.config, head.files)
        save_file(golden(head, Target(), seed), str(out / name / "golden.safetensors"))
    head = parallel_head()
    write(out / "p-eagle", head.config, head.files)
    save_file(parallel_golden(head, Target(), 650), str(out / "p-eagle/golden.safetensors"))


if __name__ == "__main__":
    main()
