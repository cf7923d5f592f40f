#!/usr/bin/env python3
"""Makes the tiny models and golden activations of tests/golden with Hugging Face transformers.

Requirements (PyPI): torch, transformers >= 5, tokenizers, safetensors, numpy.
Usage: python tools/make_golden.py [output folder, default tests/golden] [--only NAME...]

Each model is random (fixed seeds), f32, two layers, and so small that all of them fit in a repository. The weights are
drawn much wider than a trained model's, so that attention is far from uniform and a mistake in RoPE, a window or a bias
moves the logits visibly. Models that differ only in config.json share their weights by symbolic links.
What the files hold is described in tests/golden/README.md.
"""
import argparse
import copy
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 264  # 256 bytes, 2 special tokens, 6 merges
LENGTH = 150
WINDOW = 40
# Rows whose activations are kept: both ends, and both sides of the window's and of a block's border.
ROWS = [0, 1, 2, 38, 39, 40, 41, 63, 64, 65, 100, 127, 128, 129, 148, 149]

COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, max_position_embeddings=256,
              rms_norm_eps=1e-5, bos_token_id=256, eos_token_id=257, attention_dropout=0.0)
LLAMA = dict(COMMON, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
MISTRAL = dict(COMMON, num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=False)
QWEN2 = dict(COMMON, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-6)
QWEN3 = dict(COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
             rms_norm_eps=1e-6)


def rope(kind, theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


# name: (class prefix, settings, name of the model whose weights it shares or None, classic config.json?)
# classic: the layout of transformers 4 and of nearly all published models (rope_theta, rope_scaling); else that of 5.
MODELS = {
    "llama": ("Llama", dict(LLAMA, rope_parameters=rope("default")), None, True),
    "llama-linear": ("Llama", dict(LLAMA, rope_parameters=rope("linear", factor=2.5)), "llama", True),
    "llama-dynamic": ("Llama", dict(LLAMA, max_position_embeddings=64, rope_parameters=rope("dynamic", factor=2.0)),
                      "llama", True),
    "llama-llama3": ("Llama", dict(LLAMA, rope_parameters=rope(
        "llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64)), "llama", True),
    "llama-yarn": ("Llama", dict(LLAMA, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=1.0)), "llama", True),
    "llama-yarn-factor": ("Llama", dict(LLAMA, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=0.5, attention_factor=1.25,
        truncate=False)), "llama", False),
    "llama-bias": ("Llama", dict(LLAMA, attention_bias=True, mlp_bias=True, num_key_value_heads=2,
                                 rope_parameters=rope("default")), None, False),
    "mistral": ("Mistral", dict(MISTRAL, sliding_window=WINDOW, rope_parameters=rope("default")), None, True),
    "qwen2": ("Qwen2", dict(QWEN2, rope_parameters=rope("default", theta=1000000.0)), None, True),
    "qwen2-window": ("Qwen2", dict(QWEN2, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1,
                                   rope_parameters=rope("default", theta=1000000.0)), "qwen2", False),
    "qwen3": ("Qwen3", dict(QWEN3, rope_parameters=rope("default", theta=1000000.0)), None, False),
    "qwen3-yarn": ("Qwen3", dict(QWEN3, rope_parameters=rope(
        "yarn", theta=1000000.0, factor=4.0, original_max_position_embeddings=64)), "qwen3", True),
}

# Families whose layers have other parts than a Llama's: as few layers as show them all, and a text that leaves the
# window and the original context.
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
             head_dim=16, max_position_embeddings=512, bos_token_id=256, eos_token_id=257, pad_token_id=None)
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "gemma3": ("Gemma3", dict(SMALL, num_hidden_layers=3, sliding_window=WINDOW, layer_types=MIXED, query_pre_attn_scalar=20,
                              rope_parameters={
                                  "sliding_attention": rope("default"),
                                  "full_attention": rope("linear", theta=1000000.0, factor=8.0)}), None, False),
    "gemma2": ("Gemma2", dict(SMALL, num_hidden_layers=2, sliding_window=WINDOW, query_pre_attn_scalar=20,
                              attn_logit_softcapping=5.0, final_logit_softcapping=8.0), None, True),
    "smollm3": ("SmolLM3", dict(SMALL, num_hidden_layers=4, rope_parameters=rope("default", theta=50000.0)), None, False),
    "phi3": ("Phi3", dict(SMALL, num_hidden_layers=2, tie_word_embeddings=True, max_position_embeddings=512,
                          original_max_position_embeddings=128, rope_parameters=rope(
                              "longrope", short_factor=[1.0 + 0.05 * i for i in range(6)],
                              long_factor=[1.5 + 0.5 * i for i in range(6)], partial_rotary_factor=0.75,
                              original_max_position_embeddings=128)), None, False),
    "olmo2": ("Olmo2", dict(SMALL, num_hidden_layers=2, num_key_value_heads=2), None, False),
    "olmo3": ("Olmo3", dict(SMALL, num_hidden_layers=3, sliding_window=WINDOW, layer_types=MIXED, rope_parameters={
        "sliding_attention": rope("default", theta=500000.0),
        "full_attention": rope("yarn", theta=500000.0, factor=4.0, original_max_position_embeddings=128,
                               attention_factor=1.2)}), None, False),
    "granite": ("Granite", dict(SMALL, num_hidden_layers=2, embedding_multiplier=1.5, residual_multiplier=0.6,
                                attention_multiplier=0.3, logits_scaling=3.0), None, False),
    "glm4": ("Glm4", dict(SMALL, num_hidden_layers=2, attention_bias=True, rope_parameters=rope(
        "default", partial_rotary_factor=0.5)), None, False),
    "seed-oss": ("SeedOss", dict(SMALL, num_hidden_layers=2, attention_bias=True), None, False),
    "exaone4": ("Exaone4", dict(SMALL, num_hidden_layers=3, sliding_window=WINDOW, layer_types=MIXED), None, False),
    "cohere2": ("Cohere2", dict(SMALL, num_hidden_layers=3, sliding_window=WINDOW, layer_types=MIXED,
                                logit_scale=0.25), None, False),
    "starcoder2": ("Starcoder2", dict(SMALL, num_hidden_layers=2, sliding_window=WINDOW), None, False),
    "ernie4_5": ("Ernie4_5", dict(SMALL, num_hidden_layers=2, use_bias=True), None, False),
    "arcee": ("Arcee", dict(SMALL, num_hidden_layers=2, mlp_bias=True), None, False),
    "helium": ("Helium", dict(SMALL, num_hidden_layers=2), None, False),
    "qwen3moe": ("Qwen3Moe", dict(SMALL, num_hidden_layers=2, num_experts=8, num_experts_per_tok=3,
                                  moe_intermediate_size=32, norm_topk_prob=True), None, False),
    "mixtral": ("Mixtral", dict(SMALL, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2), None, False),
    "olmoe": ("Olmoe", dict(SMALL, num_hidden_layers=2, num_key_value_heads=2, num_experts=8, num_experts_per_tok=3),
              None, False),
    "gpt-oss": ("GptOss", dict(SMALL, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2,
                               sliding_window=WINDOW, layer_types=MIXED[:2], swiglu_limit=2.0, rope_parameters=rope(
                                   "yarn", theta=150000.0, factor=4.0, original_max_position_embeddings=128,
                                   beta_fast=32.0, beta_slow=1.0, truncate=False)), None, False),
    # Queries grow from position 64, 128, ... on: by half, where the published models say a tenth.
    "ministral3": ("Ministral3", dict(SMALL, num_hidden_layers=2, rope_parameters=rope(
        "yarn", theta=1000000.0, factor=8.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
        mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5)), None, False),
    # What the converter of llama.cpp demands of HunYuan: base 10000 and 32768 positions.
    "hunyuan-dense": ("HunYuanDenseV1", dict(SMALL, num_hidden_layers=2, max_position_embeddings=32768,
                                             rope_parameters=rope("dynamic", alpha=1000.0, factor=1.0)), None, True),
    "granite4": ("GraniteMoeHybrid", dict(
        SMALL, num_hidden_layers=2, layer_types=["full_attention"] * 2, num_local_experts=0, num_experts_per_tok=0,
        shared_intermediate_size=32, position_embedding_type="rope", embedding_multiplier=1.5, residual_multiplier=0.6,
        attention_multiplier=0.3, logits_scaling=3.0, mamba_n_heads=4, rope_parameters=rope("default")), None, False),
    "granite4-nope": ("GraniteMoeHybrid", dict(
        SMALL, num_hidden_layers=2, layer_types=["full_attention"] * 2, num_local_experts=0, num_experts_per_tok=0,
        shared_intermediate_size=32, position_embedding_type=None, embedding_multiplier=1.5, residual_multiplier=0.6,
        attention_multiplier=0.3, logits_scaling=3.0, mamba_n_heads=4, rope_parameters=rope("default")), "granite4", False),
    # InternLM 3 runs by transformers' Llama.
    "internlm3": ("InternLM3", dict(SMALL, num_hidden_layers=2, qkv_bias=True, bias=True, rope_parameters=rope(
        "default", theta=50000.0)), None, True),
    "internlm3-dynamic": ("InternLM3", dict(
        SMALL, num_hidden_layers=2, qkv_bias=True, bias=True, max_position_embeddings=128, rope_parameters=rope(
            "dynamic", theta=50000.0, factor=6.0)), "internlm3", True),
    # Falcon 3 is a Llama by its folders, with heads wider than width / heads.
    "falcon3": ("Llama", dict(SMALL, num_hidden_layers=2, rms_norm_eps=1e-6, rope_parameters=rope(
        "default", theta=1000042.0)), None, True),
}
LONG = 300
LONG_ROWS = [0, 1, 39, 40, 41, 128, 200, 299]
ALL = {**MODELS, **FAMILIES}


def randomise(model, seed, norm=1):
    """Weights of variance 1.5 / inputs, embeddings of 1, norms around 1 (or what else means 1), biases of 0.3; in the order of the names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
            if name.endswith("norm.weight"):
                p.copy_(norm + 0.2 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif name.endswith("sinks"):
                p.copy_(noise)
            elif "embed_tokens" in name:
                p.copy_(noise)
            else:
                p.copy_(noise * (1.5 / p.shape[1]) ** 0.5)


def classic_config(config):
    """config.json as transformers 4 wrote it: rope_theta at the top, the rest of the parameters in rope_scaling."""
    config = dict(config)
    scaling = dict(config.pop("rope_parameters"))
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = None if scaling.get("rope_type") == "default" else scaling
    config["torch_dtype"] = config.pop("dtype", "float32")
    config.pop("layer_types", None)
    return config


def write_tokenizer(folder):
    """A byte-level BPE of 264 tokens; the ids of bytes follow the usual printable alphabet, sorted."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("e", "r"), ("a", "n")]
    vocab.update({"<s>": 256, "</s>": 257})
    for i, (a, b) in enumerate(merges):
        vocab[a + b] = 258 + i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    assert tokenizer.get_vocab_size() == VOCAB
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def forward(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[None].long(), output_hidden_states=True, use_cache=False)


def write_model(root, name, seed):
    prefix, settings, shared, classic = ALL[name]
    length, rows = (LENGTH, ROWS) if name in MODELS else (LONG, LONG_ROWS)
    config = getattr(transformers, prefix + ("TextConfig" if prefix == "Gemma3" else "Config"))(**settings)
    config._attn_implementation = "eager"
    internlm = prefix == "InternLM3"
    model_class = transformers.AutoModelForCausalLM if internlm else getattr(transformers, prefix + "ForCausalLM")
    model = (model_class.from_config if internlm else model_class)(config).float().eval()
    randomise(model, seed, norm=0 if prefix.startswith("Gemma") else 1)
    folder = root / name
    if name in FAMILIES:  # the weights are rounded, and stored in half the space
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.bfloat16())
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    written = json.loads((folder / "config.json").read_text())
    written.pop("_attn_implementation", None)
    written = classic_config(written) if classic else written
    if internlm:  # the names of the published folders
        written["qkv_bias"], written["bias"] = written.pop("attention_bias"), written.pop("mlp_bias")
        written["architectures"] = ["InternLM3ForCausalLM"]
    if name == "granite4":  # as the published folders call it
        written["layer_types"] = ["attention"] * len(written["layer_types"])
    (folder / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink(f"../tokenizer/{file}", folder / file)

    tokens = torch.from_numpy(np.random.default_rng(1000 + seed).integers(0, VOCAB - 8, length).astype(np.int32))
    result = forward(model, tokens)
    # The folder is what the engine reads: it must give the same when read back, whatever became of config.json.
    read_back = model_class.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    again = forward(read_back, tokens)
    assert torch.equal(result.logits, again.logits), name
    if shared:
        other = (root / shared / "model.safetensors").read_bytes()
        assert other == (folder / "model.safetensors").read_bytes(), f"{name}: weights differ from {shared}"
        (folder / "model.safetensors").unlink()
        os.symlink(f"../{shared}/model.safetensors", folder / "model.safetensors")

    states = result.hidden_states
    assert len(states) == config.num_hidden_layers + 1
    if name in MODELS:  # others scale or cap their logits
        assert torch.allclose(model.lm_head(states[-1]), result.logits, atol=1e-6), "the last state is after the norm"
    golden = {"tokens": tokens, "rows": torch.tensor(rows, dtype=torch.int32)}
    for i, state in enumerate(states[:-1]):
        golden[f"hidden.{i}"] = state[0, rows].contiguous()
    golden["final"] = states[-1][0, rows].contiguous()
    golden["logits"] = result.logits[0, rows].contiguous()
    save_file(golden, str(folder / "golden.safetensors"))
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    facts = {"context": length, "tokens": length, "layers": config.num_hidden_layers, "rows": len(rows)}
    (folder / "golden.json").write_text(json.dumps(facts) + "\n")
    return result.logits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=Path(__file__).resolve().parent.parent / "tests" / "golden")
    parser.add_argument("--only", nargs="*", help="make these models only")
    args = parser.parse_args()
    root = Path(args.folder)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not args.only:
        shutil.rmtree(root / "tokenizer", ignore_errors=True)
        write_tokenizer(root / "tokenizer")
    logits, seeds = {}, {}
    for name, (_, _, shared, _) in ALL.items():
        seeds[name] = seeds[shared] if shared else len(seeds) + 1
        if args.only and name not in args.only:
            continue
        shutil.rmtree(root / name, ignore_errors=True)
        logits[name] = write_model(root, name, seeds[name])
        if shared in logits:  # the same weights and tokens: what the configuration changes must be far above any tolerance
            change = (logits[name] - logits[shared]).abs().max().item()
            print(f"{name}: logits differ from {shared} by up to {change:.3f}")
            assert change > 0.1
    total = sum(f.stat().st_size for f in root.rglob("*") if f.is_file() and not f.is_symlink())
    print(f"{len(ALL)} models, {total / 1000:.0f} kB in {root}")


if __name__ == "__main__":
    main()
