// HttpRequest: the head of an HTTP request, as far as this daemon wants to know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr size_t kHttpHeadBytesMax = 8192;

struct HttpRequest {
  std::string path;   // "/metrics"
  std::string query;  // what stood behind '?'
  bool is_head = false;
};

// 0 with `*request`, or the status of a refusal: 400 it is no request, 405 another method, 413 it
// has a body, 421 its Host is a name that may be anybody's (a page in a browser can have such a
// name point at this host) and only_local is set, 431 the head is too long, 505 another version.
// REQUIRES: `head` ends with the empty line.
uint32_t ReadHttpRequest(std::string_view head, bool only_local, HttpRequest* request);

std::string_view HttpReason(uint32_t status);
// What is said to whom it is refused, with what to do.
std::string HttpRefusal(uint32_t status);

}  // namespace terrace
