// The host that this process runs on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/terrace/doctor/host.h"

namespace terrace::tools {

class SystemHost : public HostCalls {
 public:
  std::string WhyNoRing(std::string* description) const override;
  int MemfdError() const override;
  int PeerPidfdError() const override;
  std::optional<FileFacts> Stat(const std::string& path, int* error) const override;
  std::optional<VolumeFacts> Volume(const std::string& path) const override;
  DirectIo TryDirectIo(const std::string& directory) const override;
  std::string WhyNoRedis(const std::string& endpoint, uint32_t timeout_ms,
                         bool is_tls) const override;
  std::string WhyNoPlugin(const std::string& path, std::string* description) const override;
  std::string VectorUnits() const override;
};

}  // namespace terrace::tools
