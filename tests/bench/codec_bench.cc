// How fast the host encodes and decodes beside a memcpy of the same engine bytes: pieces of 16
// tokens × 8 heads × 128 in bf16 over a working set far larger than the caches, from private memory
// to a populated shared mapping and back, as an engine stores and loads. The kinds take turns
// within a round, so a slow second of the machine hits all of them.
//
//   taskset -c 1 codec_bench [working set in MiB, default 256] [rounds, default 7]
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernels/codec.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using Bytes = std::span<std::byte>;

constexpr PieceShape kKeys = {.element = ElementType::kBf16,
                              .role = PieceRole::kKeys,
                              .tokens = 16,
                              .heads = 8,
                              .head_dim = 128};

PieceShape OfRole(PieceRole role) {
  PieceShape shape = kKeys;
  shape.role = role;
  return shape;
}

struct Kind {
  std::string name;
  std::function<void(Bytes engine, Bytes slot)> run;
  std::vector<double> bytes_per_second;
};

constexpr std::string_view kLevelNames[] = {"portable", "AVX2", "AVX-512"};

void AddCodec(Codec codec, PieceRole role, SimdLevel level, std::vector<Kind>* kinds) {
  const PieceShape shape = OfRole(role);
  const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
  const std::string name = std::string(CodecName(codec)) +
                           (role == PieceRole::kKeys ? " keys " : " values ") +
                           std::string(kLevelNames[static_cast<int>(level)]);
  kinds->push_back({name + " encode",
                    [=](Bytes engine, Bytes slot) {
                      if (!EncodePiece(codec, shape, engine, slot.first(encoded_bytes), level).ok())
                        std::abort();
                    },
                    {}});
  kinds->push_back({name + " decode",
                    [=](Bytes engine, Bytes slot) {
                      DecodePiece(codec, shape, slot.first(encoded_bytes), engine, level);
                    },
                    {}});
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  kinds.push_back(
      {"memcpy to the slot",
       [](Bytes engine, Bytes slot) { std::memcpy(slot.data(), engine.data(), engine.size()); },
       {}});
  for (const Codec codec : {Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
    for (const PieceRole role : {PieceRole::kKeys, PieceRole::kValues}) {
      AddCodec(codec, role, BestSimdLevel(), &kinds);
    }
  }
  for (const SimdLevel level : {SimdLevel::kPortable, SimdLevel::kAvx2}) {
    if (level < BestSimdLevel()) AddCodec(Codec::kInt8, PieceRole::kKeys, level, &kinds);
  }
  return kinds;
}

double MeasureBytesPerSecond(const Kind& kind, Bytes engine, Bytes slots) {
  const uint64_t piece_bytes = kKeys.raw_bytes();
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0; at < engine.size(); at += piece_bytes) {
    kind.run(engine.subspan(at, piece_bytes), slots.subspan(at, piece_bytes));
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(engine.size()) / elapsed.count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Bytes Map(size_t size, int flags, int fd) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) return {};
  return Bytes(static_cast<std::byte*>(address), size);
}

void FillWithKeys(Bytes engine) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  auto* values = reinterpret_cast<uint16_t*>(engine.data());
  std::vector<uint16_t> pattern(1 << 16);
  for (uint16_t& value : pattern) {
    const float x = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    value = static_cast<uint16_t>(bits >> 16);
  }
  for (size_t i = 0; i < engine.size() / 2; ++i) values[i] = pattern[(i * 7 + i / 65536) % 65536];
}

int Run(size_t working_set_bytes, size_t round_count) {
  const int fd = memfd_create("codec_bench", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(working_set_bytes)) != 0) {
    std::perror("memfd");
    return 1;
  }
  const Bytes slots = Map(working_set_bytes, MAP_SHARED, fd);
  const Bytes engine = Map(working_set_bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (slots.empty() || engine.empty()) {
    std::perror("mmap: use a smaller working set");
    return 1;
  }
  FillWithKeys(engine);
  std::vector<Kind> kinds = Kinds();
  for (size_t round = 0; round < round_count; ++round) {
    for (Kind& kind : kinds) {
      kind.bytes_per_second.push_back(MeasureBytesPerSecond(kind, engine, slots));
    }
  }
  const double memcpy_rate = Median(kinds[0].bytes_per_second);
  std::printf("%zu MiB of pieces of %zu KiB, %zu rounds, medians\n",
              working_set_bytes / size_t{kMiB}, size_t{kKeys.raw_bytes() / kKiB}, round_count);
  for (const Kind& kind : kinds) {
    const double rate = Median(kind.bytes_per_second);
    std::printf("  %-32s %6.2f GB/s of engine bytes  %.2f of memcpy\n", kind.name.c_str(),
                rate / 1e9, rate / memcpy_rate);
  }
  return 0;
}

bool ReadCount(const char* text, size_t* count) {
  const std::string_view view(text);
  return std::from_chars(view.data(), view.data() + view.size(), *count).ec == std::errc() &&
         *count > 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  size_t working_set_mib = 256;
  size_t rounds = 7;
  if ((argc > 1 && !terrace::ReadCount(argv[1], &working_set_mib)) ||
      (argc > 2 && !terrace::ReadCount(argv[2], &rounds)) || argc > 3) {
    std::fprintf(stderr, "usage: codec_bench [working set in MiB] [rounds]\n");
    return 2;
  }
  return terrace::Run(working_set_mib * terrace::kMiB, rounds);
}
