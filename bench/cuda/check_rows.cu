// Checks and times norms, activation, embedding, copies. Build and run in the repository:
// g++ -std=c++20 -O2 -Isrc -Iinclude -c src/tensor/{dtype,blocks}.cc src/base/error.cc && nvcc -std=c++20 -O3 -Isrc
//   -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_rows bench/cuda/check_rows.cu
//   src/backend/cuda/elementwise/*.cu src/backend/cuda/kv/store.cu src/backend/cuda/runtime/device.cu dtype.o blocks.o error.o -lfmt
#include <algorithm>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "check_small.cuh"
#include "tensor/blocks.h"
#include "tensor/half.h"

using namespace check;
using namespace sx;
using cuda::Half;

namespace {

std::string n(int64_t x) { return std::to_string(x); }
bool same(const void* a, const void* b, size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

uint16_t to_bits(Half half, float x) {
  return half == Half::kBF16 ? float_to_bf16(x) : float_to_f16(std::clamp(x, -65504.0f, 65504.0f));
}
void check_halves(const std::string& what, Half half, const std::vector<float>& x, const std::vector<uint16_t>& y) {
  for (size_t i = 0; i < x.size(); ++i)
    must(to_bits(half, x[i]) == y[i], what + " 16 bits of element " + n(int64_t(i)));
}

void check_norm_and_glu() {
  double worst_norm = 0, worst_glu = 0;
  for (int width : {1, 2, 3, 5, 64, 127, 576, 1023, 1024, 1025, 2048, 2050, 4096, 4097, 5120, 8192, 9000}) {
    Memory memory;
    const int rows = 5;
    const size_t count = size_t(rows) * size_t(width);
    const Half half = width % 2 ? Half::kF16 : Half::kBF16;
    auto x = random_floats(2 * count, 3), w = random_floats(size_t(width));
    if (width > 100) x[7] = 3e6f;  // saturates f16
    float* dx = memory.put(x);
    float* out = memory.make<float>(count);
    auto* out16 = memory.make<uint16_t>(count);
    const float* dw = memory.put(w);
    const cuda::NormCall call{out, out16, half, dx, dw, rows, width, 1e-5f};
    cuda::norm(call, nullptr);
    const auto got = get<float>(out, count);
    check_halves("norm " + n(width), half, got, get<uint16_t>(out16, count));
    std::vector<double> want(count);
    for (size_t r = 0; r < size_t(rows); ++r) {
      double sum = 0;
      for (size_t i = 0; i < size_t(width); ++i) sum += double(x[r * size_t(width) + i]) * x[r * size_t(width) + i];
      const double inverse = 1 / std::sqrt(sum / width + 1e-5);
      for (size_t i = 0; i < size_t(width); ++i)
        want[r * size_t(width) + i] = x[r * size_t(width) + i] * inverse * w[i];
    }
    worst_norm = std::max(worst_norm, compare("norm " + n(width), got.data(), want.data(), count, 1e-6, 1e-7));
    cuda::NormCall alone = call;
    alone.rows = 1, alone.x = dx + size_t(3 * width), alone.out = out + size_t(width),
    alone.out16 = nullptr;  // other place, other alignment
    cuda::norm(alone, nullptr);
    must(same(get<float>(out + width, size_t(width)).data(), &got[size_t(3 * width)], size_t(width) * 4),
         "norm alone " + n(width));
    cuda::NormCall alias = call;
    alias.out = dx;
    cuda::norm(alias, nullptr);
    must(same(get<float>(dx, count).data(), got.data(), count * 4), "norm in place " + n(width));

    float* gate_up = memory.put(x);
    cuda::glu({out, out16, half, gate_up, rows, width}, nullptr);
    const auto got_glu = get<float>(out, count);
    check_halves("glu " + n(width), half, got_glu, get<uint16_t>(out16, count));
    for (size_t r = 0; r < size_t(rows); ++r)
      for (size_t i = 0; i < size_t(width); ++i) {
        const double g = x[r * 2 * size_t(width) + i];
        want[r * size_t(width) + i] = g / (1 + std::exp(-g)) * x[(2 * r + 1) * size_t(width) + i];
      }
    worst_glu = std::max(worst_glu, compare("glu " + n(width), got_glu.data(), want.data(), count, 1e-6, 1e-7));
    cuda::glu({out, nullptr, half, gate_up + size_t(4 * width), 1, width}, nullptr);
    must(same(get<float>(out, size_t(width)).data(), &got_glu[size_t(2 * width)], size_t(width) * 4),
         "glu alone " + n(width));
  }
  std::printf("norm %.2f, glu %.2f of what is allowed\n", worst_norm, worst_glu);
}

void check_embed_and_copies() {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                     DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    Memory memory;
    const int vocab = 100, width = dtype_is_quantised(type) ? 512 : 77;
    Tensor table{type, 2, {vocab, width}, nullptr};
    std::vector<uint8_t> bytes(table.bytes());
    for (auto& b : bytes) b = uint8_t(random_bits());
    table.data = reinterpret_cast<const std::byte*>(bytes.data());
    std::vector<Token> tokens;
    for (int i = 0; i < 9; ++i) tokens.push_back(i == 0 ? vocab - 1 : random_below(vocab));
    const Tensor placed = cuda::place_table(table, memory);
    float* out = memory.make<float>(tokens.size() * size_t(width));
    cuda::embed({out, memory.put(tokens), int(tokens.size()), placed}, nullptr);
    const auto got = get<float>(out, tokens.size() * size_t(width));
    std::vector<float> want(static_cast<size_t>(width));
    for (size_t r = 0; r < tokens.size(); ++r) {
      dequantise(type, table.row(tokens[r]), width, want.data());
      for (size_t i = 0; i < size_t(width); ++i) {
        const float a = got[r * size_t(width) + i], b = want[i];
        must(a == b || (std::isnan(a) && std::isnan(b)),
             std::string("embed ") + dtype_name(type) + " row " + n(int64_t(r)) + " element " + n(int64_t(i)));
      }
    }
  }
  for (int width : {3, 100, 2048, 5001}) {
    for (bool add : {false, true}) {
      Memory memory;
      const int rows = 300;
      const size_t from_stride = size_t(width) + 4, to_stride = size_t(width) + (width % 2);
      const auto from = random_floats(400 * from_stride), to = random_floats(size_t(rows) * to_stride);
      std::vector<int32_t> which;
      for (int r = 0; r < rows; ++r) which.push_back(random_below(400));
      for (int way = 0; way < 4; ++way) {  // by device list, by host list (long, short), in order
        const int count = way == 2 ? 20 : rows;
        float* d = memory.put(to);
        cuda::CopyCall call{d,
                            memory.put(from),
                            count,
                            width,
                            ptrdiff_t(to_stride),
                            ptrdiff_t(from_stride),
                            way == 0 ? memory.put(which) : nullptr,
                            add};
        if (way == 1 || way == 2) cuda::copy_rows_by(call, std::span(which).first(size_t(count)), nullptr);
        else cuda::copy_rows(call, nullptr);
        auto want = to;
        for (size_t r = 0; r < size_t(count); ++r)
          for (size_t i = 0; i < size_t(width); ++i) {
            const float x = from[size_t(way == 3 ? int(r) : which[r]) * from_stride + i];
            float& y = want[r * to_stride + i];
            y = add ? y + x : x;
          }
        must(same(get<float>(d, want.size()).data(), want.data(), want.size() * 4),
             "copy width " + n(width) + " way " + n(way));
      }
    }
  }
  for (size_t count : {1, 3, 1027, 100000}) {
    Memory memory;
    auto x = random_floats(count, 1e4f);
    x[0] = 1e30f;
    float* dx = memory.put(x);
    auto* out = memory.make<uint16_t>(count);
    for (Half half : {Half::kBF16, Half::kF16}) {
      cuda::to_half(out, half, dx, count, nullptr);
      check_halves("to_half", half, x, get<uint16_t>(out, count));
    }
  }
}

void time_rows() {
  for (int rows : {1, 16, 64, 2048}) {
    Memory memory;
    const int width = 4096, hidden = 14336, heads = 32, kv_heads = 8, dim = 128, copies = rows > 64 ? 3 : 4;
    const size_t r = size_t(rows), big = r * size_t(2 * hidden);
    float* x = memory.make<float>(big * size_t(copies));
    float* out = memory.make<float>(r * size_t(hidden));
    auto* out16 = memory.make<uint16_t>(r * size_t(hidden));
    float* weight = memory.make<float>(size_t(width));
    const int calls = rows > 64 ? 12 : 60;
    const auto name = [&](const char* op) { return std::string(op) + " rows " + n(rows); };
    double us = time_us(calls, [&](int i, cudaStream_t s) {
      cuda::norm({out, out16, Half::kBF16, x + size_t(i % copies) * big, weight, rows, width, 1e-5f}, s);
    });
    print_time(name("norm 4096").c_str(), us, double(rows) * width * 10);
    us = time_us(calls, [&](int i, cudaStream_t s) {
      cuda::glu({out, out16, Half::kBF16, x + size_t(i % copies) * big, rows, hidden}, s);
    });
    print_time(name("glu 14336").c_str(), us, double(rows) * hidden * 14);
    cuda::CudaKv kv({1, kv_heads, dim, 1, 4096, DType::kBF16}, memory);
    std::vector<cuda::RowInfo> info;
    for (int i = 0; i < rows; ++i) info.push_back({0, 0, i, i});
    const auto* di = memory.put(info);
    float* table = memory.make<float>(r * size_t(dim));
    us = time_us(calls, [&](int i, cudaStream_t s) {
      cuda::rope_store({x + size_t(i % copies) * big, table, nullptr, nullptr, 0, heads, kv_heads, dim, dim,
                        RopeStyle::kHalves, kv.view(), 0, rows, di},
                       s);
    });
    print_time(name("rope_store 8B").c_str(), us, double(rows) * dim * (heads * 8 + kv_heads * 2 * 6));
    const double* f = memory.make<double>(64);
    const auto* p = memory.make<int32_t>(r);
    us = time_us(calls, [&](int, cudaStream_t s) { cuda::rope_table({table, p, rows, f, dim, 1}, s); });
    print_time(name("rope_table").c_str(), us, double(rows) * dim * 4);
  }
}

}  // namespace

int main() {
  check_norm_and_glu();
  check_embed_and_copies();
  time_rows();
  std::printf(failures ? "check_rows: %d FAILURES\n" : "check_rows: good\n", failures);
  return failures ? 1 : 0;
}
