// Which instruction set the kernels use. Every set has one translation unit per kernel family, compiled with its own
// flags inside its own namespace; the choice is made once at run time.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

namespace sx::cpu {

// kVnni is kAvx512 with byte dot products, kAmx is kVnni with tiles. Quantised linear layers have the same bits on all
// four x86 sets. kVnni has the float kernels of kAvx512; so has kAmx, but for attention over bf16 K and V.
enum class Isa { kGeneric, kNeonDot, kNeonI8mm, kAvx2, kAvx512, kVnni, kAmx };

const char* isa_name(Isa isa);  // "generic", "neon-dotprod", "neon-i8mm", "avx2", "avx512", "avx512-vnni", "avx512-amx"
std::optional<Isa> isa_from_name(std::string_view name);
std::vector<Isa> available_isas();  // on this machine and in this program, best first; ends with generic unless
                                    // the program was built for its machine only; never empty
// The best one, or the one named by the environment variable SPECEXTEND_ISA (error if this machine lacks it).
Isa default_isa();
bool has_bf16(Isa isa);  // this machine multiplies bf16 with that set

}  // namespace sx::cpu
