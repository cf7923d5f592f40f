// The functions of include/specextend/engine.h, tokenizer.h, inspect.h, costs.h and kv_memory.h that are made of
// others.
#include <nlohmann/json.hpp>

#include "backend/kv_sharing.h"
#include "base/cpu_count.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/round.h"
#include "specextend/costs.h"
#include "specextend/grammar.h"
#include "specextend/kv_memory.h"

namespace sx {

std::string Tokenizer::apply_template(std::span<const Message> messages, bool add_generation_prompt) const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Message& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  return apply_template_json(list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
                             add_generation_prompt);
}

GenerateResult Session::generate(std::string_view prompt, const GenerateOptions& options) {
  return generate(tokenizer().tokenize(prompt, true), options);
}

GenerateResult Session::chat(std::span<const Message> messages, const GenerateOptions& options) {
  return generate(tokenizer().tokenize(tokenizer().apply_template(messages)), options);
}

GenerateResult Session::chat(std::initializer_list<Message> messages, const GenerateOptions& options) {
  return chat(std::span(messages.begin(), messages.size()), options);
}

ThreadCount thread_count(int asked) {
  const CpuCount& cpus = cpu_count();
  if (asked <= 0) return {cpus.threads(), cpus.why()};
  if (asked <= cpus.allowed) return {asked, "asked for"};
  return {cpus.allowed, fmt::format("{} asked for, {} CPU{}", asked, cpus.allowed, cpus.allowed == 1 ? "" : "s")};
}

StepCosts step_costs(const Engine& engine) {
  const auto* known = dynamic_cast<const EngineImpl*>(&engine);
  if (!known) fail("step_costs: the engine is not one that Engine::open made");
  return known->costs();
}

bool measure_when_idle(Engine& engine) {
  auto* known = dynamic_cast<EngineImpl*>(&engine);
  return known && known->measure_when_idle();
}

PredictedTime take_predicted_time(Engine& engine) {
  auto* known = dynamic_cast<EngineImpl*>(&engine);
  return known ? known->round().take_predicted_time() : PredictedTime{};
}

std::shared_ptr<const void> prepare_grammar(Engine& engine, const std::string& gbnf) {
  auto* own = dynamic_cast<EngineImpl*>(&engine);
  return own ? own->grammars().get(gbnf) : nullptr;  // another engine compiles its grammars itself
}

std::shared_ptr<const void> prepared_grammar(Engine& engine, const std::string& gbnf) {
  auto* own = dynamic_cast<EngineImpl*>(&engine);
  return own ? own->grammars().known(gbnf) : nullptr;
}

void on_full_memory(Engine& engine, std::function<bool()> make_room) {
  if (auto* known = dynamic_cast<EngineImpl*>(&engine)) known->make_room = std::move(make_room);
}

KvMemory kv_memory(const Engine& engine) {
  const auto* known = dynamic_cast<const EngineImpl*>(&engine);
  const auto* kv = known ? dynamic_cast<const KvSharing*>(known->parts().kv) : nullptr;
  const KvUse use = kv ? kv->use() : KvUse{};
  return {.shared = use.shared, .own = use.own, .saved = use.saved};
}

}  // namespace sx
