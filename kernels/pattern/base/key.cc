#include "kernels/pattern/base/key.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace attnd {
namespace {

// A secret of the process, so that no request can be crafted to match a cached pattern of other
// data.
uint64_t Secret() {
  static const uint64_t secret = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return secret;
}

// The halves of a 128-bit product, folded.
uint64_t Fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

std::string Fingerprint(std::span<const std::byte> data) {
  const uint64_t secret = Secret();
  uint64_t a = secret ^ data.size(), b = ~secret;
  for (size_t i = 0; i < data.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data.data() + i, std::min(data.size() - i, sizeof(word)));
    a = Fold(a ^ word, 0x9E3779B97F4A7C15 ^ secret);
    b = Fold(b + word, 0xD6E8FEB86659FD93 ^ a);
  }
  return absl::StrCat(data.size(), ":", absl::Hex(a, absl::kZeroPad16),
                      absl::Hex(b, absl::kZeroPad16));
}

}  // namespace attnd
