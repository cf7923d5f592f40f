// Ranks that mpirun (or another launcher of MPI programs) has started.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace sx {

// Whether this process was started as one of several, by what launchers leave in the environment.
bool started_as_rank();
// The number of this process among those that the launcher has started on this machine; 0 where it does not say.
int rank_on_machine();

// Joins the job. hello: a text that must be the same on all ranks. on_lost: called once, by a thread of its own, some
// time after a rank was lost (waits have ended with the reason by then). Throws sx::Error.
// The communicator ends MPI when it is destroyed; there is one in the life of a process.
std::shared_ptr<Communicator> join_mpi(const std::string& hello, std::function<void(const std::string&)> on_lost);

}  // namespace sx
