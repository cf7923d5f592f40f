"""The target and its drafts: a small Llama, an EAGLE-3 head, Medusa heads and LongSpec's drafter. Every draft knows its
tensors by the names they have in the file, and how each of them is quantised when shipped.

B rows, T tokens, C hidden size, H query heads, K key/value heads, D head size, V vocabulary."""
import json
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import quantise
from fused import COMPUTE, DEVICE, HeadLoss, UnrolledAttention, compiled, penalised_words

LAYER = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
POSITIONS = 2048  # the drafts' trained length
EPS = 1e-5


def rms(x, weight):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def rope_tables(count, dim, theta, device=DEVICE):
    inverse = theta ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angle = torch.arange(count, device=device, dtype=torch.float32)[:, None] * inverse
    return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()  # [count, dim]


def rotate(x, cos, sin):
    h = x.float()
    a, b = h.chunk(2, -1)
    return (h * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def split_heads(x, heads):
    """[B, T, heads * D] -> [B, heads, T, D]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def read_config(folder):
    with open(f"{folder}/config.json") as f:
        return json.load(f)


# ---- target


def target_qkv(x, norm, w_qkv, cos, sin, heads, kv_heads):
    """[B, T, C] -> rotated q [B, H, T, D] and k [B, K, T, D], v"""
    dim = cos.shape[-1]
    q, k, v = F.linear(rms(x, norm), w_qkv).split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
    return rotate(split_heads(q, heads), cos, sin), rotate(split_heads(k, kv_heads), cos, sin), split_heads(v, kv_heads)


def target_rest(x, attended, w_o, norm, w_gate_up, w_down):
    x = x + F.linear(attended, w_o)
    gate, up = F.linear(rms(x, norm), w_gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, w_down)


fast_qkv, fast_rest = compiled(target_qkv), compiled(target_rest)


class Target:
    def __init__(self, folder):
        self.config = c = read_config(folder)
        self.layers, self.hidden, self.vocab = c["num_hidden_layers"], c["hidden_size"], c["vocab_size"]
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        file = load_file(f"{folder}/model.safetensors")
        get = lambda name: file[f"model.{name}.weight"].to(DEVICE, COMPUTE)
        self.embedding, self.norm = get("embed_tokens"), get("norm")
        self.head = file["lm_head.weight"].to(DEVICE, COMPUTE) if "lm_head.weight" in file else self.embedding
        self.weights = []
        for i in range(self.layers):
            n1, q, k, v, o, n2, gate, up, down = [get(f"layers.{i}.{name}") for name in LAYER]
            self.weights.append((n1, torch.cat([q, k, v]), o, n2, torch.cat([gate, up]), down))
        self.cos, self.sin = rope_tables(c["max_position_embeddings"], self.dim, c["rope_theta"])
        self.taps = [2, self.layers // 2, self.layers - 3]  # EAGLE-3 reads the inputs of these layers

    @torch.no_grad()
    def forward(self, ids, cache=None, row=0, fixed_shape=False, positions=None):
        """ids [B, T] -> normed hidden [B, T, C], taps [B, T, 3C], the last layer's cells (rotated keys, values
        [B, K, T, D]); cache: (keys, values) to fill from `row` on. positions [B, T]: other ones than 0..T-1.
        fixed_shape: use the compiled layer (worth it where the shape comes back often)."""
        rows, count = ids.shape
        qkv, rest = (fast_qkv, fast_rest) if fixed_shape else (target_qkv, target_rest)
        x = F.embedding(ids, self.embedding)
        cos, sin = (self.cos[:count], self.sin[:count]) if positions is None else self.rope(positions)
        taps = []
        for i, (n1, w_qkv, w_o, n2, w_gate_up, w_down) in enumerate(self.weights):
            if i in self.taps and cache is None:
                taps.append(x)
            q, k, v = qkv(x, n1, w_qkv, cos, sin, self.heads, self.kv_heads)
            if cache is not None:
                cache[0][i][row:row + rows, :, :count] = k
                cache[1][i][row:row + rows, :, :count] = v
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = rest(x, join_heads(a), w_o, n2, w_gate_up, w_down)
        return rms(x, self.norm), torch.cat(taps, -1) if taps else None, (k, v)

    def best(self, hidden):
        """[B, T, C] -> the argmax at each position [B * T]"""
        return torch.cat([(part @ self.head.T).argmax(-1) for part in hidden.flatten(0, 1).split(8192)])

    def rope(self, positions):
        """[B, T] -> cos, sin [B, 1, T, D]"""
        return self.cos[positions][:, None], self.sin[positions][:, None]

    @torch.no_grad()
    def step(self, tokens, at, cache):
        """one decoding step of all rows at position `at`: tokens [B] -> normed hidden [B, C]"""
        rows = tokens.shape[0]
        x = F.embedding(tokens, self.embedding)[:, None]
        cos, sin = self.cos[at:at + 1], self.sin[at:at + 1]
        for i, (n1, w_qkv, w_o, n2, w_gate_up, w_down) in enumerate(self.weights):
            q, k, v = fast_qkv(x, n1, w_qkv, cos, sin, self.heads, self.kv_heads)
            keys, values = cache[0][i], cache[1][i]
            keys[:, :, at:at + 1] = k
            values[:, :, at:at + 1] = v
            # the query heads that share a key head become query rows, so that keys are read once
            q = q.reshape(rows, self.kv_heads, self.heads // self.kv_heads, self.dim)
            a = F.scaled_dot_product_attention(q, keys[:, :, :at + 1], values[:, :, :at + 1])
            x = fast_rest(x, a.reshape(rows, 1, -1), w_o, n2, w_gate_up, w_down)
        return rms(x[:, 0], self.norm)

    def new_cache(self, rows, length):
        make = lambda: [torch.empty(rows, self.kv_heads, length, self.dim, device=DEVICE, dtype=COMPUTE)
                        for _ in range(self.layers)]
        return make(), make()


# ---- drafts


def every_place(ids):
    return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)


class Draft(nn.Module):
    """Named tensors in fp32; `quantised` turns on the simulated quantisation of `shipped` in weights()."""

    def __init__(self, config):
        super().__init__()
        self.config, self.names, self.tensors = config, {}, nn.ParameterList()
        self.constants = {}  # integer tensors of the file
        self.quantised = False
        self.penalised = False  # half of the rows are scored under a repeat penalty

    def add(self, name, tensor):
        self.names[name] = len(self.tensors)
        self.tensors.append(nn.Parameter(tensor.clone().float()))

    def __getitem__(self, name):
        return self.tensors[self.names[name]]

    def weights(self):
        """name -> tensor in the type of the computation"""
        kind = lambda name, t: self.shipped(name) if self.quantised and t.ndim == 2 else None
        return {name: quantise.simulate(self[name], kind(name, self[name])).to(COMPUTE) for name in self.names}

    def save(self, folder):
        os.makedirs(folder, exist_ok=True)
        file = {name: self[name].detach().to(torch.bfloat16).cpu().contiguous() for name in self.names}
        file.update({name: t.cpu().contiguous() for name, t in self.constants.items()})
        with open(f"{folder}/config.json", "w") as f:
            json.dump(self.config, f, indent=1)
        save_file(file, f"{folder}/model.safetensors.new", metadata={"format": "pt"})
        os.replace(f"{folder}/model.safetensors.new", f"{folder}/model.safetensors")  # a killed run leaves a whole file

    def start_from(self, folder):
        """take every tensor of the same name and shape from an earlier draft; -> names taken"""
        file = load_file(f"{folder}/model.safetensors")
        taken = [n for n in self.names if n in file and file[n].shape == self[n].shape]
        for name in taken:
            self[name].data.copy_(file[name])
        return taken, file


def llama_config(hidden, layers, heads, kv_heads, dim, ffn, vocab, **more):
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, intermediate_size=ffn, vocab_size=vocab,
        rms_norm_eps=EPS, rope_theta=10000.0, max_position_embeddings=POSITIONS, tie_word_embeddings=True,
        hidden_act="silu", bos_token_id=1, eos_token_id=2, pad_token_id=2, torch_dtype="bfloat16",
        attention_bias=False, mlp_bias=False, rope_scaling=None) | more


@compiled
def small_layer(x, n1, w_q, w_k, w_v, w_o, n2, w_gate, w_up, w_down, cos, sin, heads, kv_heads):
    y = rms(x, n1)
    q = rotate(split_heads(F.linear(y, w_q), heads), cos, sin)
    k = rotate(split_heads(F.linear(y, w_k), kv_heads), cos, sin).repeat_interleave(heads // kv_heads, 1)
    v = split_heads(F.linear(y, w_v), kv_heads).repeat_interleave(heads // kv_heads, 1)
    x = x + F.linear(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)), w_o)
    y = rms(x, n2)
    return x + F.linear(F.silu(F.linear(y, w_gate)) * F.linear(y, w_up), w_down)


class SmallDraft(Draft):
    """a plain Llama with tied embedding over the target's vocabulary"""
    folder = "small"
    embedding = "model.embed_tokens.weight"

    def __init__(self, target, hidden, layers, heads, kv_heads, ffn, dim=64):
        super().__init__(llama_config(hidden, layers, heads, kv_heads, dim, ffn, target.vocab))
        # best projection of the target's embedding to `hidden` dimensions, rows of length about 1
        wide = target.embedding.float()
        basis = torch.linalg.eigh((wide.T @ wide).double())[1][:, -hidden:].float()
        rows = wide @ basis
        self.add(self.embedding, rows / rows.norm(dim=-1).mean())
        for i in range(layers):
            out_scale = 1 / math.sqrt(2 * layers)
            shapes = [None, (heads * dim, hidden), (kv_heads * dim, hidden), (kv_heads * dim, hidden),
                      (hidden, heads * dim), None, (ffn, hidden), (ffn, hidden), (hidden, ffn)]
            for name, shape in zip(LAYER, shapes):
                scale = out_scale if shape and shape[0] == hidden and name.endswith(("o_proj", "down_proj")) else 1.0
                self.add(f"model.layers.{i}.{name}.weight",
                         torch.ones(hidden) if shape is None else torch.randn(shape) * scale / math.sqrt(shape[1]))
        self.add("model.norm.weight", torch.ones(hidden))
        self.tables = rope_tables(POSITIONS, dim, 10000.0)

    @staticmethod
    def shipped(name):
        return "q4_0"

    def start_from(self, folder):
        """layers that the earlier draft lacks become copies of its last one that add nothing at first"""
        taken, file = super().start_from(folder)
        have = read_config(folder)["num_hidden_layers"]
        for i in range(have, self.config["num_hidden_layers"]):
            for name in LAYER:
                old = file[f"model.layers.{have - 1}.{name}.weight"]
                silent = name.endswith(("o_proj", "down_proj"))
                self[f"model.layers.{i}.{name}.weight"].data.copy_(torch.zeros_like(old) if silent else old)
        return taken, file

    def loss(self, ids, hidden, target, best, scored=None):
        """-> (loss, agreement); best [B * T] receives the target's argmax; scored [B, T]: weights of positions"""
        c, w = self.config, self.weights()
        cos, sin = self.tables[0][:ids.shape[1]], self.tables[1][:ids.shape[1]]
        x = F.embedding(ids, w[self.embedding])
        for i in range(c["num_hidden_layers"]):
            layer = [w[f"model.layers.{i}.{name}.weight"] for name in LAYER]
            x = small_layer(x, *layer, cos, sin, c["num_attention_heads"], c["num_key_value_heads"])
        y = rms(x, w["model.norm.weight"]).view(ids.numel(), -1)
        weight = torch.ones(ids.numel(), device=ids.device) if scored is None else scored.reshape(-1) / scored.mean()
        words = penalised_words(ids, every_place(ids), target.vocab).flatten(0, 1) if self.penalised else None
        return HeadLoss.apply(y, w[self.embedding], hidden.view(ids.numel(), -1), target.head, weight, 8192, best,
                              False, words)


class ReducedDraft(Draft):
    """has a head of its own, for a part of the target's vocabulary"""

    def __init__(self, config, target, vocabulary):
        """vocabulary: sorted target ids"""
        super().__init__(config | dict(draft_vocab_size=len(vocabulary)))
        self.add("lm_head.weight", target.head[vocabulary])
        known = torch.zeros(target.vocab, dtype=torch.bool, device=DEVICE)
        known[vocabulary] = True
        self.constants = dict(d2t=vocabulary - torch.arange(len(vocabulary), device=DEVICE), t2d=known)
        self.vocabulary = vocabulary
        self.place = torch.full((target.vocab + 1,), len(vocabulary), device=DEVICE)  # of the target's words
        self.place[vocabulary] = torch.arange(len(vocabulary), device=DEVICE)

    def words(self, ids, last):
        """[B, N, W] by the draft's own numbers: what a repeat penalty applies to behind the places `last` [B, N]"""
        return self.place[penalised_words(ids, last, len(self.place) - 1)] if self.penalised else None

    @staticmethod
    def shipped(name):
        return "q4_0" if name == "lm_head.weight" else "q8_0"

    def start_from(self, folder):
        """head rows of words new to the vocabulary: the linear map that best takes the target's rows to the rows
        trained before, applied to the target's rows of the new words"""
        fresh = self["lm_head.weight"].data.clone()
        taken, file = super().start_from(folder)
        if "d2t" not in file:  # it used the target's head
            return taken, file
        old_ids = (file["d2t"] + torch.arange(len(file["d2t"]))).to(DEVICE)
        place = torch.full((len(self.constants["t2d"]),), -1, device=DEVICE)
        place[self.vocabulary] = torch.arange(len(self.vocabulary), device=DEVICE)
        both = place[old_ids] >= 0
        at, old = place[old_ids[both]], file["lm_head.weight"].to(DEVICE).float()[both]
        start = fresh[at]
        ridge = 1e-3 * start.pow(2).sum() / start.shape[1] * torch.eye(start.shape[1], device=DEVICE)
        change = torch.linalg.solve(start.T @ start + ridge, start.T @ (old - start))
        rows = fresh + fresh @ change
        rows[at] = old
        self["lm_head.weight"].data.copy_(rows)
        return taken, file


@compiled
def eagle_qkv(embedded, h, n_in, n_hidden, w_q, w_k, w_v, cos, sin, heads, kv_heads):
    y = torch.cat([rms(embedded, n_in), rms(h, n_hidden)], -1)
    k = rotate(split_heads(F.linear(y, w_k), kv_heads), cos, sin).repeat_interleave(heads // kv_heads, 1)
    v = split_heads(F.linear(y, w_v), kv_heads).repeat_interleave(heads // kv_heads, 1)
    return rotate(split_heads(F.linear(y, w_q), heads), cos, sin), k, v


@compiled
def eagle_rest(h, attended, w_o, n2, w_gate, w_up, w_down, n_out):
    """-> hidden (goes into the next step), normed hidden (goes into the head)"""
    h = h + F.linear(join_heads(attended), w_o)
    y = rms(h, n2)
    h = h + F.linear(F.silu(F.linear(y, w_gate)) * F.linear(y, w_up), w_down)
    return h, rms(h, n_out)


class EagleDraft(ReducedDraft):
    """one decoder layer over the target's tapped hidden states and the embedding of the next token"""
    folder = "eagle3"
    decay = 0.8         # weight of each further unrolled step
    crop = 8            # positions at the end of a row that lack their future

    def __init__(self, target, vocabulary, steps=5):
        """the layer starts as the target's last one where shapes allow"""
        c = target.config
        super().__init__(llama_config(
            target.hidden, 1, target.heads, target.kv_heads, target.dim, c["intermediate_size"], target.vocab,
            architectures=["LlamaForCausalLMEagle3"], tie_word_embeddings=False,
            eagle_aux_hidden_state_layer_ids=target.taps), target, vocabulary)
        size, noise = target.hidden, lambda *shape: torch.randn(*shape, device=DEVICE) * 0.01
        n1, w_qkv, w_o, n2, w_gate_up, w_down = [w.float() for w in target.weights[-1]]
        fuse = noise(size, 3 * size)
        fuse[:, 2 * size:] += torch.eye(size, device=DEVICE)
        self.add("fc.weight", fuse)
        self.add("midlayer.hidden_norm.weight", n1)
        widths = [target.heads * target.dim] + [target.kv_heads * target.dim] * 2
        halves = [torch.cat([noise(w.shape[0], size), w], 1) for w in w_qkv.split(widths)]
        layer = [torch.ones(size), *halves, w_o, n2, *w_gate_up.chunk(2), w_down]
        for name, tensor in zip(LAYER, layer):
            self.add(f"midlayer.{name}.weight", tensor)
        self.add("norm.weight", target.norm)
        self.steps = steps
        self.tables = rope_tables(POSITIONS + 16, target.dim, 10000.0)

    def loss(self, ids, hidden, taps, target, best, following=None, scored=None):
        """the steps feed themselves; from the second on only half of the positions are scored. following [B, T]: the
        tokens behind those of a row that leaves some out; scored [B, T]: weights of positions
        -> weighted sum of the steps' losses, agreement per step"""
        c, w = self.config, self.weights()
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        rows, n = ids.shape[0], ids.shape[1] - self.crop
        layer = {name: w[f"midlayer.{name}.weight"] for name in LAYER}
        n_in, w_q, w_k, w_v, w_o, n2, w_gate, w_up, w_down = layer.values()
        teacher_head = target.head[self.vocabulary]
        h = F.linear(taps[:, :n], w["fc.weight"])
        keys, values, losses, hits = [], [], [], []
        for j in range(self.steps):
            after = following[:, :n] if j == 0 and following is not None else ids[:, j + 1:j + 1 + n]
            embedded = F.embedding(after, target.embedding)
            cos, sin = self.tables[0][j:j + n], self.tables[1][j:j + n]
            q, k, v = eagle_qkv(embedded, h, n_in, w["midlayer.hidden_norm.weight"], w_q, w_k, w_v, cos, sin,
                                heads, kv_heads)
            if j == 0:
                k0, v0 = k.contiguous(), v.contiguous()
                a = F.scaled_dot_product_attention(q, k0, v0, is_causal=True)
            else:
                keys.append(k)
                values.append(v)
                a = UnrolledAttention.apply(q.contiguous(), k0, v0, *keys, *values)
            h, y = eagle_rest(h, a, w_o, n2, w_gate, w_up, w_down, w["norm.weight"])
            count = rows * n // 2
            pick = slice(None) if j == 0 else torch.randperm(rows * n, device=ids.device)[:count]
            student = y.reshape(rows * n, -1)[pick]
            teacher = hidden[:, j + 1:j + 1 + n].reshape(rows * n, -1)[pick]
            known = self.constants["t2d"][best[:, j + 1:j + 1 + n].reshape(-1)[pick]].float()
            words = self.words(ids, torch.arange(j + 1, j + 1 + n, device=ids.device).expand(rows, -1))
            words = None if words is None else words.flatten(0, 1)[pick]
            if scored is not None:
                weight = scored[:, :n].reshape(rows * n)[pick]
                known = known * weight / weight.mean().clamp(min=1e-6)
            loss, hit = HeadLoss.apply(student, w["lm_head.weight"], teacher, teacher_head, known, count, None, False,
                                       words)
            losses.append(loss * self.decay ** j)
            hits.append(hit)
        return sum(losses), torch.stack(hits)


@compiled
def medusa_block(x, weight, bias):
    return x + F.silu(F.linear(x, weight) + bias)


def medusa_state(x, weights, head):
    """x [.., C] through the residual blocks of one head"""
    i = 0
    while f"blocks.{head}.layers.{i}.weight" in weights:
        x = medusa_block(x, weights[f"blocks.{head}.layers.{i}.weight"], weights[f"blocks.{head}.layers.{i}.bias"])
        i += 1
    return x


class MedusaDraft(Draft):
    """heads on the target's normed hidden state at position p; head k guesses token p + 2 + k"""
    folder = "medusa"
    crop = 8

    def __init__(self, target, vocabulary, heads=4, layers=3, hard=False):
        """layers: residual blocks of a head; hard: learn the target's argmax instead of its distribution"""
        super().__init__(dict(
            architectures=["MedusaModel"], model_type="medusa", hidden_size=target.hidden, vocab_size=target.vocab,
            truncated_vocab_size=len(vocabulary), num_heads=heads, num_hidden_layers=layers, medusa_num_heads=heads,
            medusa_num_layers=layers, medusa_fc_bias=True, max_position_embeddings=POSITIONS, torch_dtype="bfloat16"))
        for k in range(heads):
            for i in range(layers):  # blocks after the first need different weights to learn different things
                weight = torch.randn(target.hidden, target.hidden) * (0.5 / math.sqrt(target.hidden)) * (i > 0)
                self.add(f"blocks.{k}.layers.{i}.weight", weight)
                self.add(f"blocks.{k}.layers.{i}.bias", torch.zeros(target.hidden))
            self.add(f"lm_heads.{k}.weight", target.head[vocabulary])
        self.constants = dict(token_map=vocabulary)
        self.vocabulary, self.heads, self.hard = vocabulary, heads, hard
        self.known = torch.zeros(target.vocab, dtype=torch.bool, device=DEVICE)
        self.known[vocabulary] = True

    @staticmethod
    def shipped(name):
        return "q4_0" if name.startswith("lm_heads") else "q8_0"

    def loss(self, ids, hidden, target, best):
        """scores half of the positions -> weighted sum of the heads' losses, agreement per head"""
        w = self.weights()
        rows, n = ids.shape[0], ids.shape[1] - self.crop
        pick = torch.randperm(rows * n, device=ids.device)[:rows * n // 2]
        x = hidden[:, :n].reshape(rows * n, -1)[pick]
        teacher_head = target.head[self.vocabulary]
        losses, hits = [], []
        for k in range(self.heads):
            y = medusa_state(x, w, k)
            teacher = hidden[:, k + 1:k + 1 + n].reshape(rows * n, -1)[pick]
            known = self.known[best[:, k + 1:k + 1 + n].reshape(-1)[pick]].float()
            loss, hit = HeadLoss.apply(y, w[f"lm_heads.{k}.weight"], teacher, teacher_head, known, len(pick), None,
                                       self.hard)
            losses.append(loss * 0.8 ** k)
            hits.append(hit)
        return sum(losses), torch.stack(hits)


LONGSPEC = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "post_self_attention_layernorm", "cross_attn.q_proj", "cross_attn.o_proj",
            "post_cross_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


@compiled
def longspec_layer(x, n1, w_q, w_k, w_v, w_o, n2, w_cross_q, w_cross_o, n3, w_gate, w_up, w_down, cos, sin, recent,
                   keys, values, seen, heads, kv_heads):
    """recent [B, 1, T, T]: the draft's own cells that a row sees; seen [B, 1, T, T]: those of the target"""
    spread = lambda cells: cells.repeat_interleave(heads // kv_heads, 1)
    y = rms(x, n1)
    q = rotate(split_heads(F.linear(y, w_q), heads), cos, sin)
    k = rotate(split_heads(F.linear(y, w_k), kv_heads), cos, sin)
    v = split_heads(F.linear(y, w_v), kv_heads)
    a = F.scaled_dot_product_attention(q, spread(k), spread(v), attn_mask=recent)
    x = x + F.linear(join_heads(a), w_o)
    q = rotate(split_heads(F.linear(rms(x, n2), w_cross_q), heads), cos, sin)
    a = F.scaled_dot_product_attention(q, spread(keys), spread(values), attn_mask=seen)
    x = x + F.linear(join_heads(a), w_cross_o)
    y = rms(x, n3)
    return x + F.linear(F.silu(F.linear(y, w_gate)) * F.linear(y, w_up), w_down)


def recent_cells(positions, window):
    """positions [B, T] -> [B, 1, T, T]: a row sees itself and what lies less than `window` positions before it"""
    back = positions[:, None, :, None] - positions[:, None, None]
    return (back >= 0) & (back < window)


def first_cells(count, length):
    """count [B, T] -> [B, 1, T, length]: a row sees the first `count` cells; one that would see none sees cell 0"""
    return torch.arange(length, device=count.device) < count.clamp(min=1)[:, None, :, None]


class LongSpecDraft(ReducedDraft):
    """one layer between the target's embedding and the head: attention over a window of its own cells, then attention
    over the cells of the target's last layer, then the MLP; no norm before the head"""
    folder = "longspec"
    block = 8           # longest run of drafted tokens that is trained
    shifted = 0.5       # of the rows have their positions shifted
    anchors = 4         # first tokens of a row, which are not

    def __init__(self, target, vocabulary, window=512):
        """starts as the target's last layer, but adds nothing at first: without a norm before the head, that layer's
        outputs would be many times too large"""
        c = target.config
        same = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                "vocab_size", "rms_norm_eps", "hidden_act", "rope_theta", "rope_scaling", "max_position_embeddings",
                "num_hidden_layers"]
        super().__init__(dict(architectures=["LongSpecDrafter"], model_type="longspec", longspec_window=window,
                              torch_dtype="bfloat16") | {name: c.get(name) for name in same}, target, vocabulary)
        self.window = window
        n1, w_qkv, w_o, n2, w_gate_up, w_down = [w.float() for w in target.weights[-1]]
        w_q, w_k, w_v = w_qkv.split([target.heads * target.dim] + [target.kv_heads * target.dim] * 2)
        start = [n1, w_q, w_k, w_v, w_o, n1, w_q, w_o, n2, *w_gate_up.chunk(2), w_down]
        for name, tensor in zip(LONGSPEC, start):
            self.add(f"{name}.weight", tensor * (not name.endswith(("o_proj", "down_proj"))))

    def positions(self, rows, count):
        """[rows, count]: 0, 1, .. or, from the anchors on, shifted within the target's context"""
        at = torch.arange(count, device=DEVICE)
        room = self.config["max_position_embeddings"] - count
        offset = torch.randint(room + 1, (rows, 1), device=DEVICE)
        offset = torch.where(torch.rand(rows, 1, device=DEVICE) < self.shifted, offset, 0)
        return at + offset * (at >= self.anchors)

    def blocks(self, rows, count):
        """[rows, count]: the first token of each token's block; blocks have random lengths up to `block`"""
        ends = torch.randint(1, self.block + 1, (rows, count), device=DEVICE).cumsum(1).clamp(max=count)
        first = torch.zeros(rows, count + 1, dtype=torch.long, device=DEVICE).scatter(1, ends, ends)
        return first[:, :count].cummax(1).values

    def state(self, w, ids, positions, cells, start, target, shown=None):
        """what goes into the head; w: weights(); a row sees the target's cells before `start` [B, T], of these the ones
        that are `shown` [B, cells]"""
        c = self.config
        seen = first_cells(start, cells[0].shape[2])
        if shown is not None:
            seen = seen & shown[:, None, None]
        return longspec_layer(F.embedding(ids, target.embedding), *[w[f"{name}.weight"] for name in LONGSPEC],
                              *target.rope(positions), recent_cells(positions, self.window), *cells, seen,
                              c["num_attention_heads"], c["num_key_value_heads"])

    def loss(self, ids, target, shift):
        """Each block is a draft: its rows see the target's cells before the block. Runs the target itself, for the
        positions are its own. -> (loss, agreement); rows that see no cell do not count"""
        w, (rows, count) = self.weights(), ids.shape
        positions = self.positions(rows, count) if shift else torch.arange(count, device=DEVICE).expand(rows, -1)
        hidden, _, cells = target.forward(ids, fixed_shape=True, positions=positions)
        start = self.blocks(rows, count)
        x = self.state(w, ids, positions, cells, start, target).view(ids.numel(), -1)
        counts = (start > 0).float().view(-1)
        known = self.constants["t2d"][target.best(hidden)]
        words = self.words(ids, every_place(ids))
        return HeadLoss.apply(x, w["lm_head.weight"], hidden.view(ids.numel(), -1), target.head[self.vocabulary],
                              counts / counts.mean() * known, 8192, None, False,
                              None if words is None else words.flatten(0, 1))
