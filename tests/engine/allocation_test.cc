// After set-up nothing is allocated: a counting operator new watches whole steps of one and of many rows, with trees'
// worth of outputs, greedy and sampled choices included.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "model/model.h"
#include "support/counting_new.h"
#include "support/model_writer.h"

namespace sx {
namespace {

TEST(Allocation, StepsAllocateNothing) {
  const testing::TempFolder folder;
  testing::TinySpec spec;
  spec.weights = DType::kQ4_1;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  for (cpu::Isa isa : cpu::available_isas()) {
    const auto backend = make_cpu_backend({2, isa});
    ModelOptions options;
    options.max_rows = 64, options.context = 700;
    const auto model = Model::load(ModelFile::open(folder.file("tiny.gguf")), *backend, options);
    const auto kv = backend->make_kv(model->kv_geometry(1, 700, backend->default_kv_type()));
    std::vector<Token> tokens(64, 5), chosen(64);
    std::vector<int32_t> positions(64), outputs(64);
    std::vector<ChooseRow> rows(64);
    Sampling sampling;
    sampling.temperature = 0.8f, sampling.top_k = 40, sampling.top_p = 0.9f;
    const TokenCount counts[] = {{5, 2}};
    const auto step = [&](int history, int n) {
      for (int i = 0; i < n; ++i) positions[size_t(i)] = history + i, outputs[size_t(i)] = i;
      const SeqRows seq{0, n, 0, history, nullptr, 0};
      const auto count = size_t(n);
      const float* logits = model
                                ->forward({std::span(tokens).first(count), std::span(positions).first(count),
                                           std::span(&seq, 1), std::span(outputs).first(count)},
                                          *kv)
                                .logits;
      for (int i = 0; i < n; ++i)
        rows[size_t(i)] = {logits + size_t(i) * size_t(spec.vocab), uint64_t(history + i), &sampling, {}, counts};
      backend->choose({chosen.data(), std::span(rows).first(count), spec.vocab});
    };
    step(0, 64);
    const long before = g_allocations.load();
    int history = 64;
    for (int n : {1, 2, 7, 64, 1, 33, 64, 64, 64, 64, 64, 64, 1, 1}) step(history, n), history += n;
    EXPECT_EQ(g_allocations.load() - before, 0) << cpu::isa_name(isa);
  }
}

// The counter counts.
TEST(Allocation, TheCounterSeesAllocations) {
  const long before = g_allocations.load();
  const auto p = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(g_allocations.load() - before, 2);
  EXPECT_EQ(p->size(), 100u);
}

}  // namespace
}  // namespace sx
