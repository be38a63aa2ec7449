// Whether a Redis server answers, without logging in to it.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::tools {

// Connects to "host:port", "[v6 address]:port" or "unix:/path" and says PING; a server that wants a
// login first has answered, too. Of a server with TLS a connection is enough. Empty, or why not.
std::string ProbeRedis(const std::string& endpoint, uint32_t timeout_ms, bool is_tls);

}  // namespace terrace::tools
