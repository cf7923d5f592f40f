"""Checks of smoke.py for training on long inputs: what a compact row shows, who learns from it, and the DFlash drafter
against its blocks written out."""
import json

import safetensors.torch
import torch

import dflash
import long_inputs
import models


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def check_places(expect):
    torch.manual_seed(3)
    seen, length, count = set(), 4096, 1024
    for budget in (None, 1, 4, 1000):
        for _ in range(16):
            places, kept = long_inputs.compact_places(3, length, count, budget)
            if budget is None:
                seen.add(kept)
            expect(places.shape == (3, count) and kept <= count // 2, "compact rows: wrong size, or the end is less than half")
            expect((places.diff(dim=1) > 0).all(), "compact rows: places do not rise")
            expect((places[:, :32] == torch.arange(32)).all(), "compact rows: the first chunk is missing")
            expect((places[:, kept:] == torch.arange(length - count + kept, length)).all(), "compact rows: not the end")
            chunks = places[:, :kept].view(3, -1, 32)
            expect((chunks[..., :1] % 32 == 0).all() and (chunks - chunks[..., :1] == torch.arange(32)).all(),
                   "compact rows: what is kept are no whole chunks")
            if budget == 4:
                expect(len({tuple(row.tolist()) for row in places}) > 1, "compact rows: all rows keep the same chunks")
    expect(len(seen) >= 3, f"compact rows: budgets {seen} are not random")
    ids = torch.randint(50, (2, 1024))
    states = torch.randn(2, 1024, 6)
    view = long_inputs.CompactView(ids, states, states * 2, 256, 3)
    for row in range(2):
        at = view.places[row]
        expect(torch.equal(view.ids[row], ids[row][at]), "compact rows: other tokens")
        expect(torch.equal(view.taps[row], 2 * states[row][at]), "compact rows: other states")
        expect(torch.equal(view.following[row, :-1], ids[row][at[:-1] + 1]), "compact rows: other following tokens")
    expect(torch.equal(view.scored.sum(1), torch.full((2,), 256.0 - 96)), "compact rows: chunks are scored, too")


def check_scored(target, folder, expect):
    """what is not scored does not reach the loss, and what is kept does"""
    torch.manual_seed(4)
    draft = models.SmallDraft(target, 64, 2, 2, 1, 128)
    draft.start_from(f"{folder}/drafts/small")
    ids = torch.randint(target.vocab, (2, 96))
    hidden = target.forward(ids)[0]
    scored = (torch.arange(96) >= 64).float().expand(2, -1)
    best = torch.empty(ids.numel(), dtype=torch.long)
    loss = lambda tokens, states: draft.loss(tokens, states, target, best, scored)[0]
    other = hidden.clone()
    other[:, :64] = torch.randn_like(other[:, :64])
    before = loss(ids, hidden)
    expect(torch.equal(before, loss(ids, other)), "small: positions that are not scored count")
    changed = ids.clone()
    changed[:, 3] = (ids[:, 3] + 1) % target.vocab
    expect(not torch.equal(before, loss(changed, hidden)), "small: tokens that are kept are not seen")


@torch.no_grad()
def check_dflash(target, folder, expect):
    path = f"{folder}/drafts/dflash"
    with open(f"{path}/config.json") as f:
        config = json.load(f)
    file = {n: t.float() for n, t in safetensors.torch.load_file(f"{path}/model.safetensors").items()}
    words = (torch.arange(config["draft_vocab_size"]) + file["d2t"]).long()
    expect(config["dflash_config"]["target_layer_ids"] == [t - 1 for t in target.taps], "dflash: other layers")
    draft = dflash.DFlashDraft(target, words, config["num_hidden_layers"], config["block_size"])
    expect(len(draft.start_from(path)[0]) == len(draft.names), "dflash: tensors are missing")
    torch.manual_seed(5)
    size, ids = config["block_size"], torch.randint(target.vocab, (1, 40))
    taps = target.forward(ids)[1]
    anchor = torch.tensor([[1, 17, 30]])
    found = draft.blocks(draft.weights(), ids.gather(1, anchor), anchor, taps, target)[0]
    w = {n: t.double() for n, t in draft.weights().items()}
    norm = lambda x, weight: x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def turned(x, at):
        angle = at[:, None, None] * 10000.0 ** (-torch.arange(0, target.dim, 2).double() / target.dim)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    for number, n in enumerate(anchor[0].tolist()):
        context = norm(taps[0, :n].double() @ w["fc.weight"].T, w["hidden_norm.weight"])
        x = target.embedding.double()[torch.tensor([ids[0, n]] + [draft.mask] * (size - 1))]
        at = torch.arange(n + size)
        for i in range(draft.layers):
            get = lambda name: w[f"layers.{i}.{name}.weight"]
            y = norm(x, get("input_layernorm"))
            heads = lambda part, z: (z @ get(f"self_attn.{part}_proj").T).view(len(z), -1, target.dim)
            q = turned(norm(heads("q", y), get("self_attn.q_norm")), at[n:])
            k = turned(norm(heads("k", torch.cat([context, y])), get("self_attn.k_norm")), at)
            v = heads("v", torch.cat([context, y]))
            group = target.heads // target.kv_heads
            z = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(group, 1)) / target.dim ** 0.5
            a = torch.einsum("hij,jhd->ihd", z.softmax(-1), v.repeat_interleave(group, 1)).reshape(size, -1)
            x = x + a @ get("self_attn.o_proj").T
            y = norm(x, get("post_attention_layernorm"))
            gate = y @ get("mlp.gate_proj").T
            x = x + (gate * torch.sigmoid(gate) * (y @ get("mlp.up_proj").T)) @ get("mlp.down_proj").T
        off = relative(found[number], norm(x, w["norm.weight"]))
        expect(off < 1e-5, f"dflash: the block behind {n} tokens is off by {off:.1e}")


@torch.no_grad()
def check_rounds(target, folder, expect):
    """a text that goes on as the drafter says is accepted as far as the block reaches, and one that does not is not"""
    path = f"{folder}/drafts/dflash"
    w = {n: t.float() if t.is_floating_point() else t
         for n, t in safetensors.torch.load_file(f"{path}/model.safetensors").items()}
    config, given = models.read_config(path), 20
    size, ids = config["block_size"], torch.randint(target.vocab, (2, 40))
    taps = target.forward(ids)[1]
    anchor = torch.tensor([[given]])
    tables = models.rope_tables(64, target.dim, config["rope_theta"])
    x = dflash.run_blocks(w, config, tables, ids[:1, given:given + 1], anchor, taps[:1], target)
    best = (x[0, 0, 1:] @ w["lm_head.weight"].T).argmax(-1)
    ids[0, given + 1:given + size] = best + w["d2t"][best]
    for wrong in range(1, size + 1):  # the first place that differs
        text = dict(ids=ids.clone(), taps=taps, given=given, end=[given + 2] * 2, loop=[given + 2] * 2, penalty=1.0)
        if wrong < size:
            text["ids"][0, given + wrong] = (text["ids"][0, given + wrong] + 1) % target.vocab
        rounds = []

        class Tally:
            def add(self, row, known, count):
                rounds.append((row, count))
                return text["end"][row]

            def result(self):
                return rounds
        found = dict(dflash.run_chain(path, w, text, target, Tally()))
        expect(found[0] == wrong - 1, f"dflash: {found[0]} of {wrong - 1} right tokens are accepted")


def check(folder, expect):
    target = models.Target(f"{folder}/model")
    check_places(expect)
    check_scored(target, folder, expect)
    check_dflash(target, folder, expect)
    check_rounds(target, folder, expect)
    with open(f"{folder}/train.log") as f:
        expect(" windows of 1024 tokens" in f.read(), "train: no long windows")
