// How fast one process stores and loads whole blocks through the C++ client: the floor for the
// other languages' clients. tests/long/python_rate.py runs it.
//
//   client_rate_bench SOCKET FIRST_PROMPT PROMPTS BLOCKS
//
// Blocks of 1 MiB, stored prompt by prompt and loaded again into one buffer; prints MiB/s of both.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "terrace/client.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kDeadlineUs = 30'000'000;

double SecondsSince(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

int Fail(const char* what, const Client& client) {
  std::fprintf(stderr, "%s: %s\n", what, client.last_error().c_str());
  return 1;
}

std::vector<BlockKey> KeysOf(uint64_t prompt, uint32_t block_count) {
  std::vector<BlockKey> keys(block_count);
  for (uint32_t i = 0; i < block_count; ++i) keys[i] = {.low = i + 1, .high = prompt};
  return keys;
}

bool Store(Client& client, GroupRef group, const std::vector<BlockKey>& keys,
           const std::vector<std::byte>& bytes) {
  Result<WriteLease> lease = client.Reserve(group, keys);
  if (!lease.ok()) return false;
  for (uint32_t b = 0; b < keys.size(); ++b) {
    if (!lease->WritePart(b, 0, 0, {bytes.data() + b * kMiB, kMiB}).ok()) return false;
  }
  const Result<uint32_t> sealed = client.Commit(*lease);
  return sealed.ok() && *sealed == keys.size();
}

bool Load(Client& client, GroupRef group, const std::vector<BlockKey>& keys,
          std::vector<std::byte>* bytes) {
  const Result<ReadLease> lease = client.Acquire(group, keys);
  if (!lease.ok() || lease->block_count() != keys.size()) return false;
  if (!client.WaitReady(*lease, lease->block_count(), kDeadlineUs).ok()) return false;
  for (uint32_t b = 0; b < keys.size(); ++b) {
    if (!lease->CopyPart(b, 0, 0, {bytes->data() + b * kMiB, kMiB}).ok()) return false;
  }
  return true;
}

int Run(const char* socket_path, uint64_t first, uint64_t prompts, uint32_t blocks) {
  auto created = Client::Create({.socket_path = socket_path, .default_deadline_us = kDeadlineUs});
  if (!created.ok()) return 1;
  Client& client = **created;
  if (!client.WaitConnected(kDeadlineUs).ok()) return Fail("connect", client);
  SpaceSpec spec{.model = "rate",
                 .revision = "1",
                 .dtype = "bf16",
                 .layers = 1,
                 .kv_heads = 1,
                 .head_size = 64,
                 .layout = "nhd",
                 .block_tokens = 16,
                 .part_bytes = {kMiB}};
  SpaceGroupSpec group_spec{.name = "rate", .members = {{.spec = spec}}};
  const Result<GroupRef> group = client.Open(group_spec, 1);
  if (!group.ok()) return Fail("open", client);
  std::vector<std::byte> bytes(blocks * kMiB, std::byte(7));
  auto began = std::chrono::steady_clock::now();
  for (uint64_t p = first; p < first + prompts; ++p) {
    if (!Store(client, *group, KeysOf(p, blocks), bytes)) return Fail("store", client);
  }
  const double store_s = SecondsSince(began);
  began = std::chrono::steady_clock::now();
  for (uint64_t p = first; p < first + prompts; ++p) {
    if (!Load(client, *group, KeysOf(p, blocks), &bytes)) return Fail("load", client);
  }
  const double mib = static_cast<double>(prompts * blocks);
  std::printf("%.1f %.1f\n", mib / store_s, mib / SecondsSince(began));
  return 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s SOCKET FIRST_PROMPT PROMPTS BLOCKS\n", argv[0]);
    return 2;
  }
  return terrace::Run(argv[1], std::strtoull(argv[2], nullptr, 10),
                      std::strtoull(argv[3], nullptr, 10),
                      static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
}
