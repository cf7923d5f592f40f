// Checks and times rotation, cells and their scores. Build and run in the repository:
// g++ -std=c++20 -O2 -Isrc -Iinclude -c src/tensor/dtype.cc src/base/error.cc && nvcc -std=c++20 -O3 -Isrc
//   -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_kv bench/cuda/check_kv.cu
//   src/backend/cuda/elementwise/rope.cu src/backend/cuda/kv/{store,move,score}.cu src/backend/cuda/runtime/device.cu dtype.o error.o -lfmt
#include <algorithm>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "check_small.cuh"
#include "tensor/half.h"

using namespace check;
using namespace sx;

namespace {

std::string n(int64_t x) { return std::to_string(x); }
bool same(const void* a, const void* b, size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

// A store in host memory, read as floats.
struct HostKv {
  cuda::KvView v;
  std::vector<uint8_t> k, w;
  std::vector<uint16_t> ks, ws;
  explicit HostKv(const cuda::KvView& view) : v(view) {
    const size_t cells = v.cells(), dim = size_t(v.head_dim), bytes = cells * dim * (v.type == DType::kQ8_0 ? 1 : 2);
    k = get<uint8_t>(v.k, bytes), w = get<uint8_t>(v.v, bytes);
    if (v.type == DType::kQ8_0)
      ks = get<uint16_t>(v.k_scale, cells * dim / 32), ws = get<uint16_t>(v.v_scale, cells * dim / 32);
  }
  void put() const {
    cudaMemcpy(v.k, k.data(), k.size(), cudaMemcpyHostToDevice),
        cudaMemcpy(v.v, w.data(), w.size(), cudaMemcpyHostToDevice);
    if (ks.empty()) return;
    cudaMemcpy(v.k_scale, ks.data(), ks.size() * 2, cudaMemcpyHostToDevice),
        cudaMemcpy(v.v_scale, ws.data(), ws.size() * 2, cudaMemcpyHostToDevice);
  }
  void fill() {  // with finite numbers
    for (size_t i = 0; i < k.size(); ++i) {
      const bool high = v.type != DType::kQ8_0 && i % 2 == 1;
      k[i] = uint8_t(high ? 0x3c + (random_bits() & 0x83) : random_bits()),
      w[i] = uint8_t(high ? 0x3c + (random_bits() & 0x83) : random_bits());
    }
    for (auto& s : ks) s = uint16_t(0x2000 + random_bits() % 1000);
    for (auto& s : ws) s = uint16_t(0x2000 + random_bits() % 1000);
    put();
  }
  size_t cell(int layer, int slot, int head, int c) const {
    const size_t block = size_t(slot) * size_t(v.blocks()) + size_t(c / cuda::kCellBlock);
    return ((block * size_t(v.layers) + size_t(layer)) * size_t(v.kv_heads) + size_t(head)) * cuda::kCellBlock +
           size_t(c % cuda::kCellBlock);
  }
  float value(bool key, size_t cell, int e) const {
    const size_t i = cell * size_t(v.head_dim) + size_t(e);
    const auto& data = key ? k : w;
    if (v.type == DType::kQ8_0) return f16_to_float((key ? ks : ws)[i / 32]) * float(int8_t(data[i]));
    const uint16_t bits = uint16_t(data[2 * i] | data[2 * i + 1] << 8);
    return v.type == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  void copy(const HostKv& from, size_t src, size_t dst, bool keys) {
    const size_t bytes = size_t(v.head_dim) * (v.type == DType::kQ8_0 ? 1 : 2),
                 scales = ks.empty() ? 0 : size_t(v.head_dim) / 32;
    if (keys) std::memmove(&k[dst * bytes], &from.k[src * bytes], bytes);
    std::memmove(&w[dst * bytes], &from.w[src * bytes], bytes);
    for (size_t i = 0; i < scales; ++i) {
      if (keys) ks[dst * scales + i] = from.ks[src * scales + i];
      ws[dst * scales + i] = from.ws[src * scales + i];
    }
  }
  bool operator==(const HostKv& o) const { return k == o.k && w == o.w && ks == o.ks && ws == o.ws; }
};

void rotate(double* x, int i, int dims, RopeStyle style, double c, double s) {
  const int a = style == RopeStyle::kHalves ? i : 2 * i, b = style == RopeStyle::kHalves ? i + dims / 2 : 2 * i + 1;
  const double p = x[a], q = x[b];
  x[a] = p * c - q * s, x[b] = p * s + q * c;
}

// |stored - wanted| as a share of what the type's rounding allows; run: 32 elements of the same cell.
double store_error(DType type, const HostKv& kv, bool key, size_t cell, const double* want, int dim) {
  double worst = 0;
  for (int e = 0; e < dim; ++e) {
    double top = 0, allowed = std::fabs(want[e]) * (type == DType::kBF16 ? 1.0 / 250 : 1.0 / 2000) + 1e-6;
    if (type == DType::kQ8_0) {
      for (int i = e / 32 * 32; i < e / 32 * 32 + 32; ++i) top = std::max(top, std::fabs(want[i]));
      allowed = top / 127 * 0.51 + top * 6e-4 + 1e-7;
    }
    const double error = std::fabs(double(kv.value(key, cell, e)) - want[e]) / allowed;
    worst = std::max(worst, std::isnan(error) ? 1e30 : error);
  }
  return worst;
}

void check_rope() {
  double worst = 0, worst_table = 0, worst_q = 0;
  for (DType type : {DType::kBF16, DType::kF16, DType::kQ8_0}) {
    for (int dim : {20, 64, 80, 128, 256}) {
      if (type == DType::kQ8_0 && dim % 32 != 0) continue;
      for (RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
        Memory memory;
        const int heads = 6, kv_heads = 3, rows = 7, layers = 2, layer = 1, dims = dim == 80 ? 48 : dim,
                  all = heads + 2 * kv_heads;
        const bool norms = dim != 64;
        const std::string what = std::string("rope ") + dtype_name(type) + " " + n(dim);
        cuda::CudaKv kv({layers, kv_heads, dim, 2, 100, type}, memory);
        HostKv before(kv.view());
        before.fill();
        std::vector<double> frequencies;
        for (int i = 0; i < dims / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / dims));
        const std::vector<int32_t> positions = {0, 1, 77, 131071, 4000, 5, 70000};
        auto qkv = random_floats(size_t(rows * all * dim));
        qkv[size_t((heads + kv_heads) * dim)] = NAN;  // a value
        const auto weights = random_floats(size_t(2 * dim));
        std::vector<cuda::RowInfo> info;
        for (int r = 0; r < rows; ++r) info.push_back({r == 4 ? -1 : r % 2, 10, 10 + 3 * r, 0});
        float* table = memory.make<float>(size_t(rows * dims));
        const double* df = memory.put(frequencies);
        cuda::rope_table({table, memory.put(positions), rows, df, dims, 1.25f}, nullptr);
        const auto angles = get<float>(table, size_t(rows * dims));
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < dims / 2; ++i) {
            const double angle = positions[size_t(r)] * frequencies[size_t(i)],
                         want[2] = {std::cos(angle) * 1.25, std::sin(angle) * 1.25};
            worst_table =
                std::max(worst_table, compare("rope_table", &angles[size_t(r * dims + 2 * i)], want, 2, 1e-7, 1e-9));
          }
        float* d = memory.put(qkv);
        const float* dw = memory.put(weights);
        cuda::RopeStoreCall call{d,
                                 table,
                                 norms ? dw : nullptr,
                                 norms ? dw + dim : nullptr,
                                 1e-5f,
                                 heads,
                                 kv_heads,
                                 dim,
                                 dims,
                                 style,
                                 kv.view(),
                                 layer,
                                 rows,
                                 memory.put(info)};
        cuda::rope_store(call, nullptr);
        const auto got = get<float>(d, qkv.size());
        const HostKv after(kv.view());
        HostKv rest = before;  // what was to stay
        for (int r = 0; r < rows; ++r) {
          for (int h = 0; h < all; ++h) {
            const size_t at = size_t((r * all + h) * dim);
            std::vector<double> x(qkv.begin() + ptrdiff_t(at), qkv.begin() + ptrdiff_t(at) + dim);
            if (info[size_t(r)].slot < 0) {
              must(same(&got[at], &qkv[at], size_t(dim) * 4), what + " padding");
              continue;
            }
            const bool value = h >= heads + kv_heads;
            if (!value) {
              double sum = 0;
              for (double y : x) sum += y * y;
              for (int e = 0; e < dim && norms; ++e)
                x[size_t(e)] *= double(weights[size_t(e + (h < heads ? 0 : dim))]) / std::sqrt(sum / dim + 1e-5);
              for (int i = 0; i < dims / 2; ++i)
                rotate(x.data(), i, dims, style, angles[size_t(r * dims + 2 * i)],
                       angles[size_t(r * dims + 2 * i + 1)]);
            }
            if (h < heads) {
              worst_q = std::max(worst_q, compare(what + " q", &got[at], x.data(), size_t(dim), 2e-6, 2e-6));
              continue;
            }
            for (double& y : x)
              if (std::isnan(y)) y = 0;
            const size_t cell = after.cell(layer, info[size_t(r)].slot, (h - heads) % kv_heads, info[size_t(r)].cell);
            const double e = store_error(type, after, !value, cell, x.data(), dim);
            must(e <= 1, what + " row " + n(r) + " head " + n(h));
            worst = std::max(worst, e);
            rest.copy(after, cell, cell, true);
          }
        }
        must(rest == after, what + ": other cells changed");
        float* again =
            memory.put(std::vector<float>(qkv.begin() + 3 * all * dim, qkv.begin() + 4 * all * dim));  // a row alone
        before.put();
        call.qkv = again, call.table = table + 3 * dims, call.info += 3, call.rows = 1;
        cuda::rope_store(call, nullptr);
        must(same(get<float>(again, size_t(heads * dim)).data(), &got[size_t(3 * all * dim)], size_t(heads * dim) * 4),
             what + " q alone");
        HostKv one(kv.view()), same_cells = before;
        for (int h = 0; h < kv_heads; ++h)
          same_cells.copy(after, after.cell(layer, 1, h, 19), after.cell(layer, 1, h, 19), true);
        must(one == same_cells, what + " cells alone");
      }
    }
  }
  std::printf("rope_table %.2f, q %.2f, cells %.2f of what is allowed\n", worst_table, worst_q, worst);
}

void check_move() {
  double worst = 0;
  for (DType type : {DType::kBF16, DType::kF16, DType::kQ8_0}) {
    for (int dim : {20, 64, 128, 256}) {
      if (type == DType::kQ8_0 && dim % 32 != 0) continue;
      for (int way = 0; way < 12; ++way) {
        Memory memory;
        const int layers = 2, kv_heads = 3, dims = dim == 64 ? 32 : dim;
        cuda::CudaKv a({layers, kv_heads, dim, 2, 200, type}, memory),
            b({layers, kv_heads, dim, 1, way == 6 ? 2600 : 200, type}, memory);
        HostKv ha(a.view()), hb(b.view());
        ha.fill(), hb.fill();
        std::vector<KvMove> moves;
        const bool inside = way <= 5, turning = way == 4 || way == 7 || way >= 10;  // way 4: a turn in place and apart
        int count = way == 6 ? 2500 : way == 2 || way == 3 ? 150 : way > 8 ? 180 : 20, run = way == 11 ? 2 : 9;
        for (int i = 0; i < count; ++i) {
          const int anywhere = random_below(200);
          if (way == 0) moves.push_back({100 + 2 * i, 100 + i, 0});  // a commit: destinations that were sources
          else if (way == 1) moves.push_back({i, i + 1, 0});         // each reads what the last wrote
          else if (way == 2 || way == 3) moves.push_back({random_below(200), random_below(200), 0});
          else if (way == 4) moves.push_back({i, i % 2 ? i : 100 + i, i - 7});
          else if (way > 8)
            moves.push_back({i / run * 71 % 190 + i % run, i, way > 9 ? i / run * 50 - 300 : 0});  // runs
          else if (way == 5) moves.push_back({anywhere, 100, 0});                                  // one destination
          else moves.push_back({anywhere, way == 6 ? i : 2 * i, way == 7 ? i * 100 - 900 : 0});
        }
        const int layer = way == 3 ? 1 : -1, head = way == 3 || way == 8 ? 2 : -1;
        const RopeStyle style = way == 4 ? RopeStyle::kInterleaved : RopeStyle::kHalves;
        std::vector<double> frequencies;
        for (int i = 0; i < dims / 2; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / dims));
        cuda::kv_move({a.view(), inside ? a.view() : b.view(), 1, inside ? 1 : 0, moves, memory.put(frequencies), dims,
                       style, layer, head},
                      nullptr);
        const HostKv after(inside ? a.view() : b.view());
        const HostKv untouched = ha;
        HostKv& to = inside ? ha : hb;
        const std::string what = std::string("move ") + dtype_name(type) + " " + n(dim) + " way " + n(way);
        for (const KvMove& m : moves)
          for (int l = 0; l < layers; ++l)
            for (int h = 0; h < kv_heads; ++h) {
              if ((layer >= 0 && l != layer) || (head >= 0 && h != head)) continue;
              const size_t src = ha.cell(l, 1, h, m.src), dst = to.cell(l, inside ? 1 : 0, h, m.dst);
              if (m.delta == 0) {
                to.copy(ha, src, dst, true);
                continue;
              }
              std::vector<double> x;
              for (int e = 0; e < dim; ++e) x.push_back(untouched.value(true, src, e));
              for (int i = 0; i < dims / 2; ++i)
                rotate(x.data(), i, dims, style, std::cos(m.delta * frequencies[size_t(i)]),
                       std::sin(m.delta * frequencies[size_t(i)]));
              const double e = store_error(type, after, true, dst, x.data(), dim);
              must(e <= 1, what + " turned key of cell " + n(m.dst));
              worst = std::max(worst, e);
              to.copy(after, dst, dst, true);
              if (!inside || m.src != m.dst) {
                HostKv& values = to;
                values.copy(untouched, src, dst, false);
              }
            }
        must(after == to, what + (turning ? " (values or other cells)" : ""));
      }
    }
  }
  std::printf("kv_move: turned keys %.2f of what is allowed\n", worst);
}

void check_score() {
  double worst[4] = {};
  struct Shape {
    int heads, kv_heads, dim, first, cells;
  };
  for (DType type : {DType::kBF16, DType::kF16, DType::kQ8_0}) {
    for (const Shape& s : {Shape{8, 2, 128, 0, 3000},
                           {3, 3, 64, 100, 700},
                           {18, 3, 256, 5, 130},
                           {4, 4, 80, 0, 65},
                           {6, 2, 20, 63, 400},
                           {2, 1, 128, 127, 1}}) {
      if (type == DType::kQ8_0 && s.dim % 32 != 0) continue;
      Memory memory;
      const int end = s.first + s.cells, group = s.heads / s.kv_heads;
      cuda::CudaKv kv({2, s.kv_heads, s.dim, 2, end + 10, type}, memory);
      HostKv host(kv.view());
      host.fill();
      const auto q = random_floats(size_t(s.heads * s.dim), 0.5f);
      std::vector<int32_t> borders = {s.first};
      while (borders.back() < end) {
        const int kind = random_below(4), step = kind == 0   ? 1 + random_below(3)
                                                 : kind == 1 ? 16
                                                 : kind == 2 ? 17 + random_below(40)
                                                             : 1 + random_below(900);
        borders.push_back(std::min(end, borders.back() + step));
      }
      const int chunks = int(borders.size()) - 1;
      const float scale = 1 / std::sqrt(float(s.dim));
      void* scratch = memory.take(cuda::score_scratch_bytes(s.heads, end), "scratch");
      float* out = memory.make<float>(size_t(s.heads * chunks));
      const float* dq = memory.put(q);
      int32_t* db = memory.put(borders);
      for (int kind = 0; kind < 4; ++kind) {
        cuda::ScoreCall call{out, dq, s.heads, s.kv_heads, s.dim,   scale, kv.view(),
                             1,   1,  db,      chunks,     s.first, end,   ScoreKind(kind)};
        cuda::kv_score(call, scratch, nullptr);
        const auto got = get<float>(out, size_t(s.heads * chunks));
        std::vector<double> want;
        for (int h = 0; h < s.heads; ++h) {
          std::vector<double> logit;
          double most = -INFINITY, total = 0;
          const auto element = [&](int c, int d) {
            return double(q[size_t(h * s.dim + d)]) * scale * host.value(true, host.cell(1, 1, h / group, c), d);
          };
          for (int c = s.first; c < end; ++c) {
            double sum = 0;
            for (int d = 0; d < s.dim; ++d) sum += element(c, d);
            logit.push_back(sum), most = std::max(most, sum);
          }
          for (double l : logit) total += std::exp(l - most);
          for (int i = 0; i < chunks; ++i) {
            const int from = borders[size_t(i)], to = borders[size_t(i) + 1];
            double mass = 0, peak = 0, sum = 0, bound = 0;
            for (int c = from; c < to; ++c) {
              const double l = logit[size_t(c - s.first)], w = std::exp(l - most) / total;
              mass += w, peak = std::max(peak, w), sum += l;
            }
            for (int d = 0; d < s.dim && kind == 3; ++d) {
              double top = -INFINITY;
              for (int c = from; c < to; ++c) top = std::max(top, element(c, d));
              bound += top;
            }
            want.push_back(kind == 0 ? mass : kind == 1 ? peak : kind == 2 ? sum / (to - from) : bound);
          }
        }
        const std::string what = std::string("score ") + dtype_name(type) + " " + n(s.dim) + " kind " + n(kind);
        worst[kind] =
            std::max(worst[kind], compare(what, got.data(), want.data(), got.size(), 2e-5, kind < 2 ? 1e-7 : 2e-5));
        cuda::kv_score(call, scratch, nullptr);
        must(same(get<float>(out, got.size()).data(), got.data(), got.size() * 4), what + " again");
        if (kind < 2) continue;
        call.borders = db + chunks - 1, call.chunks = 1,
        call.first = borders[size_t(chunks) - 1];  // the last chunk alone
        cuda::kv_score(call, scratch, nullptr);
        const auto alone = get<float>(out, size_t(s.heads));
        for (int h = 0; h < s.heads; ++h)
          must(same(&alone[size_t(h)], &got[size_t(h * chunks + chunks - 1)], 4), what + " alone");
      }
    }
  }
  std::printf("kv_score: mass %.2f, peak %.2f, logit %.2f, bound %.2f of what is allowed\n", worst[0], worst[1],
              worst[2], worst[3]);
}

// Several layers in one call give each layer's own scores (but for how sums are cut into spans), and their mean; chunks
// of one cell; no scores wanted, only the mean.
void check_layers() {
  double worst = 0, worst_mean = 0;
  for (DType type : {DType::kBF16, DType::kF16, DType::kQ8_0}) {
    for (int form = 0; form < 3; ++form) {  // chunks of 16, of 1 to 700, of single cells
      Memory memory;
      const int heads = form == 0 ? 20 : 8, kv_heads = 2, dim = form == 1 ? 64 : 128, first = form == 0 ? 0 : 77,
                end = form == 0   ? 4096
                      : form == 1 ? 2900
                                  : 500,
                layers = form == 2 ? 8 : 3;
      cuda::CudaKv kv({9, kv_heads, dim, 2, end + 3, type}, memory);
      HostKv host(kv.view());
      host.fill();
      const auto q = random_floats(size_t(layers * heads * dim), 0.5f);
      std::vector<int32_t> borders = {first};
      while (borders.back() < end)
        borders.push_back(std::min(end, borders.back() + (form == 0 ? 16 : form == 2 ? 1 : 1 + random_below(700))));
      const int chunks = int(borders.size()) - 1, each = heads * chunks;
      void* scratch = memory.take(cuda::score_scratch_bytes(heads, end, layers), "scratch");
      float *out = memory.make<float>(size_t(layers * each)), *one = memory.make<float>(size_t(each)),
            *mean = memory.make<float>(size_t(chunks)), *again = memory.make<float>(size_t(chunks));
      const float* dq = memory.put(q);
      for (int kind = 0; kind < 4; ++kind) {
        const std::string what = std::string("layers ") + dtype_name(type) + " form " + n(form) + " kind " + n(kind);
        cuda::ScoreCall call{
            out,    dq,    heads, kv_heads,       dim, 1 / std::sqrt(float(dim)), kv.view(), 8, 1, memory.put(borders),
            chunks, first, end,   ScoreKind(kind)};
        call.layers = layers, call.mean = mean;
        for (int i = 1; i < layers; ++i) call.others[i - 1] = 2 * i % 7;
        cuda::kv_score(call, scratch, nullptr);
        const auto got = get<float>(out, size_t(layers * each));
        std::vector<double> sums(static_cast<size_t>(chunks));
        for (int i = 0; i < layers * heads; ++i)
          for (int j = 0; j < chunks; ++j) sums[size_t(j)] += double(got[size_t(i * chunks + j)]) / (layers * heads);
        const auto means = get<float>(mean, size_t(chunks));
        worst_mean = std::max(worst_mean, compare(what + " mean", means.data(), sums.data(), sums.size(), 2e-6, 1e-7));
        cuda::ScoreCall only = call;
        only.out = nullptr, only.mean = again;
        cuda::kv_score(only, scratch, nullptr);
        must(same(get<float>(again, means.size()).data(), means.data(), means.size() * 4), what + " mean alone");
        for (int fresh : {1, 90}) {  // the last borders come with the call
          if (kind == 3) continue;
          const int kept = std::max(0, chunks + 1 - fresh);
          std::vector<int32_t> stale = borders;
          std::fill(stale.begin() + kept, stale.end(), -7);
          only.borders = memory.put(stale), only.kept = kept;
          std::copy(borders.begin() + kept, borders.end(), only.fresh);
          cuda::kv_score(only, scratch, nullptr);
          must(same(get<float>(again, means.size()).data(), means.data(), means.size() * 4), what + " fresh borders");
          must(get<int32_t>(only.borders, borders.size()) == borders, what + " fresh borders kept");
        }
        for (int i = 0; i < layers; ++i) {
          cuda::ScoreCall single = call;
          single.layers = 1, single.mean = nullptr, single.out = one, single.q = dq + i * heads * dim;
          single.layer = i == 0 ? 8 : call.others[i - 1];
          cuda::kv_score(single, scratch, nullptr);
          const auto alone = get<float>(one, size_t(each));
          const std::vector<double> want(alone.begin(), alone.end());
          worst = std::max(worst, compare(what, &got[size_t(i * each)], want.data(), want.size(), 2e-6, 1e-9));
          if (kind >= 2) must(same(&got[size_t(i * each)], alone.data(), size_t(each) * 4), what + " layer " + n(i));
        }
        if (form != 2 || kind == 2 || kind == 3) continue;
        double total = 0;  // of all cells and heads
        for (float x : means) total += double(x);
        must(std::fabs(total - 1) < 1e-5, what + " total " + std::to_string(total));
      }
    }
  }
  std::printf("kv_score: layers %.2f, mean %.2f of what is allowed\n", worst, worst_mean);
}

void time_kv() {
  Memory memory;
  const int kv_heads = 8, dim = 128, heads = 32;
  cuda::CudaKv full({8, kv_heads, dim, 1, 131072, DType::kBF16}, memory);  // 4 GB: layers rotate past L2
  cuda::CudaKv draft({1, kv_heads, dim, 1, 2048, DType::kBF16}, memory),
      deep({32, kv_heads, dim, 1, 4096, DType::kBF16}, memory);
  const cuda::KvView layer = full.view();
  std::vector<KvMove> gather, turned, runs, commit;
  for (int i = 0; i < 1024; ++i) gather.push_back({i * 100 + i % 32, i, 0}), turned.push_back({i * 100, i, i % 50 + 1});
  for (int i = 0; i < 1024; ++i)
    runs.push_back({i / 32 * 3000 + i % 32, i, i / 32 * 32 - i / 32 * 3000});  // as retrieval gathers
  for (int i = 0; i < 5; ++i) commit.push_back({1000 + 3 * i, 1000 + i, 0});
  const double* f = memory.make<double>(64);
  const double moved = 1024.0 * kv_heads * dim * 8;
  const auto from_layer = [&](int l) {
    cuda::KvView v = layer;
    v.k += size_t(l) * v.layer_cells() * size_t(dim) * 2, v.v += size_t(l) * v.layer_cells() * size_t(dim) * 2;
    return v;
  };
  double us = time_us(40, [&](int i, cudaStream_t s) {
    cuda::kv_move({from_layer(i % 8), draft.view(), 0, 0, gather, f, dim, RopeStyle::kHalves, -1, -1}, s);
  });
  print_time("gather 1024 cells, 1 layer", us, moved);
  us = time_us(40, [&](int i, cudaStream_t s) {
    cuda::kv_move({from_layer(i % 8), draft.view(), 0, 0, turned, f, dim, RopeStyle::kHalves, -1, -1}, s);
  });
  print_time("gather 1024 cells, turned", us, moved);
  us = time_us(40, [&](int i, cudaStream_t s) {
    cuda::kv_move({from_layer(i % 8), draft.view(), 0, 0, runs, f, dim, RopeStyle::kHalves, -1, -1}, s);
  });
  print_time("gather 32 chunks of 32, turned", us, moved);
  us = time_us(40, [&](int, cudaStream_t s) {
    cuda::kv_move({deep.view(), deep.view(), 0, 0, commit, f, dim, RopeStyle::kHalves, -1, -1}, s);
  });
  print_time("commit 5 cells, 32 layers", us, 5.0 * 32 * kv_heads * dim * 8);
  const float* q = memory.put(random_floats(size_t(2 * heads * dim)));
  for (int cells : {16384, 131072}) {
    void* scratch = memory.take(cuda::score_scratch_bytes(heads, cells), "scratch");
    for (int size : {16, 32}) {
      std::vector<int32_t> borders;
      for (int c = 0; c <= cells; c += size) borders.push_back(c);
      const int chunks = int(borders.size()) - 1;
      int32_t* b = memory.put(borders);
      float* out = memory.make<float>(size_t(heads) * size_t(chunks));
      for (ScoreKind kind : {ScoreKind::kMass, ScoreKind::kLogit, ScoreKind::kBound}) {
        us = time_us(16, [&](int i, cudaStream_t s) {
          cuda::kv_score({out, q, heads, kv_heads, dim, 0.088f, full.view(), i % 8, 0, b, chunks, 0, cells, kind},
                         scratch, s);
        });
        print_time(("score kind " + n(int(kind)) + " cells " + n(cells) + " by " + n(size)).c_str(), us,
                   double(cells) * kv_heads * dim * 2);
      }
      if (size != 32) continue;
      float* mean = memory.make<float>(size_t(chunks));
      for (int layers : {1, 2}) {
        void* more = memory.take(cuda::score_scratch_bytes(heads, cells, layers), "scratch");
        us = time_us(16, [&](int i, cudaStream_t s) {
          cuda::ScoreCall call{nullptr, q, heads, kv_heads, dim, 0.088f, full.view(),
                               i % 8,   0, b,     chunks,   0,   cells,  ScoreKind::kMass};
          call.layers = layers, call.others[0] = (i + 3) % 8, call.mean = mean;
          cuda::kv_score(call, more, s);
        });
        print_time(("mean of " + n(layers) + " layers, cells " + n(cells)).c_str(), us,
                   double(layers) * cells * kv_heads * dim * 2);
      }
    }
  }
}

}  // namespace

int main() {
  check_rope();
  check_move();
  check_score();
  check_layers();
  time_kv();
  std::printf(failures ? "check_kv: %d FAILURES\n" : "check_kv: good\n", failures);
  return failures ? 1 : 0;
}
