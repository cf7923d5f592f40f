// Parts of quantise and quantise_search: runs of 32 values as d * table[code] with a table of 16 numbers.
#pragma once
#include <cstdint>

namespace sx {

// The code of the table's value nearest to x, the first of equals.
int nearest_code(const int8_t* table, double x);
// Codes of x[32] times `inverse`, as blocks keep them: elements 0..15 in the low nibbles.
void store_codes(const int8_t* table, const float* x, double inverse, uint8_t* q);

// x[32] -> one BlockMXFP4 or BlockIQ4_NL at `out` with the least squared error found. `largest`: the largest magnitude,
// not zero.
void search_mxfp4(const float* x, float largest, void* out);
void search_iq4_nl(const float* x, float largest, void* out);

}  // namespace sx
