#include "server/http.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace attnd {
namespace {

constexpr const char* kText = "text/plain; charset=utf-8";
constexpr const char* kMetrics = "text/plain; version=0.0.4; charset=utf-8";
constexpr absl::string_view kListOfPages = "pages: /metrics /healthz /readyz\n";

struct Reply {
  int code = 200;
  const char* phrase = "OK";
  const char* type = kText;
  std::string body;
};

Reply Failure(absl::string_view reason) {
  return {500, "Internal Server Error", kText, absl::StrCat(reason, "\n")};
}

Reply MetricsPage(const HttpServer::Pages& pages) {
  absl::StatusOr<std::string> text = pages.metrics();
  if (!text.ok()) return Failure(absl::string_view(text.status().message()));
  return {200, "OK", kMetrics, *std::move(text)};
}

Reply HealthPage(const HttpServer::Pages& pages) {
  const absl::Status status = pages.health ? pages.health() : absl::OkStatus();
  if (status.ok()) return {200, "OK", kText, "ok\n"};
  return {503, "Service Unavailable", kText, absl::StrCat(status.message(), "\n")};
}

Reply ReplyTo(absl::string_view method, absl::string_view path, const HttpServer::Pages& pages) {
  if (path != "/metrics" && path != "/healthz" && path != "/readyz") {
    return {404, "Not Found", kText, absl::StrCat("no such page; ", kListOfPages)};
  }
  if (method != "GET" && method != "HEAD") {
    return {405, "Method Not Allowed", kText, "only GET and HEAD\n"};
  }
  if (path == "/healthz") return HealthPage(pages);
  if (path == "/metrics") return MetricsPage(pages);
  if (pages.is_ready()) return {200, "OK", kText, "ready\n"};
  return {503, "Service Unavailable", kText, "not ready\n"};
}

struct Address {
  std::string host;
  int port = 0;
};

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address;
  // A comma would be a list to civetweb.
  const bool is_valid = colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
                        text.find_first_of(", \t") == std::string::npos &&
                        text.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                        absl::SimpleAtoi(text.substr(colon + 1), &address.port) &&
                        address.port <= 65535;
  if (!is_valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("http: address must be host:port, got ", text.empty() ? "nothing" : text));
  }
  address.host = text.substr(0, colon);
  return address;
}

// What the callbacks see. civetweb gives its reasons only to a log: the first of them is the cause.
struct State {
  HttpServer::Pages pages;
  std::mutex mu;
  std::string complaint;
};

State& StateOf(const mg_connection* connection) {
  return *static_cast<State*>(mg_get_user_data(mg_get_context(connection)));
}

int KeepComplaint(const mg_connection* connection, const char* message) {
  State& state = StateOf(connection);
  std::lock_guard lock(state.mu);
  if (state.complaint.empty()) state.complaint = message;
  return 1;  // handled: nothing is printed
}

// Called by civetweb, through which no exception may pass. Returns the code: the request is done.
int Handle(mg_connection* connection) {
  try {
    const mg_request_info* request = mg_get_request_info(connection);
    const absl::string_view method(request->request_method);
    Reply reply;
    try {
      reply = ReplyTo(method, request->local_uri, StateOf(connection).pages);
    } catch (const std::exception& e) {
      reply = Failure(e.what());
    }
    std::string message =
        absl::StrCat("HTTP/1.1 ", reply.code, " ", reply.phrase, "\r\nContent-Type: ", reply.type,
                     "\r\nContent-Length: ", reply.body.size(), "\r\nCache-Control: no-store\r\n",
                     reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n");
    if (method != "HEAD") message += reply.body;
    mg_write(connection, message.data(), message.size());
    return reply.code;
  } catch (...) {
    return 500;
  }
}

// A connection that says nothing.
void Poke(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    (void)connect(fd, found->ai_addr, found->ai_addrlen);  // in progress is enough
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

struct HttpServer::Impl {
  State state;
  std::string host;
  mg_context* context = nullptr;
  int port = 0;
  std::string address;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& text,
                                                              Pages pages) {
  absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) return address.status();
  auto impl = std::make_unique<Impl>();
  impl->state.pages = std::move(pages);
  const char* const options[] = {"listening_ports",    text.c_str(), "num_threads", "32",
                                 "request_timeout_ms", "1000",       nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = KeepComplaint;
  callbacks.begin_request = Handle;
  impl->context = mg_start(&callbacks, &impl->state, const_cast<const char**>(options));
  if (impl->context == nullptr) {
    std::lock_guard lock(impl->state.mu);
    return absl::UnavailableError(
        absl::StrCat("http: cannot listen on ", text, ": ", impl->state.complaint));
  }
  mg_server_port ports[1];
  if (mg_get_server_ports(impl->context, 1, ports) == 1) impl->port = ports[0].port;
  impl->host = address->host;
  impl->address = absl::StrCat(address->host, ":", impl->port);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// civetweb's listener looks for the order to stop every two seconds, or when somebody connects.
HttpServer::~HttpServer() {
  std::atomic<bool> stopped = false;
  std::thread poker;
  try {
    poker = std::thread([&] {
      while (!stopped) {
        Poke(impl_->host, impl_->port);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  } catch (const std::exception&) {
    // Without the thread it takes the two seconds.
  }
  mg_stop(impl_->context);
  stopped = true;
  if (poker.joinable()) poker.join();
}

int HttpServer::port() const { return impl_->port; }
const std::string& HttpServer::address() const { return impl_->address; }

}  // namespace attnd
