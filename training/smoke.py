"""The two ends of smoke_test.sh: `make` writes a tiny random target (a GGUF file) with a little text, `check` compares
the losses and the attention with plain versions of them, reads what the pipeline left, and fails with a message.

    python smoke.py make FOLDER
    python smoke.py check FOLDER
"""
import json
import os
import re
import struct
import sys

import numpy as np
import safetensors.torch
import torch

import evaluate
import frames
import fused
import models
import quantise
import smoke_long
from pack import KINDS

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN = 96, 8, 3, 1, 192
WORDS = ("river stone window garden letter morning captain answer silver market winter bridge music harbor lantern "
         "paper forest engine county ticket shadow mirror number castle season harvest village signal doctor").split()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", frames.CHAT_HEAD.split("\n")[1].removesuffix("<|im_end|>"),
           "Summarize the following text into a summary of less than "]
PLANTED = "a planted sentence of the evaluation that has more than twelve words and must never be trained on"


def byte_letters():
    """the letters that stand for the 256 bytes in a byte-level vocabulary"""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(shifted)) for b in range(256)]


def pack(kind, value):
    if kind == 8:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data
    if kind == 9:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(pack(inner, x) for x in items)
    return struct.pack({4: "<I", 5: "<i", 6: "<f"}[kind], value)


def quantised(weight, kind):
    """float [rows, columns] -> (bytes, type number)"""
    blocks = weight.reshape(-1, 32).astype(np.float32)
    if kind == "f32":
        return weight.astype(np.float32).tobytes(), 0
    if kind == "q8_0":
        step = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
        values = np.round(blocks / step.astype(np.float32)).clip(-127, 127).astype(np.int8)
        return np.concatenate([step.view(np.uint8), values.view(np.uint8)], 1).tobytes(), 8
    low = blocks.min(1, keepdims=True)
    step = ((blocks.max(1, keepdims=True) - low) / 15).astype(np.float16)
    values = np.round((blocks - low) / step.astype(np.float32)).clip(0, 15).astype(np.uint8)
    packed = values[:, :16] | values[:, 16:] << 4
    return np.concatenate([step.view(np.uint8), low.astype(np.float16).view(np.uint8), packed], 1).tobytes(), 3


def tiny_target(path, rng):
    letters = byte_letters()
    merges = sorted({f"{a} {b}" for word in WORDS for a, b in zip(word, word[1:])})
    tokens = SPECIAL + letters + [m.replace(" ", "") for m in merges]
    tokens += [f"unused{i}" for i in range(-len(tokens) % 32)]
    meta = [("general.architecture", 8, "llama"), ("llama.block_count", 4, LAYERS), ("llama.context_length", 4, 1024),
            ("llama.embedding_length", 4, HIDDEN), ("llama.feed_forward_length", 4, FFN),
            ("llama.attention.head_count", 4, HEADS), ("llama.attention.head_count_kv", 4, KV_HEADS),
            ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5), ("llama.rope.freq_base", 6, 10000.0),
            ("tokenizer.ggml.tokens", 9, (8, tokens)), ("tokenizer.ggml.merges", 9, (8, merges)),
            ("tokenizer.ggml.token_type", 9, (5, [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))),
            ("tokenizer.ggml.bos_token_id", 4, 1), ("tokenizer.ggml.eos_token_id", 4, 2)]
    normal = lambda rows, columns: rng.standard_normal((rows, columns)) / np.sqrt(columns)
    kv = HIDDEN // HEADS * KV_HEADS
    embedding = normal(len(tokens), HIDDEN)
    embedding[[0, 2]] = -embedding.mean(0)  # never the best next token, so that texts do not end at once
    tensors = [("token_embd.weight", embedding, "q8_0"), ("output_norm.weight", np.ones(HIDDEN), "f32")]
    shapes = dict(attn_q=(HIDDEN, HIDDEN), attn_k=(kv, HIDDEN), attn_v=(kv, HIDDEN), attn_output=(HIDDEN, HIDDEN),
                  ffn_gate=(FFN, HIDDEN), ffn_up=(FFN, HIDDEN), ffn_down=(HIDDEN, FFN))
    for i in range(LAYERS):
        tensors += [(f"blk.{i}.{n}_norm.weight", np.ones(HIDDEN), "f32") for n in ("attn", "ffn")]
        tensors += [(f"blk.{i}.{n}.weight", 0.3 * normal(*s), "q4_1") for n, s in shapes.items()]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    head += b"".join(pack(8, k) + struct.pack("<I", kind) + pack(kind, v) for k, kind, v in meta)
    data = b""
    for name, weight, kind in tensors:
        raw, number = quantised(weight, kind)
        dims = weight.shape[::-1]
        head += pack(8, name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", number, len(data))
        data += raw + bytes(-len(raw) % 32)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)


def make(folder):
    rng = np.random.default_rng(0)
    sentence = lambda: " ".join(rng.choice(WORDS, 12)).capitalize() + "."
    os.makedirs(f"{folder}/text", exist_ok=True)
    tiny_target(f"{folder}/target.gguf", rng)
    for i in range(4):
        paragraphs = [" ".join(sentence() for _ in range(4)) for _ in range(40)]
        if i == 2:
            paragraphs.insert(7, f"Before it. {PLANTED.capitalize()}! After it.")
        with open(f"{folder}/text/{i}.txt", "w") as f:
            f.write("\n\n".join(paragraphs))
    with open(f"{folder}/evaluation.jsonl", "w") as f:
        for i in range(4):
            text = f"{frames.SUMMARY[0] % 100}{' '.join(sentence() for _ in range(40))} {PLANTED}{frames.SUMMARY[1]}"
            f.write(json.dumps(dict(text=text)) + "\n")


def expect(condition, message):
    if not condition:
        raise SystemExit(f"smoke test FAILED: {message}")


def check_curve(log):
    """the losses on held-out rows of the text after the last step against those before the first; of sampled rows the
    tiny target has written too few to say whether anything was learnt"""
    names = ("small", "eagle3", "medusa", "longspec", "dflash")
    losses = ".*".join(rf"{name} ([\d.]+) \|" for name in names)
    found = re.findall(rf"^  held out real, step (\d+): {losses}", log, flags=re.M)
    steps = sorted({int(f[0]) for f in found})
    expect(len(steps) >= 2 and steps[0] == 0, f"validated at the steps {steps}, expected 0 and the last")
    for i, name in enumerate(names, 1):
        first, last = (sum(float(f[i]) for f in found if int(f[0]) == at) for at in (steps[0], steps[-1]))
        expect(last < 0.85 * first, f"{name}: loss {first:.2f} at the start and {last:.2f} at the end, expected a fall by 15%")
        print(f"{name}: loss {first:.2f} -> {last:.2f}")


def check_files(folder):
    for draft, tensor in (("small", "model.layers.1.mlp.down_proj.weight"), ("eagle3", "d2t"), ("longspec", "d2t"),
                          ("medusa", "token_map"), ("dflash", "d2t")):
        with open(f"{folder}/drafts/{draft}/config.json") as f:
            config = json.load(f)
        with safetensors.safe_open(f"{folder}/drafts/{draft}/model.safetensors", "np") as f:
            expect(tensor in f.keys(), f"{draft}: tensor {tensor} is missing")
            if tensor == "d2t":
                d2t, t2d = f.get_tensor("d2t"), f.get_tensor("t2d")
                ids = d2t + np.arange(len(d2t))
                expect(d2t.dtype == np.int64, f"{draft}: d2t is {d2t.dtype}, expected int64")
                expect(len(ids) == config["draft_vocab_size"], f"{draft}: d2t is not draft_vocab_size long")
                expect(np.array_equal(np.flatnonzero(t2d), ids), f"{draft}: d2t and t2d disagree")
            if draft == "eagle3":
                expect(len(config["eagle_aux_hidden_state_layer_ids"]) == 3, "eagle3: expected three taps")
            if draft == "medusa":
                tree = {tuple(p) for p in config["medusa_choices"]}
                expect(0 < len(tree) <= 63, f"medusa: {len(tree)} nodes in the tree, expected 1 to 63")
                expect(all(p[:-1] in tree for p in tree if len(p) > 1), "medusa: a node of the tree lacks its parent")


def check_options(folder):
    """what the other two trainings were asked for: sizes in `again`, one draft alone in `alone`"""
    def read(name):
        with open(f"{folder}/{name}/config.json") as f:
            config = json.load(f)
        with safetensors.safe_open(f"{folder}/{name}/model.safetensors", "np") as f:
            return config, {k: f.get_slice(k).get_shape() for k in f.keys()}
    for name, layers in (("drafts/medusa", 3), ("again/medusa", 1), ("alone/medusa", 3)):
        config, shapes = read(name)
        found = len([n for n in shapes if n.startswith("blocks.0.") and n.endswith(".weight")])
        expect(config["medusa_num_layers"] == found == layers, f"{name}: {found} blocks, expected {layers}")
    for alone, name in (("alone", "medusa"), ("long", "longspec")):
        drafts = os.listdir(f"{folder}/{alone}")
        expect(drafts == [name], f"{alone}: drafts {drafts}, expected {name} alone")
    expect(not os.path.exists(f"{folder}/again/longspec"), "again: longspec was trained without being asked for")
    with open(f"{folder}/long.log") as f:
        expect("longspec: 12 of 13 tensors start from drafts" in f.read(), "long: did not start from drafts")
    for name, size in (("again/eagle3", 288), ("drafts/longspec", 224), ("long/longspec", 256)):
        config, shapes = read(name)
        expect(config["draft_vocab_size"] == shapes["d2t"][0] == size, f"{name}: expected a vocabulary of {size}")
    expect(read("again/small")[0]["num_hidden_layers"] == 3, "again/small: expected 3 layers")


def check_results(folder):
    def read(name):
        with open(f"{folder}/{name}.json") as f:
            return json.load(f)
    results, itself = read("results"), read("self")
    expect(len(results) == 2 * (2 * 8 + 7), f"{len(results)} results, expected 46")
    for r in results:
        most = {"medusa": 5, "dflash": 4}.get(r["draft"], 6)
        what = " ".join(r[k] for k in ("frame", "draft", "form", "shape"))
        least = 1 if r["draft"] == "dflash" or "penalty" in r["frame"] else 1.2  # what had too few steps here
        expect(least <= r["tokens_per_round"] <= most and r["rounds"] > 0, f"{what}: {r['tokens_per_round']} tokens per round")
    for r in itself:
        if r["form"] == "bf16" and r["shape"] == "chain 5":
            if "penalty" in r["frame"]:  # of the words it drafts itself it takes no account
                continue
            expect(r["tokens_per_round"] == 6, f"the target drafting for itself: {r['tokens_per_round']}, expected 6")


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def check_attention():
    """UnrolledAttention against one softmax written out, values and gradients"""
    torch.manual_seed(0)
    make = lambda: torch.randn(2, 3, 20, 8, dtype=torch.float64, requires_grad=True)
    inputs = [make() for _ in range(7)]  # q, k0, v0, k1, k2, v1, v2
    q, k0, v0, k1, k2, v1, v2 = inputs
    z = (q @ k0.transpose(-1, -2)).masked_fill(~torch.ones(20, 20, dtype=torch.bool).tril(), -torch.inf)
    z = (torch.cat([z] + [(q * k).sum(-1, keepdim=True) for k in (k1, k2)], -1) / 8 ** 0.5).softmax(-1)
    truth = z[..., :20] @ v0 + z[..., 20:21] * v1 + z[..., 21:] * v2
    found = fused.UnrolledAttention.apply(*inputs)
    weight = torch.randn_like(truth)
    pairs = zip(torch.autograd.grad(found, inputs, weight), torch.autograd.grad(truth, inputs, weight))
    worst = max([relative(found, truth)] + [relative(a, b) for a, b in pairs])
    expect(worst < 1e-5, f"UnrolledAttention is off by {worst:.1e}")


def check_medusa():
    """medusa_state against its blocks written out"""
    x, w = torch.randn(5, 8), {f"blocks.1.layers.{i}.{n}": torch.randn(8, 8)[:8 if n == "weight" else 1].squeeze(0)
                               for i in range(3) for n in ("weight", "bias")}
    truth = x
    for i in range(3):
        z = truth @ w[f"blocks.1.layers.{i}.weight"].T + w[f"blocks.1.layers.{i}.bias"]
        truth = truth + z * torch.sigmoid(z)
    expect(relative(models.medusa_state(x, w, 1), truth) < 1e-6, "medusa_state differs from three blocks written out")


def check_loss():
    """HeadLoss against autograd through whole logits, in uneven chunks"""
    student, w = torch.randn(50, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    teacher, w_teacher, weight = torch.randn(50, 24), torch.randn(40, 24), (torch.rand(50) < 0.7).float()
    best = torch.empty(50, dtype=torch.long)
    found, hits = fused.HeadLoss.apply(student, w, teacher, w_teacher, weight, 16, best)
    p, log_q = (teacher @ w_teacher.T).softmax(-1), (student @ w.T).log_softmax(-1)
    truth = ((p * (p.log() - log_q)).sum(-1) * weight).mean()
    pairs = zip(torch.autograd.grad(found, [student, w]), torch.autograd.grad(truth, [student, w], retain_graph=True))
    worst = max([relative(found, truth)] + [relative(a, b) for a, b in pairs])
    expect(worst < 1e-5, f"HeadLoss is off by {worst:.1e}")
    expect(torch.equal(best, p.argmax(-1)), "HeadLoss gives a wrong argmax")
    found = fused.HeadLoss.apply(student, w, teacher, w_teacher, weight, 16, None, True)[0]
    truth = (torch.nn.functional.nll_loss(log_q, best, reduction="none") * weight).mean()
    pairs = zip(torch.autograd.grad(found, [student, w]), torch.autograd.grad(truth, [student, w]))
    worst = max([relative(found, truth)] + [relative(a, b) for a, b in pairs])
    expect(worst < 1e-5, f"HeadLoss with hard labels is off by {worst:.1e}")
    expect(abs(hits - ((log_q.argmax(-1) == best) * weight).mean()) < 1e-6, "HeadLoss counts hits wrongly")

    words = torch.randint(41, (50, 6))  # 40: none
    recent = torch.zeros(50, 40)
    for row, some in enumerate(words.tolist()):
        recent[row, [word for word in some if word < 40]] = 1
    found = fused.HeadLoss.apply(student, w, teacher, w_teacher, weight, 16, best, False, words)[0]
    reduced = lambda z: torch.where(recent > 0, torch.where(z > 0, z / 1.1, z * 1.1), z)
    p, log_q = reduced(teacher @ w_teacher.T).softmax(-1), reduced(student @ w.T).log_softmax(-1)
    truth = ((p * (p.log() - log_q)).sum(-1) * weight).mean()
    pairs = zip(torch.autograd.grad(found, [student, w]), torch.autograd.grad(truth, [student, w]))
    worst = max([relative(found, truth)] + [relative(a, b) for a, b in pairs])
    expect(worst < 1e-5, f"HeadLoss under a repeat penalty is off by {worst:.1e}")
    expect(torch.equal(best, p.argmax(-1)), "HeadLoss under a repeat penalty gives a wrong argmax")
    ids = torch.randint(40, (2, 90))
    last = torch.tensor([[3, 70]] * 2)
    words = fused.penalised_words(ids, last, 40)
    for place, wanted in enumerate((ids[0, :4], ids[0, 7:71])):
        expect(set(words[0, place].tolist()) == set(wanted.tolist()), "penalised_words: other words than the last 64")
    expect((words[1] == 40).all(), "penalised_words: every other row should have no penalty")


def longspec_row(row, ids, positions, count, cells, w, target, window):
    """the row's logits, written out head by head in double precision; it sees `count` of the target's cells"""
    def turned(x, at):
        angle = at * target.config["rope_theta"] ** (-torch.arange(0, target.dim, 2).double() / target.dim)
        a, b = x.chunk(2)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])
    def normed(x, name):
        return x / (x.pow(2).mean() + 1e-5).sqrt() * w[f"{name}.weight"]
    def attended(q, keys, values):
        heads = []
        for h, part in enumerate(q.view(target.heads, target.dim)):
            kv = h * target.kv_heads // target.heads
            part = turned(part, positions[row])
            z = torch.stack([part @ k[kv] for k in keys]) / target.dim ** 0.5
            heads.append(sum(p * v[kv] for p, v in zip(z.softmax(0), values)))
        return torch.cat(heads)
    embedded, keys, values = target.embedding.double()[ids], [], []
    for j in [j for j in range(row + 1) if positions[j] > positions[row] - window]:
        y = normed(embedded[j], "input_layernorm")
        k = (w["self_attn.k_proj.weight"] @ y).view(target.kv_heads, target.dim)
        keys.append([turned(part, positions[j]) for part in k])
        values.append((w["self_attn.v_proj.weight"] @ y).view(target.kv_heads, target.dim))
    x = embedded[row]
    q = w["self_attn.q_proj.weight"] @ normed(x, "input_layernorm")
    x = x + w["self_attn.o_proj.weight"] @ attended(q, keys, values)
    q = w["cross_attn.q_proj.weight"] @ normed(x, "post_self_attention_layernorm")
    keys, values = [c[:, :count].transpose(0, 1).double() for c in cells]
    x = x + w["cross_attn.o_proj.weight"] @ attended(q, keys, values)
    y = normed(x, "post_cross_attention_layernorm")
    gate = w["mlp.gate_proj.weight"] @ y
    x = x + w["mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * (w["mlp.up_proj.weight"] @ y))
    return w["lm_head.weight"] @ x


def check_words(target, words, head, folder):
    """a drafter with other words that starts from the trained one (`words`, rows `head`), and one that starts from a
    drafter without a head"""
    draft = models.LongSpecDraft(target, torch.arange(1, target.vocab, 2))
    draft.start_from(f"{folder}/drafts/longspec")
    before, after, old = target.head[draft.vocabulary], draft["lm_head.weight"], torch.isin(draft.vocabulary, words)
    expect(0 < old.sum() < len(old), "longspec: the other words should be old or new, both")
    kept = head[torch.isin(words, draft.vocabulary)]
    expect(torch.equal(after[old], kept), "longspec: rows of old words are not kept")
    scale = (1e-3 * before[old].pow(2).sum() / HIDDEN).sqrt()
    inputs = torch.cat([before[old], scale * torch.eye(HIDDEN)])
    change = torch.linalg.lstsq(inputs, torch.cat([kept - before[old], torch.zeros(HIDDEN, HIDDEN)])).solution
    off = relative(after[~old] - before[~old], before[~old] @ change)
    expect(off < 1e-3, f"longspec: rows of new words are off by {off:.1e}")
    file = safetensors.torch.load_file(f"{folder}/drafts/longspec/model.safetensors")
    os.makedirs(f"{folder}/headless", exist_ok=True)
    safetensors.torch.save_file({n: file[n] for n in file if n not in ("lm_head.weight", "d2t", "t2d")},
                                f"{folder}/headless/model.safetensors")
    draft = models.LongSpecDraft(target, words)
    expect(len(draft.start_from(f"{folder}/headless")[0]) == 12, "longspec: a drafter without a head is no start")
    expect(torch.equal(draft["lm_head.weight"], target.head[words]), "longspec: the head is not the target's at first")


@torch.no_grad()
def check_longspec(folder):
    """the trained drafter: its file, what its rows see, its logits and its loss against plain ones, its drafts in the
    evaluation"""
    target, window, count = models.Target(f"{folder}/model"), 24, 80
    with open(f"{folder}/drafts/longspec/config.json") as f:
        config = json.load(f)
    expect(config["architectures"] == ["LongSpecDrafter"], "longspec: wrong architecture")
    expect(config["longspec_window"] == 64, "longspec: the window is not the one asked for")
    for name in ("hidden_size", "head_dim", "vocab_size", "rope_theta", "num_hidden_layers", "max_position_embeddings"):
        expect(config[name] == target.config[name], f"longspec: {name} is not the target's")
    wide, kv = target.heads * target.dim, target.kv_heads * target.dim
    shapes = {"self_attn.q": (wide, HIDDEN), "self_attn.k": (kv, HIDDEN), "self_attn.v": (kv, HIDDEN),
              "self_attn.o": (HIDDEN, wide), "cross_attn.q": (wide, HIDDEN), "cross_attn.o": (HIDDEN, wide),
              "mlp.gate": (FFN, HIDDEN), "mlp.up": (FFN, HIDDEN), "mlp.down": (HIDDEN, FFN)}
    shapes = {f"{name}_proj.weight": shape for name, shape in shapes.items()}
    norms = ("input", "post_self_attention", "post_cross_attention")
    shapes |= {f"{name}_layernorm.weight": (HIDDEN,) for name in norms}
    shapes["lm_head.weight"] = (config["draft_vocab_size"], HIDDEN)
    found = safetensors.torch.load_file(f"{folder}/drafts/longspec/model.safetensors")
    words = torch.arange(config["draft_vocab_size"]) + found.pop("d2t")
    del found["t2d"]
    expect({n: tuple(t.shape) for n, t in found.items()} == shapes, "longspec: tensors have other names or shapes")
    expect(all(t.dtype == torch.bfloat16 for t in found.values()), "longspec: expected bf16")
    expect(relative(found["lm_head.weight"], target.head[words]) > 0.01, "longspec: its head has learned nothing")

    check_words(target, words, found["lm_head.weight"].float(), folder)
    draft = models.LongSpecDraft(target, words, window)
    draft.start_from(f"{folder}/drafts/longspec")
    torch.manual_seed(1)
    at, context = torch.arange(count), config["max_position_embeddings"]
    positions, start = draft.positions(200, count), draft.blocks(200, count)
    offset = positions[:, -1:] - at[-1:]
    expect(torch.equal(positions, at + offset * (at >= 4)), "longspec: more than one offset, or anchors that move")
    expect(positions.max() < context and offset.max() > 0.8 * context, "longspec: offsets do not fill the context")
    expect(60 < (offset == 0).sum() < 140, "longspec: half of the rows should be shifted")
    lag = at - start
    expect(lag.min() == 0 and lag.max() == 7, f"longspec: lags {lag.min()} to {lag.max()}, expected 0 to 7")
    expect(torch.equal(start.gather(1, start), start), "longspec: a block does not begin where its rows say")
    expect(len(start[:, 40].unique()) == 8, "longspec: blocks are not random")

    ids = torch.randint(target.vocab, (2, count))
    same = [target.forward(ids, positions=p)[0] for p in (None, at.expand(2, -1))]
    expect(relative(*same) < 1e-6, "the target: given positions differ from its own")
    positions, start = torch.stack([at, at + 300 * (at >= 4)]), start[:2]
    cells = target.forward(ids, positions=positions)[2]
    output = lambda *given: draft.state(draft.weights(), *given, target) @ draft["lm_head.weight"].T
    logits = lambda ids, cells: output(ids, positions, cells, start)
    before = logits(ids, cells)
    w = {name: draft[name].double() for name in draft.names}
    for b, row in ((0, 1), (0, 60), (1, 5), (1, 79)):
        if start[b, row] > 0:
            truth = longspec_row(row, ids[b], positions[b], start[b, row], [c[b] for c in cells], w, target, window)
            off = relative(before[b, row], truth)
            expect(off < 1e-5, f"longspec: the logits of row {row} are off by {off:.1e}")
    for cell in (10, 11, 40):
        for which in (0, 1):
            other = [c.clone() for c in cells]
            other[which][:, :, cell] = torch.randn_like(other[which][:, :, cell])
            changed = (logits(ids, other) != before).any(-1)
            kind = ("key", "value")[which]
            expect(torch.equal(changed, start > cell), f"longspec: a {kind} of cell {cell} reaches the wrong rows")
    other = ids.clone()
    other[:, 30] = (ids[:, 30] + 1) % target.vocab
    changed = (logits(other, cells) != before).any(-1)
    near = (at >= 30) & (at < 30 + window)
    expect(torch.equal(changed, near.expand(2, -1)), "longspec: token 30 reaches the wrong rows")

    torch.manual_seed(2)
    start = draft.blocks(2, count)
    torch.manual_seed(2)
    loss, hits = draft.loss(ids, target, shift=False)
    hidden, _, cells = target.forward(ids)
    teacher, student = hidden @ target.head.T, output(ids, at.expand(2, -1), cells, start)
    seen, known = start > 0, torch.isin(teacher.argmax(-1), words)
    expect(0.1 < known[seen].float().mean() < 0.9, "longspec: the target's best words should be known or not, both")
    p, log_q = teacher[..., words].softmax(-1), student.log_softmax(-1)
    rows = (p * (p.log() - log_q)).sum(-1)
    expect(relative(loss, rows[seen & known].sum() / seen.sum()) < 1e-5, "longspec: the loss counts the wrong rows")
    right = words[student.argmax(-1)] == teacher.argmax(-1)
    expect(relative(hits, right[seen].float().mean()) < 1e-5, "longspec: the agreement counts the wrong rows")

    runner = evaluate.LongSpecRunner(f"{folder}/drafts/longspec", "shipped")
    for name in [n for n in shapes if "norm" not in n]:
        kind = quantise.q4_0 if name == "lm_head.weight" else quantise.q8_0
        expect(torch.equal(runner.w[name], kind(found[name].float())), f"longspec: {name} is shipped in another type")
    runner = evaluate.LongSpecRunner(f"{folder}/drafts/longspec", "bf16")
    runner.window, known = window, torch.tensor([40, 70])
    text = dict(ids=ids, cells=target.forward(ids)[2], penalty=1.0)
    tokens, scores, _ = evaluate.grow(runner, evaluate.encode(runner, text, target), known, target, 5, 1, text)
    for b, n in enumerate(known.tolist()):
        drafted, total = torch.stack([t[b, 0, 0] for t in tokens]), torch.stack([s[b, 0, 0] for s in scores])
        line = torch.cat([ids[b, :n], drafted])[None]
        begin = at[None, :n + 5].clamp(max=n - 1)
        line_cells = target.forward(line)[2]
        best = output(line, at[None, :n + 5], line_cells, begin)[0, n - 1:n + 4].log_softmax(-1).max(-1)
        expect(torch.equal(words[best.indices], drafted), "longspec: the evaluation drafts other tokens")
        expect(relative(total, best.values.cumsum(0)) < 1e-4, "longspec: the evaluation has other probabilities")


def check_quantisation():
    """blocks of 32 with at most 16 levels and errors of half a step; a step at the far end, which has one level less"""
    weight = torch.randn(64, 96)
    blocks, seen = weight.reshape(-1, 32), quantise.q4_0(weight).reshape(-1, 32)
    extreme = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    step = extreme.abs() / 8
    far = blocks * -extreme.sign() > 7.5 * step
    error = (blocks - seen).abs() / step
    expect(error[~far].max() < 0.51 and error[far].max() < 1.01, "q4_0 is off by more than its step")
    expect(max(len(b.unique()) for b in seen) <= 16, "q4_0 has more than 16 levels")
    error = (blocks - quantise.q8_0(weight).reshape(-1, 32)).abs() / (extreme.abs() / 127)
    expect(error.max() < 0.57, "q8_0 is off by more than half a step")


def check_packed(folder):
    """drafts that were packed come back with the values that the training simulates"""
    for name, kind in KINDS.items():
        if kind is models.MedusaDraft:
            continue
        found = safetensors.torch.load_file(f"{folder}/unpacked/{name}/model.safetensors")
        for key, tensor in safetensors.torch.load_file(f"{folder}/drafts/{name}/model.safetensors").items():
            matrix = kind.shipped(key) if tensor.is_floating_point() and tensor.ndim == 2 else None
            expect(torch.equal(found[key], quantise.simulate(tensor.float(), matrix) if matrix else tensor),
                   f"pack: {name}'s {key} comes back as something else")
        with open(f"{folder}/unpacked/{name}/config.json") as f:
            same = json.load(f) == models.read_config(f"{folder}/drafts/{name}")
        expect(same, f"pack: {name} has another configuration")


def check(folder):
    check_attention()
    check_loss()
    check_medusa()
    check_quantisation()
    with open(f"{folder}/corpus.log") as f:
        text = f.read()
    expect(" 1 paragraphs dropped" in text, f"the planted paragraph was not dropped: {text}")
    with open(f"{folder}/train.log") as f:
        check_curve(f.read())
    check_files(folder)
    check_options(folder)
    check_longspec(folder)
    smoke_long.check(folder, expect)
    check_packed(folder)
    check_results(folder)
    print("smoke test passed")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
