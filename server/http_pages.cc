#include "server/http_pages.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

constexpr const char* kMetrics = "text/plain; version=0.0.4; charset=utf-8";
constexpr absl::string_view kListOfPages = "pages: /metrics /healthz /readyz\n";

PageReply Text(unsigned code, std::string body) { return {.code = code, .body = std::move(body)}; }

PageReply MetricsPage(const HttpServer::Pages& pages) {
  absl::StatusOr<std::string> text = pages.metrics();
  if (!text.ok()) return Text(500, absl::StrCat(text.status().message(), "\n"));
  return {.type = kMetrics, .body = *std::move(text)};
}

PageReply HealthPage(const HttpServer::Pages& pages) {
  const absl::Status status = pages.health ? pages.health() : absl::OkStatus();
  if (status.ok()) return Text(200, "ok\n");
  return Text(503, absl::StrCat(status.message(), "\n"));
}

PageReply Page(absl::string_view method, absl::string_view path, const HttpServer::Pages& pages) {
  if (path != "/metrics" && path != "/healthz" && path != "/readyz") {
    return Text(404, absl::StrCat("no such page; ", kListOfPages));
  }
  if (method != "GET" && method != "HEAD") return Text(405, "only GET and HEAD\n");
  if (path == "/healthz") return HealthPage(pages);
  if (path == "/metrics") return MetricsPage(pages);
  return pages.is_ready() ? Text(200, "ready\n") : Text(503, "not ready\n");
}

}  // namespace

PageReply AnswerTo(absl::string_view method, absl::string_view path,
                   const HttpServer::Pages& pages) {
  try {
    return Page(method, path, pages);
  } catch (const std::exception& e) {
    return Text(500, absl::StrCat(e.what(), "\n"));
  }
}

}  // namespace attnd
