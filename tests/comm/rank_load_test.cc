// What ranks read of a model's file: their own part. And copies of a model that draft for it on all ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "comm/thread_ranks.h"
#include "engine/session_origin.h"
#include "model/model.h"
#include "specextend/ranks.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::ThreadRanks;
using testing::TinySpec;

// Pages of an opened model's file that are read while this exists: none can be read until it has been counted.
class PagesRead {
 public:
  explicit PagesRead(const ModelFile& file) {
    uintptr_t first = UINTPTR_MAX, end = 0;
    for (const NamedTensor& t : file.tensors()) {
      const auto at = reinterpret_cast<uintptr_t>(t.tensor.data);
      first = std::min(first, at), end = std::max(end, at + t.tensor.bytes());
    }
    page_ = size_t(::sysconf(_SC_PAGESIZE));
    begin_ = first / page_ * page_, size_ = (end - begin_ + page_ - 1) / page_ * page_;
    count_ = 0;
    struct sigaction action {};
    action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
    EXPECT_EQ(::mprotect(reinterpret_cast<void*>(begin_), size_, PROT_NONE), 0);
  }
  ~PagesRead() {
    ::mprotect(reinterpret_cast<void*>(begin_), size_, PROT_READ);
    ::sigaction(SIGSEGV, &before_, nullptr);
  }
  static size_t bytes() { return count_ * page_; }
  static size_t page() { return page_; }

 private:
  static void on_fault(int, siginfo_t* info, void*) {
    const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
    const bool ours = at >= begin_ && at < begin_ + size_;
    if (ours && ::mprotect(reinterpret_cast<void*>(at / page_ * page_), page_, PROT_READ) == 0) ++count_;
    else ::sigaction(SIGSEGV, &before_, nullptr);  // somebody else's: it happens again
  }
  static inline size_t page_, count_, size_;
  static inline uintptr_t begin_;
  static inline struct sigaction before_;
};

TEST(RankLoad, EachReadsItsPartOfTheFile) {
  const TempFolder folder;
  const std::string path = folder.file("model.gguf");
  TinySpec spec;
  spec.layers = 6, spec.width = 256, spec.heads = 8, spec.kv_heads = 4, spec.ffn = 512, spec.vocab = 600;
  testing::write_tiny_gguf(path, spec);
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
    const int size = split == RankSplit::kLayers ? 3 : 2;
    const RankPlan plan = plan_ranks(path, size, split_name(split));
    auto comms = make_thread_ranks(size);
    size_t whole = 0;
    for (int r = 0; r < size; ++r) {
      const auto file = ModelFile::open(path);
      whole = 0;
      for (const NamedTensor& t : file->tensors()) whole += t.tensor.bytes();
      RankedBackend backend(make_cpu_backend({1, std::nullopt}),
                            std::make_shared<Ranks>(std::shared_ptr<Communicator>(std::move(comms[size_t(r)])), split));
      ModelOptions options;
      options.max_rows = 8, options.max_outputs = 2, options.context = 64, options.spread = true;
      const RankPart& part = plan.parts[size_t(r)];
      // Rank 0 looks through the embedding table, which the others leave to it.
      const size_t own = part.weight_bytes + (r == 0 ? part.table_bytes : 0);
      const PagesRead read(*file);
      const std::string fingerprint = model_fingerprint(*file);
      const size_t sampled = PagesRead::bytes();  // the beginning of every tensor
      EXPECT_LE(sampled, file->tensors().size() * PagesRead::page());
      const auto model = Model::load(file, backend, options);
      EXPECT_GE(PagesRead::bytes(), own * 9 / 10) << "rank " << r << " by " << split_name(split);
      // A part of a matrix begins and ends within a page.
      EXPECT_LE(PagesRead::bytes(), own + 2 * sampled) << "rank " << r << " by " << split_name(split);
      EXPECT_LT(PagesRead::bytes(), whole * 2 / 3);
    }
  }
}

// A copy in 4 bits on all ranks gives the bits of one in one process. The ranks let it go with rank 0, and others
// follow it.
TEST(RankLoad, CopiesAreSpreadLikeTheirModel) {
  const TempFolder folder;
  const std::string path = folder.file("model.gguf");
  TinySpec spec;
  spec.layers = 4, spec.gain = 2, spec.head_dim = 32;
  testing::write_tiny_gguf(path, spec);
  const auto file = ModelFile::open(path);
  ModelOptions options;
  options.max_rows = 8, options.max_outputs = 4, options.context = 64;
  const auto results = [&](Backend& backend) {
    const auto model = backend.ranks() ? load_on_ranks(file, backend, options) : Model::load(file, backend, options);
    auto kv = backend.make_kv(model->kv_geometry(1, 64, DType::kF32));
    std::vector<float> all;
    int history = 0;
    const auto run = [&](Model& on) {
      const std::vector<Token> tokens{5, 90, 17, 44};
      const std::vector<int32_t> positions{history, history + 1, history + 2, history + 3}, outputs{1, 3};
      const SeqRows seq{.first_row = 0, .rows = 4, .slot = 0, .history = history};
      const StepOutputs& out =
          on.forward({.tokens = tokens, .positions = positions, .seqs = std::span(&seq, 1), .outputs = outputs}, *kv);
      const size_t at = all.size(), count = outputs.size() * size_t(on.config().vocab);
      all.resize(at + count);
      backend.download(all.data() + at, out.logits, count);
      history += 4;
    };
    run(*model);
    for (const DType type : {DType::kQ4_0, DType::kQ8_0}) {
      auto first = Model::load_copy(*model, type, options, false),
           second = Model::load_copy(*model, type, options, false);
      run(*first), run(*model);
      first.reset();
      run(*second);
    }
    run(*model);
    return all;
  };
  const auto alone = make_cpu_backend({1, std::nullopt});
  const std::vector<float> one = results(*alone);
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns})
    for (const int size : {2, 3}) {
      ThreadRanks ranks(size, split);
      const auto backend = ranks.backend();
      const std::vector<float> many = results(*backend);
      ASSERT_EQ(many.size(), one.size());
      EXPECT_EQ(std::memcmp(many.data(), one.data(), one.size() * sizeof(float)), 0)
          << size << " ranks by " << split_name(split);
    }
}

}  // namespace
}  // namespace sx
