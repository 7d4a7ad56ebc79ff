// Helpers for the groups of command line options.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace attnd {

// A validator whose rule is stated by the text of its option: the help adds no description.
template <class V>
CLI::Validator Quiet(V validator) {
  validator.description("");
  return validator;
}

// Seconds: 5s, 500ms, 2min, 1h.
inline CLI::AsNumberWithUnit Time() {
  const std::map<std::string, double> units = {
      {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}};
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_INSENSITIVE);
}

}  // namespace attnd
