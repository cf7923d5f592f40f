#!/usr/bin/env python3
"""Decoding and prefill speed of Hugging Face transformers on one GPU, for comparison with bench_cuda at the same shape.

A LlamaForCausalLM with random bf16 weights (values do not matter for the time of a dense model), sdpa attention, a
static cache: eager decoding, decoding with torch.compile, and the prefill of one long prompt. Prints JSON lines. What
fails is printed as such and does not end the program; nothing new is compiled after --limit seconds.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

SHAPES = {
    "llama-1b": dict(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
                     intermediate_size=8192),
    "llama-8b": dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                     head_dim=128, intermediate_size=14336),
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                 intermediate_size=128),
}
BEGAN = time.monotonic()


def say(**line):
    line["at_s"] = round(time.monotonic() - BEGAN, 1)
    print(json.dumps(line), flush=True)


def attempt(what, body, **facts):
    """Runs body, which returns a dictionary to print; an error is printed instead."""
    try:
        say(what=what, **facts, **body())
    except Exception as error:  # noqa: BLE001: whatever it is, the other measurements go on
        say(what=what, **facts, error=f"{type(error).__name__}: {str(error)[:400]}")


class Bench:
    def __init__(self, args):
        self.args = args
        self.cuda = args.device == "cuda"
        shape = dict(SHAPES[args.shape])
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                     "intermediate_size"):
            if getattr(args, name) is not None:
                shape[name] = getattr(args, name)
        longest = max(args.contexts + [args.prefill])
        config = LlamaConfig(**shape, vocab_size=args.vocab, max_position_embeddings=2 * longest,
                             tie_word_embeddings=not args.untied, attn_implementation="sdpa")
        self.vocab = args.vocab
        begin = time.monotonic()
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(args.device):
            self.model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        self.sync()
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        device = torch.cuda.get_device_name() if self.cuda else "cpu"
        say(what="set-up", torch=torch.__version__, device=device, shape=args.shape, weight_bytes=weights,
            load_s=round(time.monotonic() - begin, 1), dtype=str(self.model.dtype))

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def late(self):
        return time.monotonic() - BEGAN > self.args.limit

    def cache(self, length):
        """A cache with room for length and what is decoded, filled with random cells instead of a prompt's."""
        room = length + self.args.steps + 32
        cache = StaticCache(config=self.model.config, max_cache_len=room)
        tokens = torch.randint(self.vocab, (1, 8), device=self.args.device)
        positions = torch.arange(8, device=self.args.device)
        self.model(input_ids=tokens, past_key_values=cache, cache_position=positions, use_cache=True)
        for layer in cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        self.place(cache, length)
        return cache

    @staticmethod
    def place(cache, length):
        """Some versions count the cells by themselves and place the next ones by that."""
        for layer in cache.layers:
            for name in ("cumulative_length", "cumulative_length_int"):
                count = getattr(layer, name, None)
                if isinstance(count, torch.Tensor):
                    count.fill_(length)
                elif isinstance(count, int):
                    setattr(layer, name, length)

    def decode(self, step, context, steps, warm_up):
        """Median ms of a step that ends with the token on the host, and mean ms of steps that stay on the device."""
        cache = self.cache(context)
        device = self.args.device
        token = torch.zeros((1, 1), dtype=torch.long, device=device)
        position = torch.tensor([context], device=device)
        for _ in range(warm_up):
            token = step(token, cache, position).clone()
            position = position + 1
        self.place(cache, context)
        position = torch.tensor([context], device=device)
        self.sync()
        times = []
        for _ in range(steps // 2):
            begin = time.perf_counter()
            token = step(token, cache, position).clone()
            position = position + 1
            int(token)
            times.append((time.perf_counter() - begin) * 1000)
        self.sync()
        begin = time.perf_counter()
        for _ in range(steps // 2):
            token = step(token, cache, position).clone()
            position = position + 1
        self.sync()
        stream = (time.perf_counter() - begin) * 1000 / (steps // 2)
        return dict(ms_per_token=round(statistics.median(times), 4), ms_per_token_unsynchronised=round(stream, 4))

    def step(self, token, cache, position):
        out = self.model(input_ids=token, past_key_values=cache, cache_position=position, position_ids=position[None],
                         use_cache=True)
        return out.logits[:, -1:].argmax(-1)

    def prefill(self, length, chunk):
        device = self.args.device
        tokens = torch.randint(self.vocab, (1, length), device=device)
        times = []
        for _ in range(3):
            # All at once needs no mask with a growing cache: the fastest path.
            static = chunk < length
            cache = StaticCache(config=self.model.config, max_cache_len=length + 8) if static else DynamicCache()
            self.sync()
            begin = time.perf_counter()
            for first in range(0, length, chunk):
                piece = tokens[:, first:first + chunk]
                positions = torch.arange(first, first + piece.shape[1], device=device)
                self.model(input_ids=piece, past_key_values=cache, cache_position=positions,
                           position_ids=positions[None], use_cache=True, logits_to_keep=1)
            self.sync()
            times.append((time.perf_counter() - begin) * 1000)
            del cache
        ms = statistics.median(times[1:])
        return dict(ms=round(ms, 1), tokens_per_s=round(length / ms * 1000))

    def run(self):
        args = self.args
        with torch.inference_mode():
            for context in args.contexts:
                attempt("decode", lambda: self.decode(self.step, context, args.steps, 5), mode="eager", context=context)
            for chunk in args.chunks:
                size = min(chunk or args.prefill, args.prefill)
                attempt("prefill", lambda: self.prefill(args.prefill, size), length=args.prefill, chunk=size)
                if self.cuda:
                    torch.cuda.empty_cache()
        if args.no_compile:
            return
        with torch.no_grad():  # CUDA graphs and inference tensors do not go together in all versions
            for context in args.contexts:
                if self.late():
                    say(what="decode", mode=args.mode, context=context, error="left out: --limit is reached")
                    continue
                torch._dynamo.reset()
                compiled = torch.compile(self.step, mode=args.mode, fullgraph=args.fullgraph)
                begin = time.monotonic()
                attempt("decode", lambda: dict(self.decode(compiled, context, args.steps, 6),
                                               with_compiling_s=round(time.monotonic() - begin, 1)),
                        mode=args.mode, context=context)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shape", default="llama-8b", choices=sorted(SHAPES))
    parser.add_argument("--hidden-size", type=int)
    parser.add_argument("--num-hidden-layers", type=int)
    parser.add_argument("--num-attention-heads", type=int)
    parser.add_argument("--num-key-value-heads", type=int)
    parser.add_argument("--head-dim", type=int)
    parser.add_argument("--intermediate-size", type=int)
    parser.add_argument("--vocab", type=int, default=49152, help="as the wide twin's")
    parser.add_argument("--untied", action="store_true", help="an output head of its own; the twin's is its embedding")
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--contexts", type=numbers, default=[1024, 7680, 16384])
    parser.add_argument("--prefill", type=int, default=16384)
    parser.add_argument("--chunks", type=numbers, default=[2048, 0],
                        help="tokens of a prefill step; 0: all at once")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--mode", default="reduce-overhead", choices=["default", "reduce-overhead", "max-autotune"])
    parser.add_argument("--fullgraph", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--limit", type=float, default=90, help="seconds after which nothing is compiled any more")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("compare_transformers.py: there is no CUDA device; --device cpu --shape tiny tries the program")
    Bench(args).run()


if __name__ == "__main__":
    main()
