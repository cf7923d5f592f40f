// What the translations of protocols.h share: how their requests are read, and a writer that is told an answer part by
// part.
#pragma once
#include <initializer_list>
#include <memory>
#include <span>

#include "server/answer_parser.h"
#include "server/protocols.h"
#include "server/request_parts.h"
#include "server/response_parts.h"

namespace sx::server {

// Reads an object of a request whose fields are all known: any other is rejected by name. `where` stands before the
// names in errors, as "tools.0".
class FieldReader {
 public:
  FieldReader(const Json& object, std::string where);
  const Json* get(const char* name);       // absent and null: nothing
  const Json* get_list(const char* name);  // must be a list
  const Json* get_object(const char* name);
  std::string text(const char* name, const char* otherwise = nullptr);  // must be there unless `otherwise`
  bool flag(const char* name, bool otherwise);
  void ignore(std::initializer_list<const char*> names);  // the protocol lets the server ignore these
  // Passes fields that are read as those of a chat on to one, under the same name or another.
  void pass(Json& chat, const char* name, const char* as = nullptr);
  void pass_extensions(Json& chat);  // the fields of this server that every completion has
  void done() const;                 // throws if there is a field that nobody asked for
  std::string name_of(const char* name) const { return where_.empty() ? name : where_ + "." + name; }
  ApiError wrong(const char* name, const std::string& why) const;

 private:
  const Json& object_;
  const std::string where_;
  std::vector<std::string> known_{};
};

// A tool as chats have it.
Json chat_tool(const std::string& name, const Json* description, const Json* schema);
// A call of one as messages of chats have it.
Json chat_call(const std::string& id, const std::string& name, const std::string& arguments);

// Appends a message; texts of one role that follow each other are put together, as most templates want it.
void add_message(Json& messages, Json message);

// Writes one choice, told in order: start(), any number of parts, stop().
class PartWriter : public AnswerWriter {
 public:
  PartWriter(const CompletionRequest& request, const AnswerFacts& facts);
  std::string whole(const std::vector<ChoiceEnd>& ends) final;
  std::string begin(int choice) final;
  std::string delta(int choice, ChoiceDelta delta) final;
  std::string end(int choice, const ChoiceEnd& end) final;
  std::string finish() override { return {}; }

 protected:
  virtual std::string body(const std::vector<AnswerPart>& parts, const ChoiceEnd& end) = 0;
  virtual std::string start() = 0;
  virtual std::string tell(const AnswerPart& part) = 0;
  virtual std::string stop(const ChoiceEnd& end) = 0;
  // Takes the tokens that end in these places of content off `tokens_`, and drops all before: those of thoughts,
  // calls, marks and white space.
  std::vector<AnswerToken> take_tokens(const Places& content);

  const std::string model_, request_id_;
  const bool hide_reasoning_;
  const std::shared_ptr<const ProtocolFacts> facts_;
  const int prompt_tokens_;
  const int logprobs_;                 // alternatives of each token; -1: none are told
  int cached_ = 0;                     // tokens of the prompt, as far as it is known
  int reasoning_tokens_ = 0;           // of the answer
  std::vector<AnswerToken> tokens_{};  // of the answer, until content that ends there or later is told

 private:
  std::string tell(std::vector<AnswerPart>&& parts);
  void count_thoughts(std::span<const AnswerToken> tokens, size_t taken);

  AnswerParser parser_;
  ThoughtTokens thoughts_{};
  bool begun_ = false;
};

std::string named_event(const Json& json);  // an event with the name of its "type"

std::unique_ptr<AnswerWriter> messages_writer(const CompletionRequest& request, const AnswerFacts& facts);
std::unique_ptr<AnswerWriter> responses_writer(const CompletionRequest& request, const AnswerFacts& facts);
std::unique_ptr<AnswerWriter> ollama_writer(const CompletionRequest& request, const AnswerFacts& facts);
Json messages_error(const ApiError& error, const std::string& request_id);

}  // namespace sx::server
