// Threads that give way to others.
#pragma once

namespace sx {

// The calling thread gives way to all others from now on: on a machine whose cores are all busy it gets about a tenth
// of one.
void give_way();
// Whether the calling thread does: what takes long may be done here.
bool gives_way();

}  // namespace sx
