// A client that writes into all memory of its domain at full speed, while its neighbours and the
// daemon read and write there: what they meet is bytes, and nothing that they reckon with.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"
#include "terrace/chunk.h"
#include "terrace/client.h"
#include "terrace/codec.h"

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kBlocks = 8;
constexpr uint64_t kRawPartBytes = 2 * 2 * 4096;

enum class Kind : uint8_t { kPlain, kCoded, kChunks };
constexpr Kind kKinds[] = {Kind::kPlain, Kind::kCoded, Kind::kChunks};

SpaceGroupSpec SpecOf(Kind kind) {
  SpaceSpec spec;
  spec.model = "raced";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = 2;
  spec.kv_heads = 2;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.part_bytes = {kRawPartBytes};
  std::string why;
  if (kind == Kind::kCoded) {
    EXPECT_TRUE(ApplyCodec(Codec::kInt8, 1, &spec, &why).ok()) << why;
  }
  if (kind == Kind::kChunks) {
    spec.layout = "chunk-nhd";
    spec.part_bytes = {kChunkHeaderBytes, kRawPartBytes};
  }
  SpaceGroupSpec group;
  group.name = "raced-" + std::to_string(static_cast<int>(kind));
  group.members.push_back({.spec = spec});
  return group;
}

std::vector<BlockKey> KeysOf(uint64_t prompt) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < kBlocks; ++i) keys.push_back({.low = i + 1, .high = prompt});
  return keys;
}

// Small numbers of bf16, which every codec takes; a chunk's header where the part is one.
std::vector<std::byte> PartOf(const BlockKey& key, uint64_t part_bytes) {
  std::vector<std::byte> bytes(part_bytes);
  if (part_bytes == kChunkHeaderBytes) {
    ChunkHeader{.first_token_position = 64, .token_count = 16}.Write(
        std::span<std::byte, kChunkHeaderBytes>(bytes.data(), kChunkHeaderBytes));
    return bytes;
  }
  for (size_t i = 0; i < bytes.size(); i += 2) {
    bytes[i] = std::byte((i * 7 + key.low * 31 + key.high * 5) & 255);
    bytes[i + 1] = std::byte{0x3F};
  }
  return bytes;
}

// A client of one domain with all three groups.
class Neighbour {
 public:
  explicit Neighbour(const std::string& socket_path) {
    ClientOptions options;
    options.socket_path = socket_path;
    options.default_deadline_us = kLongUs;
    Result<std::unique_ptr<Client>> client = Client::Create(options);
    EXPECT_TRUE(client.ok() && (*client)->WaitConnected(kLongUs).ok());
    client_ = std::move(client).value();
    for (const Kind kind : kKinds) {
      const Result<GroupRef> group = client_->Open(SpecOf(kind), 1);
      EXPECT_TRUE(group.ok()) << client_->last_error();
      groups_.push_back(*group);
    }
  }

  void Store(Kind kind, uint64_t prompt) {
    const std::vector<BlockKey> keys = KeysOf(prompt);
    Result<WriteLease> lease = client_->Reserve(GroupOf(kind), keys);
    if (!Expected(lease.status())) return;
    for (uint32_t block = 0; block < kBlocks; ++block) {
      if (!lease->is_reserved(block)) continue;
      for (uint32_t part = 0; part < PartCountOf(kind); ++part) {
        Expected(lease->WritePart(block, 0, part, PartOf(keys[block], PartBytesOf(kind, part))));
      }
    }
    Expected(client_->Commit(*lease).status());
  }

  struct Seen {
    uint32_t right = 0, wrong = 0, missed = 0;
  };
  Seen Load(Kind kind, uint64_t prompt) {
    Seen seen;
    const std::vector<BlockKey> keys = KeysOf(prompt);
    Result<ReadLease> lease = client_->Acquire(GroupOf(kind), keys);
    const uint32_t block_count = Expected(lease.status()) ? lease->block_count() : 0;
    if (block_count > 0) Expected(client_->WaitReady(*lease, block_count, kLongUs));
    for (uint32_t block = 0; block < block_count && block < lease->ready_count(); ++block) {
      bool is_right = true;
      for (uint32_t part = 0; part < PartCountOf(kind); ++part) {
        std::vector<std::byte> bytes(PartBytesOf(kind, part));
        Expected(lease->CopyPart(block, 0, part, bytes));
        is_right = is_right && bytes == PartOf(keys[block], bytes.size());
      }
      // As copiers of chunks do: where it lies.
      if (kind == Kind::kChunks) {
        (void)ChunkHeader::Read(lease->slot(block, 0).first(kChunkHeaderBytes));
      }
      ++(is_right ? seen.right : seen.wrong);
    }
    seen.missed = kBlocks - seen.right - seen.wrong;
    return seen;
  }
  uint64_t Stat(const char* name) {
    const Result<std::string> stats = client_->Stats();
    return stats.ok() ? nlohmann::json::parse(*stats)["domain"][name].get<uint64_t>() : 0;
  }

 private:
  GroupRef GroupOf(Kind kind) const { return groups_[static_cast<size_t>(kind)]; }
  static uint32_t PartCountOf(Kind kind) { return kind == Kind::kChunks ? 2 : 1; }
  static uint64_t PartBytesOf(Kind kind, uint32_t part) {
    return kind == Kind::kChunks && part == 0 ? kChunkHeaderBytes : kRawPartBytes;
  }
  // Whatever lies there, nobody is told that the caller is wrong or the connection broke.
  static bool Expected(const Status& status) {
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound ||
                status.code() == StatusCode::kBusy || status.code() == StatusCode::kNoSpace ||
                status.code() == StatusCode::kCorrupt)
        << status.what();
    return status.ok();
  }

  std::unique_ptr<Client> client_;
  std::vector<GroupRef> groups_;
};

// Until it is killed.
[[noreturn]] void WriteEverywhere(const std::string& socket_path) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RawClient client;
  if (!client.Attach(socket_path)) _exit(1);
  const int arena = client.received_fds()[0];
  struct stat file {};
  fstat(arena, &file);
  const auto file_bytes = static_cast<uint64_t>(file.st_size);
  void* const mapped = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena, 0);
  if (mapped == MAP_FAILED) _exit(1);
  auto* const words = static_cast<volatile uint64_t*>(mapped);
  uint64_t random = 88'172'645'463'325'252;
  while (true) {
    // What is populated: the rest is the machine's memory.
    for (off_t from = 0; (from = lseek(arena, from, SEEK_DATA)) >= 0;) {
      const off_t to = lseek(arena, from, SEEK_HOLE);
      const auto word_count = static_cast<uint64_t>(to - from) / sizeof(uint64_t);
      for (int i = 0; i < 1 << 16; ++i) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        words[static_cast<uint64_t>(from) / sizeof(uint64_t) + random % word_count] = random;
      }
      from = to;
    }
  }
}

// Bounds, magic and lengths of what lies in memory that others write are what this one would fall
// over: encoded parts, headers of chunks, blocks on their way to and from a drive.
// PROMISE: T31 all memory of a domain at full speed
TEST(MemoryRaces, WhatAPeerChangesAtFullSpeedIsBytesAndNothingElse) {
  const char* const told = std::getenv("TERRACE_RACE_S");
  const std::chrono::seconds length(told == nullptr ? 2 : std::atoi(told));
  DaemonProcess daemon;
  const std::string other = daemon.directory() + "/other.sock";
  const std::string config = daemon.WriteFile(
      "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"24MiB\"\nstate_dir = \"" +
                    daemon.directory() + "\"\n[nvme]\npaths = [\"" + daemon.directory() +
                    "/nvme\"]\ncapacity_bytes = \"256MiB\"\nslab_bytes = \"8MiB\"\n" +
                    "[[domain]]\nname = \"raced\"\nsocket = \"" + daemon.socket_path() +
                    "\"\n[[domain]]\nname = \"other\"\nsocket = \"" + other + "\"\n");
  daemon.Start({"--config", config});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  Neighbour neighbour(daemon.socket_path()), bystander(other);
  for (const Kind kind : {Kind::kPlain, Kind::kChunks}) bystander.Store(kind, 1);
  neighbour.Store(Kind::kPlain, 1);  // so that there is something to write over
  const pid_t attacker = fork();
  if (attacker == 0) WriteEverywhere(daemon.socket_path());
  const auto until = std::chrono::steady_clock::now() + length;
  uint64_t prompt = 1;
  Neighbour::Seen all;
  while (std::chrono::steady_clock::now() < until) {
    ++prompt;
    for (const Kind kind : kKinds) {
      neighbour.Store(kind, prompt);
      // Of now, and of what has gone below and comes back.
      for (const uint64_t asked : {prompt, prompt / 2 + 1}) {
        const Neighbour::Seen seen = neighbour.Load(kind, asked);
        all.right += seen.right;
        all.wrong += seen.wrong;
        all.missed += seen.missed;
      }
    }
    for (const Kind kind : {Kind::kPlain, Kind::kChunks}) {
      ASSERT_EQ(bystander.Load(kind, 1).right, kBlocks) << "another domain's are its own";
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(attacker, &status, WNOHANG), 0) << "it wrote until the end";
  kill(attacker, SIGKILL);
  ASSERT_EQ(waitpid(attacker, &status, 0), attacker);
  EXPECT_GT(prompt, 3u);
  EXPECT_GT(all.wrong + all.missed, 0u) << "it wrote where others read";
  EXPECT_GT(neighbour.Stat("blocks_corrupt"), 0u) << "what went below was looked at";
  // And now that it is gone all is as ever, once the daemon has seen it gone: until then what it
  // held is in the way.
  for (const Kind kind : {Kind::kPlain, Kind::kChunks}) {
    uint32_t right = 0;
    for (int i = 0; i < 500 && right != kBlocks; ++i) {
      if (i > 0) usleep(10'000);
      neighbour.Store(kind, ++prompt);
      right = neighbour.Load(kind, prompt).right;
    }
    EXPECT_EQ(right, kBlocks);
  }
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Errors();
  RecordProperty("prompts", static_cast<int>(prompt));
}

}  // namespace
}  // namespace terrace::test
