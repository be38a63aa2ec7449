// The CUDA plugin among the other users of a process: an engine that captures graphs, a second GPU,
// a GPU that fails. On emulated GPUs, with the plugin's own code. Beside these, everything that is
// tested on a GPU runs here too.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/copy/paged_copier.h"
#include "cuda/host/device_loader.h"
#include "cuda/host/edges.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/kernels.h"
#include "tests/sim/paged_world.h"

namespace terrace {
namespace {

// After every test of this program.
class NothingIsLeft : public testing::Environment {
 public:
  void TearDown() override {
    const emulator::Counts counts = emulator::Count();
    EXPECT_EQ(counts.pageable_copies, 0u)
        << "a copy of memory that is not pinned blocks its caller";
    EXPECT_EQ(counts.captured_calls, 0u) << "a copy became part of an engine's graph";
    EXPECT_EQ(counts.allocations, 0u);
    EXPECT_EQ(counts.registrations, 0u);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "an engine would meet this error";
  }
};
const testing::Environment* const g_nothing_is_left =
    testing::AddGlobalTestEnvironment(new NothingIsLeft);

const DeviceOps& PluginOps() {
  static const DeviceOps* const ops = [] {
    void* const plugin = dlopen(TERRACE_CUDA_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (plugin == nullptr) std::abort();
    return reinterpret_cast<DevicePluginEntry>(dlsym(plugin, kDevicePluginSymbol))(
        kDeviceAbiVersion);
  }();
  return *ops;
}

Device OpenDevice(uint32_t index) {
  return std::move(Device::Open(PluginOps(), {.device_index = index})).value();
}

// Everything a client does with a device, once.
void UseAllOf(const Device& device) {
  std::vector<std::byte> memory(kMiB);
  const DeviceOps& ops = device.ops();
  void* device_address = nullptr;
  ASSERT_EQ(ops.register_host(device.handle(), memory.data(), memory.size(), &device_address).code,
            0);
  {
    const DeviceBuffer on_device =
        std::move(DeviceBuffer::Allocate(device, DeviceMemory::kDevice, kMiB)).value();
    const DeviceBuffer pinned =
        std::move(DeviceBuffer::Allocate(device, DeviceMemory::kPinned, kMiB)).value();
    Stream stream = std::move(Stream::Create(device, StreamPriority::kLoad)).value();
    Stream other = std::move(Stream::Create(device, StreamPriority::kStore)).value();
    std::memset(pinned.address(), 0x3C, kMiB);
    const CopyPiece down{on_device.address(), pinned.address(), kMiB};
    ASSERT_TRUE(stream.Copy(CopyDirection::kToDevice, {&down, 1}).ok());
    Event event = std::move(Event::Create(device)).value();
    ASSERT_TRUE(event.Record(stream).ok());
    ASSERT_TRUE(other.Wait(event, StreamEdge::kStaging).ok());
    const CopyPiece up[] = {{memory.data(), on_device.address(), kMiB / 2},
                            {memory.data() + kMiB / 2, on_device.address() + kMiB / 2, kMiB / 2}};
    ASSERT_TRUE(other.Copy(CopyDirection::kToHost, up).ok());
    ASSERT_TRUE(event.Record(other).ok());
    ASSERT_TRUE(event.Await().ok());
    ASSERT_TRUE(event.Query().ok());
    for (const std::byte byte : memory) ASSERT_EQ(byte, std::byte{0x3C});
  }
  int32_t fd = -1;
  void* slab = nullptr;
  ASSERT_EQ(ops.create_slab(device.handle(), 2 * kMiB, &fd).code, 0);
  ASSERT_EQ(ops.map_slab(device.handle(), fd, 2 * kMiB, SlabAccess::kRead, &slab).code, 0);
  ASSERT_EQ(ops.unmap_slab(device.handle(), slab, 2 * kMiB).code, 0);
  close(fd);
  ASSERT_EQ(ops.unregister_host(device.handle(), memory.data()).code, 0);
}

TEST(EmulatedDevice, AClientOfTheSecondGpuMakesNoContextOnTheFirst) {
  const Device device = OpenDevice(1);
  ASSERT_TRUE(device.Describe().ok());
  EXPECT_FALSE(emulator::HasContext(1)) << "a daemon has none either";
  UseAllOf(device);
  std::thread([&] { UseAllOf(device); }).join();
  EXPECT_TRUE(emulator::HasContext(1));
  EXPECT_FALSE(emulator::HasContext(0)) << "half a GiB of a GPU that this process does not use";
}

TEST(EmulatedDevice, LeavesAnEnginesThreadOnItsOwnDevice) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  UseAllOf(OpenDevice(1));
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
}

TEST(EmulatedDevice, ReadsSlabsWhereTheDriverKnowsNoReadOnlyMapping) {
  emulator::RefuseReadOnlyMappings(true);
  UseAllOf(OpenDevice(0));
  emulator::RefuseReadOnlyMappings(false);
}

TEST(EmulatedDevice, LetsAnEngineCaptureAGraphMeanwhile) {
  cudaStream_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Device device = OpenDevice(0);
  UseAllOf(device);
  std::thread([&] { UseAllOf(device); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess) << "the capture was spoilt";
  EXPECT_EQ(cudaStreamDestroy(captured), cudaSuccess);
}

TEST(EmulatedDevice, TheCaptureWouldHaveBeenSpoiltByAThreadThatIsNotRelaxed) {
  cudaStream_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, 1), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamDestroy(captured), cudaSuccess);
  cudaGetLastError();
}

TEST(EmulatedDevice, TakesNoEdgeFromOrToAStreamUnderCapture) {
  cudaStream_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamDefault), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Device device = OpenDevice(0);
  Event event = std::move(Event::Create(device)).value();
  // The default stream waits for the captured one, so it is no better.
  for (const cudaStream_t native : {captured, cudaStream_t{nullptr}}) {
    Stream engine = std::move(Stream::Adopt(device, native)).value();
    EXPECT_EQ(event.Record(engine).code(), StatusCode::kBusy);
    EXPECT_EQ(engine.Wait(event, StreamEdge::kLayerReady).code(), StatusCode::kBusy);
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  Stream engine = std::move(Stream::Adopt(device, captured)).value();
  EXPECT_TRUE(event.Record(engine).ok());
  EXPECT_TRUE(event.Await().ok());
  EXPECT_EQ(cudaStreamDestroy(captured), cudaSuccess);
}

// The memory of a copy may be used again when its event has an answer, also a bad one: the CPU must
// then be out of it.
TEST(EmulatedDevice, AFailedDevicesEventWaitsForTheCpuThatStillCopies) {
  constexpr uint64_t kBytes = 256 * kMiB;
  const Device device = OpenDevice(0);
  const std::vector<std::byte> from(kBytes, std::byte{1});
  std::vector<std::byte> to(kBytes, std::byte{0});
  Stream stream = std::move(Stream::Create(device, StreamPriority::kLoad)).value();
  Event event = std::move(Event::Create(device)).value();
  const CopyPiece piece{to.data(), from.data(), kBytes};
  ASSERT_TRUE(stream.Copy(CopyDirection::kWithinHost, {&piece, 1}).ok());
  ASSERT_TRUE(event.Record(stream).ok());
  const volatile std::byte& first = to.front();
  while (first != std::byte{1}) std::this_thread::yield();
  emulator::FailDevice(0, cudaErrorIllegalAddress);
  const Status queried = event.Query();
  const bool was_copying = to.back() != std::byte{1};
  EXPECT_TRUE(!was_copying || queried.code() == StatusCode::kBusy) << queried.what();
  EXPECT_EQ(event.Await().code(), StatusCode::kIo);
  EXPECT_EQ(to.back(), std::byte{1});
  EXPECT_FALSE(Event::Create(device).ok());
  EXPECT_FALSE(DeviceBuffer::Allocate(device, DeviceMemory::kDevice, 1).ok());
  emulator::MendDevices();
}

// A stream of an engine's whose first kernel runs until it is told to end: what comes behind waits.
class HeldStream {
 public:
  explicit HeldStream(const Device& device) : stream_(Adopt(device, &native_)) {
    EXPECT_EQ(emulator::QueueKernel(1, 1, 0, native_,
                                    [this] {
                                      while (!goes_on_) std::this_thread::yield();
                                    }),
              cudaSuccess);
  }
  ~HeldStream() {
    GoOn();
    EXPECT_EQ(cudaStreamDestroy(native_), cudaSuccess);
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  Stream& stream() { return stream_; }
  void GoOn() { goes_on_ = true; }
  cudaError_t Finish() { return cudaStreamSynchronize(native_); }

 private:
  static Stream Adopt(const Device& device, cudaStream_t* native) {
    EXPECT_EQ(cudaStreamCreateWithFlags(native, cudaStreamNonBlocking), cudaSuccess);
    return std::move(Stream::Adopt(device, *native)).value();
  }

  std::atomic<bool> goes_on_{false};
  cudaStream_t native_ = nullptr;
  Stream stream_;
};

// … nor come back to it: one that was queued then is given up, whatever becomes of the device, and
// no event of that handle says any more that something was done.
TEST(EmulatedDevice, ACopyThatWasQueuedWhenTheDeviceFailedIsNeverMade) {
  const std::vector<std::byte> from(64, std::byte{1});
  std::vector<std::byte> to(64, std::byte{0});
  const CopyPiece piece{to.data(), from.data(), to.size()};
  const Device device = OpenDevice(0);
  Stream stream = std::move(Stream::Create(device, StreamPriority::kLoad)).value();
  Event event = std::move(Event::Create(device)).value();
  HeldStream held(device);
  Stream& engine = held.stream();
  ASSERT_TRUE(engine.Copy(CopyDirection::kWithinHost, {&piece, 1}).ok());
  ASSERT_TRUE(event.Record(engine).ok());
  EXPECT_EQ(event.Query().code(), StatusCode::kBusy);
  emulator::FailDevice(0, cudaErrorIllegalAddress);
  EXPECT_EQ(event.Await().code(), StatusCode::kIo);
  emulator::MendDevices();
  held.GoOn();
  ASSERT_EQ(held.Finish(), cudaSuccess);
  EXPECT_EQ(to.front(), std::byte{0}) << "copied into memory that its owner may have freed";
  EXPECT_EQ(event.Query().code(), StatusCode::kIo);
  EXPECT_FALSE(event.Record(stream).ok());
  const Device anew = OpenDevice(0);
  Stream other = std::move(Stream::Create(anew, StreamPriority::kLoad)).value();
  Event done = std::move(Event::Create(anew)).value();
  ASSERT_TRUE(other.Copy(CopyDirection::kWithinHost, {&piece, 1}).ok());
  ASSERT_TRUE(done.Record(other).ok());
  EXPECT_TRUE(done.Await().ok());
  EXPECT_EQ(to.front(), std::byte{1});
}

// A call that was refused for want of memory says nothing of what is under way: that goes on, and
// whoever waits for its end (CopyLane::Drain) sees it.
TEST(EmulatedDevice, ACallThatIsRefusedForWantOfMemoryGivesUpNothingThatIsQueued) {
  const std::vector<std::byte> from(64, std::byte{1});
  std::vector<std::byte> to(64, std::byte{0});
  const CopyPiece piece{to.data(), from.data(), to.size()};
  const Device device = OpenDevice(0);
  const DeviceBuffer on_device =
      std::move(DeviceBuffer::Allocate(device, DeviceMemory::kDevice, 64)).value();
  const DeviceBuffer slot =
      std::move(DeviceBuffer::Allocate(device, DeviceMemory::kPinned, 64)).value();
  std::memset(slot.address(), 7, 64);
  Event drained = std::move(Event::Create(device)).value();
  HeldStream held(device);
  Stream& engine = held.stream();
  ASSERT_TRUE(engine.Copy(CopyDirection::kWithinHost, {&piece, 1}).ok());
  const CopyPiece up{slot.address(), on_device.address(), 64};
  ASSERT_TRUE(engine.Copy(CopyDirection::kToHost, {&up, 1}).ok());
  emulator::FailDevice(0, cudaErrorMemoryAllocation);
  EXPECT_EQ(Event::Create(device).status().code(), StatusCode::kNoSpace);
  emulator::MendDevices();
  // As CopyLane::Drain does it, whose caller gives up the slot then.
  const Status recorded = drained.Record(engine);
  EXPECT_TRUE(recorded.ok()) << recorded.what();
  if (recorded.ok()) {
    held.GoOn();
    EXPECT_TRUE(drained.Await().ok());
  }
  std::memset(slot.address(), 9, 64);  // another block's by now
  held.GoOn();
  ASSERT_EQ(held.Finish(), cudaSuccess);
  EXPECT_EQ(slot.address()[0], std::byte{9}) << "written by a copy that nobody awaited";
  EXPECT_EQ(to.front(), std::byte{1});
}

// --- The four edges, on streams that are late

constexpr uint64_t kPages = 6;

// A kernel of the engine's.
void Launch(cudaStream_t stream, const std::function<void()>& run) {
  ASSERT_EQ(emulator::QueueKernel(1, 1, 0, stream, run), cudaSuccess);
}

void Fill(std::byte* memory, uint64_t byte_count, uint64_t salt) {
  for (uint64_t i = 0; i < byte_count; ++i) {
    memory[i] = static_cast<std::byte>((i * 7 + i / 251 + salt * 131) & 0xFF);
  }
}

// An engine's pages in device memory, a mirror of them on the host, and copies to and from slots.
class EmulatedEngine : public testing::TestWithParam<std::tuple<TransferPath, bool>> {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&native_, cudaStreamNonBlocking), cudaSuccess);
    engine_.emplace(std::move(Stream::Adopt(*device_, native_)).value());
    memory_.emplace(
        std::move(DeviceBuffer::Allocate(*device_, DeviceMemory::kDevice, mirror_.memory.size()))
            .value());
    for (uint64_t& base : layout_.bases) {
      base +=
          reinterpret_cast<uint64_t>(pages()) - reinterpret_cast<uint64_t>(mirror_.memory.data());
    }
    const auto [path, bounces] = GetParam();
    const auto pins = bounces ? std::make_shared<HostPins>(device_, 0) : nullptr;
    std::string why;
    copier_ = std::move(PagedCopier::Create(*device_, *CompileNest(layout_, kOrder, &why),
                                            {.store_path = path,
                                             .load_path = path,
                                             .stage_bytes = 64 * kKiB,
                                             .stage_count = 2,
                                             .load_chunk_bytes_min = 1,
                                             .load_step_bytes_min = 1,
                                             .pins = pins,
                                             .bounce_bytes = 128 * kKiB},
                                            &why))
                  .value();
    slots_.emplace(std::move(DeviceBuffer::Allocate(*device_, DeviceMemory::kPinned,
                                                    kPages * copier_->nest().slot_bytes))
                       .value());
    for (uint64_t i = 0; i < kPages; ++i) {
      std::byte* const slot = slots_->address() + i * copier_->nest().slot_bytes;
      asked_.push_back({kPages - 1 - i, slot, slot});
    }
  }
  void TearDown() override {
    ASSERT_EQ(cudaStreamSynchronize(native_), cudaSuccess);
    copier_.reset();
    engine_.reset();
    EXPECT_EQ(cudaStreamDestroy(native_), cudaSuccess);
  }

  std::byte* pages() { return memory_->address(); }
  uint64_t bytes() const { return mirror_.memory.size(); }

  // Pages are written, stored, and written over as soon as that is allowed; the slots are as the
  // naive loop has them.
  void WriteAndStore(uint64_t round) {
    Launch(native_, [to = pages(), size = bytes(), round] { Fill(to, size, round); });
    Result<KvWritten> written = KvWritten::After(copier_->events(), *engine_);
    ASSERT_TRUE(written.ok());
    Result<StoreTicket> store = copier_->Store(asked_, *written);
    ASSERT_TRUE(store.ok()) << store.status().what();
    ASSERT_TRUE(store->page_reuse.Gate(*engine_).ok());
    Launch(native_, [to = pages(), size = bytes(), round] { Fill(to, size, ~round); });
    ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
    Fill(mirror_.memory.data(), bytes(), round);
    std::vector<std::byte> expected(nest_.slot_bytes);
    for (const PageSlot& page : asked_) {
      NaiveGather(mirror_.layout, nest_, SlotOrder::kNhd, page.page_index, expected.data());
      for (uint32_t layer = 0; layer < nest_.layer_count(); ++layer) {
        const uint64_t offset = nest_.layer_offset_bytes[layer];
        ASSERT_EQ(std::memcmp(page.slot + offset, expected.data() + offset, nest_.layer_bytes), 0)
            << "round " << round << ", page " << page.page_index;
      }
    }
  }

  // Kernels still read what was written last while the pages are loaded; then each layer is read as
  // soon as it is there.
  void LoadAndRead(uint64_t round) {
    Launch(native_, [this, round] {
      std::vector<std::byte> last(bytes());
      Fill(last.data(), bytes(), ~round);
      if (std::memcmp(pages(), last.data(), bytes()) != 0) ++wrong_reads_;
    });
    Result<DestinationFree> free = DestinationFree::After(copier_->events(), *engine_);
    ASSERT_TRUE(free.ok());
    Result<LoadTicket> load = copier_->Load(asked_, *free);
    ASSERT_TRUE(load.ok()) << load.status().what();
    Fill(mirror_.memory.data(), bytes(), ~round);
    for (const PageSlot& page : asked_) {
      NaiveScatter(mirror_.layout, nest_, SlotOrder::kNhd, page.page_index, page.slot);
    }
    const auto whole = std::make_shared<const std::vector<std::byte>>(mirror_.memory);
    for (uint32_t layer = 0; layer < nest_.layer_count(); ++layer) {
      ASSERT_TRUE(load->layer_ready.Gate(layer, *engine_).ok());
      const uint64_t first = layout_.bases[layer] - reinterpret_cast<uint64_t>(pages());
      Launch(native_, [this, whole, first] {
        const uint64_t layer_bytes = kPages * layout_.block_stride_bytes;
        if (std::memcmp(pages() + first, whole->data() + first, layer_bytes) != 0) ++wrong_reads_;
      });
    }
    ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
  }

  static constexpr SlotShape kOrder = {.order = SlotOrder::kNhd};

  const std::shared_ptr<const Device> device_ = std::make_shared<const Device>(OpenDevice(0));
  cudaStream_t native_ = nullptr;
  std::optional<Stream> engine_;
  TestCache mirror_ = MakeCache("nhd_packed", {.head_bytes = 96, .page_count = kPages});
  PagedLayout layout_ = mirror_.layout;  // of the pages in device memory
  std::string why_not_;
  const PagedNest nest_ = *CompileNest(mirror_.layout, kOrder, &why_not_);
  std::optional<DeviceBuffer> memory_;
  std::unique_ptr<PagedCopier> copier_;
  std::optional<DeviceBuffer> slots_;
  std::vector<PageSlot> asked_;
  std::atomic<uint64_t> wrong_reads_{0};
};

// At no time does the host wait for the engine's stream.
TEST_P(EmulatedEngine, ItsPagesAreStoredAsWrittenAndReadAsStored) {
  for (uint64_t round = 0; round < 100; ++round) {
    WriteAndStore(round);
    if (HasFatalFailure()) return;
    LoadAndRead(round);
    if (HasFatalFailure()) return;
  }
  ASSERT_EQ(cudaStreamSynchronize(native_), cudaSuccess);
  EXPECT_EQ(wrong_reads_, 0u);
}

INSTANTIATE_TEST_SUITE_P(Paths, EmulatedEngine,
                         testing::Combine(testing::Values(TransferPath::kDirect,
                                                          TransferPath::kStaged,
                                                          TransferPath::kZeroCopy),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(TransferPathName(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_through_the_bounce" : "");
                         });

// --- The emulator itself: a test double that lets all pass would prove nothing

// A process that dies is started anew: a fork would have no threads, so its streams would not run.
class CudaEmulator : public testing::Test {
 protected:
  CudaEmulator() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(CudaEmulator, DeviceMemoryIsOutOfTheHostsReach) {
  if (!emulator::Count().guards_memory) {
    GTEST_SKIP() << "SKIPPED: this CPU has no protection keys, so the host's reads are not seen";
  }
  void* address = nullptr;
  ASSERT_EQ(cudaMalloc(&address, 64), cudaSuccess);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile char*>(address)), "");
  ASSERT_EQ(cudaFree(address), cudaSuccess);
}

TEST_F(CudaEmulator, AKernelThatReadsPastItsMemoryDies) {
  EXPECT_DEATH(
      {
        void* address = nullptr;
        if (cudaMalloc(&address, 256) != cudaSuccess) std::exit(0);  // which is no death
        emulator::QueueKernel(1, 1, 0, nullptr,
                              [=] { static_cast<volatile char*>(address)[256] = 1; });
        cudaStreamSynchronize(nullptr);
      },
      "");
}

TEST_F(CudaEmulator, AWarpWhoseLaneHasEndedExchangesNothing) {
  EXPECT_DEATH(
      {
        emulator::QueueKernel(1, 32, 0, nullptr, [] {
          if (threadIdx.x != 5) emulator::ExchangeXor(~0u, threadIdx.x, 1);
        });
        cudaStreamSynchronize(nullptr);
      },
      "a lane that has ended");
}

TEST_F(CudaEmulator, LanesOfAWarpExchange) {
  std::vector<uint32_t> sums(96);
  emulator::QueueKernel(1, 96, 0, nullptr, [&] {
    uint32_t sum = threadIdx.x;
    for (uint32_t distance = 16; distance > 0; distance /= 2) {
      sum += emulator::ExchangeXor(~0u, sum, distance);
    }
    sums[threadIdx.x] = sum;
  });
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (uint32_t i = 0; i < sums.size(); ++i) {
    const uint32_t warp_first = i / 32 * 32;
    EXPECT_EQ(sums[i], 32 * warp_first + 31 * 16);
  }
}

}  // namespace
}  // namespace terrace
