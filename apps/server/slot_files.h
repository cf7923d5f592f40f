// States of sessions as files in one folder.
#pragma once
#include <cstdint>
#include <string>

namespace sx::server {

// The path of a client's file name in the folder; refuses names that would lead elsewhere. Every scope but 0 has a
// folder of its own in it.
std::string slot_path(const std::string& folder, uint64_t scope, const std::string& name);
// Whole or not at all: a reader never sees half a file. Makes the scope's folder.
void write_state(const std::string& path, const std::string& state);
std::string read_state(const std::string& path);

}  // namespace sx::server
