"""A DFlash drafter: a few layers that fill a block of masks behind the pending token in one pass, over keys and values
made of the target's hidden states (the inputs of three layers, as EAGLE-3 takes them) of the tokens before it.

B rows, T tokens, A anchors of a row, S rows of a block, C hidden size."""
import torch
import torch.nn.functional as F

from fused import DEVICE, HeadLoss, compiled, penalise, recent_words, word_mask
from models import LAYER, ReducedDraft, join_heads, llama_config, read_config, rms, rope_tables, rotate, split_heads

MOST_POSITIONS = 2048


def normed_heads(x, weight, heads, norm, cos, sin):
    """[B, N, C] -> rotated [B, heads, N, D] behind a norm of each head"""
    return rotate(rms(split_heads(F.linear(x, weight), heads), norm), cos, sin)


@compiled
def dflash_layer(x, context, n1, w_q, w_k, w_v, w_o, n2, w_gate, w_up, w_down, n_q, n_k, own, text, mask, heads,
                 kv_heads):
    """x [B, A * S, C]; context [B, T, C]; own, text: (cos, sin) of both; mask [B, 1, A * S, T + A * S]"""
    y = rms(x, n1)
    q = normed_heads(y, w_q, heads, n_q, *own)
    k = torch.cat([normed_heads(context, w_k, kv_heads, n_k, *text), normed_heads(y, w_k, kv_heads, n_k, *own)], 2)
    v = split_heads(F.linear(torch.cat([context, y], 1), w_v), kv_heads)
    spread = lambda cells: cells.repeat_interleave(heads // kv_heads, 1)
    x = x + F.linear(join_heads(F.scaled_dot_product_attention(q, spread(k), spread(v), attn_mask=mask)), w_o)
    y = rms(x, n2)
    return x + F.linear(F.silu(F.linear(y, w_gate)) * F.linear(y, w_up), w_down)


class DFlashDraft(ReducedDraft):
    """tensors and configuration as z-lab publishes them, with a head for a part of the vocabulary"""
    folder = "dflash"
    decay = 0.85  # weight of each further place of a block

    def __init__(self, target, vocabulary, layers=3, block=8, anchors=64, mask=0):
        config = llama_config(
            target.hidden, layers, target.heads, target.kv_heads, target.dim, target.config["intermediate_size"],
            target.vocab, architectures=["DFlashDraftModel"], model_type="qwen3", tie_word_embeddings=False,
            block_size=block, dflash_config=dict(mask_token_id=mask, target_layer_ids=[t - 1 for t in target.taps]))
        super().__init__(config, target, vocabulary)
        size = target.hidden
        noise = lambda *shape: torch.randn(*shape, device=DEVICE) * 0.01
        fuse = noise(size, len(target.taps) * size)
        fuse[:, -size:] += torch.eye(size, device=DEVICE)
        self.add("fc.weight", fuse)
        self.add("hidden_norm.weight", torch.ones(size))
        n1, w_qkv, w_o, n2, w_gate_up, w_down = [w.float() for w in target.weights[-1]]
        widths = [target.heads * target.dim] + [target.kv_heads * target.dim] * 2
        start = [n1, *w_qkv.split(widths), w_o, n2, *w_gate_up.chunk(2), w_down]
        for i in range(layers):  # the target's last layer, adding nothing at first
            for name, tensor in zip(LAYER, start):
                self.add(f"layers.{i}.{name}.weight", tensor * (not name.endswith(("o_proj", "down_proj"))))
            for part in ("q", "k"):
                self.add(f"layers.{i}.self_attn.{part}_norm.weight", torch.ones(target.dim))
        self.add("norm.weight", 0.1 * target.norm)  # masks say nothing yet: quiet logits, instead of a loss of 100
        self.layers, self.block, self.anchors, self.mask = layers, block, anchors, mask
        self.tables = rope_tables(MOST_POSITIONS + 64, target.dim, config["rope_theta"])

    def blocks(self, w, pending, anchor, taps, target):
        """pending [B, A]: tokens in the places anchor [B, A]; taps [B, T, 3C] -> what goes into the head [B, A, S, C]"""
        return run_blocks(w, self.config, self.tables, pending, anchor, taps, target)

    def loss(self, ids, hidden, taps, target, best, first=1):
        """ids [B, T]: random places from `first` on are pending tokens; the S - 1 rows behind each learn what the target
        says in their places -> (loss, agreement of all places)"""
        w, (rows, count), size = self.weights(), ids.shape, self.block
        choices = count - size - first
        anchor = first + torch.rand(rows, choices, device=ids.device).argsort(1)[:, :min(self.anchors, choices)]
        x = self.blocks(w, ids.gather(1, anchor), anchor, taps, target)[:, :, 1:]
        before = (anchor[..., None] + torch.arange(size - 1, device=ids.device)).flatten(1)  # the state that says it
        teacher = hidden.gather(1, before[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)
        weight = self.decay ** torch.arange(size - 1, device=ids.device)
        weight = (weight / weight.mean()).repeat(rows * anchor.shape[1])
        known = self.constants["t2d"][best.gather(1, before).flatten()].float()
        words = self.words(ids, before)
        return HeadLoss.apply(x.reshape(-1, x.shape[-1]), w["lm_head.weight"], teacher, target.head[self.vocabulary],
                              weight * known, 8192, None, False, None if words is None else words.flatten(0, 1))


def run_blocks(w, config, tables, pending, anchor, taps, target):
    """see DFlashDraft.blocks; w: tensors by name"""
    size, flash = config["block_size"], config["dflash_config"]
    (rows, anchors), count = anchor.shape, taps.shape[1]
    tokens = torch.full((rows, anchors, size), flash["mask_token_id"], device=anchor.device)
    tokens[..., 0] = pending
    x = F.embedding(tokens.flatten(1), target.embedding).to(w["fc.weight"].dtype)
    context = rms(F.linear(taps.to(x.dtype), w["fc.weight"]), w["hidden_norm.weight"])
    place = (anchor[..., None] + torch.arange(size, device=anchor.device)).flatten(1)  # [B, A * S]
    own = tables[0][place][:, None], tables[1][place][:, None]
    text = tables[0][:count], tables[1][:count]
    before = torch.arange(count, device=anchor.device) < anchor.repeat_interleave(size, 1)[..., None]
    block = torch.arange(anchors, device=anchor.device).repeat_interleave(size)
    same = (block[:, None] == block).expand(rows, -1, -1)
    mask = torch.cat([before, same], 2)[:, None]
    for i in range(config["num_hidden_layers"]):
        layer = [w[f"layers.{i}.{name}.weight"] for name in LAYER]
        norms = [w[f"layers.{i}.self_attn.{part}_norm.weight"] for part in ("q", "k")]
        x = dflash_layer(x, context, *layer, *norms, own, text, mask, config["num_attention_heads"],
                         config["num_key_value_heads"])
    return rms(x, w["norm.weight"]).view(rows, anchors, size, -1)


@torch.no_grad()
def run_chain(folder, weights, text, target, tally):
    """Rounds of chains as long as the block, by the tally of evaluate.py; `weights`: tensors in fp32 by name."""
    config, ids = read_config(folder), text["ids"]
    tables = rope_tables(ids.shape[1] + 64, target.dim, config["rope_theta"])
    words = torch.arange(len(weights["d2t"]), device=ids.device) + weights["d2t"]
    for row in range(len(ids)):
        known = text["given"] + 1
        while known < text["end"][row]:
            anchor = torch.tensor([[known - 1]], device=ids.device)
            x = run_blocks(weights, config, tables, ids[row, anchor], anchor, text["taps"][row:row + 1].float(), target)
            logits = F.linear(x[0, 0, 1:], weights["lm_head.weight"])
            if text["penalty"] != 1:
                mask = word_mask(recent_words(ids[row:row + 1], anchor)[0], target.vocab)
                logits = penalise(logits, mask[:, words], text["penalty"])
            best = logits.argmax(-1)
            right = (best + weights["d2t"][best] == ids[row, known:known + len(best)]).tolist()
            known = tally.add(row, known, (right + [False]).index(False))
    return tally.result()
