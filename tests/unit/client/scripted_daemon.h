// ScriptedDaemon: a peer that speaks frames as terraced does, and misbehaves on demand. It holds no
// blocks: every key is there, every reservation succeeds, unless the test's handler says otherwise.
//
// THREADING: one thread serves its socket; the test's handler runs on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "terrace/client.h"
#include "terrace/notice_page.h"
#include "terrace/protocol.h"
#include "terrace/space.h"

namespace terrace {

struct PeerMessage {
  protocol::Verb verb = protocol::Verb::kHello;
  uint64_t request_id = 0;
  std::vector<std::byte> body;

  template <typename T>
  T Head() const {
    T head{};
    std::memcpy(&head, body.data(), std::min(sizeof(head), body.size()));
    return head;
  }
};

// Bytes of structs, concatenated.
class BodyBuilder {
 public:
  template <typename T>
  BodyBuilder& Add(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  BodyBuilder& AddText(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class ScriptedDaemon {
 public:
  struct Options {
    uint64_t segment_bytes = kSegmentBytesMin;
    uint32_t segments_max = 4;
    uint32_t lease_ttl_ms = 0;
    uint64_t boot_id = 1;
    bool is_sealed = true;    // the arena, against shrinking
    bool is_to_read = false;  // clients are handed it open for reading alone
    enum class Notices { kNone, kSealed, kUnsealed } notices = Notices::kSealed;
  };
  // True if it has dealt with the message; else the usual answer is sent.
  using Handler = std::function<bool(ScriptedDaemon&, const PeerMessage&)>;

  ScriptedDaemon() : ScriptedDaemon(Options()) {}
  explicit ScriptedDaemon(const Options& options);
  ~ScriptedDaemon();

  const std::string& socket_path() const { return socket_path_; }
  std::byte* arena() { return arena_; }
  void set_handler(Handler handler);
  // On the notice page.
  void TellMode(protocol::ServingMode mode) { notices_->mode = static_cast<uint32_t>(mode); }
  void set_boot_id(uint64_t boot_id) { boot_id_ = boot_id; }

  // ---- from any thread, to the present connection ----
  void Answer(const PeerMessage& message, StatusCode status, std::span<const std::byte> body);
  void AnswerAsUsual(const PeerMessage& message);
  void Tell(protocol::Verb verb, uint64_t request_id, StatusCode status,
            std::span<const std::byte> body);
  void SendBytes(std::span<const std::byte> bytes);
  void Disconnect();
  // While stopped it reads nothing.
  void StopReading(std::function<void()> meanwhile);

  // ---- what came ----
  std::vector<PeerMessage> Received(protocol::Verb verb);
  // False if `count` of them have not come in 10 s.
  bool WaitFor(protocol::Verb verb, size_t count);
  uint32_t connection_count() const { return connection_count_; }
  // Whether the client has closed its end of the life socket of that connection (from 0), within
  // 10 s; or, asked at once, has already.
  bool WaitLifeEnds(uint32_t connection);
  bool IsLifeOver(uint32_t connection);

  // The frames of a message, as the daemon would send them.
  std::vector<std::byte> Frames(protocol::Verb verb, uint64_t request_id, StatusCode status,
                                std::span<const std::byte> body,
                                size_t frame_bytes_max = protocol::kFrameBytesMax) const;
  std::vector<std::byte> UsualBody(const PeerMessage& message);
  std::vector<std::byte> AcquireBody(uint32_t block_count, uint32_t ready_count,
                                     protocol::SpanState rest = protocol::SpanState::kComing);
  std::vector<std::byte> ReserveBody(uint32_t key_count);
  LeaseToken last_token() const { return {last_token_.load(), 7}; }

 private:
  void Run();
  void Serve(int fd);
  void SayHello(int fd, const PeerMessage& message);
  std::vector<std::byte> OpenBody(const PeerMessage& message);

  Options options_;
  std::atomic<uint64_t> boot_id_;
  std::string directory_;
  std::string socket_path_;
  int listener_ = -1;
  int arena_fd_ = -1;
  std::byte* arena_ = nullptr;
  int notices_fd_ = -1;
  NoticePage* notices_ = nullptr;
  std::atomic<bool> is_stopping_{false};
  std::atomic<uint32_t> connection_count_{0};
  std::atomic<uint64_t> last_token_{100};

  std::mutex mutex_;
  std::condition_variable changed_;
  Handler handler_;
  int connection_ = -1;
  std::vector<int> lives_;
  std::vector<PeerMessage> received_;
  std::mutex send_mutex_;
  std::mutex reading_mutex_;
  std::thread thread_;
};

// One member of `parts` parts of `part_bytes` each.
SpaceGroupSpec TestGroup(uint32_t parts = 2, uint64_t part_bytes = 8192);
std::vector<BlockKey> TestKeys(uint32_t count);
ClientOptions TestOptions(const ScriptedDaemon& daemon);

}  // namespace terrace
