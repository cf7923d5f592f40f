// Messages between the devices of several ranks: memory of one device to memory of another, in the order of the ops,
// and part of recorded steps.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace sx {

class DeviceLink {
 public:
  // What a rank says before ranks are joined. device: names the device among those of all machines; two ranks on one
  // cannot be joined. why_not: the reason why this rank cannot be; empty: it can.
  struct Offer {
    std::string device, why_not;
  };
  struct Part {
    int rank;  // from whom, or to whom
    float* data;
    size_t count;
  };
  virtual ~DeviceLink() = default;
  virtual std::string name() const = 0;  // "NCCL 2.27.3"
  virtual Offer offer() = 0;
  virtual std::vector<std::byte> new_id() = 0;  // one rank makes it, all join with it
  // All ranks at the same time. Throws sx::Error.
  virtual void join(std::span<const std::byte> id, int rank, int size) = 0;
  // Sends and receives all of these at the same time.
  virtual void exchange(std::span<const Part> out, std::span<const Part> in) = 0;
};

}  // namespace sx
