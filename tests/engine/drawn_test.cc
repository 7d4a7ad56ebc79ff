// Methods that draw a table where it is not sent: runs on an engine, and what is refused.
#include "kernels/method/drawn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/engine/validate.h"
#include "kernels/ops/ops.h"
#include "tests/device/test_device.h"
#include "tests/engine/cpu_engine.h"
#include "tests/engine/placed.h"
#include "tests/plain/check_observer.h"

namespace attnd::testing {
namespace {

struct DrawnOptions {
  uint64_t seed = 1;
};

DrawParams ParamsOf(uint64_t seed) { return {.seed = seed, .name = "w"}; }
Shape TableOf(const ProblemShape& problem) { return {1, 1, problem.Nq, problem.D}; }

// out = q * w.
class DrawnProduct final : public MethodOf<DrawnOptions> {
 public:
  DrawnProduct() : MethodOf(Info(), {}) {}

 private:
  static MethodInfo Info() {
    return {.id = "drawn_product",
            .inputs = {{.name = "q", .shape = "[B,H,Nq,D]", .differentiable = true},
                       {.name = "w", .shape = "[1,1,Nq,D]"}},
            .outputs = {{.name = "out", .shape = "[B,H,Nq,D]"}}};
  }
  Outputs Formula(Ops& ops, const Inputs& in, const DrawnOptions& o) const override {
    std::vector<Shape> shapes;
    for (const ProblemShape& problem : in.problems) shapes.push_back(TableOf(problem));
    const Tensor w = SentOrDrawn(ops, in, "w", ParamsOf(o.seed), shapes);
    return {.out = ops.Apply(ElementOp::kMultiply, in.q, w)};
  }
};

// A request of that method with its plan.
struct DrawnRequest {
  std::map<std::string, std::vector<float>> data;
  std::map<std::string, View> tensors;
  std::shared_ptr<const Plan> plan;

  DrawnRequest(const Shape& shape, Direction direction, uint64_t seed, bool sends_table = false) {
    static const DrawnProduct method;
    Add("q", shape, DrawTable({.seed = seed, .name = "q"}, shape));
    if (direction == Direction::kBackward) {
      Add("grad_out", shape, DrawTable({.seed = seed, .name = "g"}, shape));
    }
    const Shape table = TableOf(ShapeOf(method.info(), tensors));
    if (sends_table) Add("w", table, DrawTable(ParamsOf(seed), table));
    auto made = std::make_shared<Plan>();
    made->method = &method;
    made->direction = direction;
    made->options = std::make_shared<DrawnOptions>(DrawnOptions{seed});
    made->tensors = tensors;
    made->shape = ShapeOf(method.info(), made->tensors);
    const char* result = direction == Direction::kForward ? "out" : "q";
    made->outputs = {{result, DType::kF32, Layout::kBHND, shape}};
    plan = std::move(made);
  }
  void Add(const std::string& name, const Shape& shape, std::vector<float> values) {
    data[name] = std::move(values);
    tensors[name] = DenseView(data[name].data(), DType::kF32, shape);
  }
};

absl::StatusOr<Execution> RunBatch(Engine& engine, const std::vector<const DrawnRequest*>& requests,
                                   RunControl* control = nullptr) {
  Stream stream(engine.device(), &engine.device().memory(), control);
  std::vector<Problem> batch;
  for (const DrawnRequest* request : requests) batch.push_back({request->plan, request->tensors});
  return ExecutePlaced(engine, stream, std::move(batch));
}

std::vector<float> ValuesOf(const absl::StatusOr<Execution>& execution, size_t problem = 0) {
  EXPECT_TRUE(execution.ok()) << execution.status();
  if (!execution.ok()) return {};
  const View& view = execution->results.at(problem).at(0).view;
  return {view.As<float>(), view.As<float>() + view.shape.size()};
}

// q * w, or the gradient of q.
std::vector<float> Want(const DrawnRequest& request) {
  const ProblemShape& shape = request.plan->shape;
  const std::vector<float> w =
      DrawTable(ParamsOf(static_cast<const DrawnOptions*>(request.plan->options.get())->seed),
                TableOf(shape));
  const bool is_forward = request.plan->direction == Direction::kForward;
  std::vector<float> want = request.data.at(is_forward ? "q" : "grad_out");
  for (size_t e = 0; e < want.size(); ++e) want[e] *= w[e % w.size()];
  return want;
}

constexpr Direction kDirections[] = {Direction::kForward, Direction::kBackward};
const Shape kShape = {2, 3, 131, 65};

class Drawn : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Engine> engine_ = EngineOn(NewTestDevice(GetParam()));
};
INSTANTIATE_TEST_SUITE_P(Devices, Drawn, ::testing::Values("cpu", "strict"),
                         [](const auto& info) { return info.param; });

TEST_P(Drawn, ASentTableGivesTheBitsOfItsSeed) {
  for (const Direction direction : kDirections) {
    const DrawnRequest draws(kShape, direction, /*seed=*/7);
    const DrawnRequest sends(kShape, direction, /*seed=*/7, /*sends_table=*/true);
    const std::vector<float> drawn = ValuesOf(RunBatch(*engine_, {&draws}));
    const int64_t kept = engine_->cached_draw_bytes();
    EXPECT_EQ(drawn, Want(draws));
    EXPECT_EQ(ValuesOf(RunBatch(*engine_, {&sends})), drawn);
    EXPECT_EQ(engine_->cached_draw_bytes(), kept);
  }
  // The values sent count, not the seed.
  DrawnRequest other(kShape, Direction::kForward, /*seed=*/7, /*sends_table=*/true);
  for (float& x : other.data["w"]) x = 0;
  EXPECT_EQ(ValuesOf(RunBatch(*engine_, {&other})),
            std::vector<float>(other.data["q"].size(), 0.0f));
}

TEST_P(Drawn, ABatchGivesTheBitsOfEachAlone) {
  for (const Direction direction : kDirections) {
    const DrawnRequest a(kShape, direction, /*seed=*/7), b({1, 1, 64, 65}, direction, 7),
        c({1, 2, 131, 65}, direction, 7);
    const std::vector<const DrawnRequest*> batch = {&a, &b, &c, &a};
    const auto together = RunBatch(*engine_, batch);
    for (size_t p = 0; p < batch.size(); ++p) {
      SCOPED_TRACE(p);
      EXPECT_EQ(ValuesOf(together, p), Want(*batch[p]));
      EXPECT_EQ(ValuesOf(RunBatch(*engine_, {batch[p]})), Want(*batch[p]));
    }
  }
}

// Symptom: every request of one seed drew its table.
TEST_P(Drawn, RequestsOfOneSeedDrawOnce) {
  std::atomic<int64_t> checks = 0;
  const CheckObserver observer([&] { return ++checks < 0; });
  const DrawnRequest request({1, 1, 1024, 256}, Direction::kForward, /*seed=*/7);
  const auto checks_of_a_run = [&] {
    checks = 0;
    const auto control = observer.NewRun();
    EXPECT_EQ(ValuesOf(RunBatch(*engine_, {&request}, control.get())), Want(request));
    return checks.load();
  };
  const int64_t before = engine_->cached_draw_bytes();
  const int64_t first = checks_of_a_run();
  const int64_t kept = engine_->cached_draw_bytes() - before;
  EXPECT_GE(kept, 4 * 1024 * 256);
  EXPECT_LE(checks_of_a_run(), first - (1024 * 256 >> 10));
  EXPECT_EQ(engine_->cached_draw_bytes() - before, kept);
  const DrawnRequest other({1, 1, 1024, 256}, Direction::kForward, /*seed=*/8);
  EXPECT_EQ(ValuesOf(RunBatch(*engine_, {&other})), Want(other));
  EXPECT_EQ(engine_->cached_draw_bytes() - before, 2 * kept);
}

TEST_P(Drawn, ARunThatIsStoppedWhileItDrawsIsCancelled) {
  const DrawnRequest request({1, 1, 1024, 256}, Direction::kForward, /*seed=*/7);
  const int64_t before = engine_->cached_draw_bytes();
  {
    std::atomic<int64_t> checks = 0;
    const CheckObserver observer([&] { return ++checks >= 100; });
    const auto control = observer.NewRun();
    EXPECT_EQ(RunBatch(*engine_, {&request}, control.get()).status(),
              absl::CancelledError("request: stopped"));
  }
  EXPECT_EQ(engine_->cached_draw_bytes(), before);
  EXPECT_EQ(engine_->device().memory().stats().used_bytes, 0);
  EXPECT_EQ(ValuesOf(RunBatch(*engine_, {&request})), Want(request));
}

TEST_P(Drawn, TwoRunsAtOnceUseTheSameNumbers) {
  const DrawnRequest request(kShape, Direction::kForward, /*seed=*/7);
  Meeting drawing;
  static thread_local bool waits = false;
  const CheckObserver observer([&] {
    if (std::exchange(waits, false)) {
      EXPECT_TRUE(drawing.Come());
    }
    return false;
  });
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 2; ++lane) {
    lanes.emplace_back([&] {
      const auto control = observer.NewRun();
      waits = true;
      EXPECT_EQ(ValuesOf(RunBatch(*engine_, {&request}, control.get())), Want(request));
    });
  }
  for (std::thread& lane : lanes) lane.join();
}

std::string RefusalOf(const DrawParams& params, const Shape& shape, bool is_sent = false) {
  std::map<std::string, View> tensors;
  if (is_sent) tensors["w"] = DenseView(nullptr, DType::kF32, {1});
  Reasons reasons("method");
  CheckDrawn({.tensors = &tensors}, "w", params, shape, &reasons);
  if (reasons.empty()) return "";
  EXPECT_EQ(reasons.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(reasons.status().message());
}

TEST(CheckDrawn, RefusesMoreElementsThanTheBound) {
  const DrawParams normal = {.name = "of the stream"};
  EXPECT_EQ(RefusalOf(normal, {kMostDrawn}), "");
  EXPECT_EQ(RefusalOf(normal, {1 << 12, 1 << 12}), "");
  EXPECT_EQ(RefusalOf(normal, {kMostDrawn + 1}),
            "method: w must be sent where it has more than 16777216 elements, got 16777217");
  EXPECT_EQ(RefusalOf(normal, {1 << 16, 1 << 30, 1 << 30}),
            "method: w must be sent where it has more than 16777216 elements, got "
            "9223372036854775807");
  EXPECT_EQ(RefusalOf(normal, {kMostDrawn + 1}, /*is_sent=*/true), "");
}

TEST(CheckDrawn, RefusesMoreStepsOfOrthogonalRowsThanTheBound) {
  const DrawParams rows = {.distribution = Distribution::kOrthogonalRows};
  const Shape at_bound = {2, 256, 4096}, above = {2, 257, 4096};
  ASSERT_EQ(CostOfDraw(rows, at_bound).steps, kMostDrawSteps);
  EXPECT_EQ(RefusalOf(rows, at_bound), "");
  EXPECT_EQ(RefusalOf(rows, above),
            "method: w must be sent where m^2 D + 16 D^2 over its blocks of m <= D orthogonal rows "
            "is more than 1073741824, got 1077944320");
  EXPECT_EQ(RefusalOf(rows, above, /*is_sent=*/true), "");
  EXPECT_EQ(RefusalOf({.distribution = Distribution::kNormal}, above), "");
  // One reason is enough.
  EXPECT_EQ(RefusalOf(rows, {1 << 12, (1 << 12) + 1}),
            "method: w must be sent where it has more than 16777216 elements, got 16781312");
}

}  // namespace
}  // namespace attnd::testing
