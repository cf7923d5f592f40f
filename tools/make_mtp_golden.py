#!/usr/bin/env python3
"""Makes the tiny models with MTP blocks and their golden logits of tests/golden/heads with PyTorch.

Requirements (PyPI): torch, safetensors.
Usage: python tools/make_mtp_golden.py [output folder, default tests/golden/heads]

Blocks are written down here as DeepSeek-V3's report describes them, independently of the engine and of how it lays out
cells: block k at position i joins the state h_k[i] (h_0: the target's, behind its final norm) with the embedding of token
i + k + 1 and predicts token i + k + 2; h_(k+1)[i] is what it gives, behind its own final norm. The report does not name
the norms; engines that run the published weights take both states behind them (src/model/heads/eagle.cc names these). Where i is before the text the state is zero. Nodes
of a tree deeper than there are blocks go through the last block again, which reads its own states then.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from make_head_golden import (CHAIN, HEAD_DIM, HEADS, KV_HEADS, PARENTS, TARGET_EPS, TARGET_LAYERS, VOCAB, WIDTH, attend,
                              cell_config, feed_forward, generator, linear, random_layer, random_matrix, random_norm,
                              rms_norm, rotate, write)

BASE = 30000.0
DEEPSEEK = dict(input="eh_proj", token="enorm", state="hnorm", final="shared_head.norm")
MIMO = dict(input="input_proj", token="token_layernorm", state="hidden_layernorm", final="final_layernorm")


class Model:
    """names: of a block's own parts; prefix(k): of block k; state_first: order of its input."""

    def __init__(self, seed, architecture, blocks, names, prefix, state_first, bias=False, qk_norm=False, own_head=False):
        gen = generator(seed)
        self.blocks, self.names, self.prefix, self.state_first = blocks, names, prefix, state_first
        self.files = {"model.embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=gen),
                      "model.norm.weight": random_norm(gen, WIDTH),
                      "lm_head.weight": random_matrix(gen, VOCAB, WIDTH)}
        layers = [f"model.layers.{i}" for i in range(TARGET_LAYERS)] + [prefix(k) for k in range(blocks)]
        for name in layers:
            self.files.update(random_layer(gen, name, WIDTH, True, bias=bias))
            if qk_norm:
                for part in ("q", "k"):
                    self.files[f"{name}.self_attn.{part}_norm.weight"] = random_norm(gen, HEAD_DIM)
        for k in range(blocks):
            self.files[f"{prefix(k)}.{names['input']}.weight"] = random_matrix(gen, WIDTH, 2 * WIDTH)
            for part in ("token", "state", "final"):
                self.files[f"{prefix(k)}.{names[part]}.weight"] = random_norm(gen, WIDTH)
            if own_head:
                self.files[f"{prefix(k)}.embed_tokens.weight"] = torch.randn(VOCAB, WIDTH, generator=generator(5))
                self.files[f"{prefix(k)}.shared_head.head.weight"] = random_matrix(generator(6), VOCAB, WIDTH)
        self.config = dict(cell_config(), architectures=[architecture], num_hidden_layers=TARGET_LAYERS,
                           rms_norm_eps=TARGET_EPS, rope_theta=BASE, max_position_embeddings=256, attention_bias=bias,
                           num_nextn_predict_layers=blocks, tie_word_embeddings=False)
        del self.config["model_type"]

    def weights(self):
        return {k: v.double() for k, v in self.files.items()}

    def block(self, k, states, tokens):
        """All rows of block k, causal; returns (what it gives, logits)."""
        w, name = self.weights(), self.prefix(k)
        own = f"{self.prefix(0)}.embed_tokens.weight"
        e = rms_norm(w.get(own, w["model.embed_tokens.weight"])[tokens], w[f"{name}.{self.names['token']}.weight"],
                     TARGET_EPS)
        h = rms_norm(states, w[f"{name}.{self.names['state']}.weight"], TARGET_EPS)
        x = linear(torch.cat([h, e] if self.state_first else [e, h], -1), w, f"{name}.{self.names['input']}")
        positions, attn = torch.arange(len(x)), f"{name}.self_attn"
        normed = rms_norm(x, w[f"{name}.input_layernorm.weight"], TARGET_EPS)

        def heads(part, count):
            out = linear(normed, w, f"{attn}.{part}_proj").view(len(x), count, -1)
            norm = f"{attn}.{part}_norm.weight"
            out = rms_norm(out, w[norm], TARGET_EPS) if norm in w else out
            return out if part == "v" else rotate(out, positions, BASE)

        mask = torch.tril(torch.ones(len(x), len(x), dtype=torch.bool))
        x = x + linear(attend(heads("q", HEADS), heads("k", KV_HEADS), heads("v", KV_HEADS), mask), w, f"{attn}.o_proj")
        x = x + feed_forward(w, f"{name}.mlp",
                             rms_norm(x, w[f"{name}.post_attention_layernorm.weight"], TARGET_EPS))
        after = rms_norm(x, w[f"{name}.{self.names['final']}.weight"], TARGET_EPS)
        head = w.get(f"{self.prefix(0)}.shared_head.head.weight", w["lm_head.weight"])
        return after, after @ head.T

    def logits(self, states, text, path):
        """Behind text and a drafted path: what the block of its depth says after its last token."""
        tokens = torch.cat([text, path])
        given = states
        for k in range(min(len(path), self.blocks - 1) + 1):
            if k > 0:  # rows -k .. : one more zero state in front
                given = torch.cat([torch.zeros(1, WIDTH, dtype=torch.float64), given])
            count = min(len(given), len(text) - 1 + len(path))
            while True:
                out, logits = self.block(k, given[:count], tokens[1:1 + count])
                if k < self.blocks - 1 or count == len(text) - 1 + len(path):
                    break
                given = torch.cat([given[:count], out[-1:]])  # the last block again, on what it gave
                count += 1
            given = out
        return logits[-1]


def golden(model, seed):
    gen = generator(seed)
    taps = torch.randn(CHAIN, WIDTH, generator=gen).double()
    states = rms_norm(taps, model.weights()["model.norm.weight"], TARGET_EPS)
    tokens = torch.randint(0, VOCAB, (1 + CHAIN + len(PARENTS),), generator=gen)
    text, nodes = tokens[:1 + CHAIN], tokens[1 + CHAIN:]
    logits = [model.block(0, states, text[1:])[1]]
    for node in range(len(PARENTS)):
        path, at = [], node
        while at >= 0:
            path.insert(0, int(nodes[at]))
            at = PARENTS[at]
        logits.append(model.logits(states, text, torch.tensor(path))[None])
    i32 = lambda x: torch.as_tensor(x, dtype=torch.int32)
    return {"taps": taps.float(), "tokens": i32(tokens[1:]), "parents": i32(PARENTS), "logits": torch.cat(logits).float()}


def models():
    behind = lambda k: f"model.layers.{TARGET_LAYERS + k}"
    return {"mtp-mimo": Model(81, "MiMoForCausalLM", 1, MIMO, lambda k: f"model.mtp_layers.{k}", True, bias=True),
            "mtp-deepseek": Model(82, "LlamaForCausalLM", 1, DEEPSEEK, behind, False, own_head=True),
            "mtp-three-blocks": Model(83, "Qwen3ForCausalLM", 3, DEEPSEEK, behind, False, qk_norm=True)}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "tests/golden/heads")
    for seed, (name, model) in enumerate(models().items(), 500):
        write(out / name, model.config, model.files)
        save_file(golden(model, seed), str(out / name / "golden.safetensors"))


if __name__ == "__main__":
    main()
