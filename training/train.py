"""Distils the drafts from the target in one loop: one forward of the target per batch feeds three of them. LongSpec's
drafter has one of its own, with shifted positions; it and the DFlash drafter are trained only when asked for (--only).
In a share of the steps (--long-share) rows are windows of --long tokens, of which drafts see a part (long_inputs.py).

    python train.py MODEL tokens.npy SAMPLES OUT --seconds 1000 [--start-from OLDER]

The loss is KL(target || draft) at every position. For the last part of the run the weights are quantised as they will
be shipped (gradients pass straight through). The schedule follows the clock (--seconds), or --steps where given.
Writes OUT/{small,eagle3,medusa,longspec,dflash}, again at every validation, and medusa's static tree at the end.
"""
import argparse
import glob
import os
import time
from collections import Counter

import numpy as np
import torch

import long_inputs
from dflash import DFlashDraft
from fused import CUDA, DEVICE, HeadLoss
from models import EagleDraft, LongSpecDraft, MedusaDraft, SmallDraft, Target, medusa_state

TREE_NODES, TREE_RANKS = 63, 10
REAL_SHARE = 0.5        # of the real text is seen in each epoch


def load_rows(args, vocab):
    """-> training rows [N, length], number of sampled ones, windows [M, long], held-out samples by kind, word counts"""
    rows, wide, held, counts = [], [], {}, torch.zeros(vocab, dtype=torch.float64)
    for path in sorted(glob.glob(f"{args.samples}/sample_*.pt")):
        batch = torch.load(path)
        ids = batch["ids"]
        counts += torch.bincount(ids[:, batch["prompt"]:].flatten().long(), minlength=vocab)
        counts += 0.25 * torch.bincount(ids[:, :batch["prompt"]].flatten().long(), minlength=vocab)
        name = f"{batch['kind']}-{ids.shape[1]}"
        if name not in held:
            n = max(1, args.held_out * args.length // ids.shape[1])
            held[name] = dict(batch, ids=ids[:n], temperature=batch["temperature"][:n])
            ids = ids[n:]
        if args.long and ids.shape[1] >= args.long:
            wide.append(ids[:, :ids.shape[1] // args.long * args.long].reshape(-1, args.long))
        rows.append(ids[:len(ids) * ids.shape[1] // args.length * args.length // ids.shape[1]].reshape(-1, args.length))
    sampled = sum(len(r) for r in rows)
    real = torch.from_numpy(np.load(args.corpus).astype(np.int32))
    counts += 0.25 * torch.bincount(real.long(), minlength=vocab)
    real = real[:len(real) // args.length * args.length].view(-1, args.length)
    held["real"] = dict(kind="real", ids=real[:args.held_out])
    if args.long:  # besides the target's own windows as many of the real text, at most
        windows = real[args.held_out:].flatten()
        windows = windows[:len(windows) // args.long * args.long].view(-1, args.long)
        own = sum(len(w) for w in wide)
        wide.append(windows[torch.randperm(len(windows))[:own or len(windows)]])
    wide = torch.cat(wide).to(DEVICE) if wide else None
    return torch.cat(rows + [real[args.held_out:]]).to(DEVICE), sampled, wide, held, counts


def frequent(counts, size):
    """the `size` most frequent words, special ones always, as sorted ids"""
    counts = counts.clone()
    counts[:3] = counts.max() + 1
    ids = counts.topk(size).indices.sort().values
    print(f"vocabulary of {size}: {counts[ids].sum() / counts.sum():.4f} of the word mass", flush=True)
    return ids.to(DEVICE)


def optimizer(draft, rate, slow):
    """tensors named in `slow` (embedding, heads) learn at half the rate and do not decay; neither do vectors"""
    groups = [dict(params=[], rate=rate, weight_decay=0.02), dict(params=[], rate=rate, weight_decay=0.0),
              dict(params=[], rate=rate / 2, weight_decay=0.0)]
    for name in draft.names:
        group = 2 if any(s in name for s in slow) else 0 if draft[name].ndim > 1 else 1
        groups[group]["params"].append(draft[name])
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=CUDA)


class Trainer:
    def __init__(self, args):
        self.args, self.target = args, Target(args.model)
        self.rows, self.sampled, self.wide, self.held, counts = load_rows(args, self.target.vocab)
        print(f"{len(self.rows)} rows of {args.length} tokens, {self.sampled} of them sampled", flush=True)
        if self.wide is not None:
            print(f"{len(self.wide)} windows of {args.long} tokens", flush=True)
        self.small = SmallDraft(self.target, *args.small).to(DEVICE)
        self.eagle = EagleDraft(self.target, frequent(counts, args.eagle_vocab), args.unroll).to(DEVICE)
        words = frequent(counts, args.medusa_vocab)
        self.medusa = MedusaDraft(self.target, words, args.medusa_heads, args.medusa_layers,
                                  not args.medusa_soft).to(DEVICE)
        words = frequent(counts, args.longspec_vocab)
        self.longspec = LongSpecDraft(self.target, words, args.longspec_window).to(DEVICE)
        words = frequent(counts, args.dflash_vocab)
        self.dflash = DFlashDraft(self.target, words, args.dflash_layers, args.dflash_block,
                                  args.dflash_anchors).to(DEVICE)
        every = (self.small, self.eagle, self.medusa, self.longspec, self.dflash)
        self.drafts = [d for d in every if d.folder in args.only]
        earlier = [d for d in self.drafts if d is not self.medusa and args.start_from
                   and os.path.exists(f"{args.start_from}/{d.folder}")]
        if args.start_from and not earlier:
            raise SystemExit(f"{args.start_from}: none of {', '.join(d.folder for d in self.drafts)} in it")
        for draft in earlier:
            taken, _ = draft.start_from(f"{args.start_from}/{draft.folder}")
            print(f"{draft.folder}: {len(taken)} of {len(draft.names)} tensors start from {args.start_from}")
        rates = dict(zip([d.folder for d in every], [*args.rates, args.longspec_rate, args.dflash_rate]))
        self.clip = [1.0 if d is self.small else 0.5 for d in self.drafts]
        self.optimizers = [optimizer(d, rates[d.folder], ["embed" if d is self.small else "lm_head"])
                           for d in self.drafts]
        self.waiting = []  # drafts that do not learn in the present step
        HeadLoss.penalty, HeadLoss.sharpen = args.repeat_penalty, args.sharpen
        for draft in self.drafts:
            draft.penalised = args.repeat_penalty != 1
            print(f"{draft.folder}: {sum(p.numel() for p in draft.parameters()):,} parameters", flush=True)

    def losses(self, ids, learn):
        """ids [B, T] -> loss and agreement (eagle3 and medusa: several) of each draft, in a row"""
        if self.drafts != [self.longspec]:
            hidden, taps, _ = self.target.forward(ids, fixed_shape=True)
        best = torch.empty(ids.numel(), dtype=torch.long, device=DEVICE)  # filled by the small draft's loss, if any
        if self.small not in self.drafts and self.drafts != [self.longspec]:
            best = self.target.best(hidden)
        return self.learn(learn, {
            self.small: lambda: self.small.loss(ids, hidden, self.target, best),
            self.eagle: lambda: self.eagle.loss(ids, hidden, taps, self.target, best.view(ids.shape)),
            self.medusa: lambda: self.medusa.loss(ids, hidden, self.target, best.view(ids.shape)),
            self.longspec: lambda: self.longspec.loss(ids, self.target, shift=learn),
            self.dflash: lambda: self.dflash.loss(ids, hidden, taps, self.target, best.view(ids.shape))})

    def long_losses(self, ids):
        """the same of windows [B, L], of which drafts see a random part"""
        count = min(self.args.length, ids.shape[1] // 2)
        hidden, taps, cells = self.target.forward(ids, fixed_shape=True)
        view = long_inputs.CompactView(ids, hidden, taps, count)
        best = self.target.best(view.hidden).view(view.ids.shape)
        end = self.target.best(hidden[:, -count:]).view(view.ids.shape)
        unread = torch.empty_like(best).flatten()
        return self.learn(True, {
            self.small: lambda: self.small.loss(view.ids, view.hidden, self.target, unread, view.scored),
            self.eagle: lambda: self.eagle.loss(view.ids, view.hidden, view.taps, self.target, best, view.following,
                                                view.scored),
            self.medusa: lambda: self.medusa.loss(ids[:, -count:], hidden[:, -count:], self.target, end),
            self.longspec: lambda: long_inputs.longspec_loss(self.longspec, ids, hidden, cells, self.target, count),
            self.dflash: lambda: self.dflash.loss(view.ids, view.hidden, view.taps, self.target, best, view.kept)})

    def learn(self, learn, losses):
        """runs the loss of each draft that is trained -> all that they give, in a row; NaN for those that wait a step"""
        result = []
        with torch.set_grad_enabled(learn):
            for draft in self.drafts:
                if learn and draft in self.waiting:
                    result.append(torch.full((1 + self.agreements(draft),), torch.nan, device=DEVICE))
                    continue
                loss, hits = losses[draft]()
                if learn:
                    loss.backward()
                result += [loss.detach().view(1), hits.detach().view(-1)]
        return torch.cat(result)

    def agreements(self, draft):
        """numbers that its loss gives besides the loss"""
        return self.args.unroll if draft is self.eagle else self.args.medusa_heads if draft is self.medusa else 1

    def text(self, values):
        v, parts = [f"{x:.3f}" for x in values.tolist()], []
        for draft in self.drafts:
            hits = self.agreements(draft)
            parts.append(f"{draft.folder} {v[0]} | {' '.join(v[1:1 + hits])}")
            v = v[1 + hits:]
        return "  ".join(parts)

    def validate(self, step):
        """prints losses and agreements on held-out rows, writes the checkpoints"""
        for name, batch in self.held.items():
            rows = batch["ids"].reshape(-1, self.args.length).to(DEVICE).long()
            groups = [rows[i:i + self.args.rows] for i in range(0, len(rows) - self.args.rows + 1, self.args.rows)]
            values = torch.stack([self.losses(g, learn=False) for g in groups]).mean(0)
            print(f"  held out {name}, step {step}: {self.text(values)}", flush=True)
        for draft in self.drafts:
            draft.save(f"{self.args.out}/{draft.folder}")

    def epoch(self):
        """numbers of the rows of one epoch: all sampled ones, a part of the real ones"""
        real = self.sampled + torch.randperm(len(self.rows) - self.sampled)
        pick = torch.cat([torch.arange(self.sampled), real[:int(len(real) * REAL_SHARE)]])
        return pick[torch.randperm(len(pick))].to(DEVICE).split(self.args.rows)[:-1]

    def progress(self, step, clock):
        if self.args.steps:
            return step / self.args.steps
        if not clock:
            return 0.0
        if self.args.until:
            with open(self.args.until) as f:
                self.args.seconds = max(1.0, float(f.read()) - clock)
        return (time.time() - clock) / self.args.seconds

    def next_rows(self, queue):
        """rows of the epoch, or as many tokens in long windows"""
        args = self.args
        if self.wide is None or float(torch.rand(())) >= args.long_share:
            return self.rows[queue.pop()].long()
        pick = torch.randint(len(self.wide), (max(1, args.rows * args.length // args.long),), device=DEVICE)
        return self.wide[pick].long()

    def update(self, ids, step, done):
        """one step; the rate warms up, stays flat for 25% of the run and falls linearly to 0"""
        rate = min(1.0, (step + 1) / self.args.warm_up) * min(1.0, (1 - done) / 0.75)
        if done > 1 - self.args.quantised_share:
            for draft in self.drafts:
                draft.quantised = True
        turn = self.args.turns[step % len(self.args.turns)] if self.args.turns else None
        self.waiting = [d for d in self.drafts if self.args.turns and d.folder in self.args.turns and d.folder != turn]
        values = self.long_losses(ids) if ids.shape[1] > self.args.length else self.losses(ids, learn=True)
        for draft, optim, clip in zip(self.drafts, self.optimizers, self.clip):
            if draft in self.waiting:
                continue
            torch.nn.utils.clip_grad_norm_(draft.parameters(), clip)
            for group in optim.param_groups:
                group["lr"] = group["rate"] * rate
            optim.step()
            optim.zero_grad(set_to_none=True)
        return values

    def run(self):
        step, epochs, queue, clock, mean, since = 0, 0, [], None, [], time.time()
        next_check = self.args.validate_every
        self.validate(0)
        while self.progress(step, clock) < 1.0:
            if not queue:
                queue, epochs = list(self.epoch()), epochs + 1
            ids = self.next_rows(queue)
            done = self.progress(step, clock)
            began = time.time()
            mean.append(self.update(ids, step, done))
            step += 1
            if self.args.idle:
                torch.cuda.synchronize() if CUDA else None
                time.sleep(self.args.idle * (time.time() - began))
            if step == 3:  # compiled by now
                torch.cuda.synchronize() if CUDA else None
                print(f"first steps {time.time() - since:.0f}s", flush=True)
                clock, since, mean = time.time(), time.time(), []
            elif step % self.args.log_every == 0 and mean:
                values = torch.stack(mean).nanmean(0)  # waits for the device
                speed = len(mean) * ids.numel() / (time.time() - since) / 1e3
                print(f"step {step} epoch {epochs} {100 * done:.0f}% {speed:.0f}K tokens/s {self.text(values)}",
                      flush=True)
                if clock and time.time() - clock > next_check:
                    self.validate(step)
                    next_check += self.args.validate_every
                mean, since = [], time.time()
        tokens = step * self.args.rows * self.args.length
        print(f"{step} steps, {tokens / 1e6:.1f}M tokens, {epochs} epochs begun", flush=True)
        if self.medusa in self.drafts:
            self.medusa.config["medusa_choices"] = self.static_tree()
        self.validate(step)

    @torch.no_grad()
    def static_tree(self):
        """The tree of TREE_NODES rank paths that accepts most on held-out greedy text: a path counts whenever the true
        tokens have exactly these ranks, and a prefix is never rarer than its extension."""
        w, paths = self.medusa.weights(), Counter()
        for batch in self.held.values():
            if batch["kind"] in ("real", "text", "report"):
                continue
            ids = batch["ids"][batch["temperature"] == 0].to(DEVICE).long()
            for i in range(0, len(ids), 16):
                hidden = self.target.forward(ids[i:i + 16])[0]
                first = max(0, batch["prompt"] - 2)
                paths.update(rank_paths(w, self.medusa, hidden[:, first:], ids[i:i + 16, first:]))
        tree = Counter()
        for path, count in paths.items():
            for depth in range(1, len(path) + 1):
                tree[path[:depth]] += count
        return sorted((list(p) for p, _ in tree.most_common(TREE_NODES)), key=lambda p: (len(p), p))


def rank_paths(weights, draft, hidden, ids):
    """hidden [B, T, C], ids [B, T] -> for each position the ranks of the true tokens by head, cut at the first miss"""
    n, ranks = ids.shape[1] - draft.heads - 1, []
    if n < 1:
        return []
    for k in range(draft.heads):
        y = medusa_state(hidden[:, :n], weights, k)
        top = draft.vocabulary[(y @ weights[f"lm_heads.{k}.weight"].T).topk(TREE_RANKS, -1).indices]
        hit = top == ids[:, k + 2:k + 2 + n, None]
        ranks.append(torch.where(hit.any(-1), hit.float().argmax(-1), TREE_RANKS))
    found = []
    for row in torch.stack(ranks, -1).view(-1, draft.heads).tolist():
        miss = row.index(TREE_RANKS) if TREE_RANKS in row else len(row)
        if miss:
            found.append(tuple(row[:miss]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("samples")
    parser.add_argument("out")
    parser.add_argument("--start-from", help="folder with earlier drafts (not medusa)")
    parser.add_argument("--seconds", type=float, default=1000)
    parser.add_argument("--until", help="file with the time (seconds since 1970) to end at, read at every step")
    parser.add_argument("--idle", type=float, default=0.0, help="pause behind each step, as a share of its time: "
                        "leaves more of a GPU to another process")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--small", type=int, nargs=5, default=[256, 5, 4, 2, 768],
                        metavar=("HIDDEN", "LAYERS", "HEADS", "KV_HEADS", "FFN"))
    parser.add_argument("--unroll", type=int, default=5)
    parser.add_argument("--eagle-vocab", type=int, default=16384)
    parser.add_argument("--medusa-vocab", type=int, default=11264)
    parser.add_argument("--medusa-heads", type=int, default=4)
    parser.add_argument("--medusa-layers", type=int, default=3, help="residual blocks of a head")
    parser.add_argument("--medusa-soft", action="store_true", help="learn the target's distribution, not its argmax")
    parser.add_argument("--only", nargs="+", choices=["small", "eagle3", "medusa", "longspec", "dflash"],
                        default=["small", "eagle3", "medusa"], help="drafts to train (small eagle3 medusa)")
    parser.add_argument("--turns", nargs="+", metavar="DRAFT", help="those named here take turns, one learns in a step, "
                        "in this order; a turn of a name that is no draft's is nobody's")
    parser.add_argument("--rates", type=float, nargs=3, default=[2e-3, 1e-3, 1.5e-3],
                        metavar=("SMALL", "EAGLE", "MEDUSA"))
    parser.add_argument("--longspec-rate", type=float, default=1e-3)
    parser.add_argument("--longspec-vocab", type=int, default=16384)
    parser.add_argument("--longspec-window", type=int, default=512, help="of its own cells")
    parser.add_argument("--dflash-rate", type=float, default=1e-3)
    parser.add_argument("--dflash-vocab", type=int, default=16384)
    parser.add_argument("--dflash-layers", type=int, default=3)
    parser.add_argument("--dflash-block", type=int, default=8, help="rows of a block, the pending token included")
    parser.add_argument("--dflash-anchors", type=int, default=64, help="blocks of a row")
    parser.add_argument("--long", type=int, default=0, help="tokens of long windows (0: none)")
    parser.add_argument("--long-share", type=float, default=0.3, help="of the steps")
    parser.add_argument("--repeat-penalty", type=float, default=1.1,
                        help="half of the rows are scored under it, as the engine applies it to both models; 1: none")
    parser.add_argument("--sharpen", type=float, default=0.0,
                        help="share of the target's best word in what is learnt, on top of its own probability")
    parser.add_argument("--warm-up", type=int, default=150, help="steps")
    parser.add_argument("--quantised-share", type=float, default=0.35, help="of the run, at its end")
    parser.add_argument("--held-out", type=int, default=32, help="rows per kind")
    parser.add_argument("--validate-every", type=float, default=120, help="seconds")
    parser.add_argument("--log-every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    Trainer(args).run()
    if CUDA:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
