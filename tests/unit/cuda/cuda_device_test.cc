// The CUDA backend on a GPU. Without one, or without the plugin, every test here is skipped, and
// says so: this file is then no proof of anything about a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>

#include "cuda/copy/paged_copier.h"
#include "cuda/host/device_loader.h"
#include "cuda/host/device_name.h"
#include "tests/sim/paged_world.h"
#include "tests/stride.h"
#include "unit/cuda/codec_pieces.h"
#include "unit/cuda/coded_pages.h"
#include "unit/cuda/plugin_path.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

#if defined(TERRACE_CUDA_IS_EMULATED)  // where a kernel's threads run one after another
constexpr uint32_t kPageTokens = 16;
constexpr uint64_t kHeadBytes = 48;
#else
constexpr uint32_t kPageTokens = 64;
constexpr uint64_t kHeadBytes = 96;
#endif

// A descriptor, or the news that there is none (−1), to another process.
void SendDescriptor(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  sendmsg(socket, &message, 0);
}
int ReceiveDescriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  int fd = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return fd;
}

class CudaBackend : public testing::TestWithParam<std::tuple<TransferPath, bool>> {
 protected:
  void SetUp() override {
    const fs::path built = CudaPluginPath();
    if (built.empty()) GTEST_SKIP() << "built without nvcc: nothing was checked on a GPU";
    std::string pattern = (fs::temp_directory_path() / "terrace-cuda-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    const fs::path installed = directory_ / built.filename();
    fs::copy_file(built, installed);
    chmod(installed.c_str(), 0755);
    std::string why;
    const Result<ChosenBackend> chosen = ChooseBackend(DeviceBackend::kCuda, installed, &why);
    if (!chosen.ok()) GTEST_SKIP() << why << ": nothing was checked on a GPU";
    Result<Device> device = Device::Open(*chosen->ops);
    ASSERT_TRUE(device.ok()) << device.status().what();
    device_.emplace(std::move(device).value());
    stream_.emplace(std::move(Stream::Create(*device_, StreamPriority::kLoad)).value());
  }
  void TearDown() override { fs::remove_all(directory_); }

  DeviceBuffer Allocate(DeviceMemory kind, uint64_t byte_count) {
    return std::move(DeviceBuffer::Allocate(*device_, kind, byte_count)).value();
  }
  void Copy(CopyDirection direction, void* to, const void* from, uint64_t byte_count) {
    const CopyPiece piece{to, from, byte_count};
    ASSERT_TRUE(stream_->Copy(direction, {&piece, 1}).ok());
    Await(*stream_);
  }
  void Await(Stream& stream) {
    Event done = std::move(Event::Create(*device_)).value();
    ASSERT_TRUE(done.Record(stream).ok());
    ASSERT_TRUE(done.Await().ok());
  }

  fs::path directory_;
  std::optional<Device> device_;
  std::optional<Stream> stream_;
};

// A cache on the host and its mirror in device memory, whose layout has the device's addresses.
struct Mirror {
  Mirror(TestCache* cache, std::byte* device_memory) : layout(cache->layout) {
    for (uint64_t& base : layout.bases) {
      base = base - reinterpret_cast<uint64_t>(cache->memory.data()) +
             reinterpret_cast<uint64_t>(device_memory);
    }
  }
  PagedLayout layout;
};

// Every kind of layout, by every path, gathered and scattered as the naive loop does on the host.
TEST_P(CudaBackend, CopiesEveryLayoutAsTheNaiveLoopDoes) {
  const auto [path, bounces] = GetParam();
  // Nothing is registered with these: slots are taken for memory that the device does not reach.
  const std::shared_ptr<const Device> device(std::shared_ptr<void>(), &*device_);  // the fixture's
  const auto pins = bounces ? std::make_shared<HostPins>(device, 0) : nullptr;
  uint64_t case_count = 0;
  for (const std::string& kind : CacheKinds()) {
    for (const SlotOrder order : {SlotOrder::kAsEngine, SlotOrder::kNhd, SlotOrder::kHnd}) {
      if (case_count++ % test::Stride() != 0) continue;
      SCOPED_TRACE(kind + ", " + std::string(SlotOrderName(order)));
      TestCache cache = MakeCache(
          kind, {.page_tokens = kPageTokens, .head_bytes = kHeadBytes, .page_count = 300});
      const DeviceBuffer memory = Allocate(DeviceMemory::kDevice, cache.memory.size());
      const DeviceBuffer pinned = Allocate(DeviceMemory::kPinned, cache.memory.size());
      std::memcpy(pinned.address(), cache.memory.data(), cache.memory.size());
      Copy(CopyDirection::kToDevice, memory.address(), pinned.address(), cache.memory.size());
      const Mirror mirror(&cache, memory.address());
      std::string why;
      const PagedNest on_device = *CompileNest(mirror.layout, {.order = order}, &why);
      const PagedNest on_host = *CompileNest(cache.layout, {.order = order}, &why);
      const auto copier =
          std::move(
              PagedCopier::Create(
                  *device_, on_device,
                  {.store_path = path, .load_path = path, .stage_bytes = 4 * kMiB, .pins = pins},
                  &why))
              .value();
      const DeviceBuffer slots = Allocate(DeviceMemory::kPinned, 260 * on_device.slot_bytes);
      std::vector<PageSlot> asked;
      for (uint64_t i = 0; i < 260; ++i) {
        std::byte* slot = slots.address() + i * on_device.slot_bytes;
        asked.push_back({299 - i, slot, slot});
      }
      {
        Result<StoreTicket> store = copier->Store(asked, KvWritten::Already());
        ASSERT_TRUE(store.ok()) << store.status().what();
        ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
      }
      std::vector<std::byte> expected(on_host.slot_bytes);
      for (const PageSlot& page : asked) {
        NaiveGather(cache.layout, on_host, order, page.page_index, expected.data());
        for (uint32_t layer = 0; layer < on_host.layer_count(); ++layer) {
          const uint64_t offset = on_host.layer_offset_bytes[layer];
          ASSERT_EQ(std::memcmp(page.slot + offset, expected.data() + offset, on_host.layer_bytes),
                    0);
        }
      }
      // Back into pages of other bytes: all that is no asked page keeps its own.
      for (std::byte& byte : cache.memory) byte ^= std::byte{0xFF};
      std::memcpy(pinned.address(), cache.memory.data(), cache.memory.size());
      Copy(CopyDirection::kToDevice, memory.address(), pinned.address(), cache.memory.size());
      {
        Result<LoadTicket> load = copier->Load(asked, DestinationFree::Already());
        ASSERT_TRUE(load.ok()) << load.status().what();
        ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
      }
      for (const PageSlot& page : asked) {
        NaiveScatter(cache.layout, on_host, order, page.page_index, page.slot);
      }
      Copy(CopyDirection::kToHost, pinned.address(), memory.address(), cache.memory.size());
      ASSERT_EQ(std::memcmp(pinned.address(), cache.memory.data(), cache.memory.size()), 0);
    }
  }
}

// Kernels gather and encode, decode, turn and scatter: what the host's codec makes of the same
// pages.
TEST_P(CudaBackend, CodesEveryLayoutAsTheHostDoes) {
  const auto [path, bounces] = GetParam();
  if (path == TransferPath::kDirect) return;  // which does not encode
  const std::shared_ptr<const Device> device(std::shared_ptr<void>(), &*device_);
  const auto pins = bounces ? std::make_shared<HostPins>(device, 0) : nullptr;
  const CacheShape shape{.page_tokens = kPageTokens, .head_bytes = kHeadBytes, .page_count = 20};
  uint32_t number = 0;
  for (const std::string& kind : ChunkKinds()) {
    const SpaceCodec codec =
        ChunkCodecOf(kind, static_cast<Codec>(number % 4), ElementType::kBf16, shape, 2);
    const RopeSpec rope = RopeOf(codec.keys.head_dim, static_cast<RopePairing>(number / 4 % 2));
    ++number;
    SCOPED_TRACE(kind + ", " + std::string(CodecName(codec.codec)));
    TestCache cache = MakeFiniteCache(kind, shape, number);
    const DeviceBuffer memory = Allocate(DeviceMemory::kDevice, cache.memory.size());
    const DeviceBuffer pinned = Allocate(DeviceMemory::kPinned, cache.memory.size());
    std::memcpy(pinned.address(), cache.memory.data(), cache.memory.size());
    Copy(CopyDirection::kToDevice, memory.address(), pinned.address(), cache.memory.size());
    const Mirror mirror(&cache, memory.address());
    const NaiveCoded naive(cache.layout, codec);
    std::string why;
    const auto copier = std::move(PagedCopier::Create(*device_, CompileForCodec(mirror.layout),
                                                      {.store_path = path,
                                                       .load_path = path,
                                                       .stage_bytes = 256 * kKiB,
                                                       .pins = pins,
                                                       .codec = codec,
                                                       .rope = rope},
                                                      &why))
                            .value();
    const uint64_t slot_bytes = naive.layers().slot_bytes;
    const DeviceBuffer slots = Allocate(DeviceMemory::kPinned, 12 * slot_bytes);
    std::vector<PageSlot> asked;
    for (uint64_t i = 0; i < 12; ++i) {
      std::byte* slot = slots.address() + i * slot_bytes;
      asked.push_back({19 - i, slot, slot});
    }
    {
      Result<StoreTicket> store = copier->Store(asked, KvWritten::Already());
      ASSERT_TRUE(store.ok()) << store.status().what();
      ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
      EXPECT_TRUE(store->codes->Refused().empty());
    }
    for (const PageSlot& page : asked) {
      ASSERT_TRUE(naive.IsEncoded(page.page_index, page.slot)) << "page " << page.page_index;
    }
    for (std::byte& byte : cache.memory) byte ^= std::byte{0xFF};
    std::memcpy(pinned.address(), cache.memory.data(), cache.memory.size());
    Copy(CopyDirection::kToDevice, memory.address(), pinned.address(), cache.memory.size());
    for (size_t i = 0; i < asked.size(); ++i) asked[i].key_delta = static_cast<int32_t>(i / 5) * 90;
    {
      Result<LoadTicket> load = copier->Load(asked, DestinationFree::Already());
      ASSERT_TRUE(load.ok()) << load.status().what();
      ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
      ASSERT_TRUE(load->layer_ready.AwaitOnHost(shape.layer_count - 1).ok());
    }
    for (const PageSlot& page : asked) naive.Decode(page, rope);
    Copy(CopyDirection::kToHost, pinned.address(), memory.address(), cache.memory.size());
    ASSERT_EQ(std::memcmp(pinned.address(), cache.memory.data(), cache.memory.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CudaBackend,
                         testing::Combine(testing::Values(TransferPath::kDirect,
                                                          TransferPath::kStaged,
                                                          TransferPath::kZeroCopy),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(TransferPathName(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_through_the_bounce" : "");
                         });

// As the daemon makes slabs: in a process of its own, with no stream and nothing allocated.
// PROMISE: T47 the daemon's slabs
TEST(CudaSlabs, AreMadeWithoutAContextOnTheDevice) {
  const fs::path built = CudaPluginPath();
  if (built.empty()) GTEST_SKIP() << "built without nvcc: nothing was checked on a GPU";
  using State = int (*)(int device, unsigned* flags, int* is_active);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) GTEST_SKIP() << "no driver: nothing was checked on a GPU";
  const auto state = reinterpret_cast<State>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  void* const plugin = dlopen(built.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  ASSERT_NE(plugin, nullptr);
  const auto entry = reinterpret_cast<DevicePluginEntry>(dlsym(plugin, kDevicePluginSymbol));
  const DeviceOps& ops = *entry(kDeviceAbiVersion);
  unsigned flags = 0;
  int is_active = -1;
  if (state(0, &flags, &is_active) == 0 && is_active == 1) {
    GTEST_SKIP() << "another test of this process has made a context: run this one by itself";
  }
  std::string why;
  const Result<Device> device = OpenDevice(ops, DeviceChoice{}, &why);
  if (!device.ok()) GTEST_SKIP() << why << ": nothing was checked on a GPU";
  EXPECT_NE(DeviceName(*device).value().find("cuda:GPU-"), std::string::npos);
  int32_t fd = -1;
  ASSERT_EQ(ops.create_slab(device->handle(), 4 << 20, &fd).code, 0);
  ASSERT_EQ(state(0, &flags, &is_active), 0);
  EXPECT_EQ(is_active, 0);
  close(fd);
}

// A daemon that dies: its slabs live as long as somebody maps them. The process that makes the slab
// is forked before anybody here calls CUDA, whose locks it could else find held for ever
// (GoogleTest runs suites of this ending first), and killed before its memory is mapped.
TEST(CudaSlabDeathTest, OutliveTheProcessThatMadeThem) {
  constexpr uint64_t kBytes = 32 * kMiB;
  const fs::path built = CudaPluginPath();
  if (built.empty()) GTEST_SKIP() << "built without nvcc: nothing was checked on a GPU";
  const auto open = [&] {
    void* const plugin = dlopen(built.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const auto entry = reinterpret_cast<DevicePluginEntry>(dlsym(plugin, kDevicePluginSymbol));
    return Device::Open(*entry(kDeviceAbiVersion));
  };
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t maker = fork();
  if (maker == 0) {
    const Result<Device> device = open();
    int32_t fd = -1;
    if (device.ok()) device->ops().create_slab(device->handle(), kBytes, &fd);
    SendDescriptor(ends[1], fd);
    pause();
  }
  close(ends[1]);  // or nobody is told if the maker ends before it has sent anything
  const int fd = ReceiveDescriptor(ends[0]);
  kill(maker, SIGKILL);
  waitpid(maker, nullptr, 0);
  close(ends[0]);
  const Result<Device> device = open();
  if (!device.ok()) GTEST_SKIP() << device.status().what() << ": nothing was checked on a GPU";
  ASSERT_GE(fd, 0);
  const DeviceOps& ops = device->ops();
  void* slab = nullptr;
  ASSERT_EQ(ops.map_slab(device->handle(), fd, kBytes, SlabAccess::kReadWrite, &slab).code, 0);
  close(fd);
  {
    const DeviceBuffer pinned =
        std::move(DeviceBuffer::Allocate(*device, DeviceMemory::kPinned, kBytes)).value();
    Stream stream = std::move(Stream::Create(*device, StreamPriority::kLoad)).value();
    Event done = std::move(Event::Create(*device)).value();
    std::memset(pinned.address(), 0x3C, kBytes);
    const CopyPiece down{slab, pinned.address(), kBytes};
    const CopyPiece up{pinned.address(), slab, kBytes};
    ASSERT_TRUE(stream.Copy(CopyDirection::kToDevice, {&down, 1}).ok());
    ASSERT_TRUE(done.Record(stream).ok() && done.Await().ok());
    std::memset(pinned.address(), 0, kBytes);
    ASSERT_TRUE(stream.Copy(CopyDirection::kToHost, {&up, 1}).ok());
    ASSERT_TRUE(done.Record(stream).ok() && done.Await().ok());
    EXPECT_EQ(pinned.address()[kBytes - 1], std::byte{0x3C});
  }
  EXPECT_EQ(ops.unmap_slab(device->handle(), slab, kBytes).code, 0);
}

TEST_F(CudaBackend, ASlabIsOneMemoryInTwoMappings) {
  constexpr uint64_t kBytes = 32 * kMiB;
  const DeviceOps& ops = device_->ops();
  int32_t fd = -1;
  ASSERT_EQ(ops.create_slab(device_->handle(), kBytes, &fd).code, 0);
  void* writer = nullptr;
  void* reader = nullptr;
  ASSERT_EQ(ops.map_slab(device_->handle(), fd, kBytes, SlabAccess::kReadWrite, &writer).code, 0);
  ASSERT_EQ(ops.map_slab(device_->handle(), fd, kBytes, SlabAccess::kRead, &reader).code, 0);
  const DeviceBuffer pinned = Allocate(DeviceMemory::kPinned, kBytes);
  std::memset(pinned.address(), 0x5A, kBytes);
  Copy(CopyDirection::kToDevice, writer, pinned.address(), kBytes);
  std::memset(pinned.address(), 0, kBytes);
  Copy(CopyDirection::kToHost, pinned.address(), reader, kBytes);
  EXPECT_EQ(pinned.address()[kBytes - 1], std::byte{0x5A});
  EXPECT_EQ(ops.unmap_slab(device_->handle(), writer, kBytes).code, 0);
  EXPECT_EQ(ops.unmap_slab(device_->handle(), reader, kBytes).code, 0);
}

TEST_F(CudaBackend, HostMemoryIsRegisteredOnceAndGivenBack) {
  std::vector<std::byte> memory(4 * kMiB);
  const DeviceOps& ops = device_->ops();
  void* device_address = nullptr;
  ASSERT_EQ(
      ops.register_host(device_->handle(), memory.data(), memory.size(), &device_address).code, 0);
  EXPECT_NE(device_address, nullptr);
  EXPECT_NE(
      ops.register_host(device_->handle(), memory.data(), memory.size(), &device_address).code, 0);
  EXPECT_EQ(ops.unregister_host(device_->handle(), memory.data()).code, 0);
}

}  // namespace
}  // namespace terrace
