// What doctor's checks may ask of the host: files, which lie below a root, so that tests give a
// tree of their own; and what only a system call knows, which tests answer themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace terrace::tools {

class HostFiles {
 public:
  explicit HostFiles(std::string root = "") : root_(std::move(root)) {}

  // At most 1 MiB, without the last newline; absent if it cannot be read.
  std::optional<std::string> Read(const std::string& path) const;
  // The number that a file begins with.
  std::optional<uint64_t> ReadNumber(const std::string& path) const;
  // What stands behind "name:" in a file of such lines, trimmed.
  std::optional<std::string> ReadField(const std::string& path, const std::string& name) const;
  // Names in a directory, sorted; absent if it cannot be listed.
  std::optional<std::vector<std::string>> List(const std::string& path) const;

 private:
  std::string root_;
};

struct FileFacts {
  uint32_t mode = 0;  // st_mode
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t held_bytes = 0;  // of the file system
  std::string real_path;    // without symbolic links
};

struct VolumeFacts {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for whoever is not root
};

enum class DirectIo : uint8_t { kWorks, kRefused, kUnseen };

class HostCalls {
 public:
  virtual ~HostCalls() = default;

  // Sets up a ring as the daemon does. Empty with `*description`; otherwise why not.
  virtual std::string WhyNoRing(std::string* description) const = 0;
  // The errno, or 0.
  virtual int MemfdError() const = 0;
  virtual int PeerPidfdError() const = 0;
  // Absent with the errno in `*error`.
  virtual std::optional<FileFacts> Stat(const std::string& path, int* error) const = 0;
  virtual std::optional<VolumeFacts> Volume(const std::string& path) const = 0;
  // By a file without a name, which leaves nothing behind.
  virtual DirectIo TryDirectIo(const std::string& directory) const = 0;
  // Whether a Redis server answers at "host:port" or "unix:/path" in time: empty, or why not. Under
  // TLS a connection is all that is asked for.
  virtual std::string WhyNoRedis(const std::string& endpoint, uint32_t timeout_ms,
                                 bool is_tls) const = 0;
  // Loads it, which runs its code. Empty with `*description`; otherwise why not.
  virtual std::string WhyNoPlugin(const std::string& path, std::string* description) const = 0;
  // "AVX-512", "AVX2", or empty.
  virtual std::string VectorUnits() const = 0;
};

}  // namespace terrace::tools
