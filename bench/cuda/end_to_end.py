#!/usr/bin/env python3
"""Speculation against plain decoding end to end: `specextend generate --compare --json` over prompts, lengths and presets.

  end_to_end.py --program SPECEXTEND --model TARGET --prompts FOLDER --preset specextend:DRAFT --preset suffix --out FILE

FOLDER holds LENGTH-N.txt (1K-0.txt, 7.5K-1.txt, ...). Every line of FILE is one run; the table printed at the end has medians of the
prompts of a length. A run whose bytes are not equal ends the program with an error. Small models loop on raw text; --chat with
--repeat-penalty 1.1 gives text that does not (the share of distinct 8-grams is in the table).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys


def run(args, preset, prompt, extra):
    name, _, draft = preset.partition(":")
    command = [args.program, "generate", "-m", args.model, "-c", str(args.context), "--spec", name, "-f", str(prompt),
               "--chat" if args.chat else "--raw", "-n", str(args.tokens), "--ignore-eos", "--compare", "--json", *extra]
    if draft:
        command += ["-md", draft]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def rate(timings):
    return 1e3 * timings["predicted_n"] / timings["predicted_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("--lengths", default="1K,4K,7.5K")
    parser.add_argument("--preset", action="append", required=True)
    parser.add_argument("--count", type=int, default=2, help="prompts of a length")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--context", type=int, default=9216)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--chat", action="store_true", help="each prompt as a user's message")
    parser.add_argument("--repeat-penalty", type=float, default=1)
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    args = parser.parse_args()
    extra = ["--temp", str(args.temperature), "--seed", "7"] if args.temperature > 0 else []
    if args.repeat_penalty != 1:
        extra += ["--repeat-penalty", str(args.repeat_penalty), "--repeat-last-n", "256"]
    for length in args.lengths.split(","):
        for preset in args.preset:
            rates, plain, accepted, distinct = [], [], [], []
            speedups = {"whole_answer": [], "after_prompt": [], "decode_only": []}
            for prompt in sorted(args.prompts.glob(f"{length}-*.txt"))[:args.count]:
                result = run(args, preset, prompt, extra)
                if not result["plain"]["equal"]:
                    sys.exit(f"{preset}, {prompt}: the bytes differ")
                print(json.dumps({"length": length, "preset": preset, "prompt": prompt.name, "temperature": args.temperature, "chat": args.chat,
                                  "repeat_penalty": args.repeat_penalty, **result}),
                      file=args.out, flush=True)
                rates.append(rate(result["timings"]))
                plain.append(rate(result["plain"]["timings"]))
                for name, values in speedups.items():
                    values.append(result["speedup"][name])
                distinct.append(100 * result["distinct_8grams"])
                spec = result.get("speculation", {})
                accepted.append(spec.get("tokens_per_round_with_bonus", 1))
            middle = statistics.median
            ratios = ", ".join(f"{name.replace('_', ' ')} {middle(v):.2f}x ({min(v):.2f}-{max(v):.2f})" for name, v in speedups.items())
            print(f"{length:>5} {preset.split(':')[0]:<18} T={args.temperature:g} {ratios}; decode {middle(plain):.1f} -> {middle(rates):.1f} tok/s, "
                  f"{middle(accepted):.2f} tokens per pass, {middle(distinct):.0f}% distinct 8-grams", flush=True)


if __name__ == "__main__":
    main()
