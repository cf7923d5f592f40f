// Tells routers which prefixes this server holds: KV events over ZeroMQ in vLLM's wire format. A block is kBlock
// tokens; its hash is made of the block's tokens and all before it, and of whose they are, so that equal prefixes of
// one API key have equal hashes in every server. Blocks of all slots are counted together: one that two slots hold is
// told once.
//
// A message has three frames: a topic, the batch's number (8 bytes, big-endian, from 0) and the batch in msgpack,
// [seconds, [events], rank], where an event is ["BlockStored", hashes, parent or null, tokens, block size, null, "GPU",
// null], ["BlockRemoved", hashes, "GPU"] or ["AllBlocksCleared"].
#pragma once
#include <specextend/specextend.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace sx::server {

// The difference between what slots held and what they hold, as events. For one thread.
class KvBlocks {
 public:
  static constexpr size_t kBlock = 16;  // tokens
  // Slot `slot` holds `text`, of `scope`. Appends what changed to the events of the batch.
  void update(size_t slot, uint64_t scope, std::span<const Token> text);
  // The events since the last call; an empty list: none.
  nlohmann::json take();

 private:
  struct Held {
    uint64_t scope = 0;
    std::vector<Token> text;       // whole blocks
    std::vector<uint64_t> hashes;  // one of each
  };
  std::vector<Held> slots_;
  std::unordered_map<uint64_t, int> holders_;  // slots that hold a block
  nlohmann::json events_ = nlohmann::json::array();
};

struct KvEventOptions {
  std::string endpoint{};         // tcp://127.0.0.1:5557 or ipc://…, bound; empty: no events
  std::string replay_endpoint{};  // where batches that were missed can be asked for; empty: none
  std::string topic{};
};

// The sockets, on a thread of their own: publishing never waits for a subscriber. The last kKept batches can be asked
// for again, as vLLM has it: a request of the frames [empty, number, 8 bytes big-endian] gets [empty, number, batch]
// for each batch from there on, then the number -1 with an empty batch.
class KvPublisher {
 public:
  static constexpr size_t kKept = 10000;
  // Throws sx::Error where an endpoint cannot be bound, or the program was built without ZeroMQ.
  static std::unique_ptr<KvPublisher> create(const KvEventOptions& options);
  virtual ~KvPublisher() = default;
  virtual void publish(const nlohmann::json& events) = 0;  // one batch
};

// Both together, as the scheduler uses them.
class KvEvents {
 public:
  explicit KvEvents(const KvEventOptions& options) : publisher_(KvPublisher::create(options)) {}
  void update(size_t slot, uint64_t scope, std::span<const Token> text) { blocks_.update(slot, scope, text); }
  void flush();  // what changed since the last call, as one batch

 private:
  KvBlocks blocks_;
  std::unique_ptr<KvPublisher> publisher_;
};

}  // namespace sx::server
