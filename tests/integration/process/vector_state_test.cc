// An engine's thread has its vector registers back clean after every call of libterrace: of the C
// ABI, all of terrace.h, and of the C++ client, all of client.h. Blocks are large enough for every
// copy, hash and codec to take its widest way.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cctype>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/host/host_device.h"
#include "cuda/host/stream.h"
#include "integration/process/daemon_process.h"
#include "terrace/client.h"
#include "terrace/codec.h"
#include "terrace/terrace.h"
#include "test_paths.h"
#include "vector_registers.h"

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kBlockTokens = 128;  // a block's tokens are hashed as one message of 528 bytes
constexpr uint32_t kHeads = 2, kHeadSize = 64, kLayers = 2, kPages = 4;
constexpr uint64_t kTokenBytes = kHeads * kHeadSize * 2;
constexpr uint64_t kPlaneBytes = kBlockTokens * kTokenBytes;
constexpr uint64_t kLayerBytes = 2 * kPlaneBytes;  // 64 KiB: from there on copies stream
const std::string kSalt(300, 's');

std::string ReadSource(const std::string& path) {
  std::ifstream file(TERRACE_SOURCE_DIR "/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Without the comments of C and C++.
std::string WithoutComments(const std::string& text) {
  std::string code;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) i = text.find('\n', i);
    if (text.compare(i, 2, "/*") == 0) i = text.find("*/", i) + 2;
    code += text[i];
  }
  return code;
}

bool IsOfName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Names right before a '(' that is in no other one: functions that are declared, or called first.
std::vector<std::string> NamesBeforeParentheses(const std::string& code) {
  std::vector<std::string> names;
  int depth = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i] == ')') --depth;
    if (code[i] != '(' || depth++ > 0) continue;
    size_t start = i;
    while (start > 0 && IsOfName(code[start - 1])) --start;
    if (start > 0 && code[start - 1] == '~') --start;
    if (start < i) names.push_back(code.substr(start, i - start));
  }
  return names;
}

std::set<std::string> FunctionsOfC() {
  std::set<std::string> functions;
  for (const std::string header : {"terrace_cache.h", "terrace_pages.h"}) {
    const std::string code = WithoutComments(ReadSource("include/terrace/" + header));
    for (const std::string& name : NamesBeforeParentheses(code)) {
      if (name.starts_with("terrace_")) functions.insert(name);
    }
  }
  return functions;
}

// "Client::Acquire", ..., "ReadLease::~ReadLease" of the classes whose methods a caller calls.
std::set<std::string> MethodsOfClient() {
  const std::string code = WithoutComments(ReadSource("include/terrace/client.h"));
  std::set<std::string> methods;
  for (const std::string of : {"ReadLease", "WriteLease", "Client"}) {
    const size_t start = code.find("\nclass " + of + " {");
    const std::string body = code.substr(start, code.find("\n private:", start) - start);
    for (const std::string& name : NamesBeforeParentheses(body)) {
      if (name != of) methods.insert(of + "::" + name);
    }
  }
  return methods;
}

std::vector<std::string> Missing(const std::set<std::string>& from,
                                 const std::set<std::string>& all) {
  std::vector<std::string> missing;
  for (const std::string& name : all) {
    if (!from.contains(name)) missing.push_back(name);
  }
  return missing;
}

// What a call of a test left in use, and which calls there were.
class Calls {
 public:
  template <typename Call>
  auto Behind(const std::string& name, const Call& call) {
    names_.insert(name);
    EmptyUpperHalves();
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      Check(name, UpperHalvesInUse());
    } else {
      auto answer = call();
      Check(name, UpperHalvesInUse());
      return answer;
    }
  }
  const std::set<std::string>& names() const { return names_; }

 private:
  static void Check(const std::string& name, uint32_t left) {
    EmptyUpperHalves();
    EXPECT_EQ(left, 0u) << name << " leaves upper halves of vector registers in use";
  }

  std::set<std::string> names_;
};

std::string FirstCall(const char* text) { return NamesBeforeParentheses(text).front(); }

#define CLEAN(call) calls_.Behind(FirstCall(#call), [&] { return call; })
#define CLEAN_OF(of, call) calls_.Behind(#of "::" + FirstCall(#call), [&] { return call; })

struct Setting {
  const char* key_hash;
};

class VectorState : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!TellsVectorState()) GTEST_SKIP() << kNoVectorState;
    const std::string config = daemon_.WriteFile(
        "t.toml", "[daemon]\nstate_dir = \"" + daemon_.directory() +
                      "\"\ndram_bytes = \"128MiB\"\nsegment_bytes = \"16MiB\"\n[[domain]]\nname = "
                      "\"clean\"\nsocket = \"" +
                      daemon_.socket_path() + "\"\nkey_hash = \"" + GetParam().key_hash + "\"\n");
    daemon_.Start({"--config", config});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<uint8_t>(i % 61);
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<uint32_t>(i);
  }

  DaemonProcess daemon_;
  Calls calls_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kLayerBytes);
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(3 * kBlockTokens);
  // Two layers of planes of pages; bf16 values whatever the bytes are (0x3c3c is a small one).
  std::vector<uint8_t> pages_ = std::vector<uint8_t>(kLayers * 2 * kPages * kPlaneBytes, 0x3c);
  char why_[1024] = "";
};

// ---- The C ABI ----

class CVectorState : public VectorState {
 protected:
  void SetUp() override {
    VectorState::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    raw_.model = chunks_.model = "tiny";
    raw_.revision = chunks_.revision = "r1";
    raw_.salt = chunks_.salt = kSalt.c_str();
    raw_.dtype = chunks_.dtype = "bf16";
    raw_.layout = "nhd";
    chunks_.layout = "chunk-nhd";
    chunks_.quantisation = "terrace:int8";
    raw_.layers = chunks_.layers = kLayers;
    raw_.kv_heads = chunks_.kv_heads = kHeads;
    raw_.head_size = chunks_.head_size = kHeadSize;
    raw_.block_tokens = chunks_.block_tokens = kBlockTokens;
    raw_.part_count = 2;
    raw_.part_bytes = raw_parts_.data();
    chunks_.part_count = 3;
    chunks_.part_bytes = slot_parts_.data();
    request_.deadline_us = kLongUs;
  }

  // A rank beside this one, which joins its leases.
  void ConnectRank() {
    const std::string path = daemon_.socket_path();
    terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
    options.socket_path = path.c_str();
    options.default_deadline_us = kLongUs;
    ASSERT_EQ(terrace_client_create(&options, &rank_, why_, sizeof(why_)), TERRACE_OK) << why_;
    ASSERT_EQ(terrace_client_wait_connected(rank_, kLongUs), TERRACE_OK);
    rank_group_ = Open(rank_, "raw", raw_);
  }

  terrace_group Open(terrace_client* client, const char* name, const terrace_space& space) {
    const terrace_space* members[] = {&space};
    terrace_group_spec spec = TERRACE_GROUP_SPEC_INIT;
    spec.name = name;
    spec.member_count = 1;
    spec.members = members;
    terrace_id id = {};
    EXPECT_EQ(CLEAN(terrace_group_spec_check(&spec, &id, why_, sizeof(why_))), TERRACE_OK) << why_;
    terrace_group group = TERRACE_GROUP_NONE;
    EXPECT_EQ(CLEAN(terrace_open(client, &spec, 1, kLongUs, &group, why_, sizeof(why_))),
              TERRACE_OK)
        << why_;
    return group;
  }

  void Connect();
  void StoreAndLoad();
  void DescribePages();
  void StoreAndLoadPages();
  void CallAsync();
  void CallTheRest();

  terrace_client* client_ = nullptr;
  terrace_client* rank_ = nullptr;
  terrace_group rank_group_ = TERRACE_GROUP_NONE;
  terrace_device* device_ = nullptr;
  terrace_pages* native_pages_ = nullptr;
  terrace_group group_ = TERRACE_GROUP_NONE;
  std::array<terrace_id, 3> keys_ = {};
  terrace_space raw_ = TERRACE_SPACE_INIT, chunks_ = TERRACE_SPACE_INIT;
  std::array<uint64_t, 2> raw_parts_ = {kLayerBytes, kLayerBytes};
  std::array<uint64_t, 3> slot_parts_ = {}, engine_parts_ = {};
  terrace_request request_ = TERRACE_REQUEST_INIT;
};

void CVectorState::Connect() {
  EXPECT_EQ(CLEAN(terrace_abi_version()), TERRACE_ABI_VERSION);
  EXPECT_STREQ(CLEAN(terrace_status_name(TERRACE_GONE)), "gone");
  terrace_device_options device = TERRACE_DEVICE_OPTIONS_INIT;
  device.backend = "host";
  ASSERT_EQ(CLEAN(terrace_device_create(&device, &device_, why_, sizeof(why_))), TERRACE_OK)
      << why_;
  EXPECT_STREQ(CLEAN(terrace_device_backend(device_)), "host");
  CLEAN(terrace_device_reason(device_, why_, sizeof(why_)));
  const std::string path = daemon_.socket_path();
  terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
  options.socket_path = path.c_str();
  options.default_deadline_us = kLongUs;
  ASSERT_EQ(CLEAN(terrace_client_create(&options, &client_, why_, sizeof(why_))), TERRACE_OK)
      << why_;
  ASSERT_EQ(CLEAN(terrace_client_wait_connected(client_, kLongUs)), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_client_is_connected(client_)), 1);
  EXPECT_NE(CLEAN(terrace_client_boot_id(client_)), 0u);
  EXPECT_EQ(CLEAN(terrace_client_is_bypassed(client_, nullptr)), 0);
  EXPECT_EQ(CLEAN(terrace_client_is_reader(client_)), 0);
  CLEAN(terrace_client_last_error(client_, why_, sizeof(why_)));
  EXPECT_EQ(CLEAN(terrace_client_pin_arena(client_, device_, why_, sizeof(why_))), TERRACE_OK)
      << why_;
  EXPECT_EQ(CLEAN(terrace_client_pause_pinning(client_, kLongUs)), TERRACE_OK);
  CLEAN(terrace_client_resume_pinning(client_));

  group_ = Open(client_, "raw", raw_);
  ASSERT_NO_FATAL_FAILURE(ConnectRank());
  uint64_t offset_bytes = 0, slot_bytes = 0;
  EXPECT_EQ(CLEAN(terrace_space_layout(&raw_, 1, &offset_bytes, &slot_bytes)), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_space_codec_parts(&chunks_, slot_parts_.data(), engine_parts_.data(),
                                            why_, sizeof(why_))),
            TERRACE_OK)
      << why_;
  size_t key_count = 0;
  ASSERT_EQ(CLEAN(terrace_hash_tokens(client_, group_, nullptr, tokens_.data(), tokens_.size(),
                                      keys_.data(), keys_.size(), &key_count)),
            TERRACE_OK);
  terrace_id of_digest = {};
  EXPECT_EQ(CLEAN(terrace_hash_digests(client_, group_, bytes_.data(), 32, 1, &of_digest)),
            TERRACE_OK);
}

void CVectorState::StoreAndLoad() {
  terrace_write_lease write = {}, joined_write = {};
  ASSERT_EQ(CLEAN(terrace_reserve(client_, group_, keys_.data(), 3, &request_, &write)),
            TERRACE_OK);
  ASSERT_EQ(CLEAN(terrace_write_lease_key_count(&write)), 3u);
  terrace_reserved_key key = {};
  ASSERT_EQ(CLEAN(terrace_write_lease_key(&write, 0, &key)), TERRACE_OK);
  ASSERT_EQ(key.status, TERRACE_OK) << "the daemon was to be ready for three blocks";
  terrace_reserved_key keys[3] = {};
  ASSERT_EQ(CLEAN(terrace_write_lease_keys(&write, keys, 3)), 3u);
  EXPECT_EQ(keys[0].status, TERRACE_OK);
  CLEAN(terrace_write_lease_token(&write));
  EXPECT_EQ(CLEAN(terrace_write_lease_is_valid(&write)), 1);
  uint64_t slot_bytes = 0;
  EXPECT_NE(CLEAN(terrace_write_lease_slot(&write, 0, 0, &slot_bytes)), nullptr);
  EXPECT_EQ(CLEAN(terrace_write_lease_write_part(&write, 0, 0, 0, bytes_.data(), kLayerBytes)),
            TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_write_lease_checksum_part(&write, 0, 0, 1)), TERRACE_OK);
  const std::array<const void*, 4> from = {bytes_.data(), bytes_.data(), bytes_.data(),
                                           bytes_.data()};
  EXPECT_EQ(CLEAN(terrace_write_lease_write_blocks(&write, 0, 1, 1, from.data())), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_write_lease_mark_part(&write, 2, 0, 0)), TERRACE_OK);
  CLEAN(terrace_write_lease_mark_absent(&write, 2, 0));  // refused: the member has no window
  EXPECT_EQ(CLEAN(terrace_write_lease_mark_part(&write, 2, 0, 1)), TERRACE_OK);
  uint32_t sealed_count = 0;
  EXPECT_EQ(CLEAN(terrace_commit(client_, &write, &request_, &sealed_count)), TERRACE_OK);
  EXPECT_EQ(sealed_count, 3u);
  CLEAN(terrace_write_lease_abort(&write));
  const terrace_id shared = {6, 6};
  ASSERT_EQ(terrace_reserve(client_, group_, &shared, 1, &request_, &write), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_join_write(rank_, rank_group_, terrace_write_lease_token(&write), 1,
                                     &joined_write)),
            TERRACE_OK);
  CLEAN(terrace_write_lease_abort(&joined_write));
  terrace_write_lease_abort(&write);

  terrace_read_lease read = {}, joined = {};
  ASSERT_EQ(CLEAN(terrace_acquire(client_, group_, keys_.data(), 3, &request_, &read)), TERRACE_OK);
  ASSERT_EQ(CLEAN(terrace_wait_ready(client_, &read, 2, kLongUs)), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_read_lease_block_count(&read)), 3u);
  EXPECT_EQ(CLEAN(terrace_read_lease_token_count(&read)), 3 * kBlockTokens);
  EXPECT_EQ(CLEAN(terrace_read_lease_spans(&read, nullptr, 0)), 1u);
  EXPECT_GE(CLEAN(terrace_read_lease_ready_count(&read)), 2u);
  EXPECT_EQ(CLEAN(terrace_read_lease_is_valid(&read)), 1);
  EXPECT_EQ(CLEAN(terrace_read_lease_is_in_device(&read, 0)), 0);
  EXPECT_NE(CLEAN(terrace_read_lease_slot(&read, 0, 0, &slot_bytes)), nullptr);
  EXPECT_EQ(CLEAN(terrace_read_lease_is_part_ready(&read, 0, 0, 0)), 1);
  std::vector<uint8_t> to(kLayerBytes);
  EXPECT_EQ(CLEAN(terrace_read_lease_copy_part(&read, 0, 0, 0, to.data(), to.size())), TERRACE_OK);
  EXPECT_EQ(to, bytes_);
  const std::array<void*, 4> targets = {to.data(), to.data(), to.data(), to.data()};
  EXPECT_EQ(CLEAN(terrace_read_lease_copy_blocks(&read, 0, 0, 2, targets.data())), TERRACE_OK);
  const terrace_id read_token = CLEAN(terrace_read_lease_token(&read));
  EXPECT_EQ(CLEAN(terrace_join_read(rank_, rank_group_, read_token, 1, &joined)), TERRACE_OK);
  CLEAN(terrace_read_lease_release(&joined, TERRACE_END_OF_TURN));
  EXPECT_EQ(CLEAN(terrace_join_read_flagged(rank_, rank_group_, read_token, 1, 0, &joined)),
            TERRACE_OK);
  CLEAN(terrace_read_lease_release(&joined, TERRACE_END_OF_TURN));
  CLEAN(terrace_read_lease_release(&read, TERRACE_END_OF_TURN));
}

// Pages of chunks under a lossy codec, whose keys turn.
void CVectorState::DescribePages() {
  std::array<uint64_t, kLayers> addresses = {};
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    addresses[layer] = reinterpret_cast<uint64_t>(&pages_[layer * 2 * kPages * kPlaneBytes]);
  }
  std::vector<double> inv_freq(kHeadSize / 2, 0.01);
  terrace_rope rope = TERRACE_ROPE_INIT;
  rope.rot_dim = kHeadSize;
  rope.inv_freq = inv_freq.data();
  terrace_pages_layout layout = TERRACE_PAGES_LAYOUT_INIT;
  layout.layer_count = kLayers;
  layout.page_tokens = layout.block_tokens = kBlockTokens;
  layout.head_count = kHeads;
  layout.head_bytes = kHeadSize * 2;
  layout.page_count = kPages;
  layout.addresses = addresses.data();
  layout.address_count = kLayers;
  layout.rope = &rope;
  const std::array<uint64_t, 5> shape = {2, kPages, kBlockTokens, kHeads, kHeadSize};
  const std::array<uint64_t, 5> strides = {kPages * kPlaneBytes, kPlaneBytes, kTokenBytes,
                                           kHeadSize * 2, 2};
  terrace_tensor tensor = TERRACE_TENSOR_INIT;
  tensor.dimension_count = 5;
  tensor.shape = shape.data();
  tensor.stride_bytes = strides.data();
  tensor.item_bytes = 2;
  tensor.axes = "PBTHD";
  ASSERT_EQ(CLEAN(terrace_pages_read_tensor(&tensor, &layout, why_, sizeof(why_))), TERRACE_OK)
      << why_;
  ASSERT_EQ(
      CLEAN(terrace_pages_create(device_, &layout, &chunks_, &native_pages_, why_, sizeof(why_))),
      TERRACE_OK)
      << why_;
}

// To another position: pages are gathered and encoded, decoded, turned and scattered.
void CVectorState::StoreAndLoadPages() {
  const terrace_group group = Open(client_, "chunks", chunks_);
  ASSERT_NO_FATAL_FAILURE(DescribePages());
  terrace_pages* pages = native_pages_;
  terrace_write_lease write = {};
  ASSERT_EQ(terrace_reserve(client_, group, keys_.data(), 2, &request_, &write), TERRACE_OK);
  const std::array<uint64_t, 2> indexes = {0, 1};
  std::array<uint32_t, 2> positions = {0, kBlockTokens};
  terrace_page_list list = TERRACE_PAGE_LIST_INIT;
  list.count = 2;
  list.page_indexes = indexes.data();
  list.positions = positions.data();
  constexpr terrace_edge kHost = {TERRACE_EDGE_HOST, 0, nullptr};
  terrace_copy* copy = nullptr;
  ASSERT_EQ(CLEAN(terrace_pages_store(pages, &write, &list, kHost, &copy, why_, sizeof(why_))),
            TERRACE_OK)
      << why_;
  EXPECT_EQ(CLEAN(terrace_copy_page_reuse(copy, kHost)), TERRACE_OK);
  ASSERT_EQ(CLEAN(terrace_copy_wait(copy, kLongUs)), TERRACE_OK);
  CLEAN(terrace_copy_destroy(copy));
  ASSERT_EQ(terrace_commit(client_, &write, &request_, nullptr), TERRACE_OK);
  terrace_write_lease_abort(&write);

  terrace_read_lease read = {};
  ASSERT_EQ(terrace_acquire(client_, group, keys_.data(), 2, &request_, &read), TERRACE_OK);
  ASSERT_EQ(terrace_wait_ready(client_, &read, 2, kLongUs), TERRACE_OK);
  uint32_t position = 7;
  EXPECT_EQ(CLEAN(terrace_read_lease_chunk_position(&read, 1, 0, &position)), TERRACE_OK);
  EXPECT_EQ(position, kBlockTokens);
  std::vector<uint8_t> decoded(engine_parts_[1]);
  EXPECT_EQ(CLEAN(terrace_read_lease_copy_part(&read, 0, 0, 1, decoded.data(), decoded.size())),
            TERRACE_OK);
  positions = {1000, 1000 + kBlockTokens};
  ASSERT_EQ(CLEAN(terrace_pages_load(pages, &read, &list, kHost, &copy, why_, sizeof(why_))),
            TERRACE_OK)
      << why_;
  EXPECT_EQ(CLEAN(terrace_copy_layer_ready(copy, 0, kHost)), TERRACE_OK);
  ASSERT_EQ(CLEAN(terrace_copy_wait(copy, kLongUs)), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_copy_poll(copy)), TERRACE_OK);
  CLEAN(terrace_copy_destroy(copy));
  terrace_read_lease_release(&read, TERRACE_END_OF_TURN);
  CLEAN(terrace_pages_destroy(pages));
}

void CVectorState::CallAsync() {
  terrace_completion completion = TERRACE_COMPLETION_INIT;
  ASSERT_EQ(CLEAN(terrace_acquire_async(client_, group_, keys_.data(), 3, &request_, 1, nullptr,
                                        nullptr)),
            TERRACE_OK);
  ASSERT_EQ(CLEAN(terrace_poll_until(client_, kLongUs, &completion)), TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_poll(client_, &completion)), TERRACE_NOT_FOUND);
  EXPECT_GE(CLEAN(terrace_event_fd(client_)), 0);
  ASSERT_EQ(CLEAN(terrace_prefetch_async(client_, group_, keys_.data(), 3, &request_, 2, nullptr,
                                         nullptr)),
            TERRACE_OK);
  ASSERT_EQ(terrace_poll_until(client_, kLongUs, &completion), TERRACE_OK);
  std::array<terrace_id, 1> key = {terrace_id{5, 5}};
  request_.flags = TERRACE_KEYS_FLAT;
  ASSERT_EQ(
      CLEAN(terrace_reserve_async(client_, group_, key.data(), 1, &request_, 3, nullptr, nullptr)),
      TERRACE_OK);
  request_.flags = 0;
  ASSERT_EQ(terrace_poll_until(client_, kLongUs, &completion), TERRACE_OK);
  for (uint32_t part = 0; part < 2; ++part) {
    EXPECT_EQ(terrace_write_lease_write_part(&completion.write_lease, 0, 0, part, bytes_.data(),
                                             kLayerBytes),
              TERRACE_OK);
  }
  // The library's own thread calls an engine's code: clean, too.
  struct Seen {
    std::atomic<int64_t> in_use = -1;
  } seen;
  ASSERT_EQ(CLEAN(terrace_commit_async(
                client_, &completion.write_lease, &request_, 4,
                [](void* context, terrace_completion*) {
                  static_cast<Seen*>(context)->in_use = UpperHalvesInUse();
                  static_cast<Seen*>(context)->in_use.notify_all();
                },
                &seen)),
            TERRACE_OK);
  seen.in_use.wait(-1);
  EXPECT_EQ(seen.in_use, 0);
  terrace_write_lease_abort(&completion.write_lease);
}

void CVectorState::CallTheRest() {
  terrace_match_result match = {.struct_bytes = sizeof(match)};
  EXPECT_EQ(CLEAN(terrace_match(client_, group_, keys_.data(), 3, &request_, &match)), TERRACE_OK);
  uint32_t block_count = 0;
  EXPECT_EQ(CLEAN(terrace_prefetch(client_, group_, keys_.data(), 3, &request_, &block_count)),
            TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_touch(client_, group_, keys_.data(), 3, &request_)), TERRACE_OK);
  std::array<terrace_queried_block, 3> blocks = {};
  EXPECT_EQ(CLEAN(terrace_query(client_, group_, keys_.data(), 3, &request_, blocks.data())),
            TERRACE_OK);
  CLEAN(terrace_wait_persisted(client_, group_, keys_.data(), 3, &request_));  // no lower tier
  EXPECT_EQ(CLEAN(terrace_pin(client_, group_, keys_.data(), 3, &request_, &block_count)),
            TERRACE_OK);
  terrace_evict_result evicted = {.struct_bytes = sizeof(evicted)};
  EXPECT_EQ(CLEAN(terrace_evict(client_, group_, keys_.data(), 3, &request_, &evicted)),
            TERRACE_OK);
  std::vector<char> json(1 << 20);
  size_t needed_bytes = 0;
  EXPECT_EQ(CLEAN(terrace_stats(client_, kLongUs, json.data(), json.size(), &needed_bytes)),
            TERRACE_OK);
  EXPECT_EQ(CLEAN(terrace_reset(client_, group_)), TERRACE_OK);
  CLEAN(terrace_client_destroy(rank_));
  CLEAN(terrace_client_destroy(client_));
  CLEAN(terrace_device_destroy(device_));
}

TEST_P(CVectorState, IsCleanBehindEveryCallOfTheCAbi) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(StoreAndLoad());
  ASSERT_NO_FATAL_FAILURE(StoreAndLoadPages());
  ASSERT_NO_FATAL_FAILURE(CallAsync());
  ASSERT_NO_FATAL_FAILURE(CallTheRest());
  EXPECT_EQ(Missing(calls_.names(), FunctionsOfC()), std::vector<std::string>())
      << "functions of terrace.h that this test does not call";
  EXPECT_GT(FunctionsOfC().size(), 70u);
}

INSTANTIATE_TEST_SUITE_P(KeyHash, CVectorState, testing::Values(Setting{"xxh3"}, Setting{"sha256"}),
                         [](const auto& setting) { return std::string(setting.param.key_hash); });

// ---- The C++ client ----

SpaceGroupSpec LossyModel() {
  SpaceSpec spec;
  spec.model = "tiny";
  spec.revision = "r1";
  spec.salt = kSalt;
  spec.dtype = "bf16";
  spec.layers = kLayers;
  spec.kv_heads = kHeads;
  spec.head_size = kHeadSize;
  spec.layout = "nhd";
  spec.block_tokens = kBlockTokens;
  spec.part_bytes = {kLayerBytes, kLayerBytes};
  std::string why;
  EXPECT_TRUE(ApplyCodec(Codec::kFp8, 2, &spec, &why).ok()) << why;
  SpaceGroupSpec group;
  group.name = "lossy";
  group.members.push_back({.spec = spec});
  return group;
}

class CppVectorState : public VectorState {
 protected:
  void Connect();
  void Store();
  void Load();
  void CallAsync();
  void CallTheRest();

  std::unique_ptr<Client> client_, rank_;
  GroupRef group_, rank_group_;
  std::vector<BlockKey> keys_;
  const RequestOptions options_ = {.deadline_us = kLongUs};
  std::vector<std::byte> part_ = std::vector<std::byte>(kLayerBytes, std::byte{0x3c});
};

void CppVectorState::Connect() {
  std::string why;
  Result<std::unique_ptr<Client>> client = CLEAN_OF(
      Client,
      Client::Create({.socket_path = daemon_.socket_path(), .default_deadline_us = kLongUs}, &why));
  ASSERT_TRUE(client.ok()) << why;
  client_ = std::move(client).value();
  ASSERT_TRUE(CLEAN_OF(Client, client_->WaitConnected(kLongUs)).ok());
  rank_ = std::move(Client::Create({.socket_path = daemon_.socket_path()})).value();
  ASSERT_TRUE(rank_->WaitConnected(kLongUs).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->is_connected()));
  EXPECT_FALSE(CLEAN_OF(Client, client_->is_bypassed()));
  EXPECT_FALSE(CLEAN_OF(Client, client_->is_reader()));
  EXPECT_EQ(CLEAN_OF(Client, client_->bypassed_count()), 0u);
  EXPECT_NE(CLEAN_OF(Client, client_->boot_id()), 0u);
  CLEAN_OF(Client, client_->last_error());
  const auto device = std::make_shared<Device>(std::move(Device::Open(HostDeviceOps())).value());
  EXPECT_TRUE(CLEAN_OF(Client, client_->PinArena(device)).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->PausePinning(kLongUs)).ok());
  CLEAN_OF(Client, client_->ResumePinning());
  const Result<GroupRef> group = CLEAN_OF(Client, client_->Open(LossyModel(), 1, kLongUs));
  ASSERT_TRUE(group.ok()) << client_->last_error();
  group_ = *group;
  rank_group_ = rank_->Open(LossyModel(), 1, kLongUs).value();
  const Result<PrefixHasher> hasher = CLEAN_OF(Client, client_->Hasher(group_));
  ASSERT_TRUE(hasher.ok());
  CLEAN_OF(PrefixHasher, hasher->AppendKeys(tokens_, &keys_));
}

void CppVectorState::Store() {
  Result<WriteLease> reserved = CLEAN_OF(Client, client_->Reserve(group_, keys_, options_));
  ASSERT_TRUE(reserved.ok()) << client_->last_error();
  WriteLease write = std::move(reserved).value();
  ASSERT_EQ(CLEAN_OF(WriteLease, write.keys()).size(), 3u);
  ASSERT_TRUE(CLEAN_OF(WriteLease, write.is_reserved(0)));
  EXPECT_FALSE(CLEAN_OF(WriteLease, write.slot(0, 0)).empty());
  EXPECT_EQ(CLEAN_OF(WriteLease, write.part_bytes(0)).size(), 2u);
  for (uint32_t key = 0; key < 2; ++key) {
    for (uint32_t part = 0; part < 2; ++part) {
      EXPECT_TRUE(CLEAN_OF(WriteLease, write.WritePart(key, 0, part, part_)).ok());
    }
  }
  EXPECT_TRUE(CLEAN_OF(WriteLease, write.ChecksumWrittenPart(2, 0, 0)).ok());
  EXPECT_TRUE(CLEAN_OF(WriteLease, write.MarkWrittenPart(2, 0, 1)).ok());
  (void)CLEAN_OF(WriteLease, write.MarkAbsent(2, 0));  // refused: the member has no window
  EXPECT_TRUE(CLEAN_OF(WriteLease, write.is_valid()));
  CLEAN_OF(WriteLease, write.token());
  EXPECT_TRUE(CLEAN_OF(Client, client_->Commit(write, options_)).ok()) << client_->last_error();
  auto owned = std::make_unique<WriteLease>(std::move(write));
  calls_.Behind("WriteLease::~WriteLease", [&] { owned.reset(); });
  const std::vector<BlockKey> shared = {{.low = 6, .high = 6}};
  const WriteLease ours = client_->Reserve(group_, shared, options_).value();
  Result<WriteLease> joined = CLEAN_OF(Client, rank_->JoinWrite(rank_group_, ours.token(), 1));
  ASSERT_TRUE(joined.ok()) << rank_->last_error();
  CLEAN_OF(WriteLease, joined->Abort());
}

void CppVectorState::Load() {
  Result<ReadLease> acquired = CLEAN_OF(Client, client_->Acquire(group_, keys_, options_));
  ASSERT_TRUE(acquired.ok()) << client_->last_error();
  ReadLease read = std::move(acquired).value();
  ASSERT_TRUE(CLEAN_OF(Client, client_->WaitReady(read, 2, kLongUs)).ok());
  EXPECT_GE(CLEAN_OF(ReadLease, read.block_count()), 2u);
  EXPECT_GE(CLEAN_OF(ReadLease, read.token_count()), 2 * kBlockTokens);
  CLEAN_OF(ReadLease, read.spans());
  EXPECT_GE(CLEAN_OF(ReadLease, read.ready_count()), 2u);
  EXPECT_FALSE(CLEAN_OF(ReadLease, read.slot(0, 0)).empty());
  EXPECT_EQ(CLEAN_OF(ReadLease, read.part_bytes(0)).size(), 2u);
  EXPECT_TRUE(CLEAN_OF(ReadLease, read.is_part_ready(0, 0, 0)));
  std::vector<std::byte> to(kLayerBytes);
  EXPECT_TRUE(CLEAN_OF(ReadLease, read.CopyPart(0, 0, 0, to)).ok());
  EXPECT_TRUE(CLEAN_OF(ReadLease, read.is_valid()));
  const LeaseToken token = CLEAN_OF(ReadLease, read.token());
  Result<ReadLease> joined = CLEAN_OF(Client, rank_->JoinRead(rank_group_, token, 1));
  ASSERT_TRUE(joined.ok()) << rank_->last_error();
  CLEAN_OF(ReadLease, joined->Release());
  auto owned = std::make_unique<ReadLease>(std::move(read));
  calls_.Behind("ReadLease::~ReadLease", [&] { owned.reset(); });
}

void CppVectorState::CallAsync() {
  ClientCompletion completion;
  ASSERT_TRUE(CLEAN_OF(Client, client_->AcquireAsync(group_, keys_, options_, 1)).ok());
  ASSERT_TRUE(CLEAN_OF(Client, client_->PollUntil(&completion, kLongUs)));
  EXPECT_FALSE(CLEAN_OF(Client, client_->Poll(&completion)));
  EXPECT_GE(CLEAN_OF(Client, client_->event_fd()), 0);
  ASSERT_TRUE(CLEAN_OF(Client, client_->PrefetchAsync(group_, keys_, options_, 2)).ok());
  ASSERT_TRUE(client_->PollUntil(&completion, kLongUs));
  const std::vector<BlockKey> key = {{.low = 5, .high = 5}};
  ASSERT_TRUE(CLEAN_OF(Client, client_->ReserveAsync(group_, key, options_, 3)).ok());
  ASSERT_TRUE(client_->PollUntil(&completion, kLongUs));
  WriteLease write = std::move(completion.write_lease);
  for (uint32_t part = 0; part < 2; ++part) {
    EXPECT_TRUE(write.WritePart(0, 0, part, part_).ok());
  }
  std::atomic<int64_t> in_use = -1;
  ASSERT_TRUE(CLEAN_OF(Client, client_->CommitAsync(write, options_, 4, [&](ClientCompletion&&) {
                in_use = UpperHalvesInUse();
                in_use.notify_all();
              })).ok());
  in_use.wait(-1);
  EXPECT_EQ(in_use, 0) << "in a callback, on the library's thread";
}

void CppVectorState::CallTheRest() {
  EXPECT_TRUE(CLEAN_OF(Client, client_->Match(group_, keys_, options_)).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->Prefetch(group_, keys_, options_)).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->Touch(group_, keys_, options_)).ok());
  std::vector<protocol::QueriedBlock> blocks;
  EXPECT_TRUE(CLEAN_OF(Client, client_->Query(group_, keys_, &blocks, options_)).ok());
  (void)CLEAN_OF(Client, client_->WaitPersisted(group_, keys_, options_));  // no lower tier
  EXPECT_TRUE(CLEAN_OF(Client, client_->Pin(group_, keys_, options_)).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->Evict(group_, keys_, options_)).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->Stats(kLongUs)).ok());
  uint64_t cursor = 0;
  EXPECT_TRUE(CLEAN_OF(Client, client_->List({.entry_count_max = 100}, &cursor, kLongUs)).ok());
  EXPECT_TRUE(CLEAN_OF(Client, client_->Reset(group_)).ok());
  rank_.reset();
  calls_.Behind("Client::~Client", [&] { client_.reset(); });
}

TEST_P(CppVectorState, IsCleanBehindEveryMethodOfTheClient) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(Store());
  ASSERT_NO_FATAL_FAILURE(Load());
  ASSERT_NO_FATAL_FAILURE(CallAsync());
  ASSERT_NO_FATAL_FAILURE(CallTheRest());
  EXPECT_EQ(Missing(calls_.names(), MethodsOfClient()), std::vector<std::string>())
      << "methods of client.h that this test does not call";
  EXPECT_GT(MethodsOfClient().size(), 50u);
}

INSTANTIATE_TEST_SUITE_P(KeyHash, CppVectorState,
                         testing::Values(Setting{"xxh3"}, Setting{"sha256"}),
                         [](const auto& setting) { return std::string(setting.param.key_hash); });

}  // namespace
}  // namespace terrace::test
