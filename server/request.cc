#include "server/request.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "kernels/core/copy.h"
#include "kernels/method/registry.h"
#include "proto/wire/codec.h"
#include "server/method_spec.h"

namespace attnd {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors travel in little endian");

namespace v1 = attn::v1;
using TensorList = google::protobuf::RepeatedPtrField<v1::Tensor>;

constexpr size_t kMaxIdBytes = 256;
constexpr size_t kMaxNameBytes = 64;
constexpr int kMaxTensors = 256;

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

std::optional<DType> ToDType(v1::DType::Value dtype) {
  switch (dtype) {
    case v1::DType::float32:
      return DType::kF32;
    case v1::DType::float16:
      return DType::kF16;
    case v1::DType::bfloat16:
      return DType::kBF16;
    case v1::DType::int32:
      return DType::kI32;
    case v1::DType::uint8:
      return DType::kU8;
    default:  // unspecified, or a number that this version does not know
      return std::nullopt;
  }
}

std::string ShapeText(const v1::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ","), "]");
}

// Dimensions of 0 count as 1, so that strides fit, too. Empty: more than kMaxTensorBytes.
std::optional<int64_t> BytesOf(const v1::Tensor& tensor, DType dtype) {
  int64_t bytes = SizeOf(dtype);
  bool is_empty = false;
  for (int64_t d : tensor.shape()) {
    is_empty = is_empty || d == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes)) return std::nullopt;
  }
  if (bytes > kMaxTensorBytes) return std::nullopt;
  return is_empty ? 0 : bytes;
}

// Builds a request and collects its errors.
class Decoder {
 public:
  Decoder(Direction direction, const DecodeContext& context) : context_(context) {
    request_.call.direction = direction;
  }

  // The parts that Forward and Backward share.
  template <class Request>
  DecodedRequest Compute(const Request& request, std::vector<Spans> raw) {
    RefuseUnknownFields(request, "fields", &reasons_);
    Id(request.id());
    Priority(request.priority());
    Device(request.device());
    raw_ = std::move(raw);
    is_raw_used_.resize(raw_.size());
    Tensors(request.tensors());
    UnusedRaw();
    return Finish(request.method());
  }

  DecodedRequest Estimate(const v1::EstimateRequest& request) {
    is_estimate_ = true;
    RefuseUnknownFields(request, "fields", &reasons_);
    Device(request.device());
    if (request.raw_size() > static_cast<int>(kMaxRawEntries)) {
      request_.envelope = absl::InvalidArgumentError(absl::StrCat(
          "message: raw must have at most ", kMaxRawEntries, " entries, got ", request.raw_size()));
      request_.can_plan = false;
      return std::move(request_);
    }
    for (const std::string& raw : request.raw()) raw_.push_back({std::as_bytes(std::span(raw))});
    is_raw_used_.resize(raw_.size());
    Tensors(request.tensors());
    UnusedRaw();
    AssumeValues();
    return Finish(request.method());
  }

 private:
  void Id(const std::string& id) {
    if (id.size() > kMaxIdBytes) {
      reasons_.Invalid("id must be at most ", kMaxIdBytes, " bytes, got ", id.size());
    }
    request_.id = id;
  }

  void Priority(int priority) {
    if (priority < -kMaxPriority || priority > kMaxPriority) {
      reasons_.Invalid("priority must be ", -kMaxPriority, "..", kMaxPriority, ", got ", priority);
    } else if (priority > context_.max_priority) {
      reasons_.Invalid("priority must be <= ", context_.max_priority,
                       " from this address (--max-priority of the server), got ", priority);
    }
    request_.priority = priority;
  }

  void Device(const std::string& device) {
    const auto& served = context_.devices;
    if (device.empty()) {
      if (served.size() == 1) request_.device = request_.call.device = served[0];
      request_.devices = static_cast<int64_t>(served.size());
      return;
    }
    if (std::find(served.begin(), served.end(), device) == served.end()) {
      reasons_.Invalid("device must be ", absl::StrJoin(served, ", "), " or empty, got ",
                       Quoted(device));
    } else {
      request_.call.device = device;
    }
    request_.device = device;
  }

  void Tensors(const TensorList& tensors) {
    if (tensors.size() > kMaxTensors) {
      reasons_.Invalid("tensors must be at most ", kMaxTensors, ", got ", tensors.size());
      is_raw_used_.assign(raw_.size(), true);
      can_plan_ = false;
      return;
    }
    for (int i = 0; i < tensors.size(); ++i) Tensor(i, tensors[i]);
    for (const auto& [name, count] : counts_) {
      if (count > 1) {
        reasons_.Invalid("tensor \"", name, "\" must be sent at most once, got ", count);
      }
    }
  }

  void Tensor(int index, const v1::Tensor& tensor) {
    const bool is_named = IsName(tensor.name());
    const std::string label = is_named ? absl::StrCat("tensor \"", tensor.name(), "\" ")
                                       : absl::StrCat("tensors[", index, "] ");
    if (!is_named) {
      reasons_.Invalid(label, "name must be 1 to ", kMaxNameBytes, " letters, digits or _, got ",
                       Quoted(tensor.name()));
    }
    RefuseUnknownFields(tensor, label + "fields", &reasons_);
    const std::optional<View> view = Describe(label, tensor);
    const Spans* payload = IsDescribed(tensor) ? NoPayload(label, tensor) : Payload(label, tensor);
    bool is_usable = is_named && view.has_value();
    // Only the first of several with one name is used; the request is refused anyway.
    if (is_usable && ++counts_[tensor.name()] == 1) {
      is_usable = Add(label, tensor, *view, payload);
    }
    can_plan_ = can_plan_ && is_usable;
  }

  // Shape, dtype and layout without data.
  std::optional<View> Describe(const std::string& label, const v1::Tensor& tensor) {
    const std::optional<DType> dtype = ToDType(tensor.dtype());
    bool is_valid = dtype.has_value();
    if (!dtype.has_value()) {
      reasons_.Invalid(label, "dtype must be float32, float16, bfloat16, int32 or uint8, got ",
                       tensor.dtype() == v1::DType::unspecified
                           ? "unspecified"
                           : absl::StrCat("number ", tensor.dtype()));
    }
    if (!v1::Layout::Value_IsValid(tensor.layout())) {
      reasons_.Invalid(label, "layout must be BHND or BNHD, got number ", tensor.layout());
      is_valid = false;
    }
    if (tensor.shape_size() > 4) {
      reasons_.Invalid(label, "shape must have at most 4 dimensions, got ", tensor.shape_size());
      return std::nullopt;
    }
    const auto& dims = tensor.shape();
    if (std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d < 0; })) {
      reasons_.Invalid(label, "shape must not be negative, got ", ShapeText(tensor));
      return std::nullopt;
    }
    if (!is_valid) return std::nullopt;
    if (!BytesOf(tensor, *dtype).has_value()) {
      reasons_.Invalid(label, "shape must hold at most ", kMaxTensorBytes, " bytes, got ",
                       Name(*dtype), " ", ShapeText(tensor));
      return std::nullopt;
    }
    return ViewOf(tensor, *dtype);
  }

  // From the shape as stored to [B,H,N,D].
  static View ViewOf(const v1::Tensor& tensor, DType dtype) {
    Shape shape;
    shape.rank = tensor.shape_size();
    std::copy(tensor.shape().begin(), tensor.shape().end(), shape.dims.begin());
    const bool is_bnhd = shape.rank == 4 && tensor.layout() == v1::Layout::BNHD;
    if (is_bnhd) std::swap(shape.dims[1], shape.dims[2]);
    return DenseView(nullptr, dtype, shape, is_bnhd ? Layout::kBNHD : Layout::kBHND);
  }

  const Spans* Payload(const std::string& label, const v1::Tensor& tensor) {
    if (!tensor.has_raw_index()) {
      reasons_.Invalid(label, "raw_index must be set, got none");
      return nullptr;
    }
    if (tensor.raw_index() >= raw_.size()) {
      reasons_.Invalid(label, "raw_index must be below the number of payloads ", raw_.size(),
                       ", got ", tensor.raw_index());
      return nullptr;
    }
    is_raw_used_[tensor.raw_index()] = true;
    return &raw_[tensor.raw_index()];
  }

  // An estimate may have values only for tensors that a plan reads, and may leave them out.
  bool IsDescribed(const v1::Tensor& tensor) const {
    return is_estimate_ && !(tensor.has_raw_index() && PlanReads(tensor.name()));
  }

  const Spans* NoPayload(const std::string& label, const v1::Tensor& tensor) {
    if (tensor.has_raw_index()) {
      reasons_.Invalid(label, "raw_index must not be set in an estimate but of lengths, offsets ",
                       "and cu_seqlens, got ", tensor.raw_index());
      if (tensor.raw_index() < raw_.size()) is_raw_used_[tensor.raw_index()] = true;
    }
    return nullptr;
  }

  // False: the tensor cannot be described to the engine.
  bool Add(const std::string& label, const v1::Tensor& tensor, View view, const Spans* payload) {
    const bool is_whole = IsDescribed(tensor) || CheckPayload(label, tensor, view, payload);
    if (view.dtype == DType::kI32 && view.shape.rank == 1 && PlanReads(tensor.name())) {
      if (!is_whole || !ReadIntegers(label, payload, &view)) return false;
      if (payload == nullptr) assumed_.push_back(tensor.name());
    }
    request_.call.tensors[tensor.name()] = view;
    if (payload != nullptr && !is_estimate_) {
      request_.payloads[tensor.name()] = *payload;
      request_.payload_bytes += view.bytes();
    }
    return true;
  }

  bool CheckPayload(const std::string& label, const v1::Tensor& tensor, const View& view,
                    const Spans* payload) {
    if (payload == nullptr) return false;
    const int64_t bytes = SizeOf(*payload);
    if (bytes == view.bytes()) return true;
    reasons_.Invalid(label, "payload must be ", view.bytes(), " bytes for ", Name(view.dtype), " ",
                     ShapeText(tensor), ", got ", bytes);
    return false;
  }

  // Points `view` to the values, or to zeros if none are sent.
  bool ReadIntegers(const std::string& label, const Spans* payload, View* view) {
    const int64_t limit = payload == nullptr ? kMaxAssumedElements : kMaxIntegerElements;
    if (view->shape.size() > limit) {
      reasons_.Invalid(label, "shape must hold at most ", limit, " elements when it is int32 of ",
                       payload == nullptr ? "rank 1 and its values are not sent" : "rank 1",
                       ", got ", view->shape.size());
      return false;
    }
    // One more, so that data is not null for an empty tensor.
    std::vector<int32_t>& values = request_.integers.emplace_back(view->shape.size() + 1);
    view->data = values.data();
    if (payload == nullptr) return true;
    CopyPieces(*payload, values.data());
    return true;
  }

  void UnusedRaw() {
    for (size_t i = 0; i < raw_.size(); ++i) {
      if (is_raw_used_[i]) continue;
      reasons_.Invalid("raw[", i, "] must belong to a tensor, got ", SizeOf(raw_[i]),
                       " bytes that none refers to");
    }
  }

  // Fills in the values for which absent lengths and offsets stand, and sequences of equal lengths.
  void AssumeValues() {
    const int64_t nq = LengthOf("q", "v"), nk = LengthOf("k", "v");
    for (const std::string& name : assumed_) {
      if (name == "q_lengths") Fill(name, nq);
      if (name == "kv_lengths") Fill(name, nk);
      if (name == "mem_lengths") Fill(name, LengthOf("mem_k", "mem_v"));
      if (name == "cmem_lengths") Fill(name, LengthOf("cmem_k", "cmem_v"));
      if (name == "causal_offset") Fill(name, nk - nq);
      if (name == "cu_seqlens_q") Divide(name, nq);
      if (name == "cu_seqlens_k") Divide(name, nk);
    }
  }

  // Rows of a tensor, or of `other` where it was not sent.
  int64_t LengthOf(const std::string& name, const std::string& other) const {
    auto found = request_.call.tensors.find(name);
    if (found == request_.call.tensors.end()) found = request_.call.tensors.find(other);
    if (found == request_.call.tensors.end() || found->second.shape.rank != 4) return 0;
    return found->second.shape[2];
  }

  std::span<int32_t> ValuesOf(const std::string& name) const {
    const View& view = request_.call.tensors.at(name);
    return {view.As<int32_t>(), static_cast<size_t>(view.shape.size())};
  }

  static int32_t Clamped(int64_t value) {
    return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
  }

  void Fill(const std::string& name, int64_t value) {
    std::ranges::fill(ValuesOf(name), Clamped(value));
  }

  void Divide(const std::string& name, int64_t N) {
    const std::span<int32_t> bounds = ValuesOf(name);
    const int64_t S = static_cast<int64_t>(bounds.size()) - 1;
    for (int64_t i = 1; i <= S; ++i) bounds[i] = Clamped(i * N / S);
  }

  DecodedRequest Finish(const v1::MethodSpec& spec) {
    DecodedSpec decoded = DecodeSpec(spec);
    request_.envelope = MergeReasons(reasons_.status(), decoded.status);
    request_.call.method = std::move(decoded.method);
    request_.call.options = std::move(decoded.options);
    request_.can_plan = can_plan_;
    return std::move(request_);
  }

  const DecodeContext& context_;
  bool is_estimate_ = false;
  bool can_plan_ = true;
  Reasons reasons_{"request"};
  std::vector<Spans> raw_;
  std::vector<bool> is_raw_used_;
  std::map<std::string, int> counts_;
  std::vector<std::string> assumed_;  // tensors without values in an estimate
  DecodedRequest request_;
};

template <class Request>
bool IsDeterministic(const Request& request) {
  return !request.has_deterministic() || request.deterministic();
}

}  // namespace

DecodedRequest DecodeEnvelope(const v1::ForwardRequest& request, std::vector<Spans> raw,
                              const DecodeContext& context) {
  return Decoder(Direction::kForward, context).Compute(request, std::move(raw));
}

DecodedRequest DecodeEnvelope(const v1::BackwardRequest& request, std::vector<Spans> raw,
                              const DecodeContext& context) {
  DecodedRequest decoded = Decoder(Direction::kBackward, context).Compute(request, std::move(raw));
  decoded.call.is_deterministic = IsDeterministic(request);
  return decoded;
}

DecodedRequest DecodeEnvelope(const v1::EstimateRequest& request, const DecodeContext& context) {
  const auto direction = request.backward() ? Direction::kBackward : Direction::kForward;
  DecodedRequest decoded = Decoder(direction, context).Estimate(request);
  decoded.call.is_deterministic = IsDeterministic(request);
  return decoded;
}

}  // namespace attnd
