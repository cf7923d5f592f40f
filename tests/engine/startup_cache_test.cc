// What a start finds out is found out once: the second engine neither hashes, probes, measures nor scans; what is
// damaged, changed or cannot be written only costs time.
#include "engine/startup_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "engine/engine.h"
#include "engine/sha256.h"
#include "support/model_writer.h"

namespace sx {
namespace {

namespace fs = std::filesystem;

class StartupCacheTest : public ::testing::Test {
 protected:
  StartupCacheTest() { write(1); }
  void write(uint64_t seed) {
    testing::TinySpec spec;
    spec.seed = seed;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
  }
  std::unique_ptr<EngineImpl> open(const std::string& cache, int threads = 1) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 300, o.chunk = 64, o.threads = threads, o.startup_cache = cache;
    o.spec.preset = "specextend", o.spec.draft_model = folder_.file("draft.gguf");
    return std::make_unique<EngineImpl>(o);
  }
  // vocabularies compared, targets probed, costs measured, weights scanned
  static std::array<int, 4> work(const EngineImpl& engine) {
    const auto& w = engine.startup_cache().work;
    return {w.compared, w.probed, w.measured, w.scanned};
  }
  std::vector<fs::path> kept() {
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(cache_)) files.push_back(file.path());
    return files;
  }

  testing::TempFolder folder_;
  std::string cache_ = folder_.file("cache/startup");
};

constexpr std::array<int, 4> kAll{1, 1, 1, 2}, kNothing{0, 0, 0, 0};

TEST_F(StartupCacheTest, TheSecondStartDoesNothing) {
  std::vector<int> layers;
  double cost_model = 0;
  {
    const auto first = open(cache_);
    EXPECT_EQ(work(*first), kAll);
    layers = first->speculations()[0]->config().cache.layers;
    cost_model = first->cost_model().predict(4, 100);
  }
  EXPECT_EQ(kept().size(), 5u);
  const auto second = open(cache_);
  EXPECT_EQ(work(*second), kNothing);
  EXPECT_EQ(second->speculations()[0]->config().cache.layers, layers);
  EXPECT_DOUBLE_EQ(second->cost_model().predict(4, 100), cost_model);
  EXPECT_EQ(work(*open(cache_, 2)), (std::array{0, 0, 1, 0}));  // costs depend on the threads
  write(2);
  EXPECT_EQ(work(*open(cache_)), kAll);
  EXPECT_EQ(work(*open("")), kAll);
}

// A kept cost model is where the next start begins; passes move it. Slower ones move what is kept by a quarter: a
// process that ran on a busy machine does not spoil the next one's start. Faster ones are taken.
TEST_F(StartupCacheTest, PricesOfANoisyMomentDoNotStay) {
  double wrong = 0, right = 0;
  {
    const auto engine = open(cache_);
    right = engine->cost_model().predict(1, 0);
    for (const int rows : CostModel::kRows)
      for (int i = 0; i < 200; ++i) engine->cost_model().observe(rows, 0, 1000 * engine->cost_model().predict(rows, 0));
    wrong = engine->cost_model().predict(1, 0);
  }
  const auto next = open(cache_);
  EXPECT_EQ(work(*next), kNothing);
  EXPECT_NEAR(next->cost_model().predict(1, 0), right + (wrong - right) / 4, wrong / 1000);
  for (int i = 0; i < 100; ++i) next->cost_model().observe(1, 0, wrong / 10);
  EXPECT_NEAR(next->cost_model().predict(1, 0), wrong / 10, wrong / 100);
}

TEST(KeptCosts, FasterOnesAreTakenAndSlowerOnesByAPart) {
  CostModel kept, now;
  kept.set(1, 0, 10), kept.set(2, 0, 12), kept.set(1, 100, 20), kept.set(2, 100, 24);
  now.set(1, 0, 10.5), now.set(2, 0, 12.5), now.set(1, 100, 20), now.set(2, 100, 24);
  EXPECT_FALSE(corrected_costs(costs_to_json(kept, 2, 100), now, 2, 100)) << "they are nearly the same";
  now.set(1, 0, 8), now.set(2, 0, 16);
  const auto better = corrected_costs(costs_to_json(kept, 2, 100), now, 2, 100);
  ASSERT_TRUE(better);
  CostModel next;
  ASSERT_TRUE(costs_from_json(*better, 2, 100, next));
  EXPECT_DOUBLE_EQ(next.predict(1, 0), 8);
  EXPECT_DOUBLE_EQ(next.predict(2, 0), 13);
  EXPECT_FALSE(corrected_costs(Json::array(), now, 2, 100));
}

TEST_F(StartupCacheTest, DamagedFilesAreWrittenAnew) {
  open(cache_);
  const std::string long_text(1 << 20, '[');
  for (const std::string& damage :
       {std::string(), std::string("{"), std::string("null"), std::string("{\"key\": 1, \"value\": [1]}"), long_text}) {
    for (const fs::path& file : kept()) testing::write_file(file.string(), damage);
    EXPECT_EQ(work(*open(cache_)), kAll) << damage.substr(0, 40);
    EXPECT_EQ(work(*open(cache_)), kNothing);
  }
  // The right key and a value that cannot be.
  for (const fs::path& file : kept()) {
    Json json = Json::parse(read_text_file(file.string(), 1 << 16));
    json["value"] = Json::array({-1, 1e308, "x"});
    testing::write_file(file.string(), json.dump());
  }
  EXPECT_EQ(work(*open(cache_)), kAll);
}

TEST_F(StartupCacheTest, AFolderThatCannotBeWrittenIsNoError) {
  testing::write_file(folder_.file("file"), std::string_view("not a folder"));
  EXPECT_EQ(work(*open(folder_.file("file/startup"))), kAll);
  EXPECT_EQ(work(*open(folder_.file("file"))), kAll);
}

TEST_F(StartupCacheTest, SumsFollowTheFile) {
  const std::string file = folder_.file("weights");
  testing::write_file(file, std::string_view("abc"));
  StartupCache first(cache_), second(cache_);
  EXPECT_EQ(first.sha256(file), sha256_of_file(file));
  EXPECT_EQ(first.sha256(file), sha256_of_file(file));
  EXPECT_EQ(first.work.hashed, 1);
  EXPECT_EQ(second.sha256(file), sha256_of_file(file));
  EXPECT_EQ(second.work.hashed, 0);
  const auto time = fs::last_write_time(file);
  testing::write_file(file, std::string_view("abd"));
  fs::last_write_time(file, time);  // the same size and time: the change is on record all the same
  EXPECT_EQ(second.sha256(file), sha256_of_file(file));
  EXPECT_EQ(second.work.hashed, 1);
  EXPECT_THROW(second.sha256(folder_.file("absent")), Error);
  // Folders are their files.
  fs::create_directory(folder_.file("model"));
  testing::write_file(folder_.file("model/a"), std::string_view("a"));
  const std::string before = file_identity(folder_.file("model"));
  EXPECT_EQ(file_identity(folder_.file("model")), before);
  testing::write_file(folder_.file("model/a"), std::string_view("ab"));
  EXPECT_NE(file_identity(folder_.file("model")), before);
  // A shard stands for all of them.
  for (const char* shard : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "other.gguf"})
    testing::write_file(folder_.file(shard), std::string_view("a"));
  const std::string whole = file_identity(folder_.file("m-00001-of-00002.gguf"));
  testing::write_file(folder_.file("other.gguf"), std::string_view("ab"));
  EXPECT_EQ(file_identity(folder_.file("m-00001-of-00002.gguf")), whole);
  testing::write_file(folder_.file("m-00002-of-00002.gguf"), std::string_view("ab"));
  EXPECT_NE(file_identity(folder_.file("m-00001-of-00002.gguf")), whole);
}

TEST_F(StartupCacheTest, StaysSmallAndWholeAmongMany) {
  std::vector<std::thread> writers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    writers.emplace_back([&, t] {
      const StartupCache cache(cache_);
      for (int i = 0; i < 100; ++i) {
        cache.keep("own", fmt::format("{} {}", t, i), i);
        cache.keep("shared", "key", std::string(2000, char('a' + t)));
        if (const auto found = cache.find("shared", "key");
            found && found->get<std::string>().find_first_not_of((*found).get<std::string>()[0]) != std::string::npos)
          ++wrong;
      }
    });
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(kept().size(), 256u);
  for (const fs::path& file : kept()) EXPECT_EQ(file.extension(), ".json") << file;
}

TEST(StartupCacheFolder, IsTheUsers) {
  const auto set = [](const char* name, const char* value) { value ? ::setenv(name, value, 1) : ::unsetenv(name); };
  const auto now = [](const char* name) {
    const char* v = std::getenv(name);
    return v ? std::optional<std::string>(v) : std::nullopt;
  };
  const auto own = now("SPECEXTEND_CACHE"), xdg = now("XDG_CACHE_HOME");
  set("XDG_CACHE_HOME", "/x"), set("SPECEXTEND_CACHE", nullptr);
  EXPECT_EQ(startup_cache_folder(), "/x/specextend/startup");
  set("SPECEXTEND_CACHE", "/y");
  EXPECT_EQ(startup_cache_folder(), "/y");
  set("SPECEXTEND_CACHE", "off");
  EXPECT_EQ(startup_cache_folder(), "");
  set("SPECEXTEND_CACHE", own ? own->c_str() : nullptr), set("XDG_CACHE_HOME", xdg ? xdg->c_str() : nullptr);
}

}  // namespace
}  // namespace sx
