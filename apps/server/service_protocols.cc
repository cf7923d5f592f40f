// What the protocols of protocols.h have beside completions: counting, kept answers, lists of models.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "server/protocols.h"
#include "server/replies.h"
#include "server/service.h"

namespace sx::server {

using Json = nlohmann::ordered_json;

namespace {

ApiError no_response(const std::string& id) {
  return {404, "invalid_request_error", fmt::format("Response with id '{}' not found.", id), "id",
          "response_not_found"};
}

}  // namespace

void Service::count_tokens(const HttpRequest& req, HttpReply& res) {
  const CompletionRequest request = parse_messages(req.body, limits_, true);
  const auto turn = turn_of(req.body.size());
  send(res, {{"input_tokens", prompt_tokens(engine_.tokenizer(), request, bound_).front().size()}});
}

void Service::count_chat_tokens(const HttpRequest& req, HttpReply& res) {
  const CompletionRequest request = parse_template(req.body, limits_);
  const auto turn = turn_of(req.body.size());
  send(res, {{"input_tokens", prompt_tokens(engine_.tokenizer(), request, bound_).front().size()}});
}

void Service::responses(const HttpRequest& req, HttpReply& res) {
  complete(req, res, parse_responses(req.body, limits(req), responses_, tenant(req).id));
}

void Service::kept_response(const HttpRequest& req, HttpReply& res) const {
  const std::string id = req.matches[1];
  const auto found = responses_->find(tenant(req).id, id);
  if (!found) throw no_response(id);
  res.set_content(found->response, "application/json");
}

void Service::delete_response(const HttpRequest& req, HttpReply& res) const {
  const std::string id = req.matches[1];
  if (!responses_->erase(tenant(req).id, id)) throw no_response(id);
  send(res, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

// There are none in the background: what is kept has ended.
void Service::cancel_response(const HttpRequest& req, HttpReply&) const {
  const std::string rest = req.matches[1], end = "/cancel";
  if (!rest.ends_with(end)) throw ApiError(404, "not_found_error", fmt::format("there is no {}", req.path));
  const std::string id = rest.substr(0, rest.size() - end.size());
  if (!responses_->find(tenant(req).id, id)) throw no_response(id);
  throw bad_request("Cannot cancel a synchronous response.", "id");
}

void Service::ollama_chat(const HttpRequest& req, HttpReply& res) {
  if (const std::string loaded = ollama_load_answer(req.body, options_.model_name, true); !loaded.empty())
    return res.set_content(loaded, "application/json");
  complete(req, res, parse_ollama_chat(req.body, limits(req)));
}

void Service::ollama_generate(const HttpRequest& req, HttpReply& res) {
  if (const std::string loaded = ollama_load_answer(req.body, options_.model_name, false); !loaded.empty())
    return res.set_content(loaded, "application/json");
  complete(req, res, parse_ollama_generate(req.body, limits(req)));
}

Json Service::ollama_model() const {
  return {{"name", options_.model_name},
          {"model", options_.model_name},
          {"modified_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time_t(created_)))},
          {"size", 0},
          {"digest", ""},
          {"details",
           {{"parent_model", ""},
            {"format", "gguf"},
            {"family", ""},
            {"families", Json::array()},
            {"parameter_size", ""},
            {"quantization_level", ""}}}};
}

void Service::ollama_tags(const HttpRequest&, HttpReply& res) const {
  send(res, {{"models", Json::array({ollama_model()})}});
}

void Service::ollama_show(const HttpRequest& req, HttpReply& res) {
  const Json body = parse_object(req.body);
  const std::string name = text_field(body, field(body, "name") ? "name" : "model");
  if (name != options_.model_name)
    throw ApiError(404, "invalid_request_error", fmt::format("model '{}' not found", name), "model", "model_not_found");
  Json capabilities = Json::array({"completion", "tools"});
  if (limits_.reasoning.any()) capabilities.push_back("thinking");
  send(res, {{"modelfile", ""},
             {"parameters", ""},
             {"template", engine_.tokenizer().chat_template()},
             {"details", ollama_model().at("details")},
             {"model_info", {{"general.context_length", engine_.context()}}},
             {"capabilities", std::move(capabilities)}});
}

void Service::ollama_version(const HttpRequest&, HttpReply& res) const { send(res, {{"version", options_.version}}); }

void Service::no_embeddings(const HttpRequest&, HttpReply&) {
  throw ApiError(501, "not_supported_error", "this server writes texts; it has no embeddings and ranks nothing", "",
                 "not_supported");
}

}  // namespace sx::server
