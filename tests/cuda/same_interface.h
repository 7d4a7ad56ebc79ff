// Whether what kernels/cuda declares of a library is what the library's header says.
#pragma once

#include <type_traits>

namespace attnd::testing {

template <class Ours, class Theirs>
constexpr bool IsSame(Ours ours, Theirs theirs) {
  return sizeof(Ours) == sizeof(Theirs) && static_cast<int>(ours) == static_cast<int>(theirs);
}

// Theirs names its own types: a function is called with as many arguments, each passed in the same
// way, if it converts to ours.
template <class To, class From>
constexpr bool PassesAs() {
  return sizeof(To) == sizeof(From) && std::is_pointer_v<To> == std::is_pointer_v<From> &&
         std::is_floating_point_v<To> == std::is_floating_point_v<From>;
}
template <class>
struct Same;
template <class R, class... A>
struct Same<R (*)(A...)> {
  template <class S, class... B>
  static constexpr bool As(S (*)(B...)) {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return PassesAs<R, S>() && (PassesAs<A, B>() && ...);
    } else {
      return false;
    }
  }
};

}  // namespace attnd::testing
