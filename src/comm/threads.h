// A communicator whose ranks are threads of one process: for tests, and to see what a split does without a network.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace sx {

// One for each rank; they may outlive each other.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size);

}  // namespace sx
