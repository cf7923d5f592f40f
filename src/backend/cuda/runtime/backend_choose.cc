// The ops of the CUDA backend that choose tokens from rows of logits: choose, probabilities, top_k.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cuda/runtime/backend.h"
#include "backend/cuda/sampling/choose.h"
#include "backend/cuda/sampling/sample_filtered.h"
#include "base/error.h"

namespace sx::cuda {
namespace {

constexpr size_t kMostEdits = 8192;  // bias and penalties of a row that the device applies

}  // namespace

// Where a row is sampled must depend on its request alone, because the ways need not round alike.
CudaBackend::Way CudaBackend::way_of(const ChooseRow& row) {
  if (is_edited(row) && row.bias.size() + row.counts.size() > kMostEdits) return Way::kHost;
  const Sampling& s = *row.sampling;
  const bool filtered = s.temperature > 0 && (s.top_k > 0 || s.top_p < 1 || s.min_p > 0);
  if (!filtered) return Way::kPick;
  return s.top_k > 0 && s.top_k <= kMostTopK ? Way::kFiltered : Way::kHost;
}

// Whether bias or penalties change some of the row's logits.
bool CudaBackend::is_edited(const ChooseRow& row) {
  const Sampling& s = *row.sampling;
  const bool penalised = s.repeat_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
  return !row.bias.empty() || (penalised && !row.counts.empty());
}

const float* CudaBackend::row_on_host(const float* logits, int vocab) {
  host_row_.resize(size_t(vocab));
  StepLimits limits;
  limits.vocab = vocab;
  host_->reserve(limits);
  download(host_row_.data(), logits, size_t(vocab));
  return host_row_.data();
}

void CudaBackend::reserve_copies(int vocab) {
  scratch(masks_, size_t(kMostCopied) * size_t((vocab + 31) / 32) * sizeof(uint32_t), "allowed tokens");
  scratch(copied_, size_t(kMostCopied) * size_t(vocab) * sizeof(float), "rows to choose from");
  scratch(edits_, size_t(kMostCopied) * kMostEdits * sizeof(LogitEdit), "penalties");
}

void CudaBackend::choose(const ChooseArgs& a) {
  bind();
  if (dry()) return std::fill_n(a.out, a.rows.size(), 0), void();
  SX_ASSERT(!in_step());
  std::vector<size_t> copied;
  for (size_t i = 0; i < a.rows.size(); ++i)
    if (a.rows[i].allowed || is_edited(a.rows[i])) copied.push_back(i);
  if (copied.empty()) return choose_any(a);
  for (size_t i = 0; i < copied.size(); i += kMostCopied)
    choose_from_copies(a, std::span(copied).subspan(i, std::min<size_t>(kMostCopied, copied.size() - i)));
  if (copied.size() == a.rows.size()) return;
  std::vector<ChooseRow> rows;
  for (const ChooseRow& row : a.rows)
    if (!row.allowed && !is_edited(row)) rows.push_back(row);
  std::vector<Token> chosen(rows.size());
  choose_any({chosen.data(), rows, a.vocab});
  for (size_t i = 0, at = 0; i < a.rows.size(); ++i)
    if (!a.rows[i].allowed && !is_edited(a.rows[i])) a.out[i] = chosen[at++];
}

// The row's bias and penalties as edits of copy number `at`. False: a token has several, which only the host adds up in
// their order.
bool CudaBackend::add_edits(const ChooseRow& row, int vocab, int at, std::vector<LogitEdit>& edits) {
  const Sampling& s = *row.sampling;
  const size_t first = edits.size();
  for (const TokenBias& b : row.bias) {
    if (b.token < 0 || b.token >= vocab) continue;
    for (size_t i = first; i < edits.size(); ++i)
      if (edits[i].token == b.token) return edits.resize(first), false;
    edits.push_back({at, b.token, b.bias, 0, 1, 0});
  }
  const size_t biased = edits.size();
  for (const TokenCount& c : row.counts) {
    if (c.token < 0 || c.token >= vocab || c.count <= 0) continue;
    const float less = s.presence_penalty + s.frequency_penalty * float(c.count);
    size_t i = first;
    while (i < biased && edits[i].token != c.token) ++i;
    if (i == biased) edits.push_back({at, c.token, 0, c.count, s.repeat_penalty, less});
    else edits[i].count = c.count, edits[i].repeat = s.repeat_penalty, edits[i].less = less;
  }
  return true;
}

// Samples from copies of the rows in which forbidden tokens have -infinity and bias and penalties are applied. The host
// samples where no logit is finite (the copy cannot tell which token is the first allowed one), and rows that the host
// samples anyway.
void CudaBackend::choose_from_copies(const ChooseArgs& a, std::span<const size_t> which) {
  const size_t words = (size_t(a.vocab) + 31) / 32, vocab = size_t(a.vocab);
  reserve_copies(a.vocab);
  const bool any_masked = std::any_of(which.begin(), which.end(), [&](size_t i) { return a.rows[i].allowed; });
  auto* bits = any_masked ? static_cast<uint32_t*>(staging_->begin(which.size() * words * sizeof(uint32_t))) : nullptr;
  AllowedCall call{static_cast<float*>(copied_.data), {}, static_cast<const uint32_t*>(masks_.data), 0, 0, a.vocab};
  std::vector<ChooseRow> rows;
  std::vector<size_t> places;
  std::vector<LogitEdit> edits;
  for (const size_t i : which) {
    ChooseRow row = a.rows[i];
    const int at = int(rows.size());
    if (way_of(row) == Way::kHost || (is_edited(row) && !add_edits(row, a.vocab, at, edits))) {
      choose_on_host(a, i);
      continue;
    }
    if (row.allowed) {
      std::memcpy(bits + size_t(at) * words, row.allowed, words * sizeof(uint32_t));
      call.masked |= 1u << at;
    }
    call.logits[at] = row.logits;
    row.logits = call.out + size_t(at) * vocab;
    row.allowed = nullptr, row.bias = {}, row.counts = {};
    rows.push_back(row);
    places.push_back(i);
  }
  if (rows.empty()) return;
  call.rows = int(rows.size());
  if (call.masked) staging_->send(masks_.data, rows.size() * words * sizeof(uint32_t));
  copy_allowed(call, stream_);
  if (!edits.empty()) {
    const size_t bytes = edits.size() * sizeof(LogitEdit);
    std::memcpy(staging_->begin(bytes), edits.data(), bytes);
    staging_->send(edits_.data, bytes);
    edit_rows(call.out, a.vocab, static_cast<const LogitEdit*>(edits_.data), int(edits.size()), stream_);
  }
  std::vector<Token> chosen(rows.size());
  choose_any({chosen.data(), rows, a.vocab});
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t at = places[i];
    a.out[at] = chosen[i];
    if (!a.rows[at].allows(chosen[i])) choose_on_host(a, at);
  }
}

void CudaBackend::choose_any(const ChooseArgs& a) {
  pick_rows(a);
  for (size_t i = 0; i < a.rows.size();) {
    const ChooseRow& row = a.rows[i];
    const Way way = way_of(row);
    if (way == Way::kFiltered) {  // rows that follow each other in memory go together
      size_t end = i + 1;
      const auto follows = [&](const ChooseRow& other) {
        return other.logits == row.logits + (end - i) * size_t(a.vocab) &&
               other.sampling->top_k == row.sampling->top_k && way_of(other) == way;
      };
      while (end < a.rows.size() && follows(a.rows[end])) ++end;
      filter_rows(a, i, end);
      i = end;
      continue;
    }
    if (way == Way::kHost) choose_on_host(a, i);
    ++i;
  }
}

// Filtered rows take part where `broken` is wanted: their largest logit is picked and not used.
void CudaBackend::pick_rows(const ChooseArgs& a) {
  const size_t most = a.rows.size();
  const auto picked = [this](const ChooseRow& row) {
    return way_of(row) == Way::kPick || (row.broken && way_of(row) == Way::kFiltered);
  };
  auto* rows = static_cast<PickRow*>(staging_->begin(most * sizeof(PickRow)));
  int count = 0;
  for (const ChooseRow& row : a.rows)
    if (picked(row))
      rows[count++] = {row.logits, row.position, row.sampling->seed,
                       way_of(row) == Way::kPick ? row.sampling->temperature : 0.0f, 0};
  if (count == 0) return;
  auto* device = static_cast<PickRow*>(scratch(picks_, most * sizeof(PickRow), "rows to choose from"));
  staging_->send(device, size_t(count) * sizeof(PickRow));
  void* sums = scratch(pick_, pick_scratch_bytes(count, a.vocab), "choices");
  auto* chosen = static_cast<Token*>(pinned(most * (sizeof(Token) + sizeof(int32_t))));
  auto* broken = reinterpret_cast<int32_t*>(chosen + most);
  pick(chosen, device, count, a.vocab, sums, stream_, broken);
  wait();
  for (size_t i = 0, at = 0; i < most; ++i) {
    const ChooseRow& row = a.rows[i];
    if (!picked(row)) continue;
    if (way_of(row) == Way::kPick) a.out[i] = chosen[at];
    if (row.broken && broken[at]) *row.broken = 1;
    ++at;
  }
}

void CudaBackend::filter_rows(const ChooseArgs& a, size_t first, size_t end) {
  const int k = std::min(a.rows[first].sampling->top_k, a.vocab);
  candidates_.resize((end - first) * size_t(k));
  top_k({candidates_.data(), a.rows[first].logits, int(end - first), a.vocab, k});
  for (size_t i = first; i < end; ++i) {
    const auto best = std::span(candidates_).subspan((i - first) * size_t(k), size_t(k));
    a.out[i] = sample_filtered(best, *a.rows[i].sampling, a.rows[i].position);
    if (a.out[i] == kNoToken) choose_on_host(a, i);
  }
}

void CudaBackend::choose_on_host(const ChooseArgs& a, size_t i) {
  ChooseRow row = a.rows[i];
  row.logits = row_on_host(row.logits, a.vocab);
  host_->choose({a.out + i, std::span(&row, 1), a.vocab});
}

void CudaBackend::probabilities(const ProbabilitiesArgs& a) {
  bind();
  if (dry()) return std::fill_n(a.out, a.vocab, 0.0), void();
  ProbabilitiesArgs args = a;
  args.row.logits = row_on_host(a.row.logits, a.vocab);
  host_->probabilities(args);
}

void CudaBackend::top_k(const TopKArgs& a) {
  bind();
  if (dry()) return;
  SX_ASSERT(!in_step());
  const int stride = a.stride > 0 ? a.stride : a.vocab;
  if (a.k > kMostTopK) {
    for (int r = 0; r < a.rows; ++r)
      host_->top_k(
          {a.out + ptrdiff_t(r) * a.k, row_on_host(a.logits + ptrdiff_t(r) * stride, a.vocab), 1, a.vocab, a.k});
    return;
  }
  const size_t bytes = size_t(a.rows) * size_t(a.k) * sizeof(Candidate);
  void* sums = scratch(top_k_, top_k_scratch_bytes(a.rows, a.vocab, a.k), "likeliest tokens");
  auto* found = static_cast<Candidate*>(pinned(bytes));
  cuda::top_k({found, a.logits, a.rows, a.vocab, stride, a.k}, sums, stream_);
  wait();
  std::memcpy(a.out, found, bytes);
}

}  // namespace sx::cuda
