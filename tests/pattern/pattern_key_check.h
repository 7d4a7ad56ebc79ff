// Varies the fields of a source one at a time: where the built patterns differ, the keys must, too.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "kernels/pattern/shapes/seq.h"
#include "tests/pattern/pattern_check.h"

namespace attnd {

// Whether two patterns are equal in all that equal keys guarantee.
inline bool IsSame(const Pattern& a, const Pattern& b) {
  return a.Nq == b.Nq && a.Nk == b.Nk && a.by_query.begin == b.by_query.begin &&
         a.by_query.runs == b.by_query.runs && a.masks == b.masks && a.terms == b.terms &&
         a.query_rows == b.query_rows && a.key_rows == b.key_rows && a.key_bias == b.key_bias &&
         a.keys_of == b.keys_of;
}

// Calls use(field) for each field of `t` while that alone is changed; nested ones are ".2.0".
template <class T>
void Vary(T& t, const std::string& name, const std::function<void(const std::string&)>& use) {
  const auto with = [&](T value) {
    std::swap(t, value);
    use(name);
    std::swap(t, value);
  };
  if constexpr (std::is_same_v<T, bool>) {
    with(!t);
  } else if constexpr (std::is_enum_v<T>) {
    for (int value = 0; value < 3; ++value) with(static_cast<T>(value));
  } else if constexpr (std::is_integral_v<T>) {
    with(t + 1);
    if (t > 1) with(t - 1);
  } else if constexpr (key_internal::IsList<T>) {
    if (t.empty()) return;
    if constexpr (std::is_integral_v<typename T::value_type>) with(T(t.rbegin(), t.rend()));
    Vary(t.back(), name, use);
  } else {
    int field = 0;
    VisitFields(t, [&](auto&... fields) {
      (Vary(fields, name + "." + std::to_string(field++), use), ...);
    });
  }
}

struct Found {
  std::set<std::string> all, decisive;  // the varied fields; those that changed a pattern
};

// Checks the result of `source` for every variation of `base`; nullopt: the variation is invalid.
template <class P>
void Check(
    const std::type_identity_t<std::function<std::optional<PatternSource>(const P&)>>& source,
    P base, Found* found) {
  const PatternSource first = *source(base);
  const Pattern pattern = first.build();
  ASSERT_EQ(pattern.computed_masks, nullptr) << "IsSame compares what is stored";
  Vary<P>(base, "", [&](const std::string& field) {
    found->all.insert(field);
    const std::optional<PatternSource> varied = source(base);
    if (!varied.has_value()) return;
    const bool is_same = varied->build != nullptr && IsSame(varied->build(), pattern);
    if (is_same) return;
    found->decisive.insert(field);
    EXPECT_NE(varied->key, first.key) << "field " << field << " is not in the key " << first.key;
  });
}

inline PatternSeq Seq(int64_t Nq, int64_t Nk, bool causal) {
  return {.Nq = Nq, .Nk = Nk, .lengths = {Nq - 5, Nk - 3}, .offset = Nk - Nq, .causal = causal};
}
// No sequence has lengths beyond Nq and Nk.
inline bool IsValid(const PatternSeq& seq) {
  return seq.lengths.nq <= seq.Nq && seq.lengths.nk <= seq.Nk && seq.offset >= -seq.Nq;
}
inline std::optional<PatternSource> If(bool is_valid,
                                       const std::function<PatternSource()>& source) {
  return is_valid ? std::optional(source()) : std::nullopt;
}

// Fields that changed no pattern: the keys are not tested for these.
inline std::set<std::string> Undecided(const Found& found) {
  std::set<std::string> undecided = found.all;
  for (const std::string& field : found.decisive) undecided.erase(field);
  return undecided;
}
using Fields = std::set<std::string>;

}  // namespace attnd
