#include "comm/communicator.h"

#include <array>
#include <cstring>
#include <vector>

#include "comm/message.h"

namespace sx {
namespace {

constexpr size_t kFirstPiece = 1024;  // bytes of the first piece of a message, its length included

}  // namespace

std::string Communicator::describe(int rank) const { return fmt::format("rank {}", rank); }

void Communicator::exchange(std::span<const Outgoing> out, std::span<const Incoming> in, bool idle) {
  for (const Outgoing& message : out) {
    SX_ASSERT(message.to >= 0 && message.to < size() && message.to != rank());
    ++traffic_.messages, traffic_.bytes += message.bytes.size();
  }
  for (const Incoming& message : in) SX_ASSERT(message.from >= 0 && message.from < size() && message.from != rank());
  if (!out.empty() || !in.empty()) do_exchange(out, in, idle);
}

void Communicator::send(int to, std::span<const std::byte> bytes) {
  const Outgoing message{to, bytes};
  exchange(std::span(&message, 1), {});
}

void Communicator::receive(int from, std::span<std::byte> bytes, bool idle) {
  const Incoming message{from, bytes};
  exchange({}, std::span(&message, 1), idle);
}

void Communicator::broadcast(int root, std::span<std::byte> bytes) {
  if (rank() != root) return receive(root, bytes);
  std::vector<Outgoing> out;
  for (int r = 0; r < size(); ++r)
    if (r != root) out.push_back({r, bytes});
  exchange(out, {});
}

void Communicator::all_gather(std::span<const std::span<std::byte>> all) {
  SX_ASSERT(int(all.size()) == size());
  // A job has few ranks: the lists live on the stack where they can.
  constexpr size_t kFew = 64;
  std::array<Outgoing, kFew> out;
  std::array<Incoming, kFew> in;
  SX_ASSERT(all.size() <= kFew);
  size_t sent = 0, received = 0;
  const auto mine = all[size_t(rank())];
  for (int step = 1; step < size(); ++step) {  // everyone begins with another peer
    const int to = (rank() + step) % size(), from = (rank() + size() - step) % size();
    if (!mine.empty()) out[sent++] = {to, mine};
    if (!all[size_t(from)].empty()) in[received++] = {from, all[size_t(from)]};
  }
  exchange(std::span(out).first(sent), std::span(in).first(received));
}

void Communicator::gather(int root, std::span<const std::span<std::byte>> all) {
  SX_ASSERT(int(all.size()) == size());
  if (rank() != root) {
    if (!all[size_t(rank())].empty()) send(root, all[size_t(rank())]);
    return;
  }
  std::vector<Incoming> in;
  for (int r = 0; r < size(); ++r)
    if (r != root && !all[size_t(r)].empty()) in.push_back({r, all[size_t(r)]});
  exchange({}, in);
}

void Communicator::barrier() {
  std::vector<std::byte> bytes(static_cast<size_t>(size()));
  std::vector<std::span<std::byte>> all;
  for (std::byte& one : bytes) all.emplace_back(&one, 1);
  all_gather(all);
}

void send_message(Communicator& comm, std::span<const int> to, std::span<const std::byte> message) {
  send_message(comm, to, message, {}, {});
}

void send_message(Communicator& comm, std::span<const int> to, std::span<const std::byte> message,
                  std::span<const Outgoing> behind, std::span<const Incoming> in) {
  std::array<std::byte, kFirstPiece> first{};
  const uint64_t size = message.size();
  const size_t room = kFirstPiece - sizeof size, begin = std::min(room, message.size());
  std::memcpy(first.data(), &size, sizeof size);
  if (begin > 0) std::memcpy(first.data() + sizeof size, message.data(), begin);
  std::vector<Outgoing> out;
  for (const int peer : to) out.push_back({peer, first});
  for (const int peer : to)
    if (message.size() > begin) out.push_back({peer, message.subspan(begin)});
  out.insert(out.end(), behind.begin(), behind.end());
  comm.exchange(out, in);
}

void receive_message(Communicator& comm, int from, MessageBuffer& message, bool idle) {
  std::array<std::byte, kFirstPiece> first{};
  comm.receive(from, first, idle);
  uint64_t size;
  std::memcpy(&size, first.data(), sizeof size);
  const size_t room = kFirstPiece - sizeof size, begin = std::min(room, size_t(size));
  const auto bytes = message.resize(size_t(size));
  if (begin > 0) std::memcpy(bytes.data(), first.data() + sizeof size, begin);
  if (bytes.size() > begin) comm.receive(from, bytes.subspan(begin));
}

}  // namespace sx
