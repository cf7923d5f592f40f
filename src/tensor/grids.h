// The grids of IQ2 and IQ3: an entry is the magnitudes of 8 or 4 neighbouring elements, 2 or 4 bits each, lowest first,
// as numbers of a short list of values.
#pragma once
#include <cstdint>

namespace sx {

extern const uint16_t kIQ2_XXSGrid[256], kIQ2_XSGrid[512], kIQ2_SGrid[1024];  // 8 elements
extern const uint16_t kIQ3_XXSGrid[256], kIQ3_SGrid[512];                     // 4 elements
inline constexpr int8_t kIQ2Values[4] = {8, 25, 43, 0};
inline constexpr int8_t kIQ3_XXSValues[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr int8_t kIQ3_SValues[8] = {1, 3, 5, 7, 9, 11, 13, 15};

}  // namespace sx
