// The HTTP pages over real sockets: codes, types, bodies, ports, stopping.
#include "server/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// A server that waits for a connection waits as long as kPatient allows; any other stop or reply
// takes far less than kSoon.
constexpr HttpTimes kPatient{.request = seconds(100), .reply = seconds(100)};
constexpr seconds kSoon{50};

HttpServer::Pages TestPages() {
  return {.metrics = [] { return absl::StatusOr<std::string>("attnd_up 1\n"); },
          .is_ready = [] { return true; }};
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// The whole reply of the server to one request.
std::string Ask(int port, const std::string& method, const std::string& path) {
  const int fd = Connect(port);
  if (fd < 0) return "no connection";
  const std::string request = absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
  std::string reply;
  if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;) reply.append(buffer, got);
  }
  close(fd);
  return reply;
}

TEST(Http, ThePages) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_GT(port, 0);
  EXPECT_EQ((*server)->address(), absl::StrCat("127.0.0.1:", port));

  const std::string metrics = Ask(port, "GET", "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(metrics, EndsWith("\r\n\r\nattnd_up 1\n"));

  EXPECT_THAT(Ask(port, "GET", "/healthz"), EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(Ask(port, "GET", "/readyz?verbose=1"), EndsWith("\r\n\r\nready\n"));
  const std::string head = Ask(port, "HEAD", "/metrics");
  EXPECT_THAT(head, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
}

TEST(Http, ReadinessFollowsTheServer) {
  std::atomic<bool> ready = false;
  HttpServer::Pages pages = TestPages();
  pages.is_ready = [&] { return ready.load(); };
  auto server = HttpServer::Start("127.0.0.1:0", std::move(pages));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Ask((*server)->port(), "GET", "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Ask((*server)->port(), "GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
  ready = true;
  EXPECT_THAT(Ask((*server)->port(), "GET", "/readyz"), StartsWith("HTTP/1.1 200 "));
}

TEST(Http, OtherPagesAndMethodsAreRefused) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  for (const char* path : {"/", "/metrics/", "/../etc/passwd", "/healthz.txt", "/%00"}) {
    const std::string reply = Ask(port, "GET", path);
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 404 ")) << path;
    EXPECT_THAT(reply, HasSubstr("pages: /metrics /healthz /readyz")) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string reply = Ask(port, method, "/metrics");
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 405 ")) << method;
    EXPECT_THAT(reply, HasSubstr("Allow: GET, HEAD\r\n")) << method;
  }
}

TEST(Http, AFailureOfAPageIsA500) {
  HttpServer::Pages pages = TestPages();
  pages.metrics = [] { return absl::StatusOr<std::string>(absl::InternalError("no numbers")); };
  pages.is_ready = []() -> bool { throw std::runtime_error("do not know"); };
  auto server = HttpServer::Start("127.0.0.1:0", std::move(pages));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string metrics = Ask((*server)->port(), "GET", "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(metrics, EndsWith("no numbers\n"));
  EXPECT_THAT(Ask((*server)->port(), "GET", "/readyz"), EndsWith("do not know\n"));
}

TEST(Http, APortInUseIsOneClearLine) {
  auto first = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = (*first)->address();
  const absl::Status second = HttpServer::Start(address, TestPages()).status();
  EXPECT_TRUE(absl::IsUnavailable(second));
  const std::string text(second.message());
  EXPECT_THAT(text, StartsWith(absl::StrCat("http: cannot listen on ", address, ": ")));
  EXPECT_THAT(text, HasSubstr("Address already in use"));
  EXPECT_EQ(text.find('\n'), std::string::npos);

  // After its stop the port is free again.
  first->reset();
  EXPECT_TRUE(HttpServer::Start(address, TestPages()).ok());
}

TEST(Http, AnAddressThatIsNoneIsRefused) {
  for (const char* address :
       {"", "8002", ":8002", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
        "127.0.0.1:-1", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:99999999999"}) {
    const absl::Status status = HttpServer::Start(address, TestPages()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address << ": " << status;
  }
  EXPECT_TRUE(absl::IsUnavailable(HttpServer::Start("nowhere.invalid:1", TestPages()).status()));
}

TEST(Http, ManyScrapesAtOnce) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        good += Ask((*server)->port(), "GET", "/metrics").find("attnd_up 1") != std::string::npos;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 160);
}

TEST(Http, StopsAtOnce) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages(), kPatient);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Ask((*server)->port(), "GET", "/healthz"), HasSubstr("ok"));
  const auto start = std::chrono::steady_clock::now();
  server->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
}

TEST(Http, AnIdleConnectionDoesNotHoldUpTheStop) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages(), kPatient);
  ASSERT_TRUE(server.ok()) << server.status();
  const int idle = Connect((*server)->port());
  ASSERT_GE(idle, 0);
  EXPECT_THAT(Ask((*server)->port(), "GET", "/healthz"), HasSubstr("ok"));
  const auto start = std::chrono::steady_clock::now();
  server->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  close(idle);
}

// Regression: each of a few threads waited a whole second for a request that trickled in.
TEST(Http, ConnectionsThatTrickleDoNotHoldUpThePages) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  std::vector<int> trickling;
  std::atomic<int> good = 0;
  for (int i = 0; i < 300; ++i) {
    trickling.push_back(Connect(port));
    ASSERT_GE(trickling.back(), 0);
    EXPECT_EQ(send(trickling.back(), "GET /me", 7, MSG_NOSIGNAL), 7);
    good += i % 10 == 0 && Ask(port, "GET", "/metrics").find("attnd_up 1") != std::string::npos;
  }
  EXPECT_EQ(good, 30);
  // The newest connections can still complete their requests, the oldest were closed.
  char byte;
  EXPECT_LE(recv(trickling.front(), &byte, 1, 0), 0);
  const std::string rest = "trics HTTP/1.1\r\n\r\n";
  EXPECT_EQ(send(trickling.back(), rest.data(), rest.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(rest.size()));
  EXPECT_EQ(recv(trickling.back(), &byte, 1, 0), 1);
  for (const int fd : trickling) close(fd);
}

// Regression: a byte now and then kept a connection open for ever.
TEST(Http, ARequestThatTricklesIsCutOff) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages(), {.request = seconds(2)});
  ASSERT_TRUE(server.ok()) << server.status();
  const int fd = Connect((*server)->port());
  ASSERT_EQ(send(fd, "GET /metrics HTTP/1.1\r\nA: ", 26, MSG_NOSIGNAL), 26);
  pollfd end{.fd = fd, .events = POLLRDHUP, .revents = 0};
  int sent = 0;
  while (poll(&end, 1, /*timeout_ms=*/10) == 0 && sent < 3000) {
    sent += static_cast<int>(send(fd, "a", 1, MSG_NOSIGNAL));
  }
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, 3000);
  close(fd);
}

TEST(Http, AReplyThatIsTakenSlowlyIsCutOff) {
  constexpr size_t kBytes = 64 << 20;
  HttpServer::Pages pages = TestPages();
  pages.metrics = [] { return absl::StatusOr<std::string>(std::string(kBytes, 'x')); };
  auto server = HttpServer::Start("127.0.0.1:0", std::move(pages), {.reply = seconds(2)});
  ASSERT_TRUE(server.ok()) << server.status();
  const int fd = Connect((*server)->port());
  const int window = 1 << 16;
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window), 0);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  // The whole reply would take ten seconds.
  std::string piece(1 << 16, ' ');
  size_t taken = 0;
  for (ssize_t got; (got = recv(fd, piece.data(), piece.size(), 0)) > 0;) {
    taken += static_cast<size_t>(got);
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GT(taken, 0u);
  EXPECT_LT(taken, kBytes);
  close(fd);
}

TEST(Http, InvalidRequestsAreRefused) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_EQ(Ask(port, "x\r\n", "x"), "");
  EXPECT_THAT(Ask(port, "GET /metrics", "x"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(port, "GET", std::string(20'000, 'x')), StartsWith("HTTP/1.1 414 "));
  EXPECT_THAT(Ask(port, "GET", "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST(Http, ABodyDoesNotTakeTheReplyAway) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string body(1 << 20, 'x');
  const std::string head = absl::StrCat(
      "/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  EXPECT_THAT(Ask((*server)->port(), "POST", head), StartsWith("HTTP/1.1 405 "));
}

// A name may resolve to addresses of both families, each with its own socket.
TEST(Http, AName) {
  auto server = HttpServer::Start("localhost:0", TestPages());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->address(), absl::StrCat("localhost:", (*server)->port()));
  EXPECT_THAT(Ask((*server)->port(), "GET", "/healthz"), EndsWith("\r\n\r\nok\n"));
}

TEST(Http, ManySilentConnectionsDoNotHoldUpThePages) {
  auto server = HttpServer::Start("127.0.0.1:0", TestPages(), kPatient);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(Connect((*server)->port()));
    ASSERT_GE(silent.back(), 0);
  }
  auto start = std::chrono::steady_clock::now();
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    EXPECT_THAT(Ask((*server)->port(), "GET", path), StartsWith("HTTP/1.1 200 ")) << path;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  start = std::chrono::steady_clock::now();
  server->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  for (const int fd : silent) close(fd);
}

}  // namespace
}  // namespace attnd
