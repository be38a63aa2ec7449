#include "daemon/config/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>

namespace terrace {

bool ParsePort(std::string_view text, uint16_t* port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *port);
  return error == std::errc() && end == text.data() + text.size() && *port != 0;
}

bool ParseListenAddress(std::string_view text, ListenAddress* address) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return false;
  if (!ParsePort(text.substr(colon + 1), &address->port)) return false;
  std::string_view host = text.substr(0, colon);
  address->is_v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (address->is_v6) host = host.substr(1, host.size() - 2);
  address->host = host;
  if (address->is_v6) {
    in6_addr v6{};
    if (inet_pton(AF_INET6, address->host.c_str(), &v6) != 1) return false;
    address->is_loopback = IN6_IS_ADDR_LOOPBACK(&v6);
    return true;
  }
  in_addr v4{};
  if (inet_pton(AF_INET, address->host.c_str(), &v4) != 1) return false;
  address->is_loopback = ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
  return true;
}

}  // namespace terrace
