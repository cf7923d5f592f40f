"""Training for long inputs: in a share of the steps a draft is shown what its cache would hold behind a long text, not
the text as it is. Of a window of up to 8K tokens it gets random chunks within a random budget and the window's end, at
the positions of a compact sequence, as the engine's caches give them (setting positions=compact); the target has read
the whole window. After BudgetDraft. One difference remains: the engine's cells of a chunk were made where the chunk
stood, with the 512 tokens before it, here they are made behind the chunks that are kept.

B rows, L tokens of a window, T tokens of a compact row."""
import torch

from fused import DEVICE, HeadLoss

CHUNK = 32
BUDGETS = (2, 4, 8, 16, 32)  # chunks


def compact_places(rows, length, count, budget=None):
    """-> places [rows, count] of a window of `length` tokens, rising: the first chunk, random ones, and the end of the
    window; how many of them are chunks' tokens. All rows have the same budget (drawn, where none is given)."""
    most = min(count // 2, length - count) // CHUNK  # at least half of a row is the end of the window
    if budget is None:
        budget = BUDGETS[int(torch.randint(len(BUDGETS), ()))]
    budget = max(1, min(budget, most))
    tail = count - budget * CHUNK
    chunks = 1 + torch.rand(rows, (length - tail) // CHUNK - 1, device=DEVICE).argsort(1)[:, :budget - 1]
    chunks = torch.cat([torch.zeros(rows, 1, dtype=torch.long, device=DEVICE), chunks.sort(1).values], 1)
    kept = (chunks[..., None] * CHUNK + torch.arange(CHUNK, device=DEVICE)).flatten(1)
    end = torch.arange(length - tail, length, device=DEVICE).expand(rows, -1)
    return torch.cat([kept, end], 1), budget * CHUNK


class CompactView:
    """The states of a window as a draft sees them: ids, hidden, taps and the tokens that follow, at the places."""

    def __init__(self, ids, hidden, taps, count, budget=None):
        self.places, self.kept = compact_places(ids.shape[0], ids.shape[1], count, budget)
        pick = lambda x: x.gather(1, self.places[..., None].expand(-1, -1, x.shape[-1]))
        self.ids, self.hidden, self.taps = ids.gather(1, self.places), pick(hidden), pick(taps)
        self.following = ids.gather(1, (self.places + 1).clamp(max=ids.shape[1] - 1))
        self.scored = (torch.arange(count, device=DEVICE) >= self.kept).float().expand(ids.shape[0], -1)


def longspec_loss(draft, ids, hidden, cells, target, count):
    """LongSpec's drafter at the end of a window: its own cells are those of the last tokens, of the target's it sees
    random chunks and the last ones, at the positions of the text. -> (loss, agreement)"""
    w, (rows, length) = draft.weights(), ids.shape
    places, _ = compact_places(rows, length, count)
    shown = torch.zeros(rows, length, dtype=torch.bool, device=DEVICE).scatter(1, places, True)
    first = length - count // 2  # rows of the end, the same for every budget; the first lack own cells before them
    at = torch.arange(first, length, device=DEVICE).expand(rows, -1)
    start = first + draft.blocks(rows, length - first)
    x = draft.state(w, ids[:, first:], at, cells, start, target, shown)
    warm = (at - first >= min(draft.window, (length - first) // 2)).float().reshape(-1)
    teacher = hidden[:, first:]
    known = draft.constants["t2d"][target.best(teacher)]
    words = draft.words(ids, at)
    return HeadLoss.apply(x.reshape(-1, x.shape[-1]), w["lm_head.weight"], teacher.reshape(-1, teacher.shape[-1]),
                          target.head[draft.vocabulary], warm / warm.mean() * known, 8192, None, False,
                          None if words is None else words.flatten(0, 1))
