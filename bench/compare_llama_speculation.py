#!/usr/bin/env python3
"""Our speculation against llama.cpp's, the same GGUF, draft model, prompts and threads, in one run.

Each prompt is decoded by llama.cpp without drafts and with every method of its `llama-speculative-simple` that needs no training (a draft
model, n-gram forms), each at several draft lengths; its best on that prompt is what we are compared with, so it is tuned per prompt, after
the fact. Ours is one preset for all prompts. Every method runs once for each prompt, one after the other. "decode" counts from the first token
on, with all that drafting costs; "whole" counts the prompt as well. Methods that draft have the attention setting (-fa) with which llama.cpp
decodes faster without them; the whole answer is held against both settings without drafts, too, because the other may read prompts faster.

    bench/compare_llama_speculation.py TEXTS.jsonl --program specextend --peer FOLDER_OF_LLAMA_PROGRAMS --draft draft.gguf --chars 18500,33000

TEXTS: JSON lines with a field "text". Every figure is also written to --json as it comes; what is there already is not run again.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

NGRAMS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]


def peer_methods(draft):
    """Name and flags."""
    for kind in NGRAMS:
        yield kind, ["--spec-type", kind]
    for kind, n, m in (("ngram-simple", 3, 4), ("ngram-simple", 6, 16), ("ngram-map-k", 4, 8)):  # the defaults are 12 and 48
        yield f"{kind} {n},{m}", ["--spec-type", kind, f"--spec-{kind}-size-n", str(n), f"--spec-{kind}-size-m", str(m)]
    for most, least in ((2, 0), (4, 0.5)) if draft else ():
        yield f"draft {most}, p {least}", ["--spec-type", "draft-simple", "-md", draft, "--spec-draft-n-max", str(most), "--spec-draft-p-min", str(least)]


class Runs:
    def __init__(self, args):
        self.args, self.seen = args, {}
        if args.json and os.path.exists(args.json):
            with open(args.json, encoding="utf-8") as file:
                for line in file:
                    row = json.loads(line)
                    self.seen[row["key"]] = row

    def keep(self, key, run):
        if key not in self.seen:
            self.seen[key] = {"key": key} | run()
            if self.args.json:
                with open(self.args.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps(self.seen[key]) + "\n")
        return self.seen[key]

    def peer(self, key, text, flags, flash, penalty):
        """Seconds of the prompt and of decoding, and tokens, of one run."""
        a = self.args
        plain = not flags
        command = [os.path.join(a.peer, "llama-completion" if plain else "llama-speculative-simple"), "-m", a.model, "-f", text, "-n", str(a.tokens), "--temp", "0",
                   "-c", str(a.context), "-b", str(a.context), "-t", str(a.threads), "-fa", "on" if flash else "off", "--repeat-penalty", str(penalty),
                   "--repeat-last-n", "64", *flags, *(["-no-cnv", "--no-display-prompt", "--ignore-eos"] if plain else [])]

        def run():
            result = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
            out = result.stdout + result.stderr
            if plain:
                prompt = re.search(r"prompt eval time =\s*([\d.]+) ms /\s*(\d+) tokens", out)
                decode = re.search(r"[^t] eval time =\s*([\d.]+) ms /\s*(\d+) runs", out)
                scale = 1e-3
            else:
                prompt = re.search(r"encoded\s+(\d+) tokens in\s+([\d.]+) seconds", out)
                decode = re.search(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds", out)
                scale = 1
            if not prompt or not decode:
                raise SystemExit(f"{' '.join(command)}\nno times in its output:\n{out[-2000:]}")
            at = (1, 2) if plain else (2, 1)
            return {"prompt_s": scale * float(prompt[at[0]]), "decode_s": scale * float(decode[at[0]]), "tokens": int(decode[at[1]])}
        return self.keep(key, run)

    def ours(self, key, text, spec, penalty):
        a = self.args
        command = [a.program, "generate", "-m", a.model, "-f", text, "-n", str(a.tokens), "-c", str(a.context), "-t", str(a.threads), "--spec", spec, "--json", "-q",
                   "--ignore-eos", "--repeat-penalty", str(penalty), "--repeat-last-n", "64"]

        def run():
            result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if result.returncode:
                raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
            out = json.loads(result.stdout)
            t = out["timings"]
            return {"prompt_s": t["prompt_ms"] / 1e3, "decode_s": (t["predicted_ms"] + t["draft_prompt_ms"]) / 1e3, "tokens": t["predicted_n"],
                    "distinct": out["distinct_8grams"]}
        return self.keep(key, run)


def speed(row):
    return row["tokens"] / row["decode_s"]


def whole(row, tokens):
    """Seconds of an answer of so many tokens: methods that stop elsewhere are compared by the same answer."""
    return row["prompt_s"] + tokens * row["decode_s"] / row["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts")
    parser.add_argument("--program", default="build/release/apps/specextend")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parser.add_argument("--model", default=os.path.join(cache, "specextend/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--peer", required=True, help="folder of llama-speculative-simple and llama-completion")
    parser.add_argument("--draft", default="", help="a draft model for llama.cpp, as GGUF")
    parser.add_argument("--spec", default="auto")
    parser.add_argument("--chars", default="18500,33000", help="texts are cut to so many characters")
    parser.add_argument("--penalties", default="1,1.1", help="repeat penalties; greedy text of a small model loops without one")
    parser.add_argument("--limit", type=int, default=2, help="texts of each length")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="file of figures")
    args = parser.parse_args()
    runs = Runs(args)
    with open(args.texts, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    print("| prompt | penalty | distinct | llama.cpp plain | its best | which | ours plain | ours | decode | whole |\n| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    ratios = []
    for chars in (int(c) for c in args.chars.split(",")):
        long_enough = [t for t in texts if len(t) >= chars][:args.limit]
        if not long_enough:
            raise SystemExit(f"no text of {args.texts} has {chars} characters")
        for number, text in enumerate(long_enough):
            with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
                file.write(text[:chars])
                file.flush()
                for penalty in (float(p) for p in args.penalties.split(",")):
                    key = f"{chars} {number} {penalty} "
                    plain = {flash: runs.peer(f"{key}llama -fa {int(flash)}", file.name, [], flash, penalty) for flash in (False, True)}
                    flash = max(plain, key=lambda f: speed(plain[f]))
                    off = runs.ours(f"{key}ours off", file.name, "off", penalty)
                    ours = runs.ours(f"{key}ours {args.spec}", file.name, args.spec, penalty)
                    theirs = {"plain": plain[flash]}
                    for name, flags in peer_methods(args.draft):
                        theirs[name] = runs.peer(f"{key}llama {name}", file.name, flags, flash, penalty)
                    best = max(theirs, key=lambda name: speed(theirs[name]))
                    least = min(whole(row, args.tokens) for row in (*theirs.values(), *plain.values()))
                    decode, all_of_it = speed(ours) / speed(theirs[best]), least / whole(ours, args.tokens)
                    ratios.append((decode, all_of_it))
                    print(f"| {chars:,} characters, {number + 1} | {penalty} | {ours['distinct']:.0%} | {speed(plain[flash]):.1f} | {speed(theirs[best]):.1f} | {best} | "
                          f"{speed(off):.1f} | {speed(ours):.1f} | {decode:.2f}x | {all_of_it:.2f}x |", flush=True)
    for what, column in (("decode", 0), ("whole", 1)):
        values = [r[column] for r in ratios]
        print(f"{what}: median {statistics.median(values):.2f}x, worst {min(values):.2f}x", file=sys.stderr)


if __name__ == "__main__":
    main()
