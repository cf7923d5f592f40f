#!/usr/bin/env python3
"""Makes the tiny draft heads and their golden activations of tests/golden/heads with PyTorch.

Requirements (PyPI): torch, safetensors.
Usage: python tools/make_head_golden.py [output folder, default tests/golden/heads]

The cells are written down here from their published descriptions, independently of the engine: plain functions over a
dictionary of weights, computed in float64 from float32 weights, full attention with an explicit mask. Weights are
random (fixed seeds) and wide enough that a forgotten norm or a swapped half moves the logits visibly.
What the files hold is described in tests/golden/heads/README.md.
"""
import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, DRAFT_VOCAB = 8, 2, 1, 8, 12, 40, 24
TARGET_LAYERS, CHAIN = 7, 12
TARGET_BASE, WINDOW = 50000.0, 5  # the target's RoPE; how far LongSpec's drafter looks back
PARENTS = [-1, -1, 0, 0, 1, 2, 4]  # of the tree behind the chain, numbered level by level
EPS, TARGET_EPS = 1e-5, 1e-3       # far apart, so that the wrong one shows


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_matrix(gen, rows, columns, gain=1.5):
    return torch.randn(rows, columns, generator=gen) * (gain / columns) ** 0.5


def random_norm(gen, size):
    return 1 + 0.3 * torch.randn(size, generator=gen)


def random_layer(gen, name, inputs, input_norm, hidden_norm=False, bias=False, cell=None):
    """Weights of a Llama layer whose attention reads `inputs` numbers; cell: its config where sizes are not ours."""
    cell = cell or cell_config()
    width, ffn = cell["hidden_size"], cell["intermediate_size"]
    q, kv = HEADS * cell["head_dim"], KV_HEADS * cell["head_dim"]
    out = {
        f"{name}.self_attn.q_proj.weight": random_matrix(gen, q, inputs, 3),
        f"{name}.self_attn.k_proj.weight": random_matrix(gen, kv, inputs, 3),
        f"{name}.self_attn.v_proj.weight": random_matrix(gen, kv, inputs),
        f"{name}.self_attn.o_proj.weight": random_matrix(gen, width, q),
        f"{name}.mlp.gate_proj.weight": random_matrix(gen, ffn, width),
        f"{name}.mlp.up_proj.weight": random_matrix(gen, ffn, width),
        f"{name}.mlp.down_proj.weight": random_matrix(gen, width, ffn),
        f"{name}.post_attention_layernorm.weight": random_norm(gen, width),
    }
    if input_norm:
        out[f"{name}.input_layernorm.weight"] = random_norm(gen, width)
    if hidden_norm:
        out[f"{name}.hidden_norm.weight"] = random_norm(gen, width)
    if bias:
        for part, size in (("q", q), ("k", kv), ("v", kv)):
            out[f"{name}.self_attn.{part}_proj.bias"] = 0.3 * torch.randn(size, generator=gen)
    return out


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def linear(x, w, name):
    out = x @ w[name + ".weight"].T
    return out + w[name + ".bias"] if name + ".bias" in w else out


def rotate(x, positions, base):
    """x: [rows, heads, dim]; halves i and i + dim/2 rotate together by position * base^(-2i/dim)."""
    half = x.shape[-1] // 2
    angle = positions[:, None].double() * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def queries(w, name, x, positions, base):
    return rotate(linear(x, w, f"{name}.q_proj").view(len(x), HEADS, -1), positions, base)


def cells(w, name, x, positions, base):
    """Rotated keys and values, [rows, kv heads, dim]."""
    k = linear(x, w, f"{name}.k_proj").view(len(x), KV_HEADS, -1)
    return rotate(k, positions, base), linear(x, w, f"{name}.v_proj").view(len(x), KV_HEADS, -1)


def attend(q, k, v, mask):
    k, v = k.repeat_interleave(HEADS // KV_HEADS, 1), v.repeat_interleave(HEADS // KV_HEADS, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(len(q), -1)


def feed_forward(w, name, h):
    gate, up = linear(h, w, f"{name}.gate_proj"), linear(h, w, f"{name}.up_proj")
    return linear(torch.nn.functional.silu(gate) * up, w, f"{name}.down_proj")


def llama_layer(w, name, x, attention_input, positions, mask, base, eps=EPS):
    """x: residual stream [rows, width]; mask[i, j]: row i sees row j."""
    attn = f"{name}.self_attn"
    k, v = cells(w, attn, attention_input, positions, base)
    x = x + linear(attend(queries(w, attn, attention_input, positions, base), k, v, mask), w, f"{attn}.o_proj")
    return x + feed_forward(w, f"{name}.mlp", rms_norm(x, w[f"{name}.post_attention_layernorm.weight"], eps))


class Target:
    """The few parts of a target that heads share, and a folder that the engine opens as a model."""

    def __init__(self):
        gen = generator(7)
        self.files = {"model.embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=gen),
                      "model.norm.weight": random_norm(gen, WIDTH),
                      "lm_head.weight": random_matrix(gen, VOCAB, WIDTH)}
        for i in range(TARGET_LAYERS):
            self.files.update(random_layer(gen, f"model.layers.{i}", WIDTH, True))
        self.embedding = self.files["model.embed_tokens.weight"].double()
        self.norm = self.files["model.norm.weight"].double()
        self.head = self.files["lm_head.weight"].double()

    def last_cells(self, tokens):
        """Keys and values that its last layer leaves of a text."""
        w = {k.removeprefix("model."): v.double() for k, v in self.files.items()}
        positions = torch.arange(len(tokens))
        mask = torch.tril(torch.ones(len(tokens), len(tokens), dtype=torch.bool))
        x = self.embedding[tokens]
        for i in range(TARGET_LAYERS):
            normed = rms_norm(x, w[f"layers.{i}.input_layernorm.weight"], TARGET_EPS)
            if i == TARGET_LAYERS - 1:
                return cells(w, f"layers.{i}.self_attn", normed, positions, TARGET_BASE)
            x = llama_layer(w, f"layers.{i}", x, normed, positions, mask, TARGET_BASE, TARGET_EPS)

    def save(self, folder):
        config = dict(cell_config(), architectures=["LlamaForCausalLM"], num_hidden_layers=TARGET_LAYERS,
                      rms_norm_eps=TARGET_EPS, rope_theta=TARGET_BASE, max_position_embeddings=256)
        write(folder, config, self.files)


def cell_config():
    return dict(model_type="llama", hidden_size=WIDTH, intermediate_size=FFN, num_attention_heads=HEADS,
                num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB, rms_norm_eps=EPS, hidden_act="silu",
                num_hidden_layers=1, max_position_embeddings=64)


def write(folder, config, tensors, metadata=None):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
    path = folder / "model.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(path), metadata)
    if metadata:  # comes in another order each time
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header["__metadata__"] = dict(sorted(metadata.items()))
        text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
        assert len(text) == size
        path.write_bytes(data[:8] + text + data[8 + size:])


def store(head, dtype):
    """Rounds a head's weights to a 16-bit type; its golden is then computed from the rounded ones."""
    head.files = {k: v.to(dtype) if v.dtype == torch.float32 else v for k, v in head.files.items()}
    if isinstance(head, Medusa):
        head.weights = {k: v.to(dtype) for k, v in head.weights.items()}
    return head


def q8_0(head):
    """Rounds a head's matrices to blocks of 32 (a half-precision step, 32 bytes) and keeps the blocks for its file."""
    head.blocks, head.metadata = {}, {}
    for name, weight in head.files.items():
        if weight.dim() != 2:
            continue
        blocks = weight.reshape(-1, 32)
        step = (blocks.abs().amax(1, keepdim=True) / 127).half()
        levels = (blocks / step.float()).round().clamp(-127, 127)
        head.files[name] = (levels * step.float()).reshape(weight.shape)
        head.blocks[name] = torch.cat([step.view(torch.uint8), levels.to(torch.int8).view(torch.uint8)], 1).flatten()
        head.metadata.update({name: "q8_0", name + ".shape": f"{weight.shape[0]},{weight.shape[1]}"})
    return head


class Eagle1:
    def __init__(self, seed, bias, layers=1, own_head=False):
        gen = generator(seed)
        self.layers = layers
        self.files = random_layer(gen, "layers.0", WIDTH, False)
        self.files["fc.weight"] = random_matrix(gen, WIDTH, 2 * WIDTH)
        self.files["embed_tokens.weight"] = torch.randn(VOCAB, WIDTH, generator=gen)
        if bias:
            self.files["fc.bias"] = torch.randn(WIDTH, generator=gen)
        for i in range(1, layers):
            self.files.update(random_layer(gen, f"layers.{i}", WIDTH, True))
        if own_head:
            self.files["lm_head.weight"] = random_matrix(gen, VOCAB, WIDTH)
        self.config = dict(cell_config(), architectures=["LlamaForCausalLM"], rope_theta=20000.0, bias=bias,
                           num_hidden_layers=layers)
        self.base, self.features = 20000.0, [TARGET_LAYERS]

    def fuse(self, target, taps):
        return rms_norm(taps[0], target.norm, TARGET_EPS)

    def cell(self, target, tokens, states, positions, mask):
        w = {k: v.double() for k, v in self.files.items()}
        x = linear(torch.cat([w["embed_tokens.weight"][tokens], states], -1), w, "fc")
        x = llama_layer(w, "layers.0", x, x, positions, mask, self.base)
        for i in range(1, self.layers):
            normed = rms_norm(x, w[f"layers.{i}.input_layernorm.weight"], EPS)
            x = llama_layer(w, f"layers.{i}", x, normed, positions, mask, self.base)
        return x @ w.get("lm_head.weight", target.head).T, x


class Eagle3:
    """Options: layer (name of layer 0), own_embedding, shared_head, before_residual, before_fc, fc_norm, norm_output,
    layers, bias, features (default: none in the config), base (default: none in the config), cell (its own sizes)."""

    def __init__(self, seed, config=None, nested=False, **options):
        gen = generator(seed)
        self.options = options
        self.name = options.get("layer", "midlayer")
        self.features = options.get("features", [2, TARGET_LAYERS // 2, TARGET_LAYERS - 3])
        inputs = WIDTH * len(self.features)
        cell = dict(cell_config(), **options.get("cell", {}))
        width = cell["hidden_size"]
        self.files = random_layer(gen, self.name, 2 * width, True, True, options.get("bias", False), cell)
        for i in range(1, options.get("layers", 1)):
            self.files.update(random_layer(gen, f"layers.{i}", width, True, False, options.get("bias", False), cell))
        self.files["fc.weight"] = random_matrix(gen, width, inputs)
        self.files["norm.weight"] = random_norm(gen, width)
        if not options.get("shared_head"):
            self.files["lm_head.weight"] = random_matrix(gen, DRAFT_VOCAB, width)
            ids = torch.randperm(VOCAB, generator=gen)[:DRAFT_VOCAB].sort().values
            self.files["d2t"] = ids - torch.arange(DRAFT_VOCAB)
            self.files["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).scatter_(0, ids, True)
        if options.get("own_embedding"):
            self.files["embed_tokens.weight"] = torch.randn(VOCAB, width, generator=gen)
        if options.get("before_fc"):
            self.files["input_norm.weight"] = random_norm(gen, inputs)
        if options.get("fc_norm"):
            for i in range(len(self.features)):
                self.files[f"fc_norm.{i}.weight"] = random_norm(gen, WIDTH)
        self.base = options.get("base", 10000.0)
        cell["num_hidden_layers"] = options.get("layers", 1)
        cell["attention_bias"] = options.get("bias", False)
        if "base" in options:
            cell["rope_theta"] = self.base
        draft = {} if options.get("shared_head") else {"draft_vocab_size": DRAFT_VOCAB}
        if nested:
            self.config = dict(transformer_layer_config=cell, **draft)
        else:
            self.config = dict(cell, **draft)
        self.config.update(config or {})

    def fuse(self, target, taps):
        w = {k: v.double() for k, v in self.files.items()}
        if self.options.get("fc_norm"):
            taps = [rms_norm(tap, w[f"fc_norm.{i}.weight"], EPS) for i, tap in enumerate(taps)]
        all_taps = torch.cat(list(taps), -1)
        if self.options.get("before_fc"):
            all_taps = rms_norm(all_taps, w["input_norm.weight"], EPS)
        return linear(all_taps, w, "fc")

    def cell(self, target, tokens, states, positions, mask):
        w = {k: v.double() for k, v in self.files.items()}
        embedding = w["embed_tokens.weight"] if self.options.get("own_embedding") else target.embedding
        e = rms_norm(embedding[tokens], w[f"{self.name}.input_layernorm.weight"], EPS)
        h = rms_norm(states, w[f"{self.name}.hidden_norm.weight"], EPS)
        x = h if self.options.get("before_residual") else states
        x = llama_layer(w, self.name, x, torch.cat([e, h], -1), positions, mask, self.base)
        for i in range(1, self.options.get("layers", 1)):
            normed = rms_norm(x, w[f"layers.{i}.input_layernorm.weight"], EPS)
            x = llama_layer(w, f"layers.{i}", x, normed, positions, mask, self.base)
        after = rms_norm(x, w["norm.weight"], EPS)
        head = target.head if self.options.get("shared_head") else w["lm_head.weight"]
        return after @ head.T, after if self.options.get("norm_output") else x


class Medusa:
    def __init__(self, seed, heads, layers, names, bias=True, mapped=False, shared=False, config=None):
        gen = generator(seed)
        self.heads, self.layers, self.shared = heads, layers, shared
        rows = DRAFT_VOCAB if mapped else VOCAB
        self.weights, self.files = {}, {}
        for h in range(heads):
            for j in range(layers):
                self.weights[f"{h}.{j}.linear.weight"] = random_matrix(gen, WIDTH, WIDTH, 4)
                if bias:
                    self.weights[f"{h}.{j}.linear.bias"] = 0.5 * torch.randn(WIDTH, generator=gen)
            if h == 0 or not shared:
                self.weights[f"{h}.{layers}.weight"] = random_matrix(gen, rows, WIDTH)
        for name, value in self.weights.items():
            h, j, *part = name.split(".")
            vllm = f"lm_heads.{h}.weight" if part == ["weight"] else f"blocks.{h}.layers.{j}.{part[-1]}"
            self.files[{"official": name, "merged": "medusa_head." + name, "vllm": vllm}[names]] = value
        if mapped:
            self.files["token_map"] = torch.randperm(VOCAB, generator=gen)[:rows]
        if names == "merged":  # the base model's own tensors lie beside the heads
            self.files["model.norm.weight"] = random_norm(gen, WIDTH)
        self.config = config

    def forward(self, target, states):
        """[rows, heads, vocabulary]"""
        out = []
        normed = rms_norm(states, target.norm, TARGET_EPS)
        w = {k: v.double() for k, v in self.weights.items()}
        for h in range(self.heads):
            x = normed
            for j in range(self.layers):
                x = x + torch.nn.functional.silu(linear(x, w, f"{h}.{j}.linear"))
            out.append(x @ w[f"{0 if self.shared else h}.{self.layers}.weight"].T)
        return torch.stack(out, 1)


class LongSpec:
    """The last token of the chain is pending: the target has cells of those before it, which all rows of the draft see."""

    def __init__(self, seed, prefix="", bias=False, own_head=False):
        gen = generator(seed)
        q = HEADS * HEAD_DIM
        layer = random_layer(gen, "x", WIDTH, True, bias=bias)
        layer["x.post_cross_attention_layernorm.weight"] = layer.pop("x.post_attention_layernorm.weight")
        layer["x.post_self_attention_layernorm.weight"] = random_norm(gen, WIDTH)
        layer["x.cross_attn.q_proj.weight"] = random_matrix(gen, q, WIDTH, 3)
        layer["x.cross_attn.o_proj.weight"] = random_matrix(gen, WIDTH, q)
        if bias:
            layer["x.cross_attn.q_proj.bias"] = 0.3 * torch.randn(q, generator=gen)
        self.weights = {k.removeprefix("x."): v for k, v in layer.items()}
        self.files = {prefix + k: v for k, v in self.weights.items()}
        for part in ("k", "v"):  # published files have them, nobody reads them
            self.files[f"{prefix}cross_attn.{part}_proj.weight"] = random_matrix(gen, KV_HEADS * HEAD_DIM, WIDTH)
        if prefix:  # the target's own tensors lie beside the head
            self.files["model.norm.weight"] = random_norm(gen, WIDTH)
        self.config = dict(cell_config(), architectures=["LlamaForCausalLM"], num_hidden_layers=TARGET_LAYERS,
                           rope_theta=TARGET_BASE, longspec_window=WINDOW)
        if own_head:
            ids = torch.randperm(VOCAB, generator=gen)[:DRAFT_VOCAB].sort().values
            self.weights["lm_head.weight"] = self.files["lm_head.weight"] = random_matrix(gen, DRAFT_VOCAB, WIDTH)
            self.files["d2t"] = ids - torch.arange(DRAFT_VOCAB)
            self.config["draft_vocab_size"] = DRAFT_VOCAB

    def forward(self, target, tokens, positions, mask, k, v):
        w = {name: weight.double() for name, weight in self.weights.items()}
        x = target.embedding[tokens]
        h = rms_norm(x, w["input_layernorm.weight"], EPS)
        own_k, own_v = cells(w, "self_attn", h, positions, TARGET_BASE)
        q = queries(w, "self_attn", h, positions, TARGET_BASE)
        x = x + linear(attend(q, own_k, own_v, mask), w, "self_attn.o_proj")
        q = queries(w, "cross_attn", rms_norm(x, w["post_self_attention_layernorm.weight"], EPS), positions, TARGET_BASE)
        x = x + linear(attend(q, k, v, torch.ones(len(x), len(k), dtype=torch.bool)), w, "cross_attn.o_proj")
        x = x + feed_forward(w, "mlp", rms_norm(x, w["post_cross_attention_layernorm.weight"], EPS))
        return x @ w.get("lm_head.weight", target.head).T


def longspec_heads():
    return {"longspec": LongSpec(71), "longspec-merged": LongSpec(72, "glide.", True),
            "longspec-own-head": LongSpec(73, own_head=True)}


def longspec_golden(head, target, seed):
    gen = generator(seed)
    tokens = torch.randint(0, VOCAB, (CHAIN + len(PARENTS),), generator=gen)
    positions = torch.tensor(list(range(CHAIN)) + [CHAIN + d for d in tree_depths()])
    mask = tree_mask() & (positions[:, None] - positions[None, :] < WINDOW)
    k, v = target.last_cells(tokens[:CHAIN - 1])
    logits = head.forward(target, tokens, positions, mask, k, v)
    i32 = lambda x: torch.as_tensor(x, dtype=torch.int32)
    golden = {"tokens": i32(tokens), "positions": i32(positions), "parents": i32(PARENTS),
              "logits": logits[CHAIN - 1:].float()}
    if "d2t" in head.files:
        golden["token_map"] = i32(head.files["d2t"] + torch.arange(DRAFT_VOCAB))
    return golden


def eagle3_heads():
    speculators = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
    official, eagle3 = {"architectures": ["LlamaForCausalLM"]}, {"architectures": ["LlamaForCausalLMEagle3"]}
    ids = "eagle_aux_hidden_state_layer_ids"
    return {
        "eagle3": Eagle3(11, official),
        "eagle3-speculators": Eagle3(12, dict(speculators, norm_before_residual=False, **{ids: [1, 4, 7]}), nested=True,
                                     layer="layers.0", features=[1, 4, 7], base=500000.0),
        # A speculators file that leaves norm_before_residual out means true.
        "eagle3-speculators-default": Eagle3(13, speculators, nested=True, layer="layers.0", before_residual=True),
        "eagle3-before-residual": Eagle3(14, dict(eagle3, norm_before_residual=True), before_residual=True),
        "eagle3-before-fc": Eagle3(15, {"eagle_config": {"use_aux_hidden_state": True, "norm_before_fc": True,
                                                         ids: [3, 5]}}, before_fc=True, features=[3, 5]),
        "eagle31": Eagle3(16, {"fc_norm": True, "norm_output": True, "num_aux_hidden_states": 3}, fc_norm=True,
                          norm_output=True),
        "eagle3-own-embedding": Eagle3(17, {"eagle_aux_hidden_state_layer_inputs": [0, 3, 6]}, own_embedding=True,
                                       features=[0, 3, 6], base=1000.0),
        "eagle3-shared-head": Eagle3(18, eagle3, shared_head=True),
        "eagle3-two-layers": Eagle3(19, official, layers=2, layer="layers.0", bias=True),
    }


def other_heads():
    medusa = {"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "target"}
    return {
        "eagle1": Eagle1(31, False),
        "eagle1-bias": Eagle1(32, True),
        "medusa": Medusa(41, 3, 1, "official", config=dict(medusa, medusa_num_heads=2)),  # too small, as published ones
        "medusa-merged": Medusa(42, 2, 2, "merged", config=dict(medusa, medusa_num_heads=2, medusa_num_layers=2)),
        "medusa-vllm": Medusa(43, 3, 1, "vllm", mapped=True, bias=False,
                              config=dict(model_type="medusa", hidden_size=WIDTH, vocab_size=VOCAB)),
        "medusa-shared": Medusa(44, 3, 1, "vllm", shared=True, config={"model_type": "medusa"}),
    }


def stored_heads():
    """Own head, more layers or blocks; weights as they are stored."""
    medusa = dict(model_type="medusa", hidden_size=WIDTH, vocab_size=VOCAB)
    wide = dict(hidden_size=32, intermediate_size=64, head_dim=16)  # whole blocks of 32 in every row
    ids = [1, 3, 5, 7]
    return {
        "eagle1-own-head": Eagle1(51, True, own_head=True),
        "eagle1-three-layers": Eagle1(52, False, layers=3),
        "eagle1-f16": store(Eagle1(53, True), torch.float16),
        "eagle3-f16": store(Eagle3(54, {}), torch.float16),
        "eagle3-bf16": store(Eagle3(55, {}, layers=2, layer="layers.0", bias=True), torch.bfloat16),
        "eagle3-q8_0": q8_0(Eagle3(56, dict(target_hidden_size=WIDTH, eagle_aux_hidden_state_layer_ids=ids), cell=wide,
                                   features=ids, own_embedding=True)),
        "medusa-three-blocks": Medusa(57, 2, 3, "vllm", mapped=True, config=dict(medusa, medusa_num_layers=3)),
        "medusa-bf16": store(Medusa(58, 2, 1, "official", config=dict(medusa, medusa_num_heads=2)), torch.bfloat16),
    }


def tree_depths():
    depths = []
    for parent in PARENTS:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def tree_mask():
    """[chain + nodes] squared: the chain is causal, a node sees the chain and its ancestors."""
    total = CHAIN + len(PARENTS)
    mask = torch.tril(torch.ones(total, total, dtype=torch.bool))
    mask[CHAIN:, CHAIN:] = False
    for node in range(len(PARENTS)):
        at = node
        while at >= 0:
            mask[CHAIN + node, CHAIN + at] = True
            at = PARENTS[at]
    return mask


def eagle_golden(head, target, seed):
    gen = generator(seed)
    total = CHAIN + len(PARENTS)
    taps = 2 * torch.randn(len(head.features), CHAIN, WIDTH, generator=gen)
    tokens = torch.randint(0, VOCAB, (total,), generator=gen)
    positions = torch.tensor(list(range(CHAIN)) + [CHAIN + d for d in tree_depths()])
    mask = tree_mask()
    fused = head.fuse(target, taps.double())
    states = torch.zeros(total, fused.shape[-1], dtype=torch.float64)
    states[:CHAIN] = fused
    # Level by level: a node is fed with the state that its parent's row gave.
    for _ in range(1 + max(tree_depths()) + 1):
        logits, outputs = head.cell(target, tokens, states, positions, mask)
        for node, parent in enumerate(PARENTS):
            states[CHAIN + node] = outputs[CHAIN - 1 if parent < 0 else CHAIN + parent]
    i32 = lambda x: torch.as_tensor(x, dtype=torch.int32)
    golden = {"features": i32(head.features), "taps": taps, "tokens": i32(tokens), "positions": i32(positions),
              "parents": i32(PARENTS), "fused": fused.float(), "states": outputs.float(), "logits": logits.float()}
    if "d2t" in head.files:
        golden["token_map"] = i32(head.files["t2d"].nonzero().flatten())
    return golden


def medusa_golden(head, target, seed):
    states = 2 * torch.randn(5, WIDTH, generator=generator(seed))
    golden = {"states": states, "logits": head.forward(target, states.double()).float()}
    if "token_map" in head.files:
        golden["token_map"] = head.files["token_map"].int()
    return golden


def check_variants_matter(target):
    """Every switch must move the logits far beyond any tolerance, else its golden would prove nothing."""
    for switch in ("before_residual", "norm_output", "own_embedding"):
        on = Eagle3(60, {}, own_embedding=True, **({} if switch == "own_embedding" else {switch: True}))
        off = Eagle3(60, {}, own_embedding=switch != "own_embedding")
        off.files = on.files
        change = (eagle_golden(on, target, 61)["logits"] - eagle_golden(off, target, 61)["logits"]).abs().max().item()
        print(f"{switch}: logits change by up to {change:.2f}")
        assert change > 0.1, switch


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else
                Path(__file__).resolve().parent.parent / "tests" / "golden" / "heads")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    target = Target()
    target.save(root / "target")
    check_variants_matter(target)
    for number, (name, head) in enumerate({**eagle3_heads(), **other_heads(), **stored_heads(), **longspec_heads()}.items()):
        write(root / name, head.config, head.files | getattr(head, "blocks", {}), getattr(head, "metadata", None))
        make = {Medusa: medusa_golden, LongSpec: longspec_golden}.get(type(head), eagle_golden)
        golden = make(head, target, 100 + number)
        if name in ("eagle3-f16", "eagle3-bf16", "eagle3-q8_0"):
            golden["fc"] = head.files["fc.weight"].float()
        save_file({k: v.contiguous() for k, v in golden.items()}, str(root / name / "golden.safetensors"))
    for file in root.rglob("*"):
        if file.is_file():
            file.chmod(0o644)
    total = sum(f.stat().st_size for f in root.rglob("*") if f.is_file())
    print(f"{total / 1000:.0f} kB in {root}")


if __name__ == "__main__":
    main()
