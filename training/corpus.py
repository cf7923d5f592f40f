"""Turns a folder of text files into one array of tokens for training, and evaluation prompts into another.

    python corpus.py text    FOLDER MODEL tokens.npy EVALUATION.jsonl ...
    python corpus.py prompts PROMPTS.jsonl MODEL prompts.npz --length 1024 --rows 20

`text` drops every paragraph that shares a run of 12 words with any string of the evaluation files, so that no
evaluation text is trained on. `prompts` cuts every prompt to exactly --length tokens: once as raw text, once as the
user's message in the chat template. MODEL is a folder written by gguf_reader.py.
"""
import argparse
import glob
import json
import os
import re

import numpy as np
from tokenizers import Tokenizer

import frames

WORD = re.compile(r"[a-z0-9']+")
RUN = 12            # words
PIECE = 60_000      # characters encoded at a time


def word_runs(text):
    words = WORD.findall(text.lower())
    return [hash(tuple(words[i:i + RUN])) for i in range(len(words) - RUN + 1)]


def strings(value):
    """all strings inside a JSON value"""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def evaluation_runs(paths):
    runs = set()
    for path in paths:
        with open(path) as f:
            for line in f:
                for text in strings(json.loads(line)):
                    runs.update(word_runs(text))
    return runs


def clean_document(text, forbidden):
    """-> (text without the paragraphs that overlap with the evaluation, number of them)"""
    kept, dropped = [], 0
    for paragraph in re.split(r"\n\s*\n", text.replace("\r", "").replace("\ufeff", "")):
        paragraph = re.sub(r"^#+\s*|^-{3,}$", "", paragraph.strip(), flags=re.M)
        if len(paragraph) < 2:
            continue
        if any(run in forbidden for run in word_runs(paragraph)):
            dropped += 1
        else:
            kept.append(paragraph)
    return "\n\n".join(kept), dropped


def build_text(args):
    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    forbidden = evaluation_runs(args.evaluation)
    paths = sorted(p for p in glob.glob(f"{args.source}/**/*", recursive=True) if p.endswith((".md", ".txt")))
    if not paths:
        raise SystemExit(f"{args.source}: no .md or .txt files")
    np.random.default_rng(0).shuffle(paths)
    parts, dropped, characters = [], 0, 0
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as f:
            text, count = clean_document(f.read(), forbidden)
        dropped += count
        characters += len(text)
        parts.append(np.array([frames.END_OF_TEXT], dtype=np.uint16))
        pieces = re.findall(r"(?s).{1,%d}(?:\n\n|\Z)|.{1,%d}" % (PIECE, PIECE), text)  # cut between paragraphs
        for encoding in tokenizer.encode_batch(pieces, add_special_tokens=False):
            parts.append(np.array(encoding.ids, dtype=np.uint16))
    tokens = np.concatenate(parts)
    np.save(args.out, tokens)
    print(f"{len(paths)} documents, {characters / 1e6:.1f}M characters, {tokens.size / 1e6:.2f}M tokens; "
          f"{dropped} paragraphs dropped (they share {RUN} words in a row with the evaluation)")


def build_prompts(args):
    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    tail = "\n\n### Summary:\n\n"
    ends = {"raw": ([], encode(tail)), "chat": (encode(frames.CHAT_HEAD), encode(tail.rstrip() + frames.CHAT_TAIL))}
    rows = {name: [] for name in ends}
    with open(args.source) as f:
        for line in f:
            text = json.loads(line)["text"].rstrip().removesuffix("### Summary:").rstrip()
            for name, (head, end) in ends.items():
                body = encode(text if name == "raw" else text.lstrip())
                room = args.length - len(head) - len(end)
                if len(body) >= room and len(rows[name]) < args.rows:
                    rows[name].append(head + body[:room] + end)
    np.savez_compressed(args.out, **{name: np.array(r, dtype=np.uint16) for name, r in rows.items()})
    print(", ".join(f"{name}: {len(r)} prompts of {args.length} tokens" for name, r in rows.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["text", "prompts"])
    parser.add_argument("source")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("evaluation", nargs="*", help="files whose text must not be trained on")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=20)
    args = parser.parse_args()
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    build_text(args) if args.what == "text" else build_prompts(args)


if __name__ == "__main__":
    main()
