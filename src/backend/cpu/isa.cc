#include "backend/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string>

#include "base/error.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace sx::cpu {
namespace {
constexpr Isa kAll[] = {Isa::kGeneric, Isa::kNeonDot, Isa::kNeonI8mm, Isa::kAvx2, Isa::kAvx512};
// With kernels in this program (isa.cmake).
constexpr Isa kBuilt[] = {
#if defined(SX_HAS_NEON_I8MM)
    Isa::kNeonI8mm,
#endif
#if defined(SX_HAS_NEON_DOT)
    Isa::kNeonDot,
#endif
#if defined(SX_HAS_AVX512)
    Isa::kAvx512,
#endif
#if defined(SX_HAS_AVX2)
    Isa::kAvx2,
#endif
#if defined(SX_HAS_GENERIC)
    Isa::kGeneric,
#endif
};

// "neon-i8mm, generic"
std::string names_of(std::span<const Isa> isas) {
  std::string names;
  for (Isa isa : isas) names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  return names;
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kGeneric: return "generic";
    case Isa::kNeonDot: return "neon-dotprod";
    case Isa::kNeonI8mm: return "neon-i8mm";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512-vnni";
  }
  return "?";
}

std::optional<Isa> isa_from_name(std::string_view name) {
  for (Isa isa : kAll)
    if (name == isa_name(isa)) return isa;
  return std::nullopt;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> found;
#if defined(__aarch64__)
  const unsigned long cap = ::getauxval(AT_HWCAP), cap2 = ::getauxval(AT_HWCAP2);
  const bool dot = (cap & HWCAP_ASIMDDP) && (cap & HWCAP_ASIMDHP);
  if (dot && (cap & HWCAP_ASIMDFHM) && (cap2 & HWCAP2_I8MM) && (cap2 & HWCAP2_BF16)) found.push_back(Isa::kNeonI8mm);
  if (dot) found.push_back(Isa::kNeonDot);
#elif defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
    found.push_back(Isa::kAvx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    found.push_back(Isa::kAvx2);
#endif
  found.push_back(Isa::kGeneric);
  std::erase_if(found,
                [](Isa isa) { return std::find(std::begin(kBuilt), std::end(kBuilt), isa) == std::end(kBuilt); });
  if (found.empty())
    fail(
        "this program was built for machines with {} only (SPECEXTEND_NATIVE_ISA), and this one has none of that: build it here, or "
        "with preset release",
        names_of(kBuilt));
  return found;
}

bool has_bf16(Isa isa) {
#if defined(__x86_64__)
  return isa == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
#else
  return isa == Isa::kNeonI8mm;
#endif
}

Isa default_isa() {
  const auto have = available_isas();
  const char* wanted = std::getenv("SPECEXTEND_ISA");
  if (!wanted || !*wanted) return have.front();
  for (Isa isa : have)
    if (std::string_view(wanted) == isa_name(isa)) return isa;
  fail("SPECEXTEND_ISA='{}': this program has {} for this machine", wanted, names_of(have));
}

}  // namespace sx::cpu
