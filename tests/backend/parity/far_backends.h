// Backends with memory of their own, for the tests of the op table: they stand behind an adapter that takes host
// memory.
#pragma once
#include <string>

#include "backends.h"
#include "table.h"

namespace sx::parity {

BackendFactory far_backend();  // the CPU backend behind support/far_backend.h: what the adapters themselves do
BackendFactory cuda_backend();

// Rows that such a backend can run: no K/V in F32 on CUDA, and chains behind earlier nodes only as deep as trees may
// be.
bool supports(const std::string& backend, const OpRow& row);
// Of them, rows that are not run as prompts on CUDA, whose bits are those of a row decoded alone.
bool decodes(const std::string& backend, const OpRow& row);
// CUDA rounds activations to 16 bits.
Tolerance tolerance_of(const std::string& backend, const OpRow& row);

}  // namespace sx::parity
