// What is answered to an HTTP request for a page.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/http.h"

namespace attnd {

// The whole message, status line and headers included, for a request whose headers are complete.
// Whatever a page throws becomes a 500.
std::string AnswerTo(absl::string_view request, const HttpServer::Pages& pages);

}  // namespace attnd
