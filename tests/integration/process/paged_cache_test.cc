// Paged caches against a real daemon: what is stored from pages of one layout comes back in pages
// of another, byte for byte, on the host and on a simulated device; and the same through the C ABI.
#include "client/paged/paged_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>

#include "cuda/host/host_device.h"
#include "integration/process/daemon_process.h"
#include "sim/sim_device.h"
#include "terrace/terrace.h"
#include "tests/sim/paged_world.h"

namespace terrace::test {
namespace {

using client::PagedCache;
using client::PagedCopy;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kLongUs = 30'000'000;
constexpr CacheShape kShape = {
    .layer_count = 3, .page_tokens = 16, .head_count = 2, .head_bytes = 32, .page_count = 6};
constexpr uint32_t kBlocks = 4;

// The Space of such caches, its layers in parts of two.
SpaceSpec SpaceOf(const PagedLayout& layout, const std::string& order) {
  SpaceSpec spec;
  spec.model = "tiny";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = layout.layer_count;
  spec.kv_heads = layout.head_count;
  spec.head_size = static_cast<uint32_t>(layout.head_bytes / 2);
  spec.layout = order;
  spec.block_tokens = layout.page_tokens;
  spec.attention = layout.plane_count == 1 ? AttentionKind::kMla : AttentionKind::kGqa;
  spec.part_bytes = {2 * layout.layer_bytes(), layout.layer_bytes()};
  return spec;
}

// Every kind but that of K and V side by side, which is described as planes.
std::vector<std::string> Kinds() {
  std::vector<std::string> kinds = CacheKinds();
  std::erase(kinds, "kv_side_by_side");
  return kinds;
}

class PagedCacheProcess : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.StartReady()) << daemon_.Errors();
    Result<std::unique_ptr<Client>> client = Client::Create(
        {.socket_path = daemon_.socket_path(), .default_deadline_us = kLongUs}, &why_);
    ASSERT_TRUE(client.ok()) << why_;
    client_ = std::move(client).value();
    ASSERT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
  }

  GroupRef Open(const std::string& name, const SpaceSpec& space) {
    SpaceGroupSpec spec;
    spec.name = name;
    spec.members.push_back({.spec = space});
    const Result<GroupRef> group = client_->Open(spec, 1, kLongUs);
    EXPECT_TRUE(group.ok()) << client_->last_error();
    return group.ok() ? *group : GroupRef();
  }
  static std::vector<BlockKey> Keys(uint32_t count, uint64_t prompt) {
    std::vector<BlockKey> keys;
    for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = i + 1, .high = prompt});
    return keys;
  }
  // The daemon may still be filling in the memory of a group's first blocks.
  WriteLease ReserveAll(GroupRef group, const std::vector<BlockKey>& keys) {
    for (int i = 0; i < 6000; ++i, poll(nullptr, 0, 5)) {
      Result<WriteLease> lease = client_->Reserve(group, keys);
      EXPECT_TRUE(lease.ok()) << client_->last_error();
      if (lease.ok() && lease->is_reserved(static_cast<uint32_t>(keys.size()) - 1)) {
        return std::move(lease).value();
      }
    }
    ADD_FAILURE() << "no memory for " << keys.size() << " blocks";
    return WriteLease();
  }
  std::unique_ptr<PagedCache> CacheOf(const Device& device, const PagedLayout& layout,
                                      const SpaceSpec& space, TransferPath path) {
    const CopierOptions options{
        .store_path = path, .load_path = path, .stage_bytes = 16 * kKiB, .stage_count = 2};
    Result<std::unique_ptr<PagedCache>> cache =
        PagedCache::Create(device, {.layout = layout, .space = space, .copier = options}, &why_);
    EXPECT_TRUE(cache.ok()) << why_;
    return cache.ok() ? std::move(cache).value() : nullptr;
  }

  // Pages of one kind go to leases, and from there into pages of another.
  void RoundTrip(const Device& device, TransferPath path, const std::string& from_kind,
                 const std::string& to_kind, SlotOrder order);

  DaemonProcess daemon_;
  std::unique_ptr<Client> client_;
  std::string why_;
  uint64_t prompt_ = 0;
};

void PagedCacheProcess::RoundTrip(const Device& device, TransferPath path,
                                  const std::string& from_kind, const std::string& to_kind,
                                  SlotOrder order) {
  SCOPED_TRACE(from_kind + " to " + to_kind + ", " + std::string(SlotOrderName(order)));
  TestCache from = MakeCache(from_kind, kShape, 1);
  TestCache to = MakeCache(to_kind, kShape, 2);
  const SpaceSpec space = SpaceOf(from.layout, std::string(SlotOrderName(order)));
  const GroupRef group = Open(space.layout + std::to_string(from.layout.plane_count), space);
  const auto stores = CacheOf(device, from.layout, space, path);
  const auto loads = CacheOf(device, to.layout, space, path);
  const std::vector<BlockKey> keys = Keys(kBlocks, ++prompt_);
  const std::vector<uint64_t> from_pages = {5, 0, 3, 1};
  const std::vector<uint64_t> to_pages = {2, 4, 0, 5};

  WriteLease write = ReserveAll(group, keys);
  auto store = stores->Store(write, {.page_indexes = from_pages}, KvWritten::Already(), &why_);
  ASSERT_TRUE(store.ok()) << why_;
  ASSERT_TRUE(store.value()->Wait(kLongUs).ok());
  ASSERT_EQ(client_->Commit(write).value(), kBlocks);
  Result<ReadLease> read = client_->Acquire(group, keys);
  ASSERT_TRUE(read.ok() && client_->WaitReady(*read, kBlocks, kLongUs).ok());

  TestCache twin = MakeCache(to_kind, kShape, 2);  // filled by the naive copy
  std::vector<std::byte> expected(stores->nest().slot_bytes);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    NaiveGather(from.layout, stores->nest(), order, from_pages[block], expected.data());
    NaiveScatter(twin.layout, loads->nest(), order, to_pages[block], expected.data());
    for (uint32_t part = 0; part < 2; ++part) {
      const uint64_t offset = space.part_offset_bytes(part);
      ASSERT_EQ(std::memcmp(read->slot(block, 0).data() + offset, expected.data() + offset,
                            space.part_bytes[part]),
                0)
          << "block " << block << ", part " << part;
    }
  }
  auto load = loads->Load(*read, {.page_indexes = to_pages}, DestinationFree::Already(), &why_);
  ASSERT_TRUE(load.ok()) << why_;
  ASSERT_TRUE(load.value()->Wait(kLongUs).ok());
  EXPECT_TRUE(to.memory == twin.memory);
}

// Another layout of the same planes and heads.
std::string OtherKind(const std::vector<std::string>& kinds, size_t index, size_t step) {
  const std::string& other = kinds[(index + step) % kinds.size()];
  if (kinds[index] == "mla") return "mla";
  return other == "mla" ? "nhd_packed" : other;
}

// PROMISE: T05 layouts through a daemon
TEST_F(PagedCacheProcess, BytesOfEveryLayoutComeBackInEveryOtherOnTheHost) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {.worker_count = 2})).value();
  const std::vector<std::string> kinds = Kinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (const SlotOrder order : {SlotOrder::kNhd, SlotOrder::kHnd}) {
      RoundTrip(device, TransferPath::kZeroCopy, kinds[i], OtherKind(kinds, i, 5), order);
    }
  }
}

TEST_F(PagedCacheProcess, AndOnASimulatedDevice) {
  const std::vector<std::string> kinds = Kinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    SimDevice sim({.seed = i + 1});
    const Device device(SimDeviceOps(), sim.handle());
    RoundTrip(device, i % 2 == 0 ? TransferPath::kStaged : TransferPath::kDirect, kinds[i],
              OtherKind(kinds, i, 3), i % 3 == 0 ? SlotOrder::kHnd : SlotOrder::kNhd);
  }
}

// PROMISE: T24 a death in mid-copy
TEST_F(PagedCacheProcess, ADaemonThatDiesInMidCopyMakesItGone) {
  SimDevice sim({.steps_per_call_max = 0});
  const Device device(SimDeviceOps(), sim.handle());
  const TestCache cache = MakeCache("nhd_packed", kShape);
  const SpaceSpec space = SpaceOf(cache.layout, "nhd");
  const GroupRef group = Open("tiny", space);
  const auto pages = CacheOf(device, cache.layout, space, TransferPath::kDirect);
  const WriteLease lease = ReserveAll(group, Keys(2, 1));
  auto store = pages->Store(lease, {.page_indexes = std::vector<uint64_t>{0, 1}},
                            KvWritten::Already(), &why_);
  ASSERT_TRUE(store.ok()) << why_;
  daemon_.Signal(SIGKILL);
  for (int i = 0; i < 6000 && lease.is_valid(); ++i) poll(nullptr, 0, 5);
  EXPECT_EQ(store.value()->Poll().code(), StatusCode::kBusy);
  sim.Settle();
  EXPECT_EQ(store.value()->Poll().code(), StatusCode::kGone);
}

TEST_F(PagedCacheProcess, CopiesAreStraightOnceTheArenaIsPinned) {
  SimDevice sim({.seed = 5});
  const auto device = std::make_shared<const Device>(SimDeviceOps(), sim.handle());
  const auto pins = client_->PinArena(device).value();
  const TestCache cache = MakeCache("nhd_packed", kShape, 1);
  const SpaceSpec space = SpaceOf(cache.layout, "nhd");
  const GroupRef group = Open("tiny", space);
  {
    Result<std::unique_ptr<PagedCache>> pages =
        PagedCache::Create(*device, {.layout = cache.layout, .space = space, .pins = pins}, &why_);
    ASSERT_TRUE(pages.ok()) << why_;
    const WriteLease lease = ReserveAll(group, Keys(1, 1));
    const std::byte* slot = lease.slot(0, 0).data();
    for (int i = 0; i < 6000 && pins->DeviceAddress(slot, 1) == nullptr; ++i) poll(nullptr, 0, 5);
    auto store = pages.value()->Store(lease, {.page_indexes = std::vector<uint64_t>{3}},
                                      KvWritten::Already(), &why_);
    ASSERT_TRUE(store.ok()) << why_;
    ASSERT_TRUE(store.value()->Wait(kLongUs).ok());
    EXPECT_EQ(pins->counts().straight_bytes, 3 * cache.layout.layer_bytes());
    EXPECT_EQ(pins->counts().bounced_bytes, 0u);
  }
  client_.reset();  // before its device
}

// ---- Edges ----

// One prompt's life: its pages are written, stored, used again, and filled from the lease, all of
// it queued before anything need have run. Counts what was seen wrong.
class Prompt {
 public:
  Prompt(Client& client, GroupRef group, const SimDeviceOptions& options)
      : client_(client), group_(group), sim_(options), device_(SimDeviceOps(), sim_.handle()) {}

  static SpaceSpec Space() { return SpaceOf(MakeCache("nhd_packed", kShape).layout, "nhd"); }
  uint32_t Run(uint64_t prompt);

 private:
  // A kernel that fills a page with one byte, and one that reads a layer of it.
  void Write(std::byte byte) {
    sim_.Launch(compute_->handle(), kShape.layer_count, [this, byte](uint32_t layer) {
      VisitVectors(cache_.layout, SlotOrder::kNhd, layer, kPage, [&](std::byte* vector, uint64_t) {
        std::memset(vector, std::to_integer<int>(byte), cache_.layout.head_bytes);
      });
    });
  }
  void Read(uint32_t layer, std::byte byte) {
    sim_.Launch(compute_->handle(), 1, [this, layer, byte](uint32_t) {
      bool is_right = true;
      VisitVectors(cache_.layout, SlotOrder::kNhd, layer, kPage, [&](std::byte* vector, uint64_t) {
        is_right = is_right && *vector == byte && vector[cache_.layout.head_bytes - 1] == byte;
      });
      wrong_count_ += is_right ? 0 : 1;
    });
  }
  void Store(uint64_t prompt);
  void Load(uint64_t prompt);

  static constexpr uint64_t kPage = 3;
  static constexpr std::byte kStored{1}, kLater{2};

  Client& client_;
  GroupRef group_;
  SimDevice sim_;
  Device device_;
  TestCache cache_ = MakeCache("nhd_packed", kShape);
  std::optional<Stream> compute_;
  std::unique_ptr<PagedCache> pages_;
  uint32_t wrong_count_ = 0;
};

void Prompt::Store(uint64_t prompt) {
  const BlockKey key{.low = 1, .high = prompt};
  Result<WriteLease> lease = client_.Reserve(group_, {&key, 1});
  ASSERT_TRUE(lease.ok()) << client_.last_error();
  std::string why;
  Write(kStored);
  const Result<KvWritten> written = KvWritten::After(pages_->events(), *compute_);
  auto copy = pages_->Store(*lease, {.page_indexes = {&kPage, 1}}, *written, &why);
  ASSERT_TRUE(copy.ok()) << why;
  ASSERT_TRUE(copy.value()->page_reuse()->Gate(*compute_).ok());
  Write(kLater);
  sim_.Settle();
  ASSERT_TRUE(copy.value()->Poll().ok());
  ASSERT_EQ(client_.Commit(*lease).value(), 1u);
}

void Prompt::Load(uint64_t prompt) {
  const BlockKey key{.low = 1, .high = prompt};
  const Result<ReadLease> lease = client_.Acquire(group_, {&key, 1});
  ASSERT_TRUE(lease.ok()) << client_.last_error();
  const std::span<const std::byte> slot = lease->slot(0, 0);
  const std::span<const std::byte> part = slot.first(Space().part_bytes[0]);
  wrong_count_ += std::ranges::count(part, kStored) == std::ssize(part) ? 0 : 1;
  std::string why;
  for (uint32_t layer = 0; layer < kShape.layer_count; ++layer) Read(layer, kLater);
  const Result<DestinationFree> free = DestinationFree::After(pages_->events(), *compute_);
  auto copy = pages_->Load(*lease, {.page_indexes = {&kPage, 1}}, *free, &why);
  ASSERT_TRUE(copy.ok()) << why;
  for (uint32_t layer = 0; layer < kShape.layer_count; ++layer) {
    ASSERT_TRUE(copy.value()->layer_ready()->Gate(layer, *compute_).ok());
    Read(layer, kStored);
  }
  sim_.Settle();
  ASSERT_TRUE(copy.value()->Poll().ok());
}

uint32_t Prompt::Run(uint64_t prompt) {
  std::string why;
  compute_.emplace(std::move(Stream::Create(device_, StreamPriority::kLoad)).value());
  pages_ = std::move(PagedCache::Create(device_,
                                        {.layout = cache_.layout,
                                         .space = Space(),
                                         .copier = CopierOptions{.stage_bytes = 16 * kKiB,
                                                                 .stage_count = 2,
                                                                 .load_chunk_bytes_min = 1,
                                                                 .load_step_bytes_min = 1}},
                                        &why))
               .value();
  Store(prompt);
  if (!testing::Test::HasFatalFailure()) Load(prompt);
  return wrong_count_;
}

TEST_F(PagedCacheProcess, WithAllEdgesNoByteIsWrongAndWithoutAnyOneSomeAre) {
  const GroupRef group = Open("tiny", Prompt::Space());
  constexpr uint32_t kSeeds = 12;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    Prompt prompt(*client_, group, {.seed = seed, .steps_per_call_max = seed % 3});
    ASSERT_EQ(prompt.Run(++prompt_), 0u) << "seed " << seed;
  }
  for (const StreamEdge edge : {StreamEdge::kKvWritten, StreamEdge::kPageReuse,
                                StreamEdge::kDestinationFree, StreamEdge::kLayerReady}) {
    uint32_t wrong_count = 0;
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
      Prompt prompt(*client_, group,
                    {.seed = seed, .steps_per_call_max = seed % 3, .dropped_edge = edge});
      wrong_count += prompt.Run(++prompt_);
    }
    EXPECT_GT(wrong_count, 0u) << "edge " << static_cast<uint32_t>(edge) << " was left out";
  }
}

// ---- The C ABI ----

constexpr terrace_edge kHostEdge = {TERRACE_EDGE_HOST, 0, nullptr};

// Whether `call` returns to a thread that was cancelled before it, which ends then.
bool ReturnsCancelled(std::function<void()> call) {
  struct Caller {
    std::function<void()> call;
    bool has_returned = false;
  } caller{std::move(call)};
  const auto run = [](void* self) -> void* {
    pthread_cancel(pthread_self());
    static_cast<Caller*>(self)->call();
    static_cast<Caller*>(self)->has_returned = true;
    pthread_testcancel();
    return nullptr;
  };
  pthread_t thread;
  void* result = nullptr;
  return pthread_create(&thread, nullptr, run, &caller) == 0 &&
         pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && caller.has_returned;
}

class CPages : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.StartReady()) << daemon_.Errors();
    const std::string path = daemon_.socket_path();
    terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
    options.socket_path = path.c_str();
    options.default_deadline_us = kLongUs;
    ASSERT_EQ(terrace_client_create(&options, &client_, why_, sizeof(why_)), TERRACE_OK) << why_;
    ASSERT_EQ(terrace_client_wait_connected(client_, kLongUs), TERRACE_OK);
    terrace_device_options device = TERRACE_DEVICE_OPTIONS_INIT;
    device.worker_count = 2;
    ASSERT_EQ(terrace_device_create(&device, &device_, why_, sizeof(why_)), TERRACE_OK) << why_;
    space_.model = "tiny";
    space_.revision = "r1";
    space_.dtype = "bf16";
    space_.layout = "hnd";
    space_.part_bytes = part_bytes_.data();
    space_.part_count = 3;
    space_.layers = 3;
    space_.kv_heads = 2;
    space_.head_size = 16;
    space_.block_tokens = 16;
    const terrace_space* members[] = {&space_};
    terrace_group_spec spec = TERRACE_GROUP_SPEC_INIT;
    spec.name = "tiny";
    spec.member_count = 1;
    spec.members = members;
    ASSERT_EQ(terrace_open(client_, &spec, 1, kLongUs, &group_, why_, sizeof(why_)), TERRACE_OK)
        << why_;
    for (size_t i = 0; i < slab_.size(); ++i) slab_[i] = static_cast<uint16_t>(i * 7 + i / 251);
  }
  void TearDown() override {
    terrace_pages_destroy(pages_);
    terrace_device_destroy(device_);
    terrace_client_destroy(client_);
  }

  // One slab [page][layer][plane][token][head][element of 4 bytes]; a layer is a slice of it.
  static constexpr std::array<uint64_t, 5> kTensorShape = {6, 2, 16, 2, 8};
  static constexpr uint64_t kLayerItems = 2 * 16 * 2 * 16;
  static constexpr uint64_t kPageItems = 3 * kLayerItems;

  terrace_pages_layout LayoutOf(std::vector<uint16_t>& slab) {
    address_ = reinterpret_cast<uint64_t>(slab.data());
    terrace_pages_layout layout = TERRACE_PAGES_LAYOUT_INIT;
    layout.layer_count = 3;
    layout.page_tokens = layout.block_tokens = 16;
    layout.head_count = 2;
    layout.head_bytes = 32;
    layout.page_count = 6;
    layout.layer_stride_bytes = kLayerItems * 2;
    layout.addresses = &address_;
    layout.address_count = 1;
    const std::array<uint64_t, 5> strides = {kPageItems * 2, 1024, 64, 32, 4};
    terrace_tensor tensor = TERRACE_TENSOR_INIT;
    tensor.dimension_count = 5;
    tensor.shape = kTensorShape.data();
    tensor.stride_bytes = strides.data();
    tensor.item_bytes = 4;
    EXPECT_EQ(terrace_pages_read_tensor(&tensor, &layout, why_, sizeof(why_)), TERRACE_INVALID);
    EXPECT_THAT(why_, AllOf(HasSubstr("BPTHD"), HasSubstr("BHTPD"))) << "2 heads beside 2 planes";
    tensor.axes = "BPTHD";
    EXPECT_EQ(terrace_pages_read_tensor(&tensor, &layout, why_, sizeof(why_)), TERRACE_OK) << why_;
    return layout;
  }
  void Describe(std::vector<uint16_t>& slab) {
    const terrace_pages_layout layout = LayoutOf(slab);
    terrace_pages_destroy(pages_);
    ASSERT_EQ(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
              TERRACE_OK)
        << why_;
  }

  DaemonProcess daemon_;
  terrace_client* client_ = nullptr;
  terrace_device* device_ = nullptr;
  terrace_pages* pages_ = nullptr;
  terrace_group group_ = TERRACE_GROUP_NONE;
  terrace_space space_ = TERRACE_SPACE_INIT;
  std::array<uint64_t, 3> part_bytes_ = {2048, 2048, 2048};
  std::array<terrace_id, 3> keys_ = {terrace_id{1, 9}, terrace_id{2, 9}, terrace_id{3, 9}};
  std::vector<uint16_t> slab_ = std::vector<uint16_t>(6 * kPageItems);
  uint64_t address_ = 0;
  char why_[512] = "";
};

TEST_F(CPages, ACancelledThreadReturnsFromCallsThatWaitForADevice) {
  const terrace_pages_layout layout = LayoutOf(slab_);
  EXPECT_TRUE(ReturnsCancelled(
      [&] { terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)); }));
  terrace_write_lease write = {};
  ASSERT_EQ(terrace_reserve(client_, group_, keys_.data(), 3, nullptr, &write), TERRACE_OK);
  const std::array<uint64_t, 3> pages = {4, 2, 1};
  terrace_page_list list = TERRACE_PAGE_LIST_INIT;
  list.count = 3;
  list.page_indexes = pages.data();
  terrace_copy* copy = nullptr;
  const auto store = [&] {
    terrace_pages_store(pages_, &write, &list, kHostEdge, &copy, why_, sizeof(why_));
  };
  EXPECT_TRUE(ReturnsCancelled([&] {
    store();
    terrace_copy_destroy(copy);
  }));
  EXPECT_TRUE(ReturnsCancelled([&] {
    store();
    EXPECT_EQ(terrace_copy_page_reuse(copy, kHostEdge), TERRACE_OK);
  }));
  EXPECT_EQ(terrace_copy_wait(copy, kLongUs), TERRACE_OK);
  terrace_copy_destroy(copy);
  ASSERT_EQ(terrace_commit(client_, &write, nullptr, nullptr), TERRACE_OK);
  terrace_write_lease_abort(&write);
  terrace_read_lease read = {};
  ASSERT_EQ(terrace_acquire(client_, group_, keys_.data(), 3, nullptr, &read), TERRACE_OK);
  EXPECT_TRUE(ReturnsCancelled([&] {
    terrace_pages_load(pages_, &read, &list, kHostEdge, &copy, why_, sizeof(why_));
    EXPECT_EQ(terrace_copy_layer_ready(copy, 2, kHostEdge), TERRACE_OK);
  }));
  terrace_copy_destroy(copy);
  terrace_read_lease_release(&read, 0);
  EXPECT_TRUE(ReturnsCancelled([&] { terrace_pages_destroy(pages_); }));
  pages_ = nullptr;
  EXPECT_TRUE(ReturnsCancelled([&] { terrace_device_destroy(device_); }));
  device_ = nullptr;
}

TEST_F(CPages, PagesOfASlabComeBackThroughTheLibrary) {
  EXPECT_STREQ(terrace_device_backend(device_), "host");
  char reason[256];
  EXPECT_GT(terrace_device_reason(device_, reason, sizeof(reason)), 0u);
  EXPECT_THAT(reason, HasSubstr("host: "));
  Describe(slab_);
  terrace_write_lease write = {};
  ASSERT_EQ(terrace_reserve(client_, group_, keys_.data(), 3, nullptr, &write), TERRACE_OK);
  const std::array<uint64_t, 3> pages = {4, TERRACE_PAGE_NONE, 1};
  terrace_page_list list = TERRACE_PAGE_LIST_INIT;
  list.count = 2;
  list.page_indexes = pages.data();
  terrace_copy* copy = nullptr;
  ASSERT_EQ(terrace_pages_store(pages_, &write, &list, kHostEdge, &copy, why_, sizeof(why_)),
            TERRACE_OK)
      << why_;
  EXPECT_EQ(terrace_copy_layer_ready(copy, 0, kHostEdge), TERRACE_INVALID);
  EXPECT_EQ(terrace_copy_page_reuse(copy, {}), TERRACE_INVALID);
  EXPECT_EQ(terrace_copy_page_reuse(copy, kHostEdge), TERRACE_OK);
  EXPECT_EQ(terrace_copy_wait(copy, kLongUs), TERRACE_OK);
  terrace_copy_destroy(copy);
  list.first = 1;
  list.page_indexes = pages.data() + 2;
  list.count = 1;  // the block that was passed over
  ASSERT_EQ(terrace_pages_store(pages_, &write, &list, kHostEdge, &copy, why_, sizeof(why_)),
            TERRACE_OK)
      << why_;
  while (terrace_copy_poll(copy) == TERRACE_BUSY) poll(nullptr, 0, 1);
  EXPECT_EQ(terrace_copy_poll(copy), TERRACE_OK);
  terrace_copy_destroy(copy);
  uint32_t sealed_count = 0;
  ASSERT_EQ(terrace_commit(client_, &write, nullptr, &sealed_count), TERRACE_OK);
  EXPECT_EQ(sealed_count, 2u);
  terrace_write_lease_abort(&write);

  std::vector<uint16_t> loaded(slab_.size());
  Describe(loaded);
  terrace_read_lease read = {};
  ASSERT_EQ(terrace_acquire(client_, group_, keys_.data(), 2, nullptr, &read), TERRACE_OK);
  ASSERT_EQ(terrace_wait_ready(client_, &read, 2, kLongUs), TERRACE_OK);
  const std::array<uint64_t, 2> to = {0, 5};
  list = TERRACE_PAGE_LIST_INIT;
  list.count = 2;
  list.page_indexes = to.data();
  ASSERT_EQ(terrace_pages_load(pages_, &read, &list, kHostEdge, &copy, why_, sizeof(why_)),
            TERRACE_OK)
      << why_;
  for (uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(terrace_copy_layer_ready(copy, layer, kHostEdge), TERRACE_OK);
  }
  EXPECT_EQ(terrace_copy_layer_ready(copy, 3, kHostEdge), TERRACE_INVALID);
  EXPECT_EQ(terrace_copy_page_reuse(copy, kHostEdge), TERRACE_INVALID);
  EXPECT_EQ(terrace_copy_wait(copy, kLongUs), TERRACE_OK);
  terrace_copy_destroy(copy);
  terrace_read_lease_release(&read, TERRACE_END_OF_TURN);
  std::vector<uint16_t> expected(slab_.size());
  std::copy_n(slab_.begin() + 4 * kPageItems, kPageItems, expected.begin());
  std::copy_n(slab_.begin() + 1 * kPageItems, kPageItems, expected.begin() + 5 * kPageItems);
  EXPECT_TRUE(loaded == expected);
}

TEST_F(CPages, AnArenaAndADeviceBelongTogether) {
  ASSERT_EQ(terrace_client_pin_arena(client_, device_, why_, sizeof(why_)), TERRACE_OK) << why_;
  terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
  const std::string path = daemon_.socket_path();
  options.socket_path = path.c_str();
  terrace_client* other = nullptr;
  ASSERT_EQ(terrace_client_create(&options, &other, why_, sizeof(why_)), TERRACE_OK) << why_;
  EXPECT_EQ(terrace_client_pin_arena(other, device_, why_, sizeof(why_)), TERRACE_EXISTS);
  EXPECT_THAT(why_, HasSubstr("open a device a client"));
  terrace_device_options host = TERRACE_DEVICE_OPTIONS_INIT;
  host.backend = "host";
  terrace_device* second = nullptr;
  ASSERT_EQ(terrace_device_create(&host, &second, why_, sizeof(why_)), TERRACE_OK) << why_;
  EXPECT_EQ(terrace_client_pin_arena(client_, second, why_, sizeof(why_)), TERRACE_EXISTS);
  EXPECT_THAT(why_, HasSubstr("already"));
  EXPECT_EQ(terrace_client_pin_arena(nullptr, second, why_, sizeof(why_)), TERRACE_INVALID);
  EXPECT_EQ(terrace_client_pin_arena(other, second, why_, sizeof(why_)), TERRACE_OK) << why_;
  EXPECT_EQ(terrace_client_pause_pinning(other, kLongUs), TERRACE_OK);
  terrace_client_resume_pinning(other);
  terrace_device_destroy(second);  // its client keeps it
  terrace_client_destroy(other);
  // The device is free again once nobody has pins of it.
  terrace_client_destroy(std::exchange(client_, nullptr));
  terrace_client* third = nullptr;
  ASSERT_EQ(terrace_client_create(&options, &third, why_, sizeof(why_)), TERRACE_OK) << why_;
  EXPECT_EQ(terrace_client_pin_arena(third, device_, why_, sizeof(why_)), TERRACE_OK) << why_;
  terrace_client_destroy(third);
}

TEST_F(CPages, NoEdgeCanBeLeftOut) {
  Describe(slab_);
  terrace_write_lease write = {};
  terrace_read_lease read = {};
  ASSERT_EQ(terrace_reserve(client_, group_, keys_.data(), 1, nullptr, &write), TERRACE_OK);
  const uint64_t page = 0;
  terrace_page_list list = TERRACE_PAGE_LIST_INIT;
  list.count = 1;
  list.page_indexes = &page;
  terrace_copy* copy = nullptr;
  EXPECT_EQ(terrace_pages_store(pages_, &write, &list, {}, &copy, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_THAT(why_, AllOf(HasSubstr("kv_written"), HasSubstr("kind 0")));
  EXPECT_EQ(terrace_pages_load(pages_, &read, &list, {}, &copy, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_THAT(why_, AllOf(HasSubstr("destination_free"), HasSubstr("kind 0")));
  const terrace_edge stream = {TERRACE_EDGE_STREAM, 0, nullptr};
  EXPECT_EQ(terrace_pages_store(pages_, &write, &list, stream, &copy, why_, sizeof(why_)),
            TERRACE_UNSUPPORTED);
  EXPECT_THAT(why_, AllOf(HasSubstr("kv_written"), HasSubstr("host backend")));
  EXPECT_EQ(copy, nullptr);
  terrace_write_lease_abort(&write);
}

TEST_F(CPages, WhatIsWrongIsNamed) {
  terrace_device* device = nullptr;
  terrace_device_options options = TERRACE_DEVICE_OPTIONS_INIT;
  options.backend = "cuda";
  options.plugin_path = "/nonexistent/libterrace_cuda.so";
  EXPECT_EQ(terrace_device_create(&options, &device, why_, sizeof(why_)), TERRACE_NOT_FOUND);
  EXPECT_THAT(why_, HasSubstr("/nonexistent/libterrace_cuda.so"));
  options.backend = "gpu";
  EXPECT_EQ(terrace_device_create(&options, &device, why_, sizeof(why_)), TERRACE_INVALID);
  EXPECT_THAT(why_, HasSubstr("'gpu'"));
  options.backend = "host";
  options.worker_count = 65;
  EXPECT_EQ(terrace_device_create(&options, &device, why_, sizeof(why_)), TERRACE_INVALID);
  EXPECT_THAT(why_, HasSubstr("65"));
  options.struct_bytes = 4;
  EXPECT_EQ(terrace_device_create(&options, &device, why_, sizeof(why_)), TERRACE_INVALID);
  EXPECT_EQ(device, nullptr);
  terrace_pages_layout layout = LayoutOf(slab_);
  part_bytes_[1] = 1024;
  EXPECT_EQ(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_THAT(why_, HasSubstr("part_bytes[1] is 1024"));
  part_bytes_[1] = 2048;
  layout.layer_stride_bytes = 1024;
  EXPECT_EQ(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_THAT(why_, HasSubstr("distance between bases is 1024"));
  for (const uint64_t stride_bytes : {uint64_t{0} - 1024, uint64_t{1} << 63}) {
    layout.layer_stride_bytes = stride_bytes;
    EXPECT_EQ(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
              TERRACE_INVALID);
    EXPECT_THAT(why_, AllOf(HasSubstr("layer_stride_bytes is " + std::to_string(stride_bytes)),
                            HasSubstr("2^64")));
  }
  layout.address_count = 2;
  EXPECT_EQ(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_EQ(pages_, nullptr);
}

TEST_F(CPages, ARopeThatIsNoneIsNamed) {
  terrace_pages_layout layout = LayoutOf(slab_);
  const auto refusal = [&](const std::function<void(terrace_rope*)>& change) {
    const double inv_freq[4] = {1, 0.5, 0.25, 0.125};
    terrace_rope rope = TERRACE_ROPE_INIT;
    rope.rot_dim = 8;
    rope.inv_freq = inv_freq;
    change(&rope);
    layout.rope = &rope;
    EXPECT_NE(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
              TERRACE_OK);
    return std::string(why_);
  };
  EXPECT_THAT(refusal([](terrace_rope* rope) { rope->struct_bytes = 4; }),
              HasSubstr("rope has a wrong struct_bytes: begin with TERRACE_ROPE_INIT"));
  EXPECT_THAT(refusal([](terrace_rope* rope) { rope->flags = 4; }), HasSubstr("flags 4"));
  EXPECT_THAT(refusal([](terrace_rope* rope) { rope->rot_dim = 0xFFFFFFFE; }),
              HasSubstr("rot_dim 4294967294"));
  EXPECT_THAT(refusal([](terrace_rope* rope) { rope->inv_freq = nullptr; }),
              HasSubstr("no inv_freq"));
  EXPECT_THAT(refusal([](terrace_rope* rope) { rope->scaling = "dynamic"; }),
              HasSubstr("rope scaling 'dynamic'"));
  EXPECT_THAT(refusal([](terrace_rope*) {}), HasSubstr("keys turn in Spaces of chunks only"));
  // A caller of before: its structs end earlier.
  layout.struct_bytes = offsetof(terrace_pages_layout, rope);
  ASSERT_EQ(terrace_pages_create(device_, &layout, &space_, &pages_, why_, sizeof(why_)),
            TERRACE_OK)
      << why_;
  const uint64_t page = 0;
  terrace_page_list list = TERRACE_PAGE_LIST_INIT;
  list.struct_bytes = offsetof(terrace_page_list, positions);
  list.count = 1;
  list.page_indexes = &page;
  list.positions = reinterpret_cast<const uint32_t*>(1);  // behind the end
  terrace_write_lease nothing = {};
  terrace_copy* copy = nullptr;
  const terrace_edge host = {TERRACE_EDGE_HOST, 0, nullptr};
  EXPECT_EQ(terrace_pages_store(pages_, &nothing, &list, host, &copy, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_THAT(why_, HasSubstr("lease is none"));
  list.struct_bytes = sizeof(list) - 4;  // half of an address
  EXPECT_EQ(terrace_pages_store(pages_, &nothing, &list, host, &copy, why_, sizeof(why_)),
            TERRACE_INVALID);
  EXPECT_THAT(why_, HasSubstr("list has a wrong struct_bytes"));
  terrace_read_lease none = {};
  uint32_t position = 0;
  EXPECT_EQ(terrace_read_lease_chunk_position(&none, 0, 0, &position), TERRACE_INVALID);
  EXPECT_EQ(terrace_read_lease_chunk_position(&none, 0, 0, nullptr), TERRACE_INVALID);
}

}  // namespace
}  // namespace terrace::test
