// Checks and times retrieval on the device: scores in pieces, the choice of chunks, the gathering of their cells. Build
// and run in the repository:
// g++ -std=c++20 -O2 -Isrc -Iinclude -c src/tensor/dtype.cc src/base/error.cc src/kv/chunk_choice.cc && nvcc -std=c++20 -O3 -Isrc
//   -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_retrieve bench/cuda/check_retrieve.cu
//   src/backend/cuda/kv/{store,move,score,retrieve}.cu src/backend/cuda/runtime/device.cu dtype.o error.o chunk_choice.o -lfmt
#include <algorithm>
#include <chrono>

#include "backend/cuda/kv/kv.h"
#include "check_small.cuh"
#include "kv/chunk_choice.h"

using namespace check;
using namespace sx;

namespace {

std::string n(int64_t x) { return std::to_string(x); }

std::vector<int32_t> borders_of(int cells, int chunk) {
  std::vector<int32_t> borders;
  for (int c = 0; c < cells; c += chunk) borders.push_back(c);
  borders.push_back(cells);
  return borders;
}

size_t store_bytes(const cuda::KvView& v) { return v.cells() * size_t(v.head_dim) * (v.type == DType::kQ8_0 ? 1 : 2); }

// Everything in a store.
std::vector<uint8_t> bytes_of(const cuda::KvView& v) {
  auto all = get<uint8_t>(v.k, store_bytes(v));
  const auto values = get<uint8_t>(v.v, store_bytes(v));
  all.insert(all.end(), values.begin(), values.end());
  if (v.type != DType::kQ8_0) return all;
  for (const uint16_t* scales : {v.k_scale, v.v_scale}) {
    const auto more = get<uint8_t>(scales, store_bytes(v) / 16);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void fill(const cuda::KvView& v) {  // with finite numbers
  const auto put = [&](void* to, size_t bytes, bool halves) {
    std::vector<uint8_t> data(bytes);
    for (size_t i = 0; i < bytes; ++i)
      data[i] = uint8_t(halves && i % 2 == 1 ? 0x3c + (random_bits() & 0x83) : random_bits());
    cudaMemcpy(to, data.data(), bytes, cudaMemcpyHostToDevice);
  };
  const bool q8 = v.type == DType::kQ8_0;
  put(v.k, store_bytes(v), !q8), put(v.v, store_bytes(v), !q8);
  if (!q8) return;
  std::vector<uint16_t> scales(store_bytes(v) / 32);
  for (uint16_t* to : {v.k_scale, v.v_scale}) {
    for (auto& s : scales) s = uint16_t(0x2000 + random_bits() % 1000);
    cudaMemcpy(to, scales.data(), scales.size() * 2, cudaMemcpyHostToDevice);
  }
}

__global__ void fill_numbers(uint16_t* to, size_t count) {  // between 1/8 and 1/4 in bf16, of either sign
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    const uint32_t mixed = uint32_t(i) * 2654435761u ^ uint32_t(i >> 7) * 40503u;
    to[i] = uint16_t(0x3e00 | (mixed >> 16 & 0x807f));
  }
}

std::vector<float> scores_for(int chunks, int form) {
  std::vector<float> scores(static_cast<size_t>(chunks));
  for (float& x : scores) {
    x = std::fabs(random_float()) * 1e-3f;
    if (form == 1) x = float(random_below(4)) * 0.25f;  // many equal ones
    if (form == 2) x = random_float() * (random_below(2) ? 1e-3f : 1e30f);
    if (form == 3) x = 0.125f;
    if (form != 4) continue;
    const int kind = random_below(6);
    x = kind == 0 ? NAN : kind == 1 ? 0.0f : kind == 2 ? -0.0f : kind == 3 ? INFINITY : kind == 4 ? -INFINITY : 1e-42f;
  }
  return scores;
}

// The choice against choose_chunks() on the same scores, and the store against kv_move() of what it chose.
void check_choice(int turns) {
  int cases = 0, skipped = 0;
  for (int turn = 0; turn < turns; ++turn) {
    const int chunk = std::vector<int>{32, 16, 8, 1, 48, 3}[size_t(turn % 6)];
    const int most = chunk == 1 ? 7000 : chunk < 16 ? 12000 : turn % 10 == 0 ? 131072 : 9000;
    const int cells = chunk + random_below(most),
              budget = std::min(1 + random_below(turn / 6 % 3 == 0 ? 2000 : 500), cells - 1);
    const int sink = random_below(3) ? 4 : random_below(200), recent = 1 + random_below(random_below(2) ? 64 : 300);
    const auto borders = borders_of(cells, chunk);
    const int chunks = int(borders.size()) - 1;
    const ChunkPlan plan = plan_chunks(borders, budget, sink, recent);
    if (budget < 1 || plan.left < 0 || chunks > cuda::kMostRetrieveChunks) {
      ++skipped;
      continue;
    }
    ++cases;
    Memory memory;
    const DType type = turn % 3 == 0 ? DType::kQ8_0 : turn % 3 == 1 ? DType::kBF16 : DType::kF16;
    const int dim = type == DType::kQ8_0 ? 64 : std::vector<int>{128, 20, 64, 256}[size_t(turn / 3 % 4)];
    const int layers = 1 + random_below(3), heads = std::vector<int>{1, 3, 8}[size_t(random_below(3))],
              dims = dim == 64 ? 32 : dim;
    const bool large = cells > 20000;
    const int kept = large ? 1 : layers, few = large ? 1 : heads,
              width = large && type != DType::kQ8_0 ? 20
                      : large                       ? 32
                                                    : dim;
    const int turned = std::min(dims, width);
    cuda::CudaKv from({kept, few, width, 2, cells, type}, memory), to({kept, few, width, 2, budget + 3, type}, memory),
        right({kept, few, width, 2, budget + 3, type}, memory);
    fill(from.view()), fill(to.view());
    const auto start = bytes_of(to.view());
    const size_t one = store_bytes(to.view());
    cudaMemcpy(right.view().k, start.data(), one, cudaMemcpyHostToDevice);
    cudaMemcpy(right.view().v, start.data() + one, one, cudaMemcpyHostToDevice);
    if (type == DType::kQ8_0) {
      cudaMemcpy(right.view().k_scale, start.data() + 2 * one, one / 16, cudaMemcpyHostToDevice);
      cudaMemcpy(right.view().v_scale, start.data() + 2 * one + one / 16, one / 16, cudaMemcpyHostToDevice);
    }
    auto scores = scores_for(chunks, turn % 5);
    float* device_scores = memory.put(scores);
    std::vector<double> frequencies;
    for (int i = 0; i < turned / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / turned));
    const double* device_frequencies = memory.put(frequencies);
    const bool per_cell = random_below(2);
    if (per_cell)
      for (int c = 0; c < chunks; ++c) scores[size_t(c)] /= float(borders[size_t(c) + 1] - borders[size_t(c)]);
    std::vector<int32_t> want;
    std::vector<uint64_t> scratch;
    choose_chunks(borders, scores, budget, sink, recent, want, scratch);
    const int take = std::min(plan.last - plan.first, plan.left / chunk),
              count = (plan.first + take - plan.last) * chunk + cells;
    const std::string what = "choice " + n(turn) + ": " + n(cells) + " cells by " + n(chunk) + ", budget " + n(budget) +
                             ", sink " + n(sink) + ", recent " + n(recent);
    must(count == int(want.size()), what + " count " + n(count) + " instead of " + n(int64_t(want.size())));
    if (count != int(want.size())) continue;
    // What lies there already: in places where it is the very cell, at the same position, nothing may be written.
    std::vector<int32_t> before(want.begin(), want.begin() + random_below(count + 1));
    for (auto& cell : before)
      if (random_below(4) == 0) cell = random_below(cells);
    const int listed = int(before.size()), held = random_below(3) ? std::min(count, listed + random_below(9)) : 0;
    const int since = cells - random_below(std::min(cells, 9) + 1), top = random_below(3) ? 100000 : count / 2;
    const int shift = random_below(3) ? 0 : random_below(20), shift_before = random_below(3) ? shift : shift + 1;
    const bool compact = random_below(4) != 0;
    std::vector<KvMove> moves;
    for (int i = 0; i < count; ++i) {
      const auto position = [&](int by) { return compact ? std::clamp(i - by, 0, top) : want[size_t(i)]; };
      const int old = i < listed ? before[size_t(i)] : since + i - listed;
      if (i < held && old == want[size_t(i)] && position(shift_before) == position(shift)) continue;
      moves.push_back({want[size_t(i)], i, position(shift) - want[size_t(i)]});
    }
    int32_t* chosen = memory.make<int32_t>(size_t(count) + 1);
    cudaMemset(chosen, 0xee, (size_t(count) + 1) * 4);
    cuda::RetrieveCall call{device_scores,
                            chunk,
                            cells,
                            plan.first,
                            plan.last,
                            take,
                            per_cell,
                            nullptr,
                            chosen,
                            count,
                            memory.put(before),
                            listed,
                            held,
                            since,
                            compact,
                            shift,
                            shift_before,
                            top,
                            {from.view(), to.view(), 1, 0, 0, 0, few, device_frequencies, turned, RopeStyle::kHalves}};
    cuda::choose_chunks(call, nullptr);
    cuda::gather(call, nullptr);
    auto got = get<int32_t>(chosen, size_t(count) + 1);
    must(got.back() == int32_t(0xeeeeeeee), what + ": written behind the end");
    got.pop_back();
    const auto wrong = std::mismatch(got.begin(), got.end(), want.begin());
    must(got == want, what + " place " + n(wrong.first - got.begin()) + ": " +
                          n(wrong.first == got.end() ? -1 : *wrong.first) + " instead of " +
                          n(wrong.second == want.end() ? -1 : *wrong.second));
    cuda::kv_move({from.view(), right.view(), 1, 0, moves, device_frequencies, turned, RopeStyle::kHalves, -1, -1},
                  nullptr);
    must(bytes_of(to.view()) == bytes_of(right.view()), what + ": other bytes in the store");
  }
  std::printf("choice: %d cases, %d skipped\n", cases, skipped);
}

// Scores in pieces against kv_score(), whose sums are cut otherwise; twice; and equal chunks have equal scores.
void check_pieces() {
  double worst = 0;
  for (DType type : {DType::kBF16, DType::kF16, DType::kQ8_0}) {
    for (int form = 0; form < 8; ++form) {
      Memory memory;
      const int kv_heads = form % 3 + 1, heads = kv_heads * (form == 3 ? 9 : form == 5 ? 1 : 4), layers = form % 2 + 1;
      const int dim = form == 2   ? 64
                      : form == 4 ? 256
                      : form == 6 ? 96
                                  : 128,
                chunk = form == 1   ? 16
                        : form == 7 ? 144
                        : form == 5 ? 64
                                    : 32;
      const int cells = form == 0 ? 12000 : form == 6 ? 33 : 1000 + random_below(4000);
      cuda::CudaKv kv({3, kv_heads, dim, 2, cells + 5, type}, memory);
      fill(kv.view());
      const auto borders = borders_of(cells, chunk);
      const int chunks = int(borders.size()) - 1;
      void *scratch = memory.take(cuda::score_scratch_bytes(heads, cells + 1, layers), "scratch"),
           *small = memory.take(cuda::pieces_scratch_bytes(heads, cells, layers), "scratch");
      float *mean = memory.make<float>(size_t(chunks)), *pieces = memory.make<float>(size_t(chunks));
      for (ScoreKind kind : {ScoreKind::kMass, ScoreKind::kPeak}) {
        const std::string what =
            std::string("pieces ") + dtype_name(type) + " form " + n(form) + " kind " + n(int(kind));
        cuda::ScoreCall call{nullptr,   memory.put(random_floats(size_t(layers * heads * dim), 0.5f)),
                             heads,     kv_heads,
                             dim,       1 / std::sqrt(float(dim)),
                             kv.view(), 2,
                             1,         memory.put(borders),
                             chunks,    0,
                             cells,     kind};
        call.layers = layers, call.mean = mean, call.chunk = chunk;
        must(cuda::scores_in_pieces(call), what + " not in pieces");
        cuda::kv_score(call, scratch, nullptr);
        const auto right = get<float>(mean, size_t(chunks));
        call.mean = pieces, call.borders = nullptr;
        cuda::score_pieces(call, small, nullptr);
        const auto got = get<float>(pieces, size_t(chunks));
        const std::vector<double> want(right.begin(), right.end());
        worst = std::max(worst, compare(what, got.data(), want.data(), got.size(), 4e-6, 1e-9));
        cuda::score_pieces(call, small, nullptr);
        must(get<float>(pieces, size_t(chunks)) == got, what + " again");
        // The choice by the last block, twice: the second time it must find its counter as it was.
        const auto plan = plan_even_chunks(borders, cells / 2, 4, 7);
        if (!plan) continue;
        auto scores = got;
        for (int c = 0; c < chunks; ++c) scores[size_t(c)] /= float(borders[size_t(c) + 1] - borders[size_t(c)]);
        std::vector<int32_t> chosen;
        std::vector<uint64_t> order;
        choose_chunks(borders, scores, cells / 2, 4, 7, chosen, order);
        cuda::RetrieveCall then{pieces,
                                chunk,
                                cells,
                                plan->first,
                                plan->last,
                                plan->take,
                                true,
                                memory.make<unsigned>(1),
                                memory.make<int32_t>(size_t(plan->count)),
                                plan->count};
        for (int i = 0; i < 2; ++i) {
          cudaMemset(then.chosen, 0xee, size_t(plan->count) * 4);
          cuda::score_pieces(call, small, nullptr, &then);
          must(get<int32_t>(then.chosen, size_t(plan->count)) == chosen, what + " choice " + n(i));
        }
      }
      cudaMemset(kv.view().k, 0, store_bytes(kv.view()));  // all keys alike
      cuda::ScoreCall call{nullptr,   memory.put(random_floats(size_t(layers * heads * dim))),
                           heads,     kv_heads,
                           dim,       0.1f,
                           kv.view(), 2,
                           1,         nullptr,
                           chunks,    0,
                           cells,     ScoreKind::kMass};
      call.layers = layers, call.mean = pieces, call.chunk = chunk;
      cuda::score_pieces(call, small, nullptr);
      const auto flat = get<float>(pieces, size_t(chunks));
      for (int c = 1; c + 1 < chunks; ++c)
        must(flat[size_t(c)] == flat[0], "pieces: equal chunks, form " + n(form) + " chunk " + n(c));
    }
  }
  std::printf("score_pieces %.2f of what is allowed\n", worst);
}

void time_retrieval() {
  Memory memory;
  const int kv_heads = 8, dim = 128, heads = 32, chunk = 32, budget = 1024;
  cuda::CudaKv target({8, kv_heads, dim, 1, 131072, DType::kBF16}, memory);  // layers rotate past L2
  cuda::CudaKv full({1, kv_heads, dim, 1, 131072, DType::kBF16}, memory),
      work({1, kv_heads, dim, 1, 2048, DType::kBF16}, memory),
      deep({16, kv_heads, dim, 1, 16384, DType::kBF16}, memory),
      deep_work({16, kv_heads, dim, 1, 2048, DType::kBF16}, memory);
  fill_numbers<<<1000, 256>>>(reinterpret_cast<uint16_t*>(target.view().k), store_bytes(target.view()) / 2);
  const float* q = memory.put(random_floats(size_t(2 * heads * dim)));
  const double* f = memory.make<double>(64);
  for (int cells : {16384, 32768, 131072}) {
    const auto borders = borders_of(cells, chunk);
    const int chunks = int(borders.size()) - 1;
    const ChunkPlan plan = plan_chunks(borders, budget, 4, 64);
    int32_t *b = memory.put(borders), *chosen = memory.make<int32_t>(size_t(budget) + 1);
    void* scratch = memory.take(cuda::score_scratch_bytes(heads, cells + 1, 2), "scratch");
    float* mean = memory.put(scores_for(chunks, 0));
    float* other = memory.make<float>(size_t(chunks));
    unsigned* done = memory.make<unsigned>(1);
    const auto score_call = [&](int i, float* out) {
      cuda::ScoreCall call{nullptr, q, heads, kv_heads, dim, 0.088f, target.view(),
                           i % 8,   0, b,     chunks,   0,   cells,  ScoreKind::kMass};
      call.layers = 2, call.others[0] = (i + 3) % 8, call.mean = out, call.chunk = chunk;
      return call;
    };
    const auto choice_call = [&](const cuda::CudaKv& from, const cuda::CudaKv& to) {
      return cuda::RetrieveCall{
          mean,
          chunk,
          cells,
          plan.first,
          plan.last,
          std::min(plan.last - plan.first, plan.left / chunk),
          true,
          done,
          chosen,
          (plan.first + std::min(plan.last - plan.first, plan.left / chunk) - plan.last) * chunk + cells,
          nullptr,
          0,
          0,
          0,
          true,
          0,
          0,
          100000,
          {from.view(), to.view(), 0, 0, 0, 0, kv_heads, f, dim, RopeStyle::kHalves}};
    };
    const double keys = 2.0 * cells * kv_heads * dim * 2, moved = double(budget) * kv_heads * dim * 8;
    const std::string by = ", " + n(cells / 1024) + "K";
    print_time(("scores by logits" + by).c_str(),
               time_us(16, [&](int i, cudaStream_t s) { cuda::kv_score(score_call(i, other), scratch, s); }), keys);
    print_time(("scores in pieces" + by).c_str(),
               time_us(16, [&](int i, cudaStream_t s) { cuda::score_pieces(score_call(i, other), scratch, s); }), keys);
    const auto choice = choice_call(full, work);
    print_time(
        ("scores and choice" + by).c_str(),
        time_us(16, [&](int i, cudaStream_t s) { cuda::score_pieces(score_call(i, mean), scratch, s, &choice); }),
        keys);
    print_time(("choice alone" + by).c_str(), time_us(40, [&](int, cudaStream_t s) { cuda::choose_chunks(choice, s); }),
               4.0 * chunks);
    print_time(("gathering" + by).c_str(), time_us(40, [&](int, cudaStream_t s) { cuda::gather(choice, s); }), moved);
    auto none = choice;  // what is there stays there
    none.before = chosen, none.listed = none.held = none.count;
    print_time(("gathering nothing" + by).c_str(), time_us(40, [&](int, cudaStream_t s) { cuda::gather(none, s); }),
               moved);
    if (cells == 16384) {
      const auto many = choice_call(deep, deep_work);
      print_time(("gathering, 16 layers" + by).c_str(),
                 time_us(10, [&](int, cudaStream_t s) { cuda::gather(many, s); }), 16 * moved);
    }
    const auto all = [&](int i, cudaStream_t s) {
      cuda::score_pieces(score_call(i, mean), scratch, s, &choice);
      cuda::gather(choice, s);
    };
    print_time(("all" + by).c_str(), time_us(16, all), keys + moved);
    print_time(("all, the choice apart" + by).c_str(),
               time_us(16,
                       [&](int i, cudaStream_t s) {
                         cuda::score_pieces(score_call(i, mean), scratch, s);
                         cuda::choose_chunks(choice, s);
                         cuda::gather(choice, s);
                       }),
               keys + moved);
    std::vector<double> waited;  // as a caller that waits for it finds it
    for (int i = 0; i < 60; ++i) {
      cudaDeviceSynchronize();
      const auto start = std::chrono::steady_clock::now();
      all(i, nullptr);
      cudaStreamSynchronize(nullptr);
      waited.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(waited.begin(), waited.end());
    print_time(("all, launched and waited for" + by).c_str(), waited[waited.size() / 2], keys + moved);
  }
}

}  // namespace

int main(int argc, char** argv) {  // "times": no checks; "few": few checks, no times, for the sanitizer
  const std::string what = argc > 1 ? argv[1] : "";
  if (what != "times") check_choice(what == "few" ? 30 : 240), check_pieces();
  if (what != "few") time_retrieval();
  std::printf(failures ? "check_retrieve: %d FAILURES\n" : "check_retrieve: good\n", failures);
  return failures ? 1 : 0;
}
