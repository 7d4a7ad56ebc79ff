// Command line and environment: how they are read, and how wrong values are refused.
#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace attnd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

CommandLine Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "attnd-server");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(Config, Defaults) {
  const CommandLine line = Parse({});
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_THAT(line.config->grpc_addresses, ElementsAre("127.0.0.1:8001"));
  EXPECT_EQ(line.config->http_address, "127.0.0.1:8002");
  EXPECT_EQ(line.config->budget_bytes, 0);
  EXPECT_EQ(line.config->max_message_bytes, int64_t{1} << 30);
  EXPECT_EQ(line.config->max_queue_requests, 1024);
  EXPECT_EQ(line.config->max_batch_requests, 64);
  EXPECT_EQ(line.config->undeclared_bytes, int64_t{16} << 20);
  EXPECT_EQ(line.config->max_parked, 4);
  EXPECT_EQ(line.config->drain_delay, std::chrono::seconds(0));
  EXPECT_EQ(line.config->drain_timeout, std::chrono::seconds(30));
  EXPECT_EQ(line.config->exit_when_stuck, std::chrono::seconds(0));
}

TEST(Config, DefaultsOfConnections) {
  const CommandLine line = Parse({});
  ASSERT_TRUE(line.config.has_value()) << line.text;
  const ConnectionConfig& connections = line.config->connections;
  EXPECT_EQ(connections.max_connections, 4096);
  EXPECT_EQ(connections.max_per_client, 0);
  EXPECT_EQ(connections.max_streams, 1024);
  EXPECT_EQ(connections.max_streams_per_connection, 128);
  EXPECT_EQ(connections.idle_seconds, 0);
  EXPECT_EQ(connections.age_seconds, 0);
  EXPECT_EQ(connections.keepalive_seconds, 60);
  EXPECT_EQ(connections.keepalive_timeout_seconds, 20);
}

TEST(Config, SizesAndTimesHaveUnits) {
  const CommandLine line =
      Parse({"--budget-bytes", "512MiB", "--max-message-bytes=64kb", "--drain-delay", "1500ms",
             "--drain-timeout", "2min", "--isa", "avx2", "--threads", "3"});
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_EQ(line.config->budget_bytes, int64_t{512} << 20);
  EXPECT_EQ(line.config->max_message_bytes, 64000);
  EXPECT_EQ(line.config->drain_delay, std::chrono::milliseconds(1500));
  EXPECT_EQ(line.config->drain_timeout, std::chrono::minutes(2));
  EXPECT_EQ(line.config->isa, "avx2");
  EXPECT_EQ(line.config->threads, 3);
}

TEST(Config, OptionsOfSharing) {
  const CommandLine usual = Parse({});
  ASSERT_TRUE(usual.config.has_value()) << usual.text;
  EXPECT_EQ(usual.config->max_running, 6);
  EXPECT_EQ(usual.config->max_priority, 0);
  EXPECT_EQ(usual.config->max_request_seconds, 600);
  const CommandLine line =
      Parse({"--max-running", "2", "--max-priority", "-5", "--max-request-seconds", "2min"});
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_EQ(line.config->max_running, 2);
  EXPECT_EQ(line.config->max_priority, -5);
  EXPECT_EQ(line.config->max_request_seconds, 120);
  const CommandLine unlimited = Parse({"--max-request-seconds", "0"});
  ASSERT_TRUE(unlimited.config.has_value()) << unlimited.text;
  EXPECT_EQ(unlimited.config->max_request_seconds, 0);
}

TEST(Config, EachOptionOfConnectionsIsItsOwn) {
  const CommandLine line =
      Parse({"--max-connections", "11", "--max-connections-per-client", "12", "--max-streams", "13",
             "--max-streams-per-connection", "14", "--max-connection-idle", "15s",
             "--max-connection-age", "16s", "--keepalive", "17s", "--keepalive-timeout", "18s"});
  ASSERT_TRUE(line.config.has_value()) << line.text;
  const ConnectionConfig& connections = line.config->connections;
  EXPECT_EQ(connections.max_connections, 11);
  EXPECT_EQ(connections.max_per_client, 12);
  EXPECT_EQ(connections.max_streams, 13);
  EXPECT_EQ(connections.max_streams_per_connection, 14);
  EXPECT_EQ(connections.idle_seconds, 15);
  EXPECT_EQ(connections.age_seconds, 16);
  EXPECT_EQ(connections.keepalive_seconds, 17);
  EXPECT_EQ(connections.keepalive_timeout_seconds, 18);
}

TEST(Config, SeveralAddressesAndSmallTimes) {
  const CommandLine line = Parse({"--grpc", "127.0.0.1:0,unix:/run/attnd.sock", "--grpc=[::1]:7",
                                  "--spin", "200us", "--undeclared-bytes", "1MiB"});
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_THAT(line.config->grpc_addresses,
              ElementsAre("127.0.0.1:0", "unix:/run/attnd.sock", "[::1]:7"));
  EXPECT_EQ(line.config->spin, std::chrono::microseconds(200));
  EXPECT_EQ(line.config->undeclared_bytes, 1 << 20);

  setenv("ATTND_GRPC", "0.0.0.0:8001,unix:/run/attnd.sock", 1);
  const CommandLine environment = Parse({});
  unsetenv("ATTND_GRPC");
  ASSERT_TRUE(environment.config.has_value()) << environment.text;
  EXPECT_THAT(environment.config->grpc_addresses,
              ElementsAre("0.0.0.0:8001", "unix:/run/attnd.sock"));
}

TEST(Config, TheCommandLineWinsOverTheEnvironment) {
  setenv("ATTND_MAX_QUEUE", "7", 1);
  setenv("ATTND_MAX_BATCH", "8", 1);
  const CommandLine line = Parse({"--max-queue", "9"});
  setenv("ATTND_MAX_BATCH", "none", 1);
  const CommandLine wrong = Parse({});
  unsetenv("ATTND_MAX_QUEUE");
  unsetenv("ATTND_MAX_BATCH");
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_EQ(line.config->max_queue_requests, 9);
  EXPECT_EQ(line.config->max_batch_requests, 8);
  EXPECT_EQ(wrong.exit_code, 2);
}

TEST(Config, HelpAndVersionAreNotErrors) {
  EXPECT_EQ(Parse({"--help"}).exit_code, 0);
  EXPECT_THAT(Parse({"--help"}).text, AllOf(HasSubstr("--budget-bytes"), HasSubstr("ATTND_GRPC")));
  EXPECT_EQ(Parse({"--version"}).text, "attnd-server " + Version() + "\n");
}

TEST(Config, WrongUsageIsOneLineAndTwo) {
  const std::vector<std::vector<const char*>> cases = {
      {"--nope"},
      {"extra"},
      {"--grpc"},
      {"--grpc", "nowhere"},
      {"--grpc", ":80"},
      {"--grpc", "127.0.0.1:65536"},
      {"--grpc", "127.0.0.1:-1"},
      {"--http", "unix:/socket"},
      {"--threads", "many"},
      {"--threads", "-1"},
      {"--isa", "avx1024"},
      {"--budget-bytes", "12parsecs"},
      {"--budget-bytes", "-1"},
      {"--budget-bytes", "99999999999999999999"},
      {"--max-message-bytes", "2GiB"},
      {"--max-queue", "0"},
      {"--max-running", "0"},
      {"--max-priority", "101"},
      {"--max-request-seconds", "-1s"},
      {"--drain-delay", "-1s"},
      {"--drain-timeout", "nan"},
      {"--log-level", "loud"},
      {"--log-format", "xml"},
  };
  for (const std::vector<const char*>& arguments : cases) {
    const CommandLine line = Parse(arguments);
    EXPECT_FALSE(line.config.has_value()) << arguments.back();
    EXPECT_EQ(line.exit_code, 2) << arguments.back();
    EXPECT_THAT(line.text, AllOf(HasSubstr(arguments.front()), EndsWith("\n")));
    EXPECT_EQ(line.text.find('\n'), line.text.size() - 1) << line.text;
  }
}

}  // namespace
}  // namespace attnd
