#include "daemon/metrics/http_request.h"

#include <arpa/inet.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

namespace terrace {
namespace {

namespace http = boost::beast::http;

// An address, or this host's name for itself; and perhaps a port.
bool IsLocalHost(std::string_view host) {
  const size_t end =
      host.starts_with('[') ? host.find(']') + 1 : std::min(host.find(':'), host.size());
  if (host.starts_with('[') && end == 0) return false;
  const std::string_view port = host.substr(end);
  if (!port.empty() &&
      (port.front() != ':' || port.find_first_not_of("0123456789", 1) != port.npos)) {
    return false;
  }
  std::string name(host.substr(0, end));
  if (name == "localhost" || name.empty()) return true;
  unsigned char address[sizeof(in6_addr)];
  if (name.front() == '[') {
    return inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), address) == 1;
  }
  return inet_pton(AF_INET, name.c_str(), address) == 1;
}

std::string_view ViewOf(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

uint32_t ReadHttpRequest(std::string_view head, bool only_local, HttpRequest* request) {
  if (head.size() > kHttpHeadBytesMax) return 431;
  http::request_parser<http::empty_body> parser;
  parser.header_limit(kHttpHeadBytesMax);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(head.data(), head.size()), error);
  if (error == http::error::bad_version) return 505;
  if (error == http::error::header_limit) return 431;
  if (error == http::error::unexpected_body || error == http::error::body_limit) return 413;
  if (error || !parser.is_header_done()) return 400;
  const auto& message = parser.get();
  if (message.method() != http::verb::get && message.method() != http::verb::head) return 405;
  if (!parser.is_done()) return 413;
  if (message.count(http::field::host) > 1) return 400;
  if (only_local && !IsLocalHost(ViewOf(message[http::field::host]))) return 421;
  const std::string_view target = ViewOf(message.target());
  if (!target.starts_with('/')) return 400;
  const size_t mark = target.find('?');
  request->path = target.substr(0, mark);
  request->query = mark == target.npos ? std::string_view() : target.substr(mark + 1);
  request->is_head = message.method() == http::verb::head;
  return 0;
}

std::string HttpRefusal(uint32_t status) {
  std::string text(HttpReason(status));
  switch (status) {
    case 405:
      text += ": GET and HEAD are answered";
      break;
    case 413:
      text += ": a request has no body here";
      break;
    case 421:
      text +=
          ": Host is a name other than localhost; ask by an address, or set metrics.allow_remote";
      break;
    case 431:
      text += ": " + std::to_string(kHttpHeadBytesMax) + " bytes at most";
      break;
    default:
      break;
  }
  return text + "\n";
}

std::string_view HttpReason(uint32_t status) {
  const boost::beast::string_view reason = http::obsolete_reason(static_cast<http::status>(status));
  return {reason.data(), reason.size()};
}

}  // namespace terrace
