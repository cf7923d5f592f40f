"""Reads a GGUF file of the llama architecture (F32, F16, Q4_0, Q4_1, Q8_0) and writes it as a folder with
config.json, model.safetensors (bf16, Hugging Face names) and tokenizer.json, which the other scripts read.

    python gguf_reader.py model.gguf FOLDER
"""
import json
import os
import struct
import sys

import numpy as np
import torch
from safetensors.torch import save_file

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
BLOCK_BYTES = {Q4_0: 18, Q4_1: 20, Q8_0: 34}  # of 32 values


class Gguf:
    """Metadata (`meta`) and tensors of one file, which is mapped and not copied."""

    def __init__(self, path):
        self.bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self.view = memoryview(self.bytes)
        if bytes(self.view[:4]) != b"GGUF":
            raise SystemExit(f"{path}: not a GGUF file")
        self.at = 4
        version, tensors, pairs = self.take("<I"), self.take("<Q"), self.take("<Q")
        if version not in (2, 3):
            raise SystemExit(f"{path}: GGUF version {version}, expected 2 or 3")
        self.meta = {}
        for _ in range(pairs):
            key = self.text()
            self.meta[key] = self.value(self.take("<I"))
        self.entries = []  # name, dimensions (innermost first), type, offset
        for _ in range(tensors):
            name = self.text()
            dims = [self.take("<Q") for _ in range(self.take("<I"))]
            self.entries.append((name, dims, self.take("<I"), self.take("<Q")))
        align = self.meta.get("general.alignment", 32)
        self.data = -(-self.at // align) * align

    def take(self, layout):
        value = struct.unpack_from(layout, self.view, self.at)[0]
        self.at += struct.calcsize(layout)
        return value

    def text(self):
        size = self.take("<Q")
        self.at += size
        return bytes(self.view[self.at - size:self.at]).decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, count = self.take("<I"), self.take("<Q")
            return [self.value(kind) for _ in range(count)]
        return self.take(SCALARS[kind])

    def tensors(self):
        """yields (name, float32 tensor [outermost, ..., innermost])"""
        for name, dims, kind, offset in self.entries:
            count, start = int(np.prod(dims)), self.data + offset
            if kind in (F32, F16):
                size = 4 if kind == F32 else 2
                raw = self.bytes[start:start + size * count]
                flat = raw.view(np.float32 if kind == F32 else np.float16).astype(np.float32)
            elif kind in BLOCK_BYTES:
                size = BLOCK_BYTES[kind]
                flat = dequantise(self.bytes[start:start + count // 32 * size].reshape(-1, size), kind)
            else:
                raise SystemExit(f"tensor {name}: type {kind} is not supported")
            yield name, torch.from_numpy(flat.reshape(dims[::-1]))


def dequantise(blocks, kind):
    """blocks [n, bytes] -> float32 [n, 32]; the low nibbles are the first 16 values"""
    half = lambda at: blocks[:, at:at + 2].copy().view(np.float16).astype(np.float32)  # [n, 1]
    if kind == Q8_0:
        return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * half(0)
    packed = blocks[:, 2 if kind == Q4_0 else 4:]
    nibbles = np.concatenate([packed & 15, packed >> 4], 1).astype(np.float32)
    return (nibbles - 8) * half(0) if kind == Q4_0 else nibbles * half(0) + half(2)


def split_halves(weight, heads):
    """GGUF interleaves the two rotary halves of the rows of q and k; Hugging Face keeps them apart."""
    size = weight.shape[0] // heads
    return weight.view(heads, size // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}


def weights(gguf, dtype=torch.bfloat16):
    heads = {"attn_q": gguf.meta["llama.attention.head_count"], "attn_k": gguf.meta["llama.attention.head_count_kv"]}
    result = {}
    for name, tensor in gguf.tensors():
        if name in OUTER:
            key = OUTER[name]
        else:
            _, layer, part, _ = name.split(".")
            key = f"model.layers.{layer}.{NAMES[part]}.weight"
            if part in heads:
                tensor = split_halves(tensor, heads[part])
        result[key] = tensor.to(dtype).contiguous()
    return result


def config(meta, tied):
    heads = meta["llama.attention.head_count"]
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=meta["llama.embedding_length"],
        num_hidden_layers=meta["llama.block_count"], num_attention_heads=heads,
        num_key_value_heads=meta["llama.attention.head_count_kv"], head_dim=meta["llama.embedding_length"] // heads,
        intermediate_size=meta["llama.feed_forward_length"], vocab_size=len(meta["tokenizer.ggml.tokens"]),
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"], rope_theta=meta["llama.rope.freq_base"],
        max_position_embeddings=meta["llama.context_length"], tie_word_embeddings=tied, hidden_act="silu",
        bos_token_id=meta["tokenizer.ggml.bos_token_id"], eos_token_id=meta["tokenizer.ggml.eos_token_id"],
        torch_dtype="bfloat16", attention_bias=False, mlp_bias=False, rope_scaling=None)


def tokenizer(meta):
    """tokenizer.json of a byte-level BPE that splits digits one by one (pre-tokenizer "smollm")"""
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    special = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    bytes_of = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None, post_processor=None,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True), bytes_of]),
        decoder=dict(bytes_of, add_prefix_space=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                   fuse_unk=False, byte_fallback=False, ignore_merges=False,
                   vocab={t: i for i, t in enumerate(tokens)},
                   merges=[m.split(" ", 1) for m in meta["tokenizer.ggml.merges"]]))


def main(source, folder):
    gguf = Gguf(source)
    if gguf.meta.get("general.architecture") != "llama":
        raise SystemExit(f"{source}: architecture {gguf.meta.get('general.architecture')}, expected llama")
    os.makedirs(folder, exist_ok=True)
    tensors = weights(gguf)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config(gguf.meta, "lm_head.weight" not in tensors), f, indent=1)
    with open(f"{folder}/tokenizer.json", "w") as f:
        json.dump(tokenizer(gguf.meta), f, ensure_ascii=False)
    print(f"{folder}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()) / 1e6:.1f}M parameters")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
