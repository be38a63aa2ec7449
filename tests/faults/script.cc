#include "faults/script.h"

#include <time.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <thread>

namespace terrace::faults {
namespace {

uint64_t NowUs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1'000;
}

void Fill(uint32_t prompt, uint32_t block, uint32_t part, unsigned char* bytes) {
  for (uint64_t i = 0; i < kPartBytes; ++i) {
    bytes[i] =
        static_cast<unsigned char>(i * 31 + i / 251 + prompt * 11 + block * 7 + part * 3 + 1);
  }
}

// What a caller may be answered: nothing here is the caller's fault, nor the codec's.
bool IsOfTheHeader(terrace_status status) {
  return status == TERRACE_OK || status == TERRACE_NOT_FOUND || status == TERRACE_NO_SPACE ||
         status == TERRACE_BUSY || status == TERRACE_IO || status == TERRACE_GONE ||
         status == TERRACE_EXISTS;
}

}  // namespace

Script::~Script() { Destroy(); }

void Script::Breach(const std::string& sentence) {
  while (lock_.test_and_set()) std::this_thread::yield();
  answers_.breaches.push_back(sentence);
  lock_.clear();
}

Answers Script::TakeAnswers() {
  Answers taken;
  std::swap(taken, answers_);
  return taken;
}

template <typename Call>
terrace_status Script::Ask(const char* name, Call call, uint64_t wait_us) {
  const uint64_t began_us = NowUs();
  const terrace_status status = call();
  const uint64_t took_us = NowUs() - began_us;
  if (took_us > wait_us + kLateUs) {
    Breach(std::string(name) + " took " + std::to_string(took_us) + " us of " +
           std::to_string(wait_us));
  }
  char sentence[256] = "";
  if (status != TERRACE_OK && client_ != nullptr) {
    terrace_client_last_error(client_, sentence, sizeof(sentence));
  }
  const std::string told = std::string(name) + ": " + terrace_status_name(status) + ": " + sentence;
  if (!IsOfTheHeader(status)) Breach(told);
  while (lock_.test_and_set()) std::this_thread::yield();
  ++answers_.calls;
  if (status != TERRACE_OK && answers_.failed++ == 0) answers_.first_failed = told;
  lock_.clear();
  return status;
}

terrace_request Script::Request(uint32_t flags, uint64_t deadline_us) const {
  terrace_request request = TERRACE_REQUEST_INIT;
  request.deadline_us = deadline_us;
  request.load_deadline_us = deadline_us;
  request.flags = flags;
  return request;
}

void Script::Connect(uint64_t wait_us) {
  char why[256] = "";
  if (client_ == nullptr) {
    terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
    options.socket_path = socket_path_;
    options.client_name = "faults";
    options.default_deadline_us = kDeadlineUs;
    options.reconnect_backoff_ms_max = 50;
    options.reply_spin_us = 0;  // or it receives nothing a thousand times
    const terrace_status created =
        Ask("create", [&] { return terrace_client_create(&options, &client_, why, sizeof(why)); });
    if ((created == TERRACE_OK) != (client_ != nullptr)) Breach("create: a code and a client");
  }
  if (client_ == nullptr) return;
  // A refusal "for good" is the daemon's or the system's word: it is tried again all the same.
  const uint64_t until_us = NowUs() + wait_us;
  terrace_status status = TERRACE_BUSY;
  while (status != TERRACE_OK && NowUs() < until_us) {
    status =
        Ask("wait_connected", [&] { return terrace_client_wait_connected(client_, kDeadlineUs); });
    if (status != TERRACE_OK) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const uint64_t part_bytes[kParts] = {kPartBytes, kPartBytes};
  terrace_space space = TERRACE_SPACE_INIT;
  space.model = "faults";
  space.revision = "1";
  space.dtype = "bf16";
  space.layout = "nhd";
  space.part_bytes = part_bytes;
  space.part_count = kParts;
  space.layers = kParts;
  space.kv_heads = 1;
  space.head_size = 64;
  space.block_tokens = kBlockTokens;
  const terrace_space* const members[] = {&space};
  terrace_group_spec spec = TERRACE_GROUP_SPEC_INIT;
  spec.name = "faults";
  spec.member_count = 1;
  spec.members = members;
  (void)Ask("open", [&] {
    return terrace_open(client_, &spec, 1, kDeadlineUs, &group_, why, sizeof(why));
  });
}

std::vector<terrace_id> Script::KeysOf(uint32_t prompt) {
  uint32_t tokens[kTokens];
  for (uint32_t i = 0; i < kTokens; ++i) tokens[i] = prompt * 1'000 + i;
  std::vector<terrace_id> keys(kBlocks);
  size_t key_count = 0;
  const terrace_status status = Ask("hash_tokens", [&] {
    return terrace_hash_tokens(client_, group_, nullptr, tokens, kTokens, keys.data(), kBlocks,
                               &key_count);
  });
  keys.resize(status == TERRACE_OK ? key_count : 0);
  return keys;
}

void Script::Run(uint32_t prompt, Drives drives) {
  is_committed_ = false;
  if (client_ == nullptr || group_ == TERRACE_GROUP_NONE) return;
  const std::vector<terrace_id> keys = KeysOf(prompt);
  if (keys.empty()) return;
  Store(prompt, keys);
  if (Load(prompt, keys) != kBlocks && is_committed_ && answers_.failed == 0) {
    Breach("what was committed a moment ago is not there");
  }
  LoadInThreads(prompt, keys);
  JoinLeases(prompt, keys);
  AskAsynchronously(prompt, keys);
  AskTheRest(keys, drives);
}

uint32_t Script::Recall(uint32_t prompt) {
  const std::vector<terrace_id> keys = KeysOf(prompt);
  return keys.empty() ? 0 : Load(prompt, keys);
}

void Script::Store(uint32_t prompt, const std::vector<terrace_id>& keys) {
  terrace_write_lease lease = {};
  const terrace_request reserve = Request();
  const terrace_status reserved = Ask("reserve", [&] {
    return terrace_reserve(client_, group_, keys.data(), keys.size(), &reserve, &lease);
  });
  static thread_local unsigned char bytes[kPartBytes];
  for (uint32_t block = 0; reserved == TERRACE_OK && block < keys.size(); ++block) {
    terrace_reserved_key key;
    if (terrace_write_lease_key(&lease, block, &key) != TERRACE_OK || key.status != TERRACE_OK) {
      continue;
    }
    for (uint32_t part = 0; part < kParts; ++part) {
      Fill(prompt, block, part, bytes);
      (void)Ask("write_part", [&] {
        return terrace_write_lease_write_part(&lease, block, 0, part, bytes, kPartBytes);
      });
    }
  }
  uint32_t sealed_count = 0;
  const terrace_request commit = Request(TERRACE_COMMIT_RELEASE);
  if (reserved == TERRACE_OK) {
    const terrace_status committed =
        Ask("commit", [&] { return terrace_commit(client_, &lease, &commit, &sealed_count); });
    is_committed_ = committed == TERRACE_OK && sealed_count == kBlocks;
  }
  terrace_write_lease_abort(&lease);
}

// Blocks of the lease that are ready; each is looked at.
uint32_t Script::Look(uint32_t prompt, const terrace_read_lease& lease) {
  static thread_local unsigned char wanted[kPartBytes], bytes[kPartBytes];
  const uint32_t ready_count = terrace_read_lease_ready_count(&lease);
  uint32_t right_count = 0;
  for (uint32_t block = 0; block < ready_count; ++block) {
    bool is_read = true;
    for (uint32_t part = 0; part < kParts; ++part) {
      std::memset(bytes, 0xA5, kPartBytes);
      const terrace_status copied = Ask("copy_part", [&] {
        return terrace_read_lease_copy_part(&lease, block, 0, part, bytes, kPartBytes);
      });
      is_read = is_read && copied == TERRACE_OK;
      Fill(prompt, block, part, wanted);
      if (copied == TERRACE_OK && std::memcmp(bytes, wanted, kPartBytes) != 0) {
        Breach("WRONG BYTES in block " + std::to_string(block) + " of prompt " +
               std::to_string(prompt));
      }
    }
    right_count += is_read;
  }
  return right_count;
}

uint32_t Script::Load(uint32_t prompt, const std::vector<terrace_id>& keys) {
  terrace_read_lease lease = {};
  const terrace_request request = Request();
  uint32_t right_count = 0;
  const terrace_status acquired = Ask("acquire", [&] {
    return terrace_acquire(client_, group_, keys.data(), keys.size(), &request, &lease);
  });
  if (acquired == TERRACE_OK) {
    (void)Ask("wait_ready", [&] {
      return terrace_wait_ready(client_, &lease, terrace_read_lease_block_count(&lease),
                                kDeadlineUs);
    });
    right_count = Look(prompt, lease);
  }
  terrace_read_lease_release(&lease, TERRACE_END_OF_TURN);
  return right_count;
}

void Script::LoadInThreads(uint32_t prompt, const std::vector<terrace_id>& keys) {
  std::thread threads[2];
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int i = 0; i < 3; ++i) (void)Load(prompt, keys);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Another client takes part, as an engine's second process does.
void Script::JoinLeases(uint32_t prompt, const std::vector<terrace_id>& keys) {
  Script peer(socket_path_);
  peer.Connect(kDeadlineUs);
  terrace_read_lease read = {};
  terrace_write_lease write = {};
  const terrace_request request = Request();
  const std::vector<terrace_id> others = KeysOf(~prompt);
  (void)Ask("acquire", [&] {
    return terrace_acquire(client_, group_, keys.data(), keys.size(), &request, &read);
  });
  (void)Ask("reserve", [&] {
    return terrace_reserve(client_, group_, others.data(), others.size(), &request, &write);
  });
  if (peer.group_ != TERRACE_GROUP_NONE) {
    peer.Join(prompt, terrace_read_lease_token(&read), terrace_write_lease_token(&write));
  }
  terrace_write_lease_abort(&write);
  terrace_read_lease_release(&read, TERRACE_END_UNKNOWN);
  peer.Destroy();
  const Answers met = peer.TakeAnswers();
  answers_.calls += met.calls;
  if (answers_.failed == 0) answers_.first_failed = met.first_failed;
  answers_.failed += met.failed;
  answers_.breaches.insert(answers_.breaches.end(), met.breaches.begin(), met.breaches.end());
}

void Script::Join(uint32_t prompt, terrace_id read, terrace_id write) {
  terrace_read_lease reading = {};
  terrace_write_lease writing = {};
  if ((read.low | read.high) != 0 && Ask("join_read", [&] {
                                       return terrace_join_read(client_, group_, read, 0, &reading);
                                     }) == TERRACE_OK) {
    (void)Look(prompt, reading);
  }
  if ((write.low | write.high) != 0) {
    (void)Ask("join_write",
              [&] { return terrace_join_write(client_, group_, write, 0, &writing); });
  }
  terrace_write_lease_abort(&writing);
  terrace_read_lease_release(&reading, TERRACE_END_UNKNOWN);
}

namespace {

struct Callbacks {
  std::atomic<uint32_t> count{0};
};
void OnCompletion(void* context, terrace_completion* /*its lease is given back*/) {
  static_cast<Callbacks*>(context)->count.fetch_add(1);
}

}  // namespace

void Script::AskAsynchronously(uint32_t prompt, const std::vector<terrace_id>& keys) {
  const terrace_request request = Request();
  uint32_t awaited = 0, called_back = 0;
  Callbacks callbacks;
  const auto sent = [&](const char* name, terrace_status status) {
    return Ask(name, [&] { return status; }) == TERRACE_OK;
  };
  awaited += sent("acquire_async", terrace_acquire_async(client_, group_, keys.data(), keys.size(),
                                                         &request, 1, nullptr, nullptr));
  awaited +=
      sent("prefetch_async", terrace_prefetch_async(client_, group_, keys.data(), keys.size(),
                                                    &request, 2, nullptr, nullptr));
  called_back +=
      sent("acquire_async", terrace_acquire_async(client_, group_, keys.data(), keys.size(),
                                                  &request, 3, OnCompletion, &callbacks));
  AwaitCompletions(prompt, awaited);
  const uint64_t until_us = NowUs() + kDeadlineUs + kLateUs;
  while (callbacks.count != called_back && NowUs() < until_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // A callback that comes after this would find no Callbacks.
  if (callbacks.count != called_back) {
    Breach("a callback did not come by its deadline");
    Destroy();
  }
}

void Script::AwaitCompletions(uint32_t prompt, uint32_t count) {
  const uint64_t until_us = NowUs() + kDeadlineUs + kLateUs;
  terrace_completion completion = TERRACE_COMPLETION_INIT;
  while (count > 0 && NowUs() < until_us) {
    if (terrace_poll_until(client_, kDeadlineUs, &completion) != TERRACE_OK) continue;
    --count;
    (void)Ask("completion", [&] { return completion.status; });
    if (completion.kind == TERRACE_ACQUIRED && completion.status == TERRACE_OK) {
      (void)Look(prompt, completion.read_lease);
    }
  }
  terrace_read_lease_release(&completion.read_lease, TERRACE_END_UNKNOWN);
  terrace_write_lease_abort(&completion.write_lease);
  if (count > 0) Breach("a completion did not come by its deadline");
}

void Script::AskTheRest(const std::vector<terrace_id>& keys, Drives drives) {
  if (client_ == nullptr) return;
  const terrace_request request = Request();
  const terrace_request unpin = Request(TERRACE_PIN_CLEAR);
  const auto all = [&](const char* name, auto function, auto... more) {
    (void)Ask(name, [&] { return function(client_, group_, keys.data(), keys.size(), more...); });
  };
  terrace_match_result match = {.struct_bytes = sizeof(match)};
  all("match", terrace_match, &request, &match);
  uint32_t block_count = 0;
  all("prefetch", terrace_prefetch, &request, &block_count);
  terrace_queried_block blocks[kBlocks];
  all("query", terrace_query, &request, blocks);
  all("touch", terrace_touch, &request);
  all("pin", terrace_pin, &request, &block_count);
  all("unpin", terrace_pin, &unpin, &block_count);
  if (drives == Drives::kAwait) {
    const terrace_request patient = Request(0, kDrivesUs);
    (void)Ask(
        "wait_persisted",
        [&] { return terrace_wait_persisted(client_, group_, keys.data(), keys.size(), &patient); },
        kDrivesUs);
  }
  static char json[1 << 20];
  size_t needed_bytes = 0;
  (void)Ask("stats",
            [&] { return terrace_stats(client_, kDeadlineUs, json, sizeof(json), &needed_bytes); });
}

void Script::EraseAll(uint32_t prompt) {
  const std::vector<terrace_id> keys = KeysOf(prompt);
  const terrace_request unpin = Request(TERRACE_PIN_CLEAR);
  uint32_t block_count = 0;
  // A pin whose end failed stays.
  (void)Ask("unpin", [&] {
    return terrace_pin(client_, group_, keys.data(), keys.size(), &unpin, &block_count);
  });
  const terrace_request request = Request(TERRACE_EVICT_SUBTREE, kDrivesUs);
  terrace_evict_result result = {.struct_bytes = sizeof(result)};
  // A lease that a callback left behind is given back after it.
  for (int i = 0; i < 50 && (i == 0 || result.skipped_count > 0); ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto evict = [&] {
      return terrace_evict(client_, group_, nullptr, 0, &request, &result);
    };
    if (Ask("evict", evict, kDrivesUs) != TERRACE_OK) return;
  }
}

void Script::Destroy() {
  terrace_client_destroy(client_);
  client_ = nullptr;
  group_ = TERRACE_GROUP_NONE;
}

}  // namespace terrace::faults
