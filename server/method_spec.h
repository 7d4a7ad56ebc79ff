// The options of a method as sent: from the oneof of MethodSpec to the kernels' OptionMap.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "attn/v1/methods.pb.h"
#include "kernels/core/status.h"
#include "kernels/method/options.h"

namespace attnd {

struct DecodedSpec {
  std::string method;  // name of the field that is set in the oneof; empty: none
  OptionMap options;   // those that are present
  absl::Status status;
};

// The status tells everything that is wrong with the choice of the method and with its options.
DecodedSpec DecodeSpec(const attn::v1::MethodSpec& spec);

// The options that are present in a method's message. By reflection: a new method needs nothing
// here. Refuses unknown fields and what no OptionValue can hold. An unknown enum number passes as
// its decimal text, for the method to refuse in its own words.
OptionMap DecodeOptions(const google::protobuf::Message& message, Reasons* reasons);

}  // namespace attnd
