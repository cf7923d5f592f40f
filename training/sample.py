"""Samples training text from the target, many rows at once with a key/value cache.

    python sample.py MODEL tokens.npy FOLDER --seconds 260

All rows of a batch have prompts of one length, so decoding runs in lockstep and needs no mask. Kinds of rows:
  report  the opening of a report that does not exist (frames.py), continued: modern prose for the other kinds
  long    a document (report or real text) in a summarising, chat or plain frame; 5/8 prompt
  chat    the chat template up to the user's turn: the target writes question, answer and further turns
  task    the chat template with an instruction and a passage; 5/8 prompt
  text    64 tokens of real text, continued
Half of the rows are greedy, for that is where drafts are judged; three in five are written under a repeat penalty,
which keeps them from looping. Each batch becomes one file FOLDER/sample_NNN.pt.
"""
import argparse
import glob
import os
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import frames
from fused import COMPUTE, CUDA, DEVICE, PENALTY_WINDOW, compiled
from models import Target

TEMPERATURES, SHARES = [0.0, 0.5, 0.8, 1.0], [0.5, 0.15, 0.2, 0.15]
PENALTIES, PENALTY_SHARES = [1.0, 1.1], [0.4, 0.6]
PREFILL_TOKENS = 98304  # at a time
QUESTION_TOKENS = 24    # of a chat row are drawn at temperature 1, so that greedy rows differ


def penalised(logits, ids, at, penalty):
    """logits [B, V] with each row's repeat penalty [B] on the words before `at`"""
    places = (at - 1 - torch.arange(PENALTY_WINDOW, device=ids.device)).clamp(min=0)
    words = ids[:, places]
    values = logits.gather(1, words)
    by = penalty[:, None].to(values.dtype)
    return logits.scatter_(1, words, torch.where(values > 0, values / by, values * by))


@compiled
def draw(logits, temperature):
    """Gumbel noise: logits [B, V], temperature [B] (0: argmax) -> tokens [B]"""
    u = torch.rand(logits.shape, device=logits.device, dtype=torch.float32).clamp(1e-9, 1 - 1e-7)
    return (logits.float() - temperature[:, None] * torch.log(-torch.log(u))).argmax(-1)


class Prompts:
    """makes prompts of a given kind; keeps the reports sampled so far as passages"""

    def __init__(self, folder, corpus, seed):
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
        known = {}
        self.encode = lambda text: known.setdefault(text, tokenizer.encode(text, add_special_tokens=False).ids)
        self.rng = np.random.default_rng(seed)
        self.corpus, self.reports = corpus, None
        self.newline = self.encode("\n")[0]

    def add_reports(self, ids):
        fresh = ids.flatten().cpu().numpy().astype(np.uint16)
        self.reports = fresh if self.reports is None else np.concatenate([self.reports, fresh])

    def passage(self, count):
        """tokens of one place in a report (two times out of three, once there are any) or in the real text"""
        modern = self.reports is not None and self.rng.random() < 0.67
        source = self.reports if modern else self.corpus
        start = int(self.rng.integers(0, len(source) - count))
        tokens = source[start:start + count].astype(np.int64)
        return np.where(np.isin(tokens, frames.STOP_TOKENS + (1,)), self.newline, tokens)

    def framed(self, head, tail, count):
        return np.concatenate([np.array(head, dtype=np.int64), self.passage(count - len(head) - len(tail)),
                               np.array(tail, dtype=np.int64)])

    def raw_frame(self):
        head, tail = frames.RAW[self.rng.integers(len(frames.RAW))]
        return (head % self.rng.choice(frames.SUMMARY_WORDS) if "%d" in head else head), tail

    def chat_frame(self):
        """an instruction before or after the passage, or the raw summarising prompt as the user's message"""
        if self.rng.random() < 0.4:
            head, tail = self.raw_frame()
            return frames.CHAT_HEAD + head.lstrip(), tail.rstrip() + frames.CHAT_TAIL
        task = frames.TASKS[self.rng.integers(len(frames.TASKS))]
        if self.rng.random() < 0.3:
            return frames.CHAT_HEAD, "\n\n" + task + frames.CHAT_TAIL
        return frames.CHAT_HEAD + task + "\n\n", frames.CHAT_TAIL

    def one(self, kind, index, count):
        if kind == "chat":
            return np.array(self.encode(frames.CHAT_HEAD), dtype=np.int64)
        if kind == "text":
            return self.passage(count)
        if kind == "report":
            while True:  # most openings are longer
                opening = self.encode(frames.report_opening(self.rng))
                if len(opening) >= count:
                    return np.array(opening[:count], dtype=np.int64)
        head, tail = self.chat_frame() if kind == "task" or index % 2 else self.raw_frame()
        return self.framed(self.encode(head), self.encode(tail), count)

    def batch(self, kind, rows, count):
        return torch.tensor(np.stack([self.one(kind, i, count) for i in range(rows)]), device=DEVICE)


@torch.no_grad()
def sample_batch(target, prompt, length, cache, temperature, penalty, free):
    """prompt [B, P] -> ids [B, length]; the first `free` tokens are drawn at temperature 1"""
    rows, given = prompt.shape
    ids = torch.zeros(rows, length, dtype=torch.long, device=DEVICE)
    ids[:, :given] = prompt
    last = torch.empty(rows, target.hidden, device=DEVICE, dtype=COMPUTE)
    group = max(1, PREFILL_TOKENS // given)
    for i in range(0, rows, group):
        last[i:i + group] = target.forward(prompt[i:i + group], cache=cache, row=i)[0][:, -1]
    ones = torch.ones_like(temperature)
    for at in range(given, length):
        ids[:, at] = draw(penalised(last @ target.head.T, ids, at, penalty), ones if at < given + free else temperature)
        if at + 1 < length:
            last = target.step(ids[:, at], at, cache)
    if CUDA:
        torch.cuda.synchronize()
    return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=260)
    parser.add_argument("--tokens", type=int, default=3072 * 1024, help="tokens of a batch, prompts included")
    parser.add_argument("--length", type=int, default=2048, help="of a long row; others are half or a quarter of it")
    parser.add_argument("--prompt-share", type=float, default=5 / 8, help="of the rows with a passage")
    parser.add_argument("--only", nargs="+", help="kinds of rows; passages come from the reports in FOLDER, too")
    parser.add_argument("--prefix", default="", help="of the files' numbers")
    parser.add_argument("--batches", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    target = Target(args.model)
    prompts = Prompts(args.model, np.load(args.corpus), args.seed)
    long, half, quarter = args.length, args.length // 2, args.length // 4
    share = args.prompt_share
    plan = [("report", 20, quarter), ("task", int(half * share), half), ("long", int(long * share), long),
            ("chat", 0, half), ("long", int(half * share), half), ("text", 64 * half // 1024, quarter)]
    plan = [row for row in plan if not args.only or row[0] in args.only]
    numbers = target.layers * [args.tokens * target.kv_heads * target.dim]
    for path in sorted(glob.glob(f"{args.out}/sample_*.pt")) if args.only else []:
        batch = torch.load(path)
        if batch["kind"] == "report":
            prompts.add_reports(batch["ids"])
    flat = [[torch.empty(n, device=DEVICE, dtype=COMPUTE) for n in numbers] for _ in "kv"]
    start, generated, longest, count = time.time(), 0, {}, 0
    while count < args.batches:
        kind, given, length = plan[count % len(plan)]
        began = time.time()
        if count and began - start + longest.get((kind, length), 0) > args.seconds:
            break
        rows = args.tokens // length
        cache = [[t.view(rows, target.kv_heads, length, target.dim) for t in side] for side in flat]
        temperature = torch.tensor(prompts.rng.choice(TEMPERATURES, size=rows, p=SHARES), device=DEVICE).float()
        penalty = torch.tensor(prompts.rng.choice(PENALTIES, size=rows, p=PENALTY_SHARES), device=DEVICE).float()
        if kind == "report":
            temperature = temperature.clamp(min=0.5)  # greedy reports would be loops
        prompt = prompts.batch(kind, rows, given)
        free = QUESTION_TOKENS if kind == "chat" else 0
        ids = sample_batch(target, prompt, length, cache, temperature, penalty, free)
        given = prompt.shape[1]
        name = f"{args.out}/sample_{args.prefix}{count:03d}.pt"
        torch.save(dict(kind=kind, prompt=given, ids=ids.to(torch.int32).cpu(), temperature=temperature.cpu(),
                        penalty=penalty.cpu()), f"{name}.new")
        os.replace(f"{name}.new", name)
        if kind == "report":
            prompts.add_reports(ids)
        took = time.time() - began
        longest[(kind, length)], generated, count = took, generated + rows * (length - given), count + 1
        speed = rows * (length - given) / took / 1e3
        print(f"{kind} {rows} x {length} ({given} given): {took:.1f}s, {speed:.0f}K tokens/s", flush=True)
        if count <= len(plan):
            print("    " + repr(prompts.decode(ids[1, max(0, given - 16):given + 60].tolist())), flush=True)
    print(f"{generated / 1e6:.2f}M tokens sampled in {count} batches, {time.time() - start:.0f}s", flush=True)


if __name__ == "__main__":
    main()
