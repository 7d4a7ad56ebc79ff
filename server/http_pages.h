// The reply to an HTTP request for a page.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/http.h"

namespace attnd {

struct PageReply {
  unsigned code = 200;
  const char* type = "text/plain; charset=utf-8";
  std::string body;
};

// `path`: without a query. An exception of a page becomes a 500.
PageReply AnswerTo(absl::string_view method, absl::string_view path,
                   const HttpServer::Pages& pages);

}  // namespace attnd
