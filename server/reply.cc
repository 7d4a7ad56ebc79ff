#include "server/reply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/method/method.h"
#include "proto/wire/codec.h"
#include "proto/wire/scratch.h"

namespace attnd {
namespace {

namespace v1 = attn::v1;

v1::DType::Value ToProto(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DType::float32;
    case DType::kF16:
      return v1::DType::float16;
    case DType::kBF16:
      return v1::DType::bfloat16;
    case DType::kI32:
      return v1::DType::int32;
    case DType::kU8:
      return v1::DType::uint8;
  }
  return v1::DType::unspecified;
}

void Describe(const OutputInfo& info, v1::Tensor* tensor) {
  tensor->set_name(info.name);
  tensor->set_dtype(ToProto(info.dtype));
  Shape stored = info.shape;
  if (info.layout == Layout::kBNHD && stored.rank == 4) {
    tensor->set_layout(v1::Layout::BNHD);
    std::swap(stored.dims[1], stored.dims[2]);
  }
  for (int i = 0; i < stored.rank; ++i) tensor->add_shape(stored[i]);
}

template <class Reply>
std::string Head(absl::string_view id, std::span<const OutputInfo> tensors, const v1::Stats& stats,
                 std::span<const std::string> notes) {
  Scratch<Reply> reply;
  reply->set_id(std::string(id));
  for (size_t i = 0; i < tensors.size(); ++i) {
    v1::Tensor* tensor = reply->add_tensors();
    Describe(tensors[i], tensor);
    tensor->set_raw_index(static_cast<uint32_t>(i));
  }
  *reply->mutable_stats() = stats;
  reply->mutable_notes()->Assign(notes.begin(), notes.end());
  return reply->SerializeAsString();
}

void Describe(const OptionInfo& option, v1::OptionInfo* described) {
  described->set_name(option.name);
  described->set_type(std::string(Name(option.type)));
  described->set_default_value(option.default_text);
  described->set_range(option.range);
  for (const std::string& value : option.enum_values) described->add_enum_values(value);
  described->set_help(option.help);
  described->set_served(option.served);
}

void Describe(const TensorInfo& tensor, v1::TensorInfo* described) {
  described->set_name(tensor.name);
  described->set_shape(tensor.shape);
  described->set_dtype(tensor.dtype);
  described->set_help(tensor.help);
  described->set_required(tensor.required);
  described->set_differentiable(tensor.differentiable);
  described->set_served(tensor.served);
}

void Describe(const Support& support, std::span<const std::string> devices,
              v1::Support* described) {
  described->set_causal(support.causal);
  described->set_lengths(support.lengths);
  described->set_cross(support.cross);
  described->set_gqa(support.gqa);
  described->set_lse(support.lse);
  described->set_backward(support.backward);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    described->add_dtypes(std::string(Name(dtype)));
  }
  for (const std::string& device : devices) described->add_devices(device);
}

void Describe(const MethodInfo& info, std::span<const std::string> devices,
              v1::MethodInfo* described) {
  described->set_id(info.id);
  described->set_summary(info.summary);
  described->set_reference(info.reference);
  described->set_cost(info.cost);
  for (const OptionInfo& option : info.options) Describe(option, described->add_options());
  for (const TensorInfo& tensor : info.inputs) Describe(tensor, described->add_inputs());
  for (const TensorInfo& tensor : info.outputs) Describe(tensor, described->add_outputs());
  Describe(info.support, devices, described->mutable_support());
}

}  // namespace

std::string EncodeReplyHead(Direction direction, absl::string_view id,
                            std::span<const OutputInfo> tensors, const v1::Stats& stats,
                            std::span<const std::string> notes) {
  return direction == Direction::kForward ? Head<v1::ForwardReply>(id, tensors, stats, notes)
                                          : Head<v1::BackwardReply>(id, tensors, stats, notes);
}

std::string EncodeRunHead(absl::string_view id, Direction direction, absl::string_view reply) {
  const int field = direction == Direction::kForward ? v1::RunReply::kForwardFieldNumber
                                                     : v1::RunReply::kBackwardFieldNumber;
  const auto size = [](absl::string_view text) { return static_cast<int64_t>(text.size()); };
  return absl::StrCat(FieldHeader(v1::RunReply::kIdFieldNumber, size(id)), id,
                      FieldHeader(field, size(reply)), reply);
}

v1::ListMethodsReply DescribeMethods(std::span<const std::unique_ptr<Method>> methods,
                                     std::span<const std::string> devices) {
  v1::ListMethodsReply reply;
  for (const auto& method : methods) Describe(method->info(), devices, reply.add_methods());
  return reply;
}

v1::EstimateReply DescribePlan(const Plan& plan, absl::string_view device) {
  v1::EstimateReply reply;
  reply.set_seconds(plan.seconds);
  reply.set_flops(plan.flops);
  reply.set_visible_pairs(plan.visible_pairs);
  reply.set_workspace_bytes(plan.workspace_bytes);
  reply.set_input_bytes(plan.input_bytes);
  reply.set_output_bytes(plan.output_bytes);
  reply.set_device(std::string(device));
  reply.mutable_notes()->Assign(plan.notes.begin(), plan.notes.end());
  if (plan.estimates_pairs) {
    reply.add_notes(absl::StrCat(
        plan.method->info().id,
        ": visible_pairs and flops are estimates: values that only a run reads decide them, or "
        "more lengths than a plan describes; Stats of the run have the exact ones"));
  }
  return reply;
}

v1::ServerInfoReply DescribeServer(const ServerFacts& facts) {
  v1::ServerInfoReply reply;
  reply.set_version(facts.version);
  reply.set_uptime_seconds(facts.uptime_seconds);
  for (size_t i = 0; i < facts.devices.size(); ++i) {
    const DeviceInfo& device = facts.devices[i];
    v1::DeviceInfo* described = reply.add_devices();
    described->set_name(device.name);
    described->set_description(device.description);
    described->set_peak_flops(device.peak_flops);
    described->set_bytes_per_second(device.bytes_per_second);
    if (i >= facts.self_tests.size()) continue;
    described->set_self_test_seconds(facts.self_tests[i].seconds);
    for (const SelfTestRow& row : facts.self_tests[i].rows) {
      v1::SelfTest* test = described->add_self_tests();
      test->set_primitive(row.primitive);
      test->set_dtype(row.dtype);
      test->set_launches(row.launches);
      test->set_worst_error(row.worst_error);
      test->set_failure(row.failure);
      test->set_declined(row.is_declined);
    }
  }
  reply.set_max_message_bytes(facts.max_message_bytes);
  reply.set_budget_bytes(facts.budget_bytes);
  reply.set_max_queue_requests(facts.max_queue_requests);
  reply.set_note(facts.note);
  for (const std::string& device : facts.unusable_devices) reply.add_unusable_devices(device);
  return reply;
}

}  // namespace attnd
