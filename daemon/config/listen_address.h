// ListenAddress: where a TCP socket is to listen, as the configuration names it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

// A number from 1 to 65535, and nothing behind it.
bool ParsePort(std::string_view text, uint16_t* port);

struct ListenAddress {
  std::string host;  // of digits; no name is looked up
  uint16_t port = 0;
  bool is_v6 = false;
  bool is_loopback = false;  // no other host reaches it
};

// "address:port" or "[v6 address]:port". False: it is neither, or the port is not in 1..65535.
bool ParseListenAddress(std::string_view text, ListenAddress* address);

}  // namespace terrace
