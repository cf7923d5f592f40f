#!/usr/bin/env python3
"""Makes the tiny Gemma 4 assistants and their golden logits of tests/golden/heads with transformers' own models.

Requirements (PyPI): torch, safetensors, transformers 5.23.
Usage: python tools/make_assistant_golden.py [golden folder, default tests/golden]

The targets are models that are there already: gemma3 (layers with and without a window, two RoPE bases) and heads/target
(a Llama). Transformers' classes run them and keep their cells; its Gemma4AssistantForCausalLM with random weights drafts
down the branches of a tree, from the position of the pending token, as its generation does. From a layer with a window
of W the pending token, which has no cell yet, sees W - 1 cells.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4_assistant.configuration_gemma4_assistant import Gemma4AssistantConfig
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import Gemma4AssistantForCausalLM

from make_head_golden import PARENTS, write

WIDTH, FFN, EPS = 24, 40, 1e-5
# Release 5.23.0 looks for a layer that makes cells even where, as in every assistant, none does.
Gemma4TextConfig.kv_sharing_modes = property(lambda config: ["reuse"] * config.num_hidden_layers)


def assistant(target, kinds, heads, seed):
    """Random weights wide enough that a forgotten norm or a wrong layer moves the logits visibly."""
    t = target.config
    kept = t.rope_parameters
    ropes = kept if "full_attention" in kept else {"full_attention": kept, "sliding_attention": kept}
    text = Gemma4TextConfig(
        vocab_size=t.vocab_size, hidden_size=WIDTH, intermediate_size=FFN, num_hidden_layers=len(kinds),
        num_attention_heads=heads, num_key_value_heads=t.num_key_value_heads, head_dim=t.head_dim,
        global_head_dim=t.head_dim, rms_norm_eps=EPS, layer_types=list(kinds), rope_parameters=dict(ropes),
        sliding_window=getattr(t, "sliding_window", None) or 512, hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0, max_position_embeddings=t.max_position_embeddings,
        num_kv_shared_layers=len(kinds))
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=t.hidden_size)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = Gemma4AssistantForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.copy_(1 + 0.3 * torch.randn(weight.shape))
            else:
                weight.copy_(torch.randn(weight.shape) * (1.5 / weight.shape[-1]) ** 0.5)
        for i, layer in enumerate(model.model.layers):
            layer.layer_scalar.fill_(1 - 0.25 * i)
        for weight in list(model.parameters()) + list(model.buffers()):  # what F32 files hold
            weight.copy_(weight.float().double())
    return model


def saved_config(model, architecture="Gemma4AssistantForCausalLM"):
    t = model.config.text_config
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "layer_types", "rope_parameters", "sliding_window",
            "hidden_activation", "hidden_size_per_layer_input", "vocab_size_per_layer_input", "max_position_embeddings")
    text = {key: getattr(t, key) for key in keys}
    text.update(model_type="gemma4_text", global_head_dim=text["head_dim"], enable_moe_block=False,
                use_double_wide_mlp=False, attention_bias=False)
    return dict(architectures=[architecture], model_type="gemma4_assistant",
                backbone_hidden_size=model.config.backbone_hidden_size, use_ordered_embeddings=False,
                tie_word_embeddings=True, text_config=text)


def cells_of(target, tokens):
    """(state after the last layer without and with the final norm, keys and values by kind of layer)"""
    cache = DynamicCache()  # without the model's config no layer forgets
    seen = []
    hook = target.model.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        out = target.model(tokens[None], past_key_values=cache, use_cache=True)
    hook.remove()
    kinds = getattr(target.config, "layer_types", None) or ["full_attention"] * target.config.num_hidden_layers
    shared = {}
    for i, kind in enumerate(kinds):
        keys, values = cache.layers[i].keys, cache.layers[i].values
        assert keys.shape[2] == len(tokens)
        if kind == "sliding_attention":
            most = target.config.sliding_window - 1
            keys, values = keys[:, :, -most:], values[:, :, -most:]
        shared[kind] = keys, values
    shared.setdefault("sliding_attention", shared["full_attention"])  # its mask is made whether a layer has it or not
    return seen[0][0, -1], out.last_hidden_state[0, -1], shared


def golden(model, target, length, seed):
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, target.config.vocab_size, (length + 1 + len(PARENTS),), generator=gen)
    text, nodes = tokens[:length + 1], tokens[length + 1:]
    tap, state, shared = cells_of(target, text[:-1])
    embed = target.get_input_embeddings()

    def draft(token, before):
        pair = torch.cat([embed(token[None, None]), before[None, None]], -1)
        with torch.no_grad():
            out = model(inputs_embeds=pair, position_ids=torch.tensor([[length]]), attention_mask=None,
                        shared_kv_states=shared)
        return out.logits[0, 0], out.last_hidden_state[0, 0]

    rows = [draft(text[-1], state)]
    for node, parent in zip(nodes, PARENTS):
        rows.append(draft(node, rows[1 + parent][1]))
    i32 = lambda x: torch.as_tensor(x, dtype=torch.int32)
    return {"text": i32(text), "tap": tap.float(), "nodes": i32(nodes), "parents": i32(PARENTS),
            "logits": torch.stack([row[0] for row in rows]).float(),
            "states": torch.stack([row[1] for row in rows]).float()}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "tests/golden")
    both = ("sliding_attention", "sliding_attention", "full_attention")
    for name, target, kinds, heads, length in (("assistant", "gemma3", both, 4, 70),
                                               ("assistant-full", "heads/target", ("full_attention",) * 2, 3, 12)):
        path = out / target
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).double().eval()
        weights = {k: v.double() for k, v in load_file(path / "model.safetensors").items()}
        missing = [k for k, v in model.state_dict().items() if k in weights and not torch.equal(v, weights[k])]
        assert not missing, missing
        head = assistant(model, kinds, heads, 91)
        tensors = {k: v.float() for k, v in head.state_dict().items() if k != "lm_head.weight"}
        write(out / "heads" / name, saved_config(head), tensors)
        save_file(golden(head, model, length, 600), str(out / "heads" / name / "golden.safetensors"))


if __name__ == "__main__":
    main()
