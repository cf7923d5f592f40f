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
import safetensors
import torch

import frames
import fused
import models
import quantise

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
    """the losses on held-out rows, mean over their kinds, after the last step against those before the first"""
    found = re.findall(r"^  held out .*step (\d+): small ([\d.]+) \|.*eagle3 ([\d.]+) \|.*medusa ([\d.]+) \|", log, flags=re.M)
    steps = sorted({int(f[0]) for f in found})
    expect(len(steps) >= 2 and steps[0] == 0, f"validated at the steps {steps}, expected 0 and the last")
    for i, name in enumerate(("small", "eagle3", "medusa"), 1):
        first, last = (sum(float(f[i]) for f in found if int(f[0]) == at) for at in (steps[0], steps[-1]))
        expect(last < 0.85 * first, f"{name}: loss {first:.2f} at the start and {last:.2f} at the end, expected a fall by 15%")
        print(f"{name}: loss {first:.2f} -> {last:.2f}")


def check_files(folder):
    for draft, tensor in (("small", "model.layers.1.mlp.down_proj.weight"), ("eagle3", "d2t"), ("medusa", "token_map")):
        with open(f"{folder}/drafts/{draft}/config.json") as f:
            config = json.load(f)
        with safetensors.safe_open(f"{folder}/drafts/{draft}/model.safetensors", "np") as f:
            expect(tensor in f.keys(), f"{draft}: tensor {tensor} is missing")
            if draft == "eagle3":
                d2t, t2d = f.get_tensor("d2t"), f.get_tensor("t2d")
                ids = d2t + np.arange(len(d2t))
                expect(len(ids) == config["draft_vocab_size"], "eagle3: d2t is not draft_vocab_size long")
                expect(np.array_equal(np.flatnonzero(t2d), ids), "eagle3: d2t and t2d disagree")
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
    drafts = os.listdir(f"{folder}/alone")
    expect(drafts == ["medusa"], f"alone: drafts {drafts}, expected medusa alone")
    config, shapes = read("again/eagle3")
    expect(config["draft_vocab_size"] == shapes["d2t"][0] == 288, "again/eagle3: expected a vocabulary of 288")
    expect(read("again/small")[0]["num_hidden_layers"] == 3, "again/small: expected 3 layers")


def check_results(folder):
    def read(name):
        with open(f"{folder}/{name}.json") as f:
            return json.load(f)
    results, itself = read("results"), read("self")
    expect(len(results) == 2 * 2 * 5, f"{len(results)} results, expected 20")
    for r in results:
        most = 5 if r["draft"] == "medusa" else 6
        what = " ".join(r[k] for k in ("frame", "draft", "form", "shape"))
        expect(1.2 < r["tokens_per_round"] <= most, f"{what}: {r['tokens_per_round']} tokens per round")
    for r in itself:
        if r["form"] == "bf16" and r["shape"] == "chain 5":
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
    check_results(folder)
    print("smoke test passed")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2])
