#include "kernels/method/common_inputs.h"

#include <utility>

namespace attnd {

std::vector<TensorInfo> CommonInputs() {
  return {
      {"q", "[B,H,Nq,D]", "float", "queries", /*required=*/true, /*differentiable=*/true},
      {"k", "[B,Hkv,Nk,D]", "float", "keys; Hkv divides H", /*required=*/true,
       /*differentiable=*/true},
      {"v", "[B,Hkv,Nk,Dv]", "float", "values", /*required=*/true, /*differentiable=*/true},
      {"q_lengths", "[B]", "int32", "0..Nq: rows beyond give out = 0, lse = -inf"},
      {"kv_lengths", "[B]", "int32", "0..Nk: keys beyond are never seen"},
  };
}

std::vector<TensorInfo> ValueInputs() {
  return {
      {"q", "[B,H,Nq,D]", "float", "not read"},
      {"k", "[B,Hkv,Nk,D]", "float", "not read"},
      {"v", "[B,Hkv,Nk,Dv]", "float", "values", /*required=*/true, /*differentiable=*/true},
      {"q_lengths", "[B]", "int32", "must equal kv_lengths"},
      {"kv_lengths", "[B]", "int32", "0..Nk: rows beyond are not read and give out = 0"},
  };
}

TensorInfo Differentiable(std::string name, std::string shape, std::string help,
                          std::string dtype) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .dtype = std::move(dtype),
          .help = std::move(help),
          .differentiable = true};
}

}  // namespace attnd
