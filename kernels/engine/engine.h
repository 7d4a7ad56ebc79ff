// Public entry of the kernels library: plan a request, execute a batch of planned requests.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/method/info.h"
#include "kernels/method/problem.h"

namespace attnd {

class Method;  // kernels/method/method.h

// A request as sent. Tensors by spec name: "q", "k", "v", "kv_lengths", ...; for a backward also
// the gradients of outputs: "grad_out", "grad_lse", "grad_<name>".
// `data` of a view may be null except for int32 tensors of rank 1, whose values Plan reads.
struct Call {
  std::string method;
  OptionMap options;
  Direction direction = Direction::kForward;
  // Of a backward. False: equal calls may give other bits, since a library of the device may add
  // the gradients of attention up in any order (AttendGradArgs::is_deterministic); sooner, then.
  bool is_deterministic = true;
  std::map<std::string, View> tensors;
  std::string device;  // DeviceInfo::name; empty: any
};

struct OutputInfo {
  std::string name;  // forward: "out", "lse", ...; backward: the input's name, "q", "k", "v", ...
  DType dtype = DType::kF32;
  Layout layout = Layout::kBHND;
  Shape shape;
};

// Everything known about a request before it runs. Immutable, thread safe, shared.
struct Plan {
  const Method* method = nullptr;
  Direction direction = Direction::kForward;
  bool is_deterministic = true;  // as the call; of a forward true
  size_t device = 0;             // Engine::device(): where it runs
  OptionsHandle options;
  std::map<std::string, View> tensors;  // as sent, data only of small integer tensors (owned)
  std::vector<std::vector<int32_t>> integers;  // what those views point to
  ProblemShape shape;                          // points into this plan
  std::vector<OutputInfo> outputs;
  // Sentences "method: ..." on what is legal and seldom meant, each once.
  std::vector<std::string> notes;
  std::string bucket;       // plans with equal buckets may run in one batch
  int64_t input_bytes = 0;  // of all tensors
  int64_t output_bytes = 0;
  int64_t workspace_bytes = 0;  // upper bound of the memory that Execute takes, outputs included
  // Upper bound of what the host keeps for the request while it runs: patterns in both directions,
  // values of index tensors, lists, options, results where the device's memory is not the host's.
  int64_t host_bytes = 0;
  int64_t tokens = 0;  // B * Nq
  // Summed over sequences and query heads.
  double visible_pairs = 0;
  double flops = 0;
  // Whether both are estimates: values that a plan does not read decide which pairs are visible, or
  // draws, or more sequences differ in length than a plan describes (seq_groups.h). Else a run
  // counts as many.
  bool estimates_pairs = false;
  // Predicted compute time, alone on an idle device; where its memory is not the host's, with the
  // time that inputs and results take on their way.
  double seconds = 0;

  Plan() = default;
  Plan(const Plan&) = delete;  // `shape` points to `tensors`
  Plan& operator=(const Plan&) = delete;
};

// One request of a batch. Its tensors have data, in memory of the plan's device; those of int32 and
// uint8, from which patterns are built, in host memory that holds it already. Views match the
// plan's.
struct Problem {
  std::shared_ptr<const Plan> plan;
  std::map<std::string, View> tensors;
};

// One tensor of a result, in host memory; `buffer` keeps it alive.
struct Result {
  OutputInfo info;
  View view;
  std::shared_ptr<Buffer> buffer;
};

// What a problem of a batch took. Its plan has the same figures, unless data other than lengths
// decide.
struct ProblemCost {
  double visible_pairs = 0;  // as Plan::visible_pairs
  double flops = 0;
};

struct Execution {
  std::vector<std::vector<Result>> results;  // [problem], in the order of plan->outputs
  std::vector<ProblemCost> costs;            // [problem]
  int64_t peak_workspace_bytes = 0;          // of the whole batch, as counted
};

// Whether a plan reads the values of the tensor of this name: lengths, offsets and packed
// sequences. Values of all others are checked when the request runs, with the same messages.
bool PlanReads(absl::string_view tensor);

// An upper bound of what planning `call` for one device takes, in steps: a thousand of them take
// less than a millisecond on one thread. It follows from the lists whose elements a plan reads
// (lengths, ends of packed sequences, option lists), never from sizes. Cheap itself.
int64_t PlanWork(const Call& call);
// Plans of at most so much work need no thread of their own.
constexpr int64_t kSmallPlanWork = 1000;

struct EngineOptions {
  bool keep_plans = true;  // for equal calls (plan_cache.h)
  // Freed host memory that is kept for reuse, beside devices whose memory is not the host's.
  int64_t host_retain_bytes = int64_t{4} << 30;
};

// Owns the devices. Thread safe.
class Engine {
 public:
  // REQUIRES: at least one device, each of a name of its own.
  explicit Engine(std::vector<std::unique_ptr<Device>> devices, const EngineOptions& options = {});
  ~Engine();

  size_t devices() const;
  Device& device(size_t i = 0);
  // Of the patterns that are kept for the next request, on the host.
  int64_t cached_pattern_bytes() const;
  // Of the tables drawn from seeds that are kept for the next request, on the host.
  int64_t cached_draw_bytes() const;
  // Host memory of results and integers beside devices whose memory is not the host's; else
  // nothing.
  PoolStats host_memory() const;
  // BufferPool::Trim of every device's memory and the host's.
  void TrimMemory(int64_t least);

  // Validates and predicts without touching tensor data (but lengths and offsets): a dry run of the
  // formula. No work proportional to N. All reasons at once: INVALID_ARGUMENT or UNIMPLEMENTED.
  // `control`, if given, ends it early: CANCELLED. Of a call that names no device, the plan of the
  // device that is predicted to take the fewest seconds.
  absl::StatusOr<std::shared_ptr<const Plan>> MakePlan(const Call& call,
                                                       RunControl* control = nullptr);
  // The plans of each device that the call may run on, in the order of the devices; never none. An
  // error is that of the first device.
  absl::StatusOr<std::vector<std::shared_ptr<const Plan>>> MakePlans(const Call& call,
                                                                     RunControl* control = nullptr);

  // Whether Upload copies a tensor of this type to host_memory(), not to the memory of the device.
  static bool StaysOnHost(const Stream& stream, DType dtype);
  // A tensor where Execute wants it (Problem), with the bytes of its dense array, given in pieces
  // of any alignment. `source` keeps the pieces alive and is released once they have been read;
  // null: the caller keeps them alive until `stream` has waited. Errors: RESOURCE_EXHAUSTED,
  // CANCELLED.
  absl::StatusOr<std::shared_ptr<Buffer>> Upload(Stream& stream, DType dtype,
                                                 std::span<const std::span<const std::byte>> pieces,
                                                 std::shared_ptr<const void> source);
  // Returns when all uploads of `stream` have ended; an upload that ran later fails here. After an
  // error the contents of its tensors are undefined. Errors: those of Upload, INTERNAL.
  absl::Status WaitForUploads(Stream& stream);

  // Runs on `stream`, which is of the plans' device and whose workspace is reset first. Returns
  // when the results have arrived. A problem's result does not depend on the others of the batch.
  // Errors: INVALID_ARGUMENT if the plans' buckets differ or the stream is of another device,
  // RESOURCE_EXHAUSTED when memory ends, CANCELLED when the stream's RunControl stopped it. After
  // an error all memory that the run took is freed. No exception escapes.
  absl::StatusOr<Execution> Execute(Stream& stream, std::span<const Problem> batch);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
