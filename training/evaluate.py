"""Acceptance lengths of the drafts, by exact simulation.

    python evaluate.py MODEL DRAFTS prompts.npz results.json

Verification never changes the text, so the accepted text is the target's own greedy continuation. That is generated
once; then every draft proposes round by round as in an engine (full cache, original positions), the matching part is
accepted, and the round yields accepted + 1 tokens. A result is tokens per round, the target's own token included.
Each draft runs with its weights as they are and as they are shipped (models.py, quantise.py). Rounds that begin before
the text repeats itself (a run of 8 tokens seen before) are also reported apart.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import dflash
import quantise
from frames import STOP_TOKENS
from fused import DEVICE, penalise, recent_words, word_mask
from models import (EagleDraft, LongSpecDraft, MedusaDraft, SmallDraft, Target, first_cells, join_heads, medusa_state,
                    read_config, recent_cells, rms, rope_tables, rotate, split_heads)

SLACK = 8        # tokens generated beyond those judged
LOOP_RUN = 8     # tokens
FORMS = ["bf16", "shipped"]


def load_draft(kind, folder, form):
    """-> tensors in fp32 by name (quantised and read back if shipped), bytes of the shipped matrices by name"""
    weights, sizes = {}, {}
    for name, tensor in load_file(f"{folder}/model.safetensors").items():
        tensor = tensor.to(DEVICE)
        if tensor.is_floating_point():
            matrix = kind.shipped(name) if tensor.ndim == 2 else None
            tensor = quantise.simulate(tensor.float(), matrix if form == "shipped" else None)
            sizes[name] = tensor.numel() * quantise.BITS[matrix] / 8
        weights[name] = tensor
    return weights, sizes


class Runner:
    """a draft that grows trees; entry i of its cache holds position i"""
    window = math.inf  # of its own cache

    def __init__(self, folder, form):
        self.config = c = read_config(folder)
        self.w, sizes = load_draft(self.kind, folder, form)
        self.bytes = sum(size for name, size in sizes.items() if name != "fc.weight")  # fc: once per verified token
        self.layers, self.dim = c["num_hidden_layers"], c["head_dim"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]

    def layer(self, i, part):
        return self.w[f"{self.prefix(i)}.{part}.weight"]

    def qkv(self, i, y):
        parts = zip(("q", "k", "v"), (self.heads, self.kv_heads, self.kv_heads))
        return [split_heads(F.linear(y, self.layer(i, f"self_attn.{p}_proj")), heads) for p, heads in parts]

    def rest(self, i, x, attended, rope, seen):
        """rope: cos, sin of the rows; seen: how many of the target's cells they see (only LongSpec's drafter asks)"""
        x = x + F.linear(join_heads(attended), self.layer(i, "self_attn.o_proj"))
        return self.mlp(i, x, "post_attention_layernorm")

    def mlp(self, i, x, norm):
        y = rms(x, self.layer(i, norm))
        gate, up = F.linear(y, self.layer(i, "mlp.gate_proj")), F.linear(y, self.layer(i, "mlp.up_proj"))
        return x + F.linear(F.silu(gate) * up, self.layer(i, "mlp.down_proj"))


class SmallRunner(Runner):
    kind, behind = SmallDraft, 0  # entry n - 1 is known when n tokens are
    prefix = staticmethod(lambda i: f"model.layers.{i}")

    def inputs(self, text, target):
        return F.embedding(text["ids"], self.w["model.embed_tokens.weight"]), None

    def child(self, tokens, parent, target):
        return F.embedding(tokens, self.w["model.embed_tokens.weight"]), None

    def attention_input(self, i, x, side):
        return rms(x, self.layer(i, "input_layernorm"))

    def logits(self, x):
        return F.linear(rms(x, self.w["model.norm.weight"]), self.w["model.embed_tokens.weight"])

    def token(self, index):
        return index

    def words(self, target):
        return slice(None)


class ReducedRunner(Runner):
    """has a head of its own, for a part of the target's vocabulary"""

    def logits(self, x):
        return F.linear(x, self.w["lm_head.weight"])

    def token(self, index):
        return index + self.w["d2t"][index]

    def words(self, target):
        """the target's number of each of the draft's words"""
        return torch.arange(len(self.w["d2t"]), device=DEVICE) + self.w["d2t"]


class EagleRunner(ReducedRunner):
    kind, behind = EagleDraft, 1  # entry i pairs the target's state at i with token i + 1
    prefix = staticmethod(lambda i: "midlayer")

    def inputs(self, text, target):
        following = F.pad(text["ids"][:, 1:], (0, 1))
        return F.linear(text["taps"].float(), self.w["fc.weight"]), F.embedding(following, target.embedding).float()

    def child(self, tokens, parent, target):
        return parent, F.embedding(tokens, target.embedding).float()

    def attention_input(self, i, x, side):
        return torch.cat([rms(side, self.layer(i, "input_layernorm")), rms(x, self.layer(i, "hidden_norm"))], -1)

    def logits(self, x):
        return super().logits(rms(x, self.w["norm.weight"]))


class LongSpecRunner(ReducedRunner):
    kind, behind = LongSpecDraft, 0

    def __init__(self, folder, form):
        super().__init__(folder, form)
        self.layers, self.window = 1, self.config["longspec_window"]

    def layer(self, i, part):
        return self.w[f"{part}.weight"]

    def inputs(self, text, target):
        self.cells = [c.float() for c in text["cells"]]
        return F.embedding(text["ids"], target.embedding).float(), None

    def child(self, tokens, parent, target):
        return F.embedding(tokens, target.embedding).float(), None

    def attention_input(self, i, x, side):
        return rms(x, self.layer(i, "input_layernorm"))

    def rest(self, i, x, attended, rope, seen):
        x = x + F.linear(join_heads(attended), self.layer(i, "self_attn.o_proj"))
        y = rms(x, self.layer(i, "post_self_attention_layernorm"))
        q = rotate(split_heads(F.linear(y, self.layer(i, "cross_attn.q_proj")), self.heads), *rope)
        keys, values = [c.repeat_interleave(self.heads // self.kv_heads, 1) for c in self.cells]
        mask = first_cells(seen, keys.shape[2])
        a = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + F.linear(join_heads(a), self.layer(i, "cross_attn.o_proj"))
        return self.mlp(i, x, "post_cross_attention_layernorm")


def recent_mask(ids, known, vocab):
    """known [B]: tokens of each row that are known -> [B, vocab]: the words that a repeat penalty applies to"""
    return word_mask(recent_words(ids, known[:, None] - 1)[:, 0], vocab)


@torch.no_grad()
def continue_greedily(target, prompts, count, penalty=1.0):
    """prompts [B, P] -> the text of both, the target's states over it, where it ends and where it begins to loop"""
    rows, given = prompts.shape
    ids = F.pad(prompts, (0, count + SLACK))
    cache = target.new_cache(rows, ids.shape[1])
    last = target.forward(prompts, cache=cache)[0][:, -1]
    for at in range(given, ids.shape[1]):
        logits = last @ target.head.T
        if penalty != 1:
            known = torch.full((rows,), at, device=DEVICE)
            logits = penalise(logits.float(), recent_mask(ids, known, target.vocab), penalty)
        ids[:, at] = logits.argmax(-1)
        if at + 1 < ids.shape[1]:
            last = target.step(ids[:, at], at, cache)
    del cache
    hidden, taps, cells = target.forward(ids)
    end, loop = [], []
    for row in ids[:, given:given + count].tolist():
        stops = [i for i, token in enumerate(row) if token in STOP_TOKENS]
        end.append(given + (stops[0] + 1 if stops else count))
        seen, at = set(), count
        for i in range(LOOP_RUN, count + 1):
            run = tuple(row[i - LOOP_RUN:i])
            if run in seen:
                at = i - 1
                break
            seen.add(run)
        loop.append(min(given + at, end[-1]))
    return dict(ids=ids, given=given, hidden=hidden, taps=taps, cells=cells, end=end, loop=loop,
                penalty=penalty, looped=1 - sum(l - given for l in loop) / sum(e - given for e in end))


@torch.no_grad()
def encode(draft, text, target):
    """the draft over the whole text, as it sees verified tokens: final hidden [B, S, C], rotated keys, values"""
    x, side = draft.inputs(text, target)
    cos, sin = rope_tables(x.shape[1] + 16, draft.dim, draft.config["rope_theta"])
    keys, values, count, group = [], [], x.shape[1], draft.heads // draft.kv_heads
    at, rope = torch.arange(count, device=DEVICE)[None], (cos[:count], sin[:count])
    mask = recent_cells(at, draft.window) if draft.window < count else None
    for i in range(draft.layers):
        q, k, v = draft.qkv(i, draft.attention_input(i, x, side))
        q, k = rotate(q, *rope), rotate(k, *rope)
        keys.append(k)
        values.append(v)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = draft.rest(i, x, a, rope, at)  # a token's own cell is not there when it is the last known one
    return x, keys, values, (cos, sin)


def attend_tree(q, cached, mask, own):
    """q [B, H, W, D] over the cache (keys, values [B, K, S, D]; mask [B, S]) and each node's own path
    (keys, values [B, K, W, L, D]) -> [B, H, W, D]"""
    (keys, values), (path_keys, path_values) = cached, own
    rows, heads, width, dim = q.shape
    kv, length = keys.shape[1], keys.shape[2]
    q = q.view(rows, kv, heads // kv, width, dim) / math.sqrt(dim)
    z = torch.einsum("bkgwd,bksd->bkgws", q, keys).masked_fill(~mask[:, None, None, None], -math.inf)
    z = torch.cat([z, torch.einsum("bkgwd,bkwld->bkgwl", q, path_keys)], -1).softmax(-1)
    out = torch.einsum("bkgws,bksd->bkgwd", z[..., :length], values)
    out = out + torch.einsum("bkgwl,bkwld->bkgwd", z[..., length:], path_values)
    return out.reshape(rows, heads, width, dim)


def grow(draft, encoded, known, target, depth, width, text):
    """known [B]: number of known tokens -> per level: tokens and joint log-probabilities [B, parents, width], and which
    candidates (flat index) were expanded [B, width]"""
    x, keys, values, (cos, sin) = encoded
    rows, base = known.shape[0], known - draft.behind
    cell = torch.arange(x.shape[1], device=DEVICE)[None]
    h = x.gather(1, (base - 1)[:, None, None].expand(-1, 1, x.shape[-1]))
    mask = recent_mask(text["ids"], known, target.vocab)[:, draft.words(target)][:, None]  # as of the pending token
    guess = lambda h: penalise(draft.logits(h), mask, text["penalty"]).log_softmax(-1)
    score, index = guess(h).topk(width, -1)
    levels, scores, chosen = [draft.token(index)], [score], [torch.arange(width, device=DEVICE).expand(rows, width)]
    tokens, score, h = draft.token(index)[:, 0], score[:, 0], h.expand(-1, width, -1)
    paths = [None] * draft.layers  # per layer (keys, values) of each beam's own nodes [B, K, W, level, D]
    for level in range(1, depth):
        x, side = draft.child(tokens, h, target)
        at = (base + level - 1)
        c, s = cos[at][:, None, None], sin[at][:, None, None]
        seen = (cell < base[:, None]) & (cell > at[:, None] - draft.window)
        for i in range(draft.layers):
            q, k, v = draft.qkv(i, draft.attention_input(i, x, side))
            q, own = rotate(q, c, s), (rotate(k, c, s)[:, :, :, None], v[:, :, :, None])
            paths[i] = own if level == 1 else [torch.cat(pair, 3) for pair in zip(paths[i], own)]
            a = attend_tree(q, (keys[i], values[i]), seen, paths[i])
            x = draft.rest(i, x, a, (c, s), (known - 1)[:, None])
        step, index = guess(x).topk(width, -1)
        joint = score[..., None] + step
        levels.append(draft.token(index))
        scores.append(joint)
        score, flat = joint.view(rows, -1).topk(width, -1)
        tokens, parent = draft.token(index).view(rows, -1).gather(1, flat), flat // width
        h = x.gather(1, parent[..., None].expand(-1, -1, x.shape[-1]))
        pick = lambda t: t.gather(2, parent[:, None, :, None, None].expand(-1, t.shape[1], -1, *t.shape[3:]))
        paths = [[pick(t) for t in pair] for pair in paths]
        chosen.append(flat)
    return levels, scores, chosen


def accepted(ids, known, tree, nodes):
    """number of tokens of the text that the best `nodes` nodes of the tree contain in a row -> [B]"""
    levels, scores, chosen = tree
    rows = known.shape[0]
    flat = torch.cat([s.reshape(rows, -1) for s in scores], 1)
    least = flat.topk(min(nodes, flat.shape[1]), -1).values[:, -1:]
    alive = torch.ones(rows, dtype=torch.bool, device=DEVICE)
    parent, count = torch.zeros(2, rows, dtype=torch.long, device=DEVICE).unbind()
    for level, (tokens, score, beams) in enumerate(zip(levels, scores, chosen)):
        width = tokens.shape[-1]
        of_parent = parent[:, None, None].expand(-1, 1, width)
        true = ids.gather(1, (known + level).clamp(max=ids.shape[1] - 1)[:, None])
        hit = (tokens.gather(1, of_parent)[:, 0] == true) & (score.gather(1, of_parent)[:, 0] >= least)
        alive = alive & hit.any(1)
        count += alive
        beam = beams == (parent * width + hit.float().argmax(1))[:, None]
        alive, parent = alive & beam.any(1), beam.float().argmax(1)  # a node that was not expanded has no children
    return count


class Tally:
    """tokens and rounds by prompt, all of them and those before the text loops"""

    def __init__(self, text):
        self.text, rows = text, len(text["end"])
        self.sums = np.zeros((4, rows))

    def add(self, row, known, count):
        """one round of a row that knew `known` tokens and accepted `count` -> tokens known after it"""
        after = min(known + count + 1, self.text["end"][row])
        early = known < self.text["loop"][row]
        self.sums[:, row] += [after - known, 1, (after - known) * early, early]
        return known + count + 1

    def result(self):
        tokens, rounds, early_tokens, early_rounds = self.sums
        count = max(1, rounds.sum())
        ratio = tokens.sum() / count
        error = np.sqrt(((tokens - ratio * rounds) ** 2).sum()) / count  # over prompts, by the delta method
        return dict(tokens_per_round=round(ratio, 3), standard_error=round(error, 3), rounds=int(rounds.sum()),
                    before_loop=round(early_tokens.sum() / max(1, early_rounds.sum()), 3))


@torch.no_grad()
def run_tree(draft, encoded, text, target, depth, width, nodes):
    tally, ids = Tally(text), text["ids"]
    known = [text["given"] + 1] * len(ids)
    while True:
        active = [i for i, n in enumerate(known) if n < text["end"][i]]
        if not active:
            return tally.result()
        now = torch.tensor(known, device=DEVICE).clamp(max=ids.shape[1] - 1)
        counts = accepted(ids, now, grow(draft, encoded, now, target, depth, width, text), nodes).tolist()
        for i in active:
            known[i] = tally.add(i, known[i], counts[i])


@torch.no_grad()
def run_medusa(folder, form, text):
    """-> result, bytes read per round"""
    config = read_config(folder)
    w, sizes = load_draft(MedusaDraft, folder, form)
    tree = {tuple(path) for path in config["medusa_choices"]}
    ranks = max(max(path) for path in tree) + 1
    ids, hidden, tops = text["ids"], text["hidden"].float()[:, text["given"] - 1:], []
    for k in range(config["medusa_num_heads"]):
        y = medusa_state(hidden, w, k)
        tops.append(w["token_map"][F.linear(y, w[f"lm_heads.{k}.weight"]).topk(ranks, -1).indices].tolist())
    tally = Tally(text)
    for row, tokens in enumerate(ids.tolist()):
        known = text["given"] + 1
        while known < text["end"][row]:
            path, at = (), known - 2 - (text["given"] - 1)  # the last state the target has made
            for k, top in enumerate(tops):
                true = tokens[known + k]
                if true not in top[row][at] or path + (top[row][at].index(true),) not in tree:
                    break
                path += (top[row][at].index(true),)
            known = tally.add(row, known, len(path))
    return tally.result(), sum(sizes.values())


def evaluate(args):
    target, results = Target(args.model), []
    prompts = np.load(args.prompts)
    names = [name for name in prompts.files if not args.only or name in args.only]
    frames = [(name, name, 1.0) for name in names]
    if args.repeat_penalty != 1:
        frames += [(name, f"{name}, penalty {args.repeat_penalty}", args.repeat_penalty) for name in names
                   if name.startswith("chat")]
    for name, frame, penalty in frames:
        rows = torch.tensor(prompts[name][:args.rows].astype(np.int64), device=DEVICE)
        text = continue_greedily(target, rows, args.generate, penalty)
        print(f"{frame}: {len(rows)} prompts of {rows.shape[1]} tokens, {sum(text['end']) - text['given'] * len(rows)} "
              f"tokens generated, {100 * text['looped']:.0f}% of them after a loop began", flush=True)

        def report(draft, form, shape, size, result):
            what = dict(frame=frame, draft=draft, form=form, shape=shape, megabytes=round(size / 1e6, 2))
            results.append(what | result)
            print(f"  {draft:8s} {form:8s} {shape:9s} {result['tokens_per_round']:.3f} "
                  f"+- {result['standard_error']:.3f}   before loops {result['before_loop']:.3f}   "
                  f"{size / 1e6:.2f} MB", flush=True)

        for form in args.forms:
            for runner in (SmallRunner, EagleRunner, LongSpecRunner):
                folder = f"{args.drafts}/{runner.kind.folder}"
                if os.path.exists(folder):
                    draft = runner(folder, form)
                    encoded = encode(draft, text, target)
                    for shape, width, nodes in (("chain", 1, args.depth), ("tree", args.width, args.nodes)):
                        result = run_tree(draft, encoded, text, target, args.depth, width, nodes)
                        report(runner.kind.folder, form, f"{shape} {nodes}", draft.bytes, result)
            folder = f"{args.drafts}/{MedusaDraft.folder}"
            if os.path.exists(folder) and penalty == 1:
                result, size = run_medusa(folder, form, text)
                report("medusa", form, f"static {len(read_config(folder)['medusa_choices'])}", size, result)
            folder = f"{args.drafts}/{dflash.DFlashDraft.folder}"
            if os.path.exists(folder):
                w, sizes = load_draft(dflash.DFlashDraft, folder, form)
                result = dflash.run_chain(folder, w, text, target, Tally(text))
                size = sum(size for name, size in sizes.items() if name != "fc.weight")
                report("dflash", form, f"chain {read_config(folder)['block_size'] - 1}", size, result)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("drafts")
    parser.add_argument("prompts")
    parser.add_argument("out")
    parser.add_argument("--generate", type=int, default=256)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--width", type=int, default=8, help="beams of a level, and children kept of each")
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--only", nargs="+", help="names of prompts in the file")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--repeat-penalty", type=float, default=1.1, help="of one more frame; 1: none")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    start = time.time()
    results = evaluate(args)
    with open(args.out, "w") as f:
        json.dump(results, f, indent=1)
    print(f"evaluated in {time.time() - start:.0f}s")


if __name__ == "__main__":
    main()
