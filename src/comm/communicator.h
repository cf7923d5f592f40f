// Messages between the ranks of one job. There is no reduction: ranks exchange bytes and never add each other's
// numbers, so that N ranks give the bits of one (docs/scaling.md). Everything is made of one primitive, exchange().
//
// Every wait ends: with the bytes, or with an sx::Error when the job has been given up (abort(), a lost rank) or the
// deadline has passed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sx {

struct Outgoing {
  int to;
  std::span<const std::byte> bytes;
};
struct Incoming {
  int from;
  std::span<std::byte> bytes;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string kind() const = 0;          // "Open MPI 4.1.4", "threads of one process"
  virtual std::string describe(int rank) const;  // "rank 2", with host and process where they are known

  // Sends and receives all of these at the same time. Messages between two ranks arrive in the order they were sent,
  // and a receiver must know the length. idle: the wait may last for hours (a rank that waits for work), so no deadline
  // applies and the processor is left to others.
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in, bool idle = false);

  void send(int to, std::span<const std::byte> bytes);
  void receive(int from, std::span<std::byte> bytes, bool idle = false);
  void broadcast(int root, std::span<std::byte> bytes);
  // all[r] is what rank r gives; all[rank()] is sent. Lengths may differ between ranks, and be 0.
  void all_gather(std::span<const std::span<std::byte>> all);
  // The same, and only `root` receives.
  void gather(int root, std::span<const std::span<std::byte>> all);
  void barrier();

  // Gives the job up: waits of all ranks that can be reached end with this reason. May be called by any thread.
  virtual void abort(const std::string& reason) noexcept = 0;
  // Why the job was given up; empty: it goes on. May be called by any thread.
  virtual std::string lost() const { return {}; }

  double deadline_seconds = 600;  // of a wait that is not idle

  struct Traffic {
    uint64_t messages = 0, bytes = 0;  // sent by this rank
  };
  const Traffic& traffic() const { return traffic_; }

 protected:
  virtual void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in, bool idle) = 0;

 private:
  Traffic traffic_;
};

// A message whose length the receiver does not know, in one or two pieces: the first is of a fixed length and holds all
// of a short message.
void send_message(Communicator& comm, std::span<const int> to, std::span<const std::byte> message);
// The same, while other messages are sent behind it and received: neither waits for the other.
void send_message(Communicator& comm, std::span<const int> to, std::span<const std::byte> message,
                  std::span<const Outgoing> behind, std::span<const Incoming> in);
// Into `message`, whose memory is kept.
class MessageBuffer;
void receive_message(Communicator& comm, int from, MessageBuffer& message, bool idle);

}  // namespace sx
