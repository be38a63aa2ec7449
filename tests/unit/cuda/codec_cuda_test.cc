// The kernels against the host, bit by bit. Needs a GPU: without one every test here says that it
// was skipped. What needs none (that the plugin speaks this ABI) is tested wherever it is built.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "cuda/host/device_loader.h"
#include "cuda/kernels/codec_device.h"
#include "cuda/kernels/rope.h"
#include "unit/cuda/codec_pieces.h"
#include "unit/cuda/plugin_path.h"

namespace terrace {
namespace {

#if defined(TERRACE_CUDA_PLUGIN_PATH)

struct Comparison;

// The device and a stream of the plugin; memory that both sides reach.
class CodecKernels : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = CudaPluginPath();
    std::string why;
    const Result<const DeviceOps*> loaded = LoadDevicePlugin(path, &why);
    ASSERT_TRUE(loaded.ok()) << why;
    ops_ = *loaded;
    codecs_ = ops_->codecs;
    ASSERT_NE(codecs_, nullptr);
    ASSERT_EQ(codecs_->struct_bytes, sizeof(CodecOps));
    uint32_t device_count = 0;
    const DeviceStatus counted = ops_->count_devices(&device_count);
    if (device_count == 0) {
      std::fprintf(stderr, "SKIPPED: codec kernels were not compared with the host: %s\n",
                   counted.what);
      GTEST_SKIP() << "SKIPPED: no GPU here";
    }
    const DeviceOpenOptions options;
    ASSERT_EQ(ops_->open_device(&options, &device_).code, 0);
    ASSERT_EQ(ops_->create_stream(device_, StreamPriority::kStore, &stream_).code, 0);
    ASSERT_EQ(ops_->create_event(device_, &event_).code, 0);
  }
  void TearDown() override {
    FreeAll();
    if (event_ != nullptr) ops_->destroy_event(event_);
    if (stream_ != nullptr) ops_->destroy_stream(stream_);
    if (device_ != nullptr) ops_->close_device(device_);
  }

  template <typename T>
  std::span<T> Pinned(size_t count) {
    void* address = nullptr;
    EXPECT_EQ(ops_->allocate(device_, DeviceMemory::kPinned, count * sizeof(T), &address).code, 0);
    pinned_.push_back(address);
    std::memset(address, 0xA5, count * sizeof(T));
    return {static_cast<T*>(address), count};
  }
  Comparison Compare(Codec codec, const PieceShape& shape, uint64_t gap_bytes);
  void CompareDecoded(const Comparison& made, const RopeTable& table, std::span<float> turns);
  void FreeAll() {
    for (void* address : pinned_) ops_->deallocate(device_, DeviceMemory::kPinned, address);
    pinned_.clear();
  }
  void Await(const DeviceStatus& queued) {
    ASSERT_EQ(queued.code, 0) << queued.what;
    ASSERT_EQ(ops_->record_event(event_, stream_).code, 0);
    const DeviceStatus done = ops_->await_event(event_);
    ASSERT_EQ(done.code, 0) << done.what;
  }

  const DeviceOps* ops_ = nullptr;
  const CodecOps* codecs_ = nullptr;
  DeviceHandle* device_ = nullptr;
  StreamHandle* stream_ = nullptr;
  EventHandle* event_ = nullptr;
  std::vector<void*> pinned_;
};

constexpr uint32_t kPieces = 3;

CodecLaunch LaunchOf(Codec codec, const PieceShape& shape, uint64_t token_stride_bytes) {
  CodecLaunch launch;
  launch.codec = static_cast<uint32_t>(codec);
  launch.element = static_cast<uint32_t>(shape.element);
  launch.role = static_cast<uint32_t>(shape.role);
  launch.tokens = shape.tokens;
  launch.heads = shape.heads;
  launch.head_dim = shape.head_dim;
  launch.piece_count = kPieces;
  launch.engine_token_stride_bytes = token_stride_bytes;
  return launch;
}

// Heads that are cut in vectors of 8, 4 and 2 elements, rows and columns of more vectors than a
// warp holds, and counts of tokens that no thread's share divides.
std::vector<PieceShape> Shapes() {
  std::vector<PieceShape> shapes;
  const uint32_t extents[][3] = {{16, 4, 128}, {1, 1, 2},   {33, 3, 80},  {20, 1, 576},
                                 {5, 9, 30},   {7, 2, 6},   {131, 1, 64}, {70, 3, 12},
                                 {2, 1, 1022}, {3, 1, 1024}};
  for (const auto& [tokens, heads, head_dim] : extents) {
    for (const ElementType element : kElementTypes) {
      for (const PieceRole role : kPieceRoles) {
        shapes.push_back({element, role, tokens, heads, head_dim});
      }
    }
  }
  return shapes;
}

// Windows that are whole, that end where vectors do, and that begin or end within one.
std::vector<RopeSpec> WindowsOf(uint32_t head_dim) {
  std::vector<RopeSpec> windows;
  const uint32_t extents[][2] = {{0, head_dim},      {1, 4}, {2, 2}, {8, 16}, {4, 8}, {8, 56},
                                 {head_dim - 64, 64}};
  for (const auto& [offset, dim] : extents) {
    if (offset > head_dim || dim > head_dim - offset) continue;
    for (const RopePairing pairing : {RopePairing::kNeox, RopePairing::kGptj}) {
      RopeSpec spec = {.pairing = pairing, .rot_dim = dim, .rot_offset = offset};
      for (uint32_t i = 0; i < dim / 2; ++i)
        spec.inv_freq.push_back(std::pow(10'000.0, -2.0 * i / dim));
      windows.push_back(spec);
    }
  }
  return windows;
}

// Of piece 2 the values that arithmetic likes least, among them whole groups of nothing.
std::vector<float> ValuesOfPiece(const PieceShape& shape, uint32_t piece) {
  std::vector<float> values = LikelyValues(shape, piece);
  if (piece != 2) return values;
  const float largest = shape.element == ElementType::kFp16 ? 65504.0f : codec_math::kMagnitudeMax;
  const float hard[] = {0.0f, -0.0f, largest, -largest, 0x1p-101f, -0x1p-20f, 0x1p-24f, 0x1p-130f};
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % shape.head_dim == 1 || i / shape.channel_count() == 1) {
      values[i] = i % 3 == 0 ? -0.0f : 0.0f;
    } else if (i % 5 != 0) {
      values[i] = hard[i * 7 / 5 % std::size(hard)];
    }
  }
  return values;
}

// How the pages of a launch lie: rows are farther apart than they are long, so what is between them
// can be seen, and piece 1 is aligned to nothing but its elements.
struct Pages {
  std::span<std::byte> bytes;
  uint64_t token_bytes, stride_bytes, tokens, shift_bytes;

  uint64_t page_bytes() const { return stride_bytes * tokens + shift_bytes; }
  std::byte* at(uint32_t piece) const {
    return &bytes[piece * (page_bytes() + 63) / 64 * 64 + (piece == 1 ? shift_bytes : 0)];
  }
};

Pages PagesOf(const PieceShape& shape, uint64_t gap_bytes) {
  const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
  return {.bytes = {},
          .token_bytes = token_bytes,
          .stride_bytes = token_bytes + gap_bytes,
          .tokens = shape.tokens,
          .shift_bytes = ElementBytes(shape.element)};
}

// A launch of kPieces with everything it needs; and what the host makes of the same.
struct Comparison {
  Codec codec;
  PieceShape shape;
  Pages pages;
  std::span<std::byte> slots;
  uint64_t slot_stride;
  std::span<CodecPiece> pieces;
  std::span<uint32_t> refused;
  CodecLaunch launch;

  std::byte* slot(uint32_t piece) const { return &slots[piece * slot_stride]; }
  std::span<std::byte> encoded(uint32_t piece) const {
    return {slot(piece), LayoutOf(codec, shape).encoded_bytes};
  }

  void PutPages() const {
    for (uint32_t i = 0; i < kPieces; ++i) {
      const PieceBytes raw = PieceOf(shape, ValuesOfPiece(shape, i));
      for (uint32_t token = 0; token < shape.tokens; ++token) {
        std::memcpy(pages.at(i) + token * pages.stride_bytes, &raw[token * pages.token_bytes],
                    pages.token_bytes);
      }
      refused[i] = 0;
    }
  }

  void CheckSlots() const {
    for (uint32_t i = 0; i < launch.piece_count; ++i) {
      const PieceBytes expected = Encoded(codec, shape, PieceOf(shape, ValuesOfPiece(shape, i)));
      ASSERT_EQ(std::memcmp(slot(i), expected.data(), expected.size()), 0)
          << NameOf(codec, shape) << " piece " << i;
      ASSERT_EQ(refused[i], 0u);
    }
  }

  void CheckPages(const RopeTable& table) const {
    for (uint32_t i = 0; i < launch.piece_count; ++i) {
      PieceBytes expected(pages.stride_bytes * shape.tokens, std::byte{0x5A});
      DecodeTurnScatter(codec, shape, encoded(i), &table, {expected.data(), pages.stride_bytes});
      ASSERT_EQ(std::memcmp(pages.at(i), expected.data(), expected.size()), 0)
          << NameOf(codec, shape) << " delta " << table.delta() << " window "
          << table.spec().rot_offset << "+" << table.spec().rot_dim << " pairing "
          << static_cast<int>(table.spec().pairing) << " piece " << i;
    }
  }
};

Comparison CodecKernels::Compare(Codec codec, const PieceShape& shape, uint64_t gap_bytes) {
  Comparison made = {.codec = codec, .shape = shape, .pages = PagesOf(shape, gap_bytes)};
  made.pages.bytes = Pinned<std::byte>(kPieces * (made.pages.page_bytes() + 64));
  made.slot_stride = (LayoutOf(codec, shape).encoded_bytes + 63) / 64 * 64;
  made.slots = Pinned<std::byte>(kPieces * made.slot_stride);
  made.pieces = Pinned<CodecPiece>(kPieces);
  made.refused = Pinned<uint32_t>(kPieces);
  made.launch = LaunchOf(codec, shape, made.pages.stride_bytes);
  made.launch.pieces = made.pieces.data();
  made.launch.refused = made.refused.data();
  for (uint32_t i = 0; i < kPieces; ++i) {
    made.pieces[i] = {reinterpret_cast<uint64_t>(made.pages.at(i)),
                      reinterpret_cast<uint64_t>(made.slot(i))};
  }
  return made;
}

void CodecKernels::CompareDecoded(const Comparison& made, const RopeTable& table,
                                  std::span<float> turns) {
  CodecLaunch launch = made.launch;
  std::copy(table.turns().begin(), table.turns().end(), turns.begin());
  launch.turns = table.delta() == 0 ? nullptr : turns.data();
  launch.pairing = static_cast<uint32_t>(table.spec().pairing);
  launch.rot_dim = table.spec().rot_dim;
  launch.rot_offset = table.spec().rot_offset;
  std::memset(made.pages.bytes.data(), 0x5A, made.pages.bytes.size());
  Await(codecs_->decode(stream_, &launch));
  made.CheckPages(table);
}

// PROMISE: T06 kernels against the host
TEST_F(CodecKernels, WriteTheBitsOfTheHost) {
  std::mt19937_64 random(1);
  uint32_t launch_count = 0, shape_index = 0;
  for (const PieceShape& shape : Shapes()) {
    ++shape_index;
    const std::vector<RopeSpec> windows = WindowsOf(shape.head_dim);
    for (const Codec codec : {Codec::kRaw, Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
      for (const bool is_aligned : {true, false}) {
        Comparison made = Compare(codec, shape, is_aligned ? 64 : 3 * ElementBytes(shape.element));
        made.launch.piece_count = 1 + ++launch_count % kPieces;
        made.PutPages();
        Await(codecs_->encode(stream_, &made.launch));
        made.CheckSlots();
        // What no encoder wrote: NaNs of raw elements, parameters that are none.
        for (std::byte& byte : made.encoded(0)) byte = static_cast<std::byte>(random());
        const auto turns = Pinned<float>(shape.head_dim + 1).subspan(is_aligned ? 0 : 1);
        CompareDecoded(made, RopeTable(windows[0], 0), turns);
        for (size_t i = 0; i < windows.size() && shape.role == PieceRole::kKeys; ++i) {
          // Half of the windows a launch; the other half has other shapes, codecs and pages.
          if ((i + shape_index / 2 + launch_count / 2) % 2 == 0) continue;
          CompareDecoded(made, RopeTable(windows[i], i % 3 == 0 ? 4321 : -77), turns);
        }
        FreeAll();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CodecKernels, SayWhichPieceHasANaN) {
  for (const PieceShape& shape : Shapes()) {
    for (const Codec codec : kLossyCodecs) {
      const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
      const auto pages = Pinned<std::byte>(kPieces * shape.raw_bytes());
      const auto slots = Pinned<std::byte>(kPieces * encoded_bytes);
      const auto pieces = Pinned<CodecPiece>(kPieces);
      const auto refused = Pinned<uint32_t>(kPieces);
      for (uint32_t i = 0; i < kPieces; ++i) {
        const PieceBytes raw = PieceOf(shape, LikelyValues(shape, i));
        std::memcpy(&pages[i * raw.size()], raw.data(), raw.size());
        pieces[i] = {reinterpret_cast<uint64_t>(&pages[i * raw.size()]),
                     reinterpret_cast<uint64_t>(&slots[i * encoded_bytes])};
        refused[i] = 0;
      }
      const uint64_t last = 2 * shape.raw_bytes() - ElementBytes(shape.element);
      PutElement(shape.element, NAN, &pages[last]);
      CodecLaunch launch =
          LaunchOf(codec, shape, shape.channel_count() * ElementBytes(shape.element));
      launch.pieces = pieces.data();
      launch.refused = refused.data();
      Await(codecs_->encode(stream_, &launch));
      EXPECT_EQ(refused[0], 0u) << NameOf(codec, shape);
      EXPECT_EQ(refused[1], 1u) << NameOf(codec, shape);
      EXPECT_EQ(refused[2], 0u) << NameOf(codec, shape);
    }
    FreeAll();
  }
}

#else

TEST(CodecKernels, WriteTheBitsOfTheHost) {
  std::fprintf(stderr,
               "SKIPPED: codec kernels were not compared with the host: no nvcc built "
               "them\n");
  GTEST_SKIP() << "SKIPPED: the CUDA plugin was not built";
}

#endif

}  // namespace
}  // namespace terrace
