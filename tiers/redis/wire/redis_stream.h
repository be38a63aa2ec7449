// RedisStream: bytes to and from one connected socket, as far as they go without waiting; plain, or
// through TLS, where reading may have to wait until the socket can be written and the other way
// round.
//
// THREADING: one thread. OWNERSHIP: the socket is the caller's and outlives the stream.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terrace/status.h"

namespace terrace {

struct RedisStreamResult {
  enum class Outcome : uint8_t { kMoved, kWantsRead, kWantsWrite, kEnded, kFailed };
  Outcome outcome = Outcome::kFailed;
  uint64_t count_bytes = 0;  // kMoved: at least 1, but 0 for a handshake
  Status status;             // kFailed. kUnsupported: TLS files are to be seen to
};

class RedisStream {
 public:
  virtual ~RedisStream() = default;
  // Before any byte moves; kMoved when it is done.
  virtual RedisStreamResult Handshake() = 0;
  virtual RedisStreamResult Read(std::span<const iovec> places) = 0;
  // A read that gives less than there was room for has left nothing behind, here or in the socket:
  // what comes later is told as readiness.
  virtual bool IsDrainedByShortReads() const = 0;
  virtual RedisStreamResult Write(std::span<const iovec> pieces) = 0;
};

std::unique_ptr<RedisStream> MakePlainRedisStream(int fd);

struct RedisTlsOptions {
  std::string ca_file;           // PEM; empty: the system's
  std::string certificate_file;  // PEM, with key_file: who we are
  std::string key_file;
  std::string server_name;  // what the server's certificate must name; empty: the endpoint's host
};

// By their keys in the configuration, without the section; those that are not set are left out.
std::vector<std::pair<std::string, std::string>> RedisTlsFilesOf(const RedisTlsOptions& options);

// What all TLS connections of a tier share: TLS 1.2 at least, the server's certificate verified and
// its name compared. Certificates are replaced while it runs: files that have changed are read
// again for each new connection, and those of before stay in use while the new ones cannot be used.
//
// THREADING: one thread at a time.
class RedisTls {
 public:
  // kInvalid: a file cannot be used; `*why` names it, and the remedy.
  static Result<std::unique_ptr<RedisTls>> Open(const RedisTlsOptions& options, std::string* why);
  ~RedisTls();

  // Reads files again that have changed. Blocks as long as they do.
  void Refresh();
  // Why the files as they are now are not in use; empty: they are, as far as they have been read.
  const std::string& trouble() const;
  std::unique_ptr<RedisStream> MakeStream(int fd, const std::string& host);

 private:
  struct State;
  explicit RedisTls(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace terrace
