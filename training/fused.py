"""Two operations that make the training quick: a language-model head with its KL loss that never keeps logits, and the
attention of EAGLE-3's unrolled training steps on top of the flash kernel."""
import math
import os

import torch
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
COMPUTE = torch.bfloat16 if CUDA else torch.float32

if CUDA:
    import torch._dynamo
    torch._dynamo.config.cache_size_limit = 64
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and decoding changes shape each step


def compiled(function):
    """compiled for fixed shapes on a GPU, as it is on a CPU (or with EAGER=1)"""
    return torch.compile(function, dynamic=False) if CUDA and not os.environ.get("EAGER") else function


PENALTY_WINDOW = 64  # tokens that a repeat penalty looks back at


def recent_words(ids, last):
    """ids [B, T], last [B, N]: places in them -> [B, N, PENALTY_WINDOW]: the tokens up to and including each place"""
    back = (last[..., None] - torch.arange(PENALTY_WINDOW, device=ids.device)).clamp(min=0)
    return ids.gather(1, back.flatten(1)).view(back.shape)


def penalised_words(ids, last, vocab):
    """recent_words() in every other row, in the other rows `vocab`, which stands for no word: texts are read with a
    repeat penalty as often as without"""
    even = torch.arange(ids.shape[0], device=ids.device) % 2 == 0
    return torch.where(even[:, None, None], recent_words(ids, last), vocab)


def word_mask(words, vocab):
    """words [N, W], those of `vocab` stand for nothing -> [N, vocab]: which of the words are there"""
    mask = torch.zeros(words.shape[0], vocab + 32, dtype=torch.bool, device=words.device)  # rows stay aligned
    return mask.scatter_(1, words, True)[:, :vocab]


def penalise(logits, recent, penalty):
    """the engine's repeat penalty on the words that are `recent`, a mask"""
    return torch.where(recent, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


@compiled
def kl_rows(teacher, student, weight, hard, recent=None, penalty=1.0, sharpen=0.0):
    """logits [N, V] each, weight [N] -> loss sum, d loss / d student logits, teacher's argmax [N], weighted hits;
    hard: the teacher's argmax has all the probability; sharpen: it gets this share in the gradient, on top of its own
    part of the rest; recent [N, V]: words under a repeat penalty, which both sides obey"""
    teacher, student, slope = teacher.float(), student.float(), None
    if recent is not None:
        slope = torch.where(recent, torch.where(student > 0, 1 / penalty, penalty), 1.0)
        teacher, student = penalise(teacher, recent, penalty), student * slope
    best, log_q = teacher.argmax(-1), student.log_softmax(-1)
    one = (torch.arange(teacher.shape[-1], device=teacher.device)[None] == best[:, None]).float()
    if hard:
        p = one
        rows = -(p * log_q).sum(-1)
    else:
        log_p = teacher.log_softmax(-1)
        p = log_p.exp()
        rows = (p * (log_p - log_q)).sum(-1)
    loss = (rows * weight).sum()
    gradient = (log_q.exp() - torch.lerp(p, one, sharpen)) * weight[:, None]
    if slope is not None:
        gradient = gradient * slope
    return loss, gradient.to(COMPUTE), best, ((best == student.argmax(-1)) * weight).sum()


class HeadLoss(torch.autograd.Function):
    """Mean over rows of weight * KL(softmax(teacher Wt^T) || softmax(student Ws^T)), and the share of rows where both
    have the same argmax (a row of weight 0 is a miss). Works through `chunk` rows at a time and makes the gradients on
    the spot. `best` [N], where given, receives the teacher's argmax. `hard`: cross-entropy with that argmax instead.
    `words` [N, W], where given: words of both sides that a repeat penalty applies to (those of V: none)."""
    penalty = 1.1
    sharpen = 0.0  # see kl_rows

    @staticmethod
    def forward(ctx, student, w_student, teacher, w_teacher, weight, chunk, best=None, hard=False, words=None):
        rows = student.shape[0]
        w = w_student.to(student.dtype)
        d_student = torch.empty_like(student)
        d_w = torch.zeros(w.shape, device=w.device, dtype=torch.float32)
        total = torch.zeros((), device=w.device)
        hits = torch.zeros((), device=w.device)
        for i in range(0, rows, chunk):
            s = slice(i, i + chunk)
            recent = None if words is None else word_mask(words[s], w.shape[0])
            loss, g, top, hit = kl_rows(F.linear(teacher[s], w_teacher), F.linear(student[s], w), weight[s], hard,
                                        recent, HeadLoss.penalty, HeadLoss.sharpen)
            if best is not None:
                best[s] = top
            d_student[s] = g @ w
            d_w += g.T @ student[s]
            total += loss
            hits += hit
        ctx.save_for_backward(d_student / rows, d_w / rows)
        ctx.kind = w_student.dtype
        return total / rows, hits / rows

    @staticmethod
    def backward(ctx, g, _):
        d_student, d_w = ctx.saved_tensors
        return d_student * g.to(d_student.dtype), (d_w * g).to(ctx.kind), None, None, None, None, None, None, None


def causal_block(q, k, v, scale):
    """plain causal attention -> output, log-sum-exp [B, H, T], what the flash kernel's backward needs"""
    if q.is_cuda:
        r = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)
        return r[0], r[1], r[2:8]
    z = (q @ k.transpose(-1, -2)) * scale
    z = z.masked_fill(~torch.ones(z.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return z.softmax(-1) @ v, z.logsumexp(-1), None


def causal_block_backward(grad, q, k, v, out, lse, aux, scale):
    if q.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, aux[0], aux[1], aux[2], aux[3], 0.0, True, aux[4], aux[5], scale=scale)
    z = (q @ k.transpose(-1, -2)) * scale
    p = (z - lse[..., None]).exp() * torch.ones(z.shape[-2:], dtype=torch.bool).tril()
    dz = p * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * scale
    return dz @ k, dz.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad


class UnrolledAttention(torch.autograd.Function):
    """Attention of q [B, H, T, D] over the causal block (k0, v0) and, for each query t, the single keys k_i[t] that the
    earlier unrolled steps made (extra = k_1..k_n, v_1..v_n).

    The block goes through the flash kernel, the extra keys are merged by log-sum-exp. In the backward pass the flash
    kernel gets the merged output and the merged log-sum-exp, which makes its gradients those of the whole softmax."""

    @staticmethod
    def forward(ctx, q, k0, v0, *extra):
        n = len(extra) // 2
        scale = 1 / math.sqrt(q.shape[-1])
        out0, lse0, ctx.aux = causal_block(q, k0, v0, scale)
        z = torch.stack([lse0] + [(q.float() * k.float()).sum(-1) * scale for k in extra[:n]])
        lse = z.logsumexp(0)
        share = (z - lse).exp()
        out = out0.float() * share[0, ..., None]
        for i, v in enumerate(extra[n:]):
            out = out + share[i + 1, ..., None] * v.float()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k0, v0, out, lse, share[1:], *extra)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k0, v0, out, lse, share, *extra = ctx.saved_tensors
        n, grad = len(extra) // 2, grad.contiguous()
        dq, dk0, dv0 = causal_block_backward(grad, q, k0, v0, out, lse, ctx.aux, ctx.scale)
        g = grad.float()
        delta = (g * out.float()).sum(-1)
        dq, dks, dvs = dq.float(), [], []
        for i in range(n):
            dz = share[i] * ((g * extra[n + i].float()).sum(-1) - delta) * ctx.scale
            dq = dq + dz[..., None] * extra[i].float()
            dks.append((dz[..., None] * q.float()).to(q.dtype))
            dvs.append((share[i][..., None] * g).to(q.dtype))
        return (dq.to(q.dtype), dk0, dv0, *dks, *dvs)
