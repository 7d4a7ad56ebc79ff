// Decodes the options of a method: from the oneof of MethodSpec to the kernels' OptionMap.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "attn/v1/methods.pb.h"
#include "kernels/core/status.h"
#include "kernels/method/options.h"

namespace attnd {

struct DecodedSpec {
  std::string method;  // name of the field that is set in the oneof; empty: none is
  OptionMap options;   // those that the message sets
  absl::Status status;
};

// The status lists all errors in the choice of the method and in its options.
DecodedSpec DecodeSpec(const attn::v1::MethodSpec& spec);

// The options that a method's message sets. Uses reflection, so a new method needs no code here.
// Refuses unknown fields and types that no OptionValue can hold. An unknown enum number becomes its
// decimal text, which the method refuses.
OptionMap DecodeOptions(const google::protobuf::Message& message, Reasons* reasons);

}  // namespace attnd
