// The page /metrics: names, labels, values, and that promtool accepts it.
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/method/registry.h"
#include "tests/server/metrics_fixture.h"

namespace attnd {
namespace {

using testing::HasSubstr;
using testing::Not;

Metrics::Options TestOptions() {
  return {.version = "0.1.0",
          .isa = "AVX2",
          .devices = {{"cpu", 1e9}},
          .lanes = 2,
          .methods = {"local", "softmax"}};
}

TEST(Metrics, ACallCountsByMethodDirectionAndCode) {
  Metrics metrics(TestOptions());
  EXPECT_EQ(Value(metrics, R"(attnd_requests_total{code="OK",direction="forward",method="local"})"),
            0);
  metrics.RecordRequest("local", Direction::kForward, absl::StatusCode::kOk, 0.003);
  metrics.RecordRequest("local", Direction::kForward, absl::StatusCode::kOk, 0.004);
  metrics.RecordRequest("softmax", Direction::kBackward, absl::StatusCode::kInvalidArgument, 0.1);

  EXPECT_EQ(Value(metrics, R"(attnd_requests_total{code="OK",direction="forward",method="local"})"),
            2);
  EXPECT_EQ(
      Value(
          metrics,
          R"(attnd_requests_total{code="INVALID_ARGUMENT",direction="backward",method="softmax"})"),
      1);
  const std::string local = R"({code="OK",direction="forward",method="local")";
  EXPECT_EQ(Value(metrics, absl::StrCat("attnd_request_seconds_count", local, "}")), 2);
  const std::string bucket = absl::StrCat("attnd_request_seconds_bucket", local);
  EXPECT_EQ(Value(metrics, absl::StrCat(bucket, R"(,le="0.0025"})")), 0);
  EXPECT_EQ(Value(metrics, absl::StrCat(bucket, R"(,le="0.005"})")), 2);
  EXPECT_EQ(Value(metrics, absl::StrCat(bucket, R"(,le="600"})")), 2);
}

TEST(Metrics, NoLabelComesFromAClient) {
  Metrics metrics(TestOptions());
  for (int i = 0; i < 100; ++i) {
    metrics.RecordRequest(absl::StrCat("evil\"}\n", i), Direction::kForward,
                          static_cast<absl::StatusCode>(1000 + i), 0.1);
  }
  EXPECT_THAT(*metrics.Text(), Not(HasSubstr("evil")));
  EXPECT_EQ(Value(metrics,
                  R"(attnd_requests_total{code="UNKNOWN",direction="forward",method="unknown"})"),
            100);
}

TEST(Metrics, ABatchCountsItsRequestsTokensFlopsAndMemory) {
  Metrics metrics(TestOptions());
  Plan plan;
  plan.method = FindMethod("local");
  ASSERT_NE(plan.method, nullptr);
  plan.direction = Direction::kBackward;
  plan.tokens = 100;
  plan.flops = 5e8;
  metrics.RecordDispatch(Batcher::Reason::kFull);
  metrics.RecordBatch(1, {.method = "local",
                          .direction = Direction::kBackward,
                          .requests = 2,
                          .tokens = 200,
                          .peak_workspace_bytes = 1 << 20,
                          .flops = 1e9,
                          .compute_seconds = 2});
  for (int i = 0; i < 2; ++i) {
    metrics.RecordTask(plan, {.queue_seconds = 0.5,
                              .gather_seconds = 0.25,
                              .compute_seconds = 2,
                              .cost = {.flops = plan.flops}});
  }
  metrics.AddBusySeconds(1, 2.5);

  EXPECT_EQ(Value(metrics, R"(attnd_dispatch_total{reason="full"})"), 1);
  EXPECT_EQ(Value(metrics, R"(attnd_dispatch_total{reason="idle"})"), 0);
  EXPECT_EQ(Value(metrics, R"(attnd_batch_requests_sum{method="local"})"), 2);
  EXPECT_EQ(Value(metrics, R"(attnd_batch_requests_count{method="local"})"), 1);
  EXPECT_EQ(Value(metrics, R"(attnd_batch_tokens_sum{method="local"})"), 200);
  EXPECT_EQ(
      Value(metrics, R"(attnd_workspace_peak_bytes_sum{direction="backward",method="local"})"),
      1 << 20);
  EXPECT_EQ(
      Value(metrics, R"(attnd_tokens_total{device="cpu",direction="backward",method="local"})"),
      200);
  EXPECT_EQ(
      Value(metrics, R"(attnd_flops_total{device="cpu",direction="backward",method="local"})"),
      1e9);
  // Seconds of a batch count once for each of its requests, and once.
  EXPECT_EQ(
      Value(
          metrics,
          R"(attnd_batch_compute_seconds_total{device="cpu",direction="backward",method="local"})"),
      2);
  EXPECT_EQ(Value(metrics, R"(attnd_queue_seconds_sum{direction="backward",method="local"})"), 1);
  EXPECT_EQ(Value(metrics, R"(attnd_gather_seconds_sum{direction="backward",method="local"})"),
            0.5);
  EXPECT_EQ(Value(metrics, R"(attnd_compute_seconds_sum{direction="backward",method="local"})"), 4);
  EXPECT_EQ(Value(metrics, R"(attnd_lane_busy_seconds_total{device="cpu",lane="1"})"), 2.5);
  EXPECT_EQ(Value(metrics, R"(attnd_lane_efficiency_ratio{device="cpu",lane="1"})"), 0.5);
  EXPECT_EQ(Value(metrics, R"(attnd_lane_efficiency_ratio{device="cpu",lane="0"})"), 0);
}

TEST(Metrics, EfficiencyCoversTenSecondsOfCompute) {
  Metrics metrics(TestOptions());
  metrics.RecordBatch(0, {.method = "local", .flops = 1e9, .compute_seconds = 1});
  for (int i = 0; i < 50; ++i) {
    metrics.RecordBatch(0, {.method = "local", .flops = 1e8, .compute_seconds = 1});
  }
  EXPECT_NEAR(Value(metrics, R"(attnd_lane_efficiency_ratio{device="cpu",lane="0"})"), 0.1, 0.002);
}

TEST(Metrics, StatesAreReadWhenTheyAreAskedFor) {
  Metrics metrics(TestOptions());
  Batcher::Depth depth;
  metrics.SetSources(
      {.queue = [&] { return depth; },
       .memory =
           [] {
             return Metrics::Memory{
                 .devices = {{.pool = {.inputs = 1, .workspace = 2, .retained = 3, .peak = 4}}},
                 .budget = 5,
                 .charged = 6,
                 .pattern_cache = 7};
           },
       .parked = [] { return 3; },
       .connections =
           [] {
             return Metrics::Connections{.open = 8, .accepted = 9, .refused = 10, .cut_off = 11};
           },
       .stuck =
           [] {
             return Metrics::Stuck{{"lane 0", 3.5}};
           }});
  depth = {.requests = 7, .bytes = 1000, .oldest_seconds = 0.25};
  EXPECT_EQ(Value(metrics, "attnd_queue_requests"), 7);
  EXPECT_EQ(Value(metrics, "attnd_queue_bytes"), 1000);
  EXPECT_EQ(Value(metrics, "attnd_queue_oldest_seconds"), 0.25);
  EXPECT_EQ(Value(metrics, "attnd_parked_requests"), 3);
  double expected = 1;
  for (const char* name : {R"(attnd_memory_bytes{device="cpu",kind="inputs"})",
                           R"(attnd_memory_bytes{device="cpu",kind="workspace"})",
                           R"(attnd_memory_bytes{device="cpu",kind="retained"})",
                           R"(attnd_memory_peak_bytes{device="cpu"})", "attnd_budget_bytes",
                           "attnd_budget_charged_bytes", "attnd_pattern_cache_bytes",
                           "attnd_connections", "attnd_connections_accepted_total",
                           "attnd_connections_refused_total", "attnd_connections_cut_off_total"}) {
    EXPECT_EQ(Value(metrics, name), expected++) << name;
  }
  EXPECT_EQ(Value(metrics, R"(attnd_stuck_seconds{part="lane 0"})"), 3.5);
}

// Regression: everything counted for the first device.
TEST(Metrics, EachDeviceHasSeriesOfItsOwn) {
  Metrics metrics({.version = "0.1.0",
                   .isa = "AVX2",
                   .devices = {{"cpu", 1e9}, {"plain:0", 1e6}},
                   .lanes = 2,
                   .methods = {"local"}});
  metrics.SetSources({.memory = [] {
    return Metrics::Memory{
        .devices = {{.pool = {.inputs = 1, .workspace = 2, .retained = 3, .peak = 4}},
                    {.pool = {.inputs = 5, .workspace = 6, .retained = 7, .peak = 8},
                     .budget = 13,
                     .charged = 14}},
        .host = Metrics::PoolMemory{.inputs = 9, .workspace = 10, .retained = 11, .peak = 12}};
  }});
  Plan plan;
  plan.method = FindMethod("local");
  plan.device = 1;
  plan.tokens = 200;
  metrics.RecordTask(plan, {.cost = {.flops = 1e5}});
  metrics.RecordBatch(3, {.method = "local", .flops = 1e5, .compute_seconds = 1});
  metrics.AddBusySeconds(2, 2.5);

  const auto of_method = [](const char* name, const char* device) {
    return absl::StrCat(name, "{device=\"", device, "\",direction=\"forward\",method=\"local\"}");
  };
  EXPECT_EQ(Value(metrics, of_method("attnd_tokens_total", "cpu")), 0);
  EXPECT_EQ(Value(metrics, of_method("attnd_tokens_total", "plain:0")), 200);
  EXPECT_EQ(Value(metrics, of_method("attnd_flops_total", "cpu")), 0);
  EXPECT_EQ(Value(metrics, of_method("attnd_flops_total", "plain:0")), 1e5);
  EXPECT_EQ(Value(metrics, of_method("attnd_batch_compute_seconds_total", "cpu")), 0);
  EXPECT_EQ(Value(metrics, of_method("attnd_batch_compute_seconds_total", "plain:0")), 1);
  EXPECT_EQ(Value(metrics, R"(attnd_lane_busy_seconds_total{device="cpu",lane="1"})"), 0);
  EXPECT_EQ(Value(metrics, R"(attnd_lane_busy_seconds_total{device="plain:0",lane="2"})"), 2.5);
  EXPECT_EQ(Value(metrics, R"(attnd_lane_efficiency_ratio{device="plain:0",lane="3"})"), 0.1);
  double expected = 1;
  for (const char* device : {"cpu", "plain:0", "host"}) {
    const std::string label = absl::StrCat("{device=\"", device, "\"");
    for (const char* kind : {"inputs", "workspace", "retained"}) {
      EXPECT_EQ(Value(metrics, absl::StrCat("attnd_memory_bytes", label, ",kind=\"", kind, "\"}")),
                expected++);
    }
    EXPECT_EQ(Value(metrics, absl::StrCat("attnd_memory_peak_bytes", label, "}")), expected++);
  }
  EXPECT_EQ(Value(metrics, R"(attnd_device_budget_bytes{device="plain:0"})"), 13);
  EXPECT_EQ(Value(metrics, R"(attnd_device_budget_charged_bytes{device="plain:0"})"), 14);
  // The budget of the server covers the first device.
  EXPECT_EQ(Value(metrics, R"(attnd_device_budget_bytes{device="cpu"})"), -1);
  EXPECT_EQ(Value(metrics, R"(attnd_device_budget_charged_bytes{device="cpu"})"), -1);
}

TEST(Metrics, CallsOfEveryRpcAreOpenUntilTheyEnd) {
  Metrics metrics(TestOptions());
  metrics.SetRpcs({"/attn.v1.AttentionService/Run", "/grpc.health.v1.Health/Watch"});
  metrics.CallBegan("/attn.v1.AttentionService/Run");
  metrics.CallBegan("/attn.v1.AttentionService/Run");
  metrics.CallEnded("/attn.v1.AttentionService/Run", absl::StatusCode::kInvalidArgument);
  metrics.CallEnded("", absl::StatusCode::kUnimplemented);

  EXPECT_EQ(Value(metrics, R"(attnd_open_calls{rpc="attn.v1.AttentionService/Run"})"), 1);
  EXPECT_EQ(Value(metrics, R"(attnd_open_calls{rpc="grpc.health.v1.Health/Watch"})"), 0);
  EXPECT_EQ(Value(metrics, R"(attnd_calls_total{code="INVALID_ARGUMENT",)"
                           R"(rpc="attn.v1.AttentionService/Run"})"),
            1);
  EXPECT_EQ(Value(metrics, R"(attnd_calls_total{code="UNIMPLEMENTED",rpc="unknown"})"), 1);
}

TEST(Metrics, RefusalsBytesAndInflight) {
  Metrics metrics(TestOptions());
  metrics.RecordRefusal(Refusal::kQueueFull);
  metrics.RecordRefusal(Refusal::kInvalid);
  metrics.AddInflight(+1);
  metrics.AddInflight(+1);
  metrics.AddInflight(-1);
  metrics.AddReceivedBytes(1000);
  metrics.AddSentBytes(3000);
  for (const char* reason : {"queue_full", "invalid"}) {
    EXPECT_EQ(Value(metrics, absl::StrCat(R"(attnd_refused_total{reason=")", reason, R"("})")), 1);
  }
  for (const char* reason : {"bytes", "deadline", "cancelled", "draining", "seconds", "device"}) {
    EXPECT_EQ(Value(metrics, absl::StrCat(R"(attnd_refused_total{reason=")", reason, R"("})")), 0);
  }
  EXPECT_EQ(Value(metrics, "attnd_inflight_requests"), 1);
  EXPECT_EQ(Value(metrics, R"(attnd_received_bytes_total{transport="grpc"})"), 1000);
  EXPECT_EQ(Value(metrics, R"(attnd_sent_bytes_total{transport="grpc"})"), 3000);
}

TEST(Metrics, BuildAndProcess) {
  Metrics metrics(TestOptions());
  EXPECT_EQ(Value(metrics, R"(attnd_build_info{isa="AVX2",version="0.1.0"})"), 1);
  EXPECT_GT(Value(metrics, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(Value(metrics, "process_virtual_memory_bytes"),
            Value(metrics, "process_resident_memory_bytes"));
  EXPECT_GT(Value(metrics, "process_open_fds"), 2);
  EXPECT_GT(Value(metrics, "process_max_fds"), Value(metrics, "process_open_fds"));
  EXPECT_GE(Value(metrics, "process_threads"), 1);
  EXPECT_GE(Value(metrics, "process_cpu_seconds_total"), 0);
  const double started = Value(metrics, "process_start_time_seconds");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_NEAR(started, Seconds(now), 3600);
}

TEST(Metrics, ThreadsMayRecordWhileTheTextIsRead) {
  Metrics metrics(TestOptions());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        metrics.RecordRequest(t % 2 == 0 ? "local" : "softmax", Direction::kForward,
                              static_cast<absl::StatusCode>(i % 17), 0.001);
        metrics.RecordBatch(t % 2, {.method = "local", .flops = 1, .compute_seconds = 1});
        if (i % 100 == 0) {
          ASSERT_TRUE(metrics.Text().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Two threads with 500 requests each over 17 codes.
  EXPECT_EQ(Value(metrics, R"(attnd_request_seconds_count{code="OK",direction="forward",)"
                           R"(method="local"})"),
            60);
  EXPECT_EQ(Value(metrics,
                  R"(attnd_requests_total{code="INTERNAL",direction="forward",method="softmax"})"),
            58);  // 29 of each 500
}

// The page after every kind of record, so that it has every family.
std::string FullText() {
  Metrics metrics(TestOptions());
  metrics.RecordRequest("local", Direction::kForward, absl::StatusCode::kOk, 0.01);
  metrics.CallEnded("", absl::StatusCode::kUnimplemented);
  metrics.SetSources({.devices = [] { return std::vector{ReadDevice()}; }});
  return *metrics.Text();
}

TEST(Metrics, PromtoolFindsNothingToComplainAbout) {
  ASSERT_EQ(access("/usr/bin/promtool", X_OK), 0)
      << "promtool is missing: install Debian's package prometheus";
  const std::string path = testing::TempDir() + absl::StrCat("/metrics.", getpid());
  std::ofstream(path) << FullText();
  FILE* const pipe = popen(absl::StrCat("promtool check metrics < ", path, " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output.push_back(static_cast<char>(c));
  EXPECT_EQ(pclose(pipe), 0) << output;
  EXPECT_EQ(output, "");
  std::filesystem::remove(path);
}

TEST(Metrics, TheFamiliesAreThoseOfTheDesign) {
  const std::string text = FullText();
  std::vector<std::string> names;
  for (const auto line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "# TYPE ")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 4u) << line;
    names.push_back(words[2] + " " + words[3]);
  }
  EXPECT_THAT(
      names,
      testing::UnorderedElementsAre(
          "attnd_requests_total counter", "attnd_request_seconds histogram",
          "attnd_queue_seconds histogram", "attnd_gather_seconds histogram",
          "attnd_compute_seconds histogram", "attnd_answer_seconds histogram",
          "attnd_tokens_total counter", "attnd_flops_total counter",
          "attnd_batch_requests histogram", "attnd_batch_tokens histogram",
          "attnd_batch_compute_seconds_total counter", "attnd_dispatch_total counter",
          "attnd_queue_requests gauge", "attnd_queue_bytes gauge",
          "attnd_queue_oldest_seconds gauge", "attnd_inflight_requests gauge",
          "attnd_parked_requests gauge", "attnd_refused_total counter",
          "attnd_received_bytes_total counter", "attnd_sent_bytes_total counter",
          "attnd_memory_bytes gauge", "attnd_workspace_peak_bytes histogram",
          "attnd_lane_busy_seconds_total counter", "attnd_lane_efficiency_ratio gauge",
          "attnd_poll_delay_seconds histogram", "attnd_stuck_seconds gauge",
          "attnd_plan_seconds histogram", "attnd_calls_total counter", "attnd_open_calls gauge",
          "attnd_memory_peak_bytes gauge", "attnd_budget_bytes gauge",
          "attnd_budget_charged_bytes gauge", "attnd_pattern_cache_bytes gauge",
          "attnd_connections gauge", "attnd_connections_accepted_total counter",
          "attnd_connections_refused_total counter", "attnd_connections_cut_off_total counter",
          "attnd_device_launches_total counter", "attnd_device_errors_total counter",
          "attnd_device_copied_bytes_total counter", "attnd_device_utilisation_ratio gauge",
          "attnd_device_power_watts gauge", "attnd_device_temperature_celsius gauge",
          "attnd_device_memory_bytes gauge", "attnd_log_lines_dropped_total counter",
          "attnd_build_info gauge", "process_cpu_seconds_total counter",
          "process_resident_memory_bytes gauge", "process_virtual_memory_bytes gauge",
          "process_open_fds gauge", "process_max_fds gauge", "process_threads gauge",
          "process_start_time_seconds gauge"));
}

}  // namespace
}  // namespace attnd
