// The small JSON files beside a tokenizer in a Hugging Face folder, and what they say about its special tokens: which
// begin and end a text, and the chat template.
#pragma once
#include <optional>
#include <string>

#include "text/json_view.h"
#include "text/tokenizer_internal.h"

namespace sx {

class FolderSettings {
 public:
  // Parses those of the files that `data` has. `data` must outlive this object.
  explicit FolderSettings(const TokenizerData& data);
  FolderSettings(const FolderSettings&) = delete;
  FolderSettings& operator=(const FolderSettings&) = delete;

  const JsonView* config() const { return config_.get(); }    // tokenizer_config.json; null: absent
  const JsonView* special() const { return special_.get(); }  // special_tokens_map.json
  const JsonView* added() const { return added_.get(); }      // added_tokens.json

  // Sets bos, eos, unk, further end tokens and the chat template of a complete vocabulary. All ids are below `limit`.
  void apply(TokenizerParts& parts, int64_t limit) const;
  // "add_bos_token" and "add_eos_token"; nullopt when the files do not set them.
  std::optional<bool> adds(const char* key) const;

 private:
  class Source {
   public:
    void load(const TokenizerData& data, const std::string& text, const char* name);
    const JsonView* get() const { return view_ ? &*view_ : nullptr; }

   private:
    nlohmann::json json_;
    std::optional<JsonView> view_;
  };
  void read_generation(TokenizerParts& parts, int64_t limit) const;
  void read_template(TokenizerParts& parts) const;

  const TokenizerData& data_;
  Source config_, special_, generation_, added_;
};

// Appends the name of a file to the folder's, unless it is already there.
std::string place_of(const TokenizerData& data, const char* name);
nlohmann::json parse_settings(const std::string& text, const std::string& where);

}  // namespace sx
