#include "kernels/engine/random_array.h"

#include <cmath>
#include <cstring>
#include <random>

namespace attnd {

RandomArray::RandomArray(DType dtype, const Shape& shape, unsigned seed) {
  std::minstd_rand random(seed);
  std::normal_distribution<float> normal;
  bytes.resize(static_cast<size_t>(shape.size() * SizeOf(dtype)));
  for (int64_t e = 0; e < shape.size(); ++e) {
    const float value = std::round(normal(random) * 32) / 32;
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    uint16_t half = static_cast<uint16_t>(word >> 16);
    if (dtype == DType::kF16 && value != 0) {
      half = static_cast<uint16_t>((word >> 16 & 0x8000) | (((word >> 23 & 255) - 112) << 10) |
                                   (word >> 13 & 1023));
    }
    std::byte* const to = bytes.data() + e * SizeOf(dtype);
    if (dtype == DType::kF32) {
      std::memcpy(to, &value, sizeof(value));
    } else {
      std::memcpy(to, &half, sizeof(half));
    }
  }
  view = DenseView(bytes.data(), dtype, shape);
}

}  // namespace attnd
