// Checks and times picking tokens on the device. Build and run in the repository:
// nvcc -std=c++20 -O3 -Isrc -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_choose bench/cuda/check_choose.cu
//   src/backend/cuda/sampling/{choose,top_k}.cu src/backend/cuda/runtime/device.cu
#include <algorithm>

#include "backend/cuda/sampling/choose.h"
#include "base/rng.h"
#include "check_small.cuh"

using namespace check;
using namespace sx;

namespace {

Token pick_on_host(const float* x, int vocab, float temperature, uint64_t seed, uint64_t position) {
  Token best = 0;
  float largest = -INFINITY;
  for (int t = 0; t < vocab; ++t)
    if (x[t] > largest) largest = x[t], best = t;
  if (!(temperature > 0)) return best;
  double most = 0;
  bool any = false;
  for (int t = 0; t < vocab; ++t) {
    if (!std::isfinite(x[t])) continue;
    const double score = double(x[t]) * (1.0 / double(temperature)) + gumbel(seed, position, uint64_t(t));
    if (!any || score > most) most = score, best = t, any = true;
  }
  return best;
}

std::vector<Candidate> top_k_on_host(const float* x, int vocab, int k) {
  std::vector<double> v(x, x + vocab);
  std::vector<Token> ids(static_cast<size_t>(vocab));
  for (int t = 0; t < vocab; ++t) {
    ids[size_t(t)] = t;
    if (!std::isfinite(v[size_t(t)])) v[size_t(t)] = -INFINITY;
  }
  std::stable_sort(ids.begin(), ids.end(), [&](Token a, Token b) { return v[size_t(a)] > v[size_t(b)]; });
  double sum = 0;
  const double most = v[size_t(ids[0])];
  for (double y : v) sum += std::exp(y - most);
  std::vector<Candidate> out;
  for (int i = 0; i < k; ++i) {
    const Token t = ids[size_t(i)];
    out.push_back({t, std::isfinite(x[t]) ? float(v[size_t(t)] - most - std::log(sum)) : -INFINITY, x[t]});
  }
  return out;
}

// Rows of many kinds: plain, ties, mostly forbidden, rising, nothing finite, infinities and NaN.
std::vector<float> make_rows(int rows, int vocab, int stride) {
  std::vector<float> x(size_t(rows) * size_t(stride), NAN);  // behind the vocabulary nothing may be read
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < vocab; ++t) {
      float y = random_float() * 4;
      switch (r % 8) {
        case 1: y = std::round(y); break;
        case 2:
          if (random_below(50) != 0) y = -INFINITY;
          break;
        case 3: y = 1.5f; break;
        case 4: y = float(t) * 1e-3f; break;
        case 5: y = random_below(9) == 0 ? NAN : random_below(7) == 0 ? INFINITY : y; break;
        case 6: y = t % 3 == 0 ? NAN : t % 3 == 1 ? -INFINITY : (r / 8) % 2 ? INFINITY : -INFINITY; break;
        case 7: y = random_below(2) ? 0.0f : -0.0f; break;
        default:
          if (r == 8 && (t % 64 != 0 || t >= 2048)) y = 0.01f * y - 100;  // few stand out, two in each warp
          break;
      }
      x[size_t(r) * size_t(stride) + size_t(t)] = y;
    }
  }
  return x;
}

void check_pick() {
  int sampled = 0, other = 0;
  for (int vocab : {1, 5, 2047, 2048, 2049, 32000, 128256}) {
    Memory memory;
    const int rows = vocab > 40000 ? 16 : 33, stride = vocab + 3;  // rows at all alignments
    const std::vector<float> x = make_rows(rows, vocab, stride);
    float* logits = memory.put(x);
    std::vector<cuda::PickRow> list;
    for (int r = 0; r < rows; ++r) {
      const float t[] = {0, 1, 0.7f, 0.01f, 3, 0};
      list.push_back({logits + size_t(r) * size_t(stride), uint64_t(r) * 977 + 5,
                      0x1234567890abcdefull * uint64_t(r + 1), t[random_below(6)], 0});
    }
    void* scratch = memory.take(cuda::pick_scratch_bytes(rows, vocab), "scratch");
    Token* out = memory.make<Token>(size_t(rows));
    const cuda::PickRow* device_list = memory.put(list);
    cuda::pick(out, device_list, rows, vocab, scratch, nullptr);
    const auto got = get<Token>(out, size_t(rows));
    for (int r = 0; r < rows; ++r) {
      const auto& row = list[size_t(r)];
      const Token want =
          pick_on_host(x.data() + size_t(r) * size_t(stride), vocab, row.temperature, row.seed, row.position);
      sampled += row.temperature > 0,
          other += row.temperature > 0 && want != pick_on_host(x.data() + size_t(r) * size_t(stride), vocab, 0, 0, 0);
      must(got[size_t(r)] == want, "pick vocab " + std::to_string(vocab) + " row " + std::to_string(r) +
                                       " temperature " + std::to_string(row.temperature) + ": " +
                                       std::to_string(got[size_t(r)]) + " instead of " + std::to_string(want));
    }
    cuda::pick(out, device_list + rows / 2, 1, vocab, scratch, nullptr);  // a row alone
    must(get<Token>(out, 1)[0] == got[size_t(rows / 2)], "pick alone");
  }
  std::printf("pick: %d sampled rows, %d of them not the largest\n", sampled, other);
}

void check_top_k() {
  double worst = 0;
  for (int vocab : {1, 7, 300, 4096, 4097, 32000, 260000}) {
    for (int k : {1, 3, 48, 64, 65, 256}) {
      if (k > vocab || (vocab > 200000 && k != 48 && k != 256)) continue;
      Memory memory;
      const int rows = vocab > 200000 ? 3 : 16, stride = vocab + 1;
      const std::vector<float> x = make_rows(rows, vocab, stride);
      float* logits = memory.put(x);
      void* scratch = memory.take(cuda::top_k_scratch_bytes(rows, vocab, k), "scratch");
      Candidate* out = memory.make<Candidate>(size_t(rows * k));
      cuda::top_k({out, logits, rows, vocab, stride, k}, scratch, nullptr);
      const auto got = get<Candidate>(out, size_t(rows * k));
      for (int r = 0; r < rows; ++r) {
        const auto want = top_k_on_host(x.data() + size_t(r) * size_t(stride), vocab, k);
        for (int i = 0; i < k; ++i) {
          const Candidate &a = got[size_t(r * k + i)], &b = want[size_t(i)];
          const bool both = std::isinf(a.logp) && std::isinf(b.logp);
          const double e =
              both ? 0 : std::fabs(double(a.logp) - double(b.logp)) / (2e-6 + 3e-7 * std::fabs(double(b.logp)));
          worst = std::max(worst, std::isnan(e) ? 1e30 : e);
          must(a.token == b.token && std::memcmp(&a.logit, &b.logit, 4) == 0 && e <= 1,
               "top_k vocab " + std::to_string(vocab) + " k " + std::to_string(k) + " row " + std::to_string(r) +
                   " place " + std::to_string(i) + ": " + std::to_string(a.token) + " " + std::to_string(a.logp) +
                   " instead of " + std::to_string(b.token) + " " + std::to_string(b.logp));
        }
      }
      const int alone = rows - 1;
      cuda::top_k({out, logits + size_t(alone) * size_t(stride), 1, vocab, stride, k}, scratch, nullptr);
      const auto again = get<Candidate>(out, size_t(k));
      must(std::memcmp(again.data(), &got[size_t(alone * k)], size_t(k) * sizeof(Candidate)) == 0,
           "top_k alone, vocab " + std::to_string(vocab));
    }
  }
  std::printf("top_k: worst logp %.3f of what is allowed\n", worst);
}

void time_all() {
  Memory memory;
  const int copies = 8;
  for (int vocab : {32000, 128256}) {
    for (int rows : {1, 16, 64}) {
      const size_t count = size_t(rows) * size_t(vocab);
      float* logits = memory.make<float>(count * copies);
      const auto x = random_floats(count, 4);
      for (int i = 0; i < copies; ++i)
        cudaMemcpy(logits + size_t(i) * count, x.data(), count * 4, cudaMemcpyHostToDevice);
      const double bytes = double(count) * 4;
      for (float temperature : {0.0f, 1.0f}) {
        std::vector<cuda::PickRow> list;
        for (int i = 0; i < copies; ++i)
          for (int r = 0; r < rows; ++r)
            list.push_back({logits + size_t(i) * count + size_t(r) * size_t(vocab), uint64_t(r), 7, temperature, 0});
        const cuda::PickRow* device_list = memory.put(list);
        void* scratch = memory.take(cuda::pick_scratch_bytes(rows, vocab), "scratch");
        Token* out = memory.make<Token>(size_t(rows));
        const double us = time_us(40, [&](int i, cudaStream_t s) {
          cuda::pick(out, device_list + i % copies * rows, rows, vocab, scratch, s);
        });
        print_time(("pick t=" + std::to_string(int(temperature)) + " vocab " + std::to_string(vocab) + " rows " +
                    std::to_string(rows))
                       .c_str(),
                   us, bytes);
      }
      for (int k : {48, 256}) {
        void* scratch = memory.take(cuda::top_k_scratch_bytes(rows, vocab, k), "scratch");
        Candidate* out = memory.make<Candidate>(size_t(rows * k));
        const double us = time_us(40, [&](int i, cudaStream_t s) {
          cuda::top_k({out, logits + size_t(i % copies) * count, rows, vocab, vocab, k}, scratch, s);
        });
        print_time(
            ("top_k k=" + std::to_string(k) + " vocab " + std::to_string(vocab) + " rows " + std::to_string(rows))
                .c_str(),
            us, bytes);
      }
      memory.free_all();
    }
  }
}

}  // namespace

int main() {
  check_pick();
  check_top_k();
  time_all();
  std::printf(failures ? "check_choose: %d FAILURES\n" : "check_choose: good\n", failures);
  return failures ? 1 : 0;
}
