// The kernels against the host, bit by bit. Needs a GPU: without one every test here says that it
// was skipped. What needs none (that the plugin speaks this ABI) is tested wherever it is built.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "cuda/codec_device.h"
#include "cuda/device_loader.h"
#include "cuda/rope.h"
#include "unit/cuda/codec_pieces.h"

namespace terrace {
namespace {

#if defined(TERRACE_CUDA_PLUGIN_PATH)

constexpr char kPluginPath[] = TERRACE_CUDA_PLUGIN_PATH;

// The device and a stream of the plugin; memory that both sides reach.
class CodecKernels : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    const Result<const DeviceOps*> loaded = LoadDevicePlugin(kPluginPath, &why);
    ASSERT_TRUE(loaded.ok()) << why;
    ops_ = *loaded;
    void* plugin = dlopen(kPluginPath, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(plugin, nullptr) << dlerror();
    const auto entry = reinterpret_cast<CodecPluginEntry>(dlsym(plugin, kCodecPluginSymbol));
    ASSERT_NE(entry, nullptr) << "the plugin exports no " << kCodecPluginSymbol;
    EXPECT_EQ(entry(kCodecAbiVersion + 1), nullptr);
    codecs_ = entry(kCodecAbiVersion);
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
    for (void* address : pinned_) ops_->deallocate(device_, DeviceMemory::kPinned, address);
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

std::vector<PieceShape> Shapes() {
  std::vector<PieceShape> shapes;
  const uint32_t extents[][3] = {{16, 8, 128}, {1, 1, 2}, {33, 3, 80}, {64, 1, 576}, {5, 9, 30}};
  for (const auto& [tokens, heads, head_dim] : extents) {
    for (const ElementType element : kElementTypes) {
      for (const PieceRole role : kPieceRoles) {
        shapes.push_back({element, role, tokens, heads, head_dim});
      }
    }
  }
  return shapes;
}

// Rows of a page are farther apart than they are long, so what is between them can be seen.
struct Page {
  std::span<std::byte> bytes;
  uint64_t token_bytes, stride_bytes;

  PieceBytes Dense(const PieceShape& shape) const {
    PieceBytes dense;
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      const auto row = bytes.subspan(token * stride_bytes, token_bytes);
      dense.insert(dense.end(), row.begin(), row.end());
    }
    return dense;
  }
};

TEST_F(CodecKernels, WriteTheBitsOfTheHost) {
  uint64_t compared_bytes = 0;
  for (const PieceShape& shape : Shapes()) {
    const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
    const uint64_t stride_bytes = token_bytes + 64;
    RopeSpec spec = {.rot_dim = shape.head_dim};
    for (uint32_t i = 0; i < shape.head_dim / 2; ++i) {
      spec.inv_freq.push_back(std::pow(10'000.0, -2.0 * i / shape.head_dim));
    }
    for (const Codec codec : {Codec::kRaw, Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
      const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
      const auto pages = Pinned<std::byte>(kPieces * stride_bytes * shape.tokens);
      const auto back = Pinned<std::byte>(kPieces * stride_bytes * shape.tokens);
      const uint64_t slot_stride = (encoded_bytes + 63) / 64 * 64;
      const auto slots = Pinned<std::byte>(kPieces * slot_stride);
      const auto pieces = Pinned<CodecPiece>(kPieces);
      const auto refused = Pinned<uint32_t>(kPieces);
      const auto turns = Pinned<float>(shape.head_dim);
      std::vector<PieceBytes> raw;
      for (uint32_t i = 0; i < kPieces; ++i) {
        raw.push_back(PieceOf(shape, LikelyValues(shape, i)));
        for (uint32_t token = 0; token < shape.tokens; ++token) {
          std::memcpy(&pages[(i * shape.tokens + token) * stride_bytes],
                      &raw[i][token * token_bytes], token_bytes);
        }
        pieces[i] = {reinterpret_cast<uint64_t>(&pages[uint64_t{i} * shape.tokens * stride_bytes]),
                     reinterpret_cast<uint64_t>(&slots[i * slot_stride])};
        refused[i] = 0;
      }
      CodecLaunch launch = LaunchOf(codec, shape, stride_bytes);
      launch.pieces = pieces.data();
      launch.refused = refused.data();
      Await(codecs_->encode(stream_, &launch));
      for (uint32_t i = 0; i < kPieces; ++i) {
        const PieceBytes expected = Encoded(codec, shape, raw[i]);
        ASSERT_EQ(std::memcmp(&slots[i * slot_stride], expected.data(), encoded_bytes), 0)
            << NameOf(codec, shape) << " piece " << i;
        ASSERT_EQ(refused[i], 0u);
        compared_bytes += encoded_bytes;
      }
      for (const int32_t delta : {0, 4321, -77}) {
        if (delta != 0 && shape.role == PieceRole::kValues) continue;
        const RopeTable table(spec, delta);
        std::copy(table.turns().begin(), table.turns().end(), turns.begin());
        launch.turns = delta == 0 ? nullptr : turns.data();
        launch.rot_dim = spec.rot_dim;
        std::memset(back.data(), 0x5A, back.size());
        for (uint32_t i = 0; i < kPieces; ++i) {
          pieces[i].engine_address =
              reinterpret_cast<uint64_t>(&back[uint64_t{i} * shape.tokens * stride_bytes]);
        }
        Await(codecs_->decode(stream_, &launch));
        for (uint32_t i = 0; i < kPieces; ++i) {
          PieceBytes expected(stride_bytes * shape.tokens, std::byte{0x5A});
          DecodeTurnScatter(codec, shape, Encoded(codec, shape, raw[i]), &table,
                            {expected.data(), stride_bytes});
          ASSERT_EQ(std::memcmp(&back[i * expected.size()], expected.data(), expected.size()), 0)
              << NameOf(codec, shape) << " delta " << delta << " piece " << i;
          compared_bytes += expected.size();
        }
      }
    }
    for (void* address : pinned_) ops_->deallocate(device_, DeviceMemory::kPinned, address);
    pinned_.clear();
  }
  std::printf("  %.1f MB compared, 0 differ\n", static_cast<double>(compared_bytes) / 1e6);
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
    for (void* address : pinned_) ops_->deallocate(device_, DeviceMemory::kPinned, address);
    pinned_.clear();
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
