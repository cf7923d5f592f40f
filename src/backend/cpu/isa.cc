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
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sx::cpu {
namespace {
constexpr Isa kAll[] = {Isa::kGeneric, Isa::kNeonDot, Isa::kNeonI8mm, Isa::kAvx2, Isa::kAvx512, Isa::kVnni, Isa::kAmx};
// With kernels in this program (isa.cmake).
constexpr Isa kBuilt[] = {
#if defined(SX_HAS_NEON_I8MM)
    Isa::kNeonI8mm,
#endif
#if defined(SX_HAS_NEON_DOT)
    Isa::kNeonDot,
#endif
#if defined(SX_HAS_AMX)
    Isa::kAmx,
#endif
#if defined(SX_HAS_VNNI)
    Isa::kVnni,
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

#if defined(__x86_64__)
// Whether this machine has AMX tiles with int8 and bf16 dot products, the conversions to bf16, and Linux lets this
// process use them. The tiles' state is large, so Linux allows it only to processes that ask, once for all their
// threads; kernels before 5.16 do not know the question.
bool amx_allowed() {
  static const bool allowed = [] {
    constexpr unsigned kTileBits = 1u << 22 | 1u << 24 | 1u << 25;  // CPUID leaf 7: bf16, tiles, int8
    constexpr unsigned kConvertBit = 1u << 5;                       // leaf 7, 1: AVX-512's bf16
    constexpr unsigned kOsXsaveBit = 1u << 27;                      // leaf 1
    constexpr unsigned kTileStates = 3u << 17;                      // of XCR0
    constexpr long kRequestPermission = 0x1023, kTileData = 18;     // arch_prctl
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsXsaveBit)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTileBits) != kTileBits) return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & kConvertBit)) return false;
    asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    if ((a & kTileStates) != kTileStates) return false;
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return allowed;
}
#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kGeneric: return "generic";
    case Isa::kNeonDot: return "neon-dotprod";
    case Isa::kNeonI8mm: return "neon-i8mm";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kVnni: return "avx512-vnni";
    case Isa::kAmx: return "avx512-amx";
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
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    if (__builtin_cpu_supports("avx512vnni")) {
      if (amx_allowed()) found.push_back(Isa::kAmx);
      found.push_back(Isa::kVnni);
    }
    found.push_back(Isa::kAvx512);
  }
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
  return (isa == Isa::kVnni || isa == Isa::kAmx) && __builtin_cpu_supports("avx512bf16");
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
