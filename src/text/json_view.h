// A JSON value together with its place in the file, so that every error about it names file and key.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sx {

class JsonView {
 public:
  // With `root`, `where` is a file and not yet a key in it.
  JsonView(const nlohmann::json& node, std::string where, bool root = false)
      : node_(&node), where_(std::move(where)), root_(root) {}

  const nlohmann::json& node() const { return *node_; }
  const std::string& where() const { return where_; }  // "folder/tokenizer.json: model.vocab"

  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(where_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  bool has(const char* key) const { return node_->is_object() && node_->contains(key) && !node_->at(key).is_null(); }
  JsonView at(const char* key) const {
    if (!node_->is_object()) wrong("is {}, expected an object", node_->type_name());
    if (!has(key)) wrong("has no \"{}\"", key);
    return {node_->at(key), where_ + (root_ ? ": " : ".") + key};
  }
  JsonView at(size_t index) const {
    if (index >= size()) wrong("has {} elements, expected at least {}", size(), index + 1);
    return {array()[index], fmt::format("{}[{}]", where_, index)};
  }
  size_t size() const { return array().size(); }

  const std::string& string() const {
    if (!node_->is_string()) wrong("is {}, expected a string", node_->type_name());
    return node_->get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!node_->is_boolean()) wrong("is {}, expected true or false", node_->type_name());
    return node_->get<bool>();
  }
  double number() const {
    if (!node_->is_number()) wrong("is {}, expected a number", node_->type_name());
    return node_->get<double>();
  }
  // Returns an integer of 0 .. limit - 1.
  int32_t index(int64_t limit) const {
    if (!node_->is_number_integer()) wrong("is {}, expected an integer", node_->type_name());
    const bool huge = node_->is_number_unsigned() && node_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    const int64_t value = huge ? INT64_MAX : node_->get<int64_t>();
    if (value < 0 || value >= limit) wrong("is {}, expected a number from 0 to {}", node_->dump(), limit - 1);
    return static_cast<int32_t>(value);
  }
  const nlohmann::json& object() const {
    if (!node_->is_object()) wrong("is {}, expected an object", node_->type_name());
    return *node_;
  }

  // These return a default for a key that is absent or null.
  bool boolean(const char* key, bool absent) const { return has(key) ? at(key).boolean() : absent; }
  std::string string(const char* key, std::string absent) const { return has(key) ? at(key).string() : absent; }

 private:
  const nlohmann::json& array() const {
    if (!node_->is_array()) wrong("is {}, expected a list", node_->type_name());
    return *node_;
  }
  const nlohmann::json* node_;
  std::string where_;
  bool root_;
};

}  // namespace sx
