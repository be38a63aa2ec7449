// One conversation with terraced through the C ABI, every kind of call of it in turn, that goes on
// whatever each answers, and looks at each answer: is its code one that the header names, did it
// come in time, are the bytes right.
//
// THREADING: one Script at a time; it starts threads of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "terrace/terrace.h"

namespace terrace::faults {

inline constexpr uint32_t kBlocks = 6;
inline constexpr uint32_t kParts = 2;
inline constexpr uint32_t kBlockTokens = 16;
inline constexpr uint32_t kTokens = kBlocks * kBlockTokens;
inline constexpr uint64_t kPartBytes = 20'000;
inline constexpr uint64_t kDeadlineUs = 1'000'000;
inline constexpr uint64_t kDrivesUs = 10'000'000;  // what waits for a sync, on a busy machine
// What is late by more than this is taken for a hang.
inline constexpr uint64_t kLateUs = 2'000'000;

// Whether it is waited for that blocks are persisted: that takes a second.
enum class Drives : uint8_t { kAwait, kLeave };

struct Answers {
  uint32_t calls = 0;
  uint32_t failed = 0;                // those that were not TERRACE_OK
  std::string first_failed;           // "acquire: busy: sentence"
  std::vector<std::string> breaches;  // of the contract
};

class Script {
 public:
  // `prompt` decides tokens and bytes.
  explicit Script(const char* socket_path) : socket_path_(socket_path) {}
  ~Script();
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  // A client, if there is none, and its connection and group, within wait_us.
  void Connect(uint64_t wait_us);
  // Stores a prompt, reads it, and asks everything else that can be asked.
  void Run(uint32_t prompt, Drives drives);
  // The blocks of a prompt that are there: those are right.
  uint32_t Recall(uint32_t prompt);
  // Erases all that was stored; what of the prompt may be pinned, too.
  void EraseAll(uint32_t prompt);
  void Destroy();

  // The prompt's last commit was answered "ok", all blocks of it.
  bool is_committed() const { return is_committed_; }
  Answers TakeAnswers();

 private:
  template <typename Call>
  terrace_status Ask(const char* name, Call call, uint64_t wait_us = kDeadlineUs);
  void Breach(const std::string& sentence);
  std::vector<terrace_id> KeysOf(uint32_t prompt);
  terrace_request Request(uint32_t flags = 0, uint64_t deadline_us = kDeadlineUs) const;
  void Store(uint32_t prompt, const std::vector<terrace_id>& keys);
  uint32_t Load(uint32_t prompt, const std::vector<terrace_id>& keys);
  void LoadInThreads(uint32_t prompt, const std::vector<terrace_id>& keys);
  uint32_t Look(uint32_t prompt, const terrace_read_lease& lease);
  void AskAsynchronously(uint32_t prompt, const std::vector<terrace_id>& keys);
  void AwaitCompletions(uint32_t prompt, uint32_t count);
  void JoinLeases(uint32_t prompt, const std::vector<terrace_id>& keys);
  void Join(uint32_t prompt, terrace_id read, terrace_id write);
  void AskTheRest(const std::vector<terrace_id>& keys, Drives drives);

  const char* const socket_path_;
  terrace_client* client_ = nullptr;
  terrace_group group_ = TERRACE_GROUP_NONE;
  bool is_committed_ = false;
  std::atomic_flag lock_;  // of what follows
  Answers answers_;
};

}  // namespace terrace::faults
