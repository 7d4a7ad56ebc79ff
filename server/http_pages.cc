#include "server/http_pages.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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

}  // namespace

std::string AnswerTo(absl::string_view request, const HttpServer::Pages& pages) {
  const absl::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  Reply reply{400, "Bad Request", kText, "not an HTTP request\n"};
  if (words.size() == 3 && words[2].substr(0, 7) == "HTTP/1.") {
    try {
      reply = ReplyTo(words[0], words[1].substr(0, words[1].find('?')), pages);
    } catch (const std::exception& e) {
      reply = Failure(e.what());
    }
  }
  std::string message =
      absl::StrCat("HTTP/1.1 ", reply.code, " ", reply.phrase, "\r\nContent-Type: ", reply.type,
                   "\r\nContent-Length: ", reply.body.size(), "\r\nCache-Control: no-store\r\n",
                   reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n");
  if (words[0] != "HEAD") message += reply.body;
  return message;
}

}  // namespace attnd
