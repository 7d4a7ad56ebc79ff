// Element types of tensors, in storage and on the wire.
#pragma once

#include <cstdint>

namespace attnd {

// q, k and v share one of the three float types. Kernels accumulate in float32 whatever the
// storage.
enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kU8 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// "float32", "float16", "bfloat16", "int32", "uint8".
constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI32:
      return "int32";
    case DType::kU8:
      return "uint8";
  }
  return "?";
}

}  // namespace attnd
