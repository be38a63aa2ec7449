// TraceRecorder: writes what a domain's clients ask for to a file, for `terrace replay`: times,
// keys, counts and hints, never tokens or bytes of blocks. docs/OPERATIONS.md describes the lines.
//
// THREADING: Record, Start, Stop and Status: the store thread, which never waits: what does not fit
// the queue is dropped and counted. A thread of its own formats and writes.
// LIMITS: kQueueMax requests of together kQueuedKeysMax keys; two files of file_bytes_max ÷ 2.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "terrace/arena_layout.h"
#include "terrace/block_key.h"
#include "terrace/protocol_introspection.h"

namespace terrace {

struct TracedRequest {
  protocol::Verb verb = protocol::Verb::kMatch;  // Match, Acquire, Reserve, Commit, Release, Touch
  uint64_t now_us = 0;
  GroupId group;
  uint32_t block_tokens = 0;
  LeaseToken lease;
  BlockKey parent;              // of a Reserve that goes on from there
  uint32_t first_position = 0;  // of the first key
  uint32_t key_count = 0;       // asked; of a Commit its entries
  uint32_t good_count = 0;      // blocks hit, given a slot, or sealed
  bool is_flat = false;
  protocol::Hints hints;
  std::vector<BlockKey> keys;  // the first kTracedKeysMax
};

struct TraceRecorderOptions {
  std::string directory;
  std::string domain_name;
  uint64_t file_bytes_max = 0;  // > 0
};

class TraceRecorder {
 public:
  static constexpr uint32_t kTracedKeysMax = 1 << 14;  // of one request
  static constexpr uint32_t kQueueMax = 1 << 12;
  static constexpr uint64_t kQueuedKeysMax = 1 << 20;

  explicit TraceRecorder(TraceRecorderOptions options);
  ~TraceRecorder();  // what is queued is written

  bool is_recording() const { return is_open_.load(std::memory_order_acquire); }
  void Record(TracedRequest request);
  // Take effect soon; Status tells.
  void Start();
  void Stop();
  protocol::TraceRecordReply Status() const;

 private:
  void Run();
  void Open();
  void Close();
  // False if nothing was queued.
  bool WriteSome();
  void Write(const std::string& line);
  void Fail();
  void EndByItself(int error);

  // Constant after construction.
  const TraceRecorderOptions options_;
  const std::string path_;

  // A ring: the store thread adds, the recorder's takes.
  std::vector<TracedRequest> queue_;
  std::atomic<uint64_t> added_count_{0};
  std::atomic<uint64_t> taken_count_{0};
  std::atomic<uint64_t> queued_keys_{0};

  std::atomic<uint32_t> wish_{0};  // kOff, kOn, kEnd
  std::atomic<bool> is_open_{false};
  std::atomic<int32_t> error_{0};
  std::atomic<uint64_t> record_count_{0};
  std::atomic<uint64_t> dropped_count_{0};
  std::atomic<uint64_t> written_bytes_{0};

  // The recorder's thread only.
  std::FILE* file_ = nullptr;
  uint64_t file_bytes_ = 0;
  std::thread thread_;
};

}  // namespace terrace
