// The integers of a step on their way to the device: packed into pinned memory and copied in one go to a fixed place.
// Offsets depend on the padded counts only, so that graphs recorded for a shape find what they need.
#pragma once
#include <array>
#include <span>

#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/views.h"
#include "backend/ops.h"

namespace sx::cuda {

// Pinned memory from which copies to the device are made while the host goes on: a few buffers, used round-robin.
class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // A buffer of at least so many bytes that no copy is reading; valid until send().
  void* begin(size_t bytes);
  void send(void* to, size_t bytes);  // what was put into the last buffer

 private:
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    cudaEvent_t sent = nullptr;
  };
  cudaStream_t stream_;
  std::array<Buffer, 4> buffers_;
  size_t next_ = 0;
};

// Padded numbers of a step.
struct StepShape {
  int rows = 0, outputs = 0, tiles = 0;
  int history = 0;  // upper bound of all histories
  bool operator==(const StepShape&) const = default;
};

class StepBlock {
 public:
  // Room for so many rows (and as many outputs and tiles). True: the block lies elsewhere now.
  bool reserve(int rows, DeviceMemory& memory);
  // `pad`: counts are rounded up to few sizes. Not for prompts.
  static StepShape shape_of(const StepInputs& inputs, bool pad);
  // Sends a step's integers. A prompt has no ancestors and no tiles.
  void send(const StepInputs& inputs, const StepShape& shape, Staging& staging);
  // Instead of send(): the device writes the integers itself (tree expansion).
  void place(const StepShape& shape) { lay_out(shape, false, device_, view_); }
  StepView view() const { return view_; }

 private:
  size_t lay_out(const StepShape& shape, bool prompt, char* base, StepView& view) const;

  int capacity_ = 0;
  char* device_ = nullptr;
  StepView view_{};
};

int padded_rows(int rows);
int padded_history(int history);  // four sizes for each power of two

}  // namespace sx::cuda
