// Text that is equal for equal structs of parameters only. It is made from every field, so that
// none can be forgotten.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace attnd {

// 128 bits that differ for different data, keyed by a secret of the process.
std::string Fingerprint(std::span<const std::byte> data);
inline std::string Fingerprint(std::span<const int32_t> data) {
  return Fingerprint(std::as_bytes(data));
}

namespace key_internal {

// Converts to any type, to count the fields of an aggregate.
struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, class... Fields>
consteval size_t CountFields() {
  if constexpr (requires { T{Fields()..., AnyField()}; }) {
    return CountFields<T, Fields..., AnyField>();
  } else {
    return sizeof...(Fields);
  }
}

}  // namespace key_internal

// The number of fields of an aggregate without base classes and arrays.
template <class T>
constexpr size_t kFields = key_internal::CountFields<std::remove_cv_t<T>>();

// visit(field, field, ...) over all fields, in the order of their declaration.
template <class T, class Visit>
void VisitFields(T& t, const Visit& visit) {
  constexpr size_t n = kFields<T>;
  static_assert(n >= 1 && n <= 16, "structs of more fields need one more line here");
  // clang-format off
  if constexpr (n == 1) { auto& [a] = t; visit(a); }
  if constexpr (n == 2) { auto& [a, b] = t; visit(a, b); }
  if constexpr (n == 3) { auto& [a, b, c] = t; visit(a, b, c); }
  if constexpr (n == 4) { auto& [a, b, c, d] = t; visit(a, b, c, d); }
  if constexpr (n == 5) { auto& [a, b, c, d, e] = t; visit(a, b, c, d, e); }
  if constexpr (n == 6) { auto& [a, b, c, d, e, f] = t; visit(a, b, c, d, e, f); }
  if constexpr (n == 7) { auto& [a, b, c, d, e, f, g] = t; visit(a, b, c, d, e, f, g); }
  if constexpr (n == 8) { auto& [a, b, c, d, e, f, g, h] = t; visit(a, b, c, d, e, f, g, h); }
  if constexpr (n == 9) { auto& [a, b, c, d, e, f, g, h, i] = t; visit(a, b, c, d, e, f, g, h, i); }
  if constexpr (n == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = t; visit(a, b, c, d, e, f, g, h, i, j);
  }
  if constexpr (n == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = t; visit(a, b, c, d, e, f, g, h, i, j, k);
  }
  if constexpr (n == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = t; visit(a, b, c, d, e, f, g, h, i, j, k, l);
  }
  if constexpr (n == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = t;
    visit(a, b, c, d, e, f, g, h, i, j, k, l, m);
  }
  if constexpr (n == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o] = t;
    visit(a, b, c, d, e, f, g, h, i, j, k, l, m, o);
  }
  if constexpr (n == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p] = t;
    visit(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p);
  }
  if constexpr (n == 16) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q] = t;
    visit(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q);
  }
  // clang-format on
}

namespace key_internal {

template <class T>
concept HasKey = requires(const T& t) {
  { t.key() } -> std::convertible_to<std::string>;
};
template <class T>
concept IsPointer = requires(const T& t) {
  *t, t.get();
};
template <class T>
concept IsList = requires(const T& t) {
  std::as_bytes(std::span(t));
};

// Fields are integers, enums, lists of these, types with a key(), pointers, and structs of all of
// them.
template <class T>
void AppendKey(const T& t, std::string* key) {
  if constexpr (std::is_enum_v<T>) {
    absl::StrAppend(key, " ", static_cast<int64_t>(t));
  } else if constexpr (std::is_integral_v<T>) {
    absl::StrAppend(key, " ", t);
  } else if constexpr (HasKey<T>) {
    absl::StrAppend(key, " (", t.key(), ")");
  } else if constexpr (IsPointer<T>) {
    if (t == nullptr) {
      absl::StrAppend(key, " none");
    } else {
      AppendKey(*t, key);
    }
  } else if constexpr (IsList<T>) {
    static_assert(std::has_unique_object_representations_v<typename T::value_type>);
    absl::StrAppend(key, " ", Fingerprint(std::as_bytes(std::span(t))));
  } else {
    static_assert(std::is_aggregate_v<T>);
    VisitFields(t, [key](const auto&... fields) { (AppendKey(fields, key), ...); });
  }
}

}  // namespace key_internal

// Equal for equal `t`, else different. `name` must be unique to the type and its use.
template <class T>
std::string KeyOf(absl::string_view name, const T& t) {
  std::string key(name);
  key_internal::AppendKey(t, &key);
  return key;
}

}  // namespace attnd
