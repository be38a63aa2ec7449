// A Redis server that says anything, as blocks, probes and generations hear it through real
// connections, logins and breakers: an input is a script of what is asked of the server and of what
// it says, which is right, broken, late, or the answer to something else. Every question is
// answered once; a block that is read is exactly the one that was stored. Of a Cluster and of
// Sentinels what they say of others is built here: nobody but this process is ever connected to.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "fuzz/descriptors.h"
#include "fuzz/fuzz.h"
#include "terrace/units.h"
#include "tiers/redis/redis_blocks.h"
#include "tiers/redis/redis_chunks.h"
#include "tiers/redis/redis_generations.h"
#include "tiers/redis/redis_payload.h"

namespace terrace::fuzz::redis_servers {

using asio::local::stream_protocol;

constexpr uint32_t kStepsMax = 60;
constexpr size_t kLargeBytes = kRedisSmallBlockBytesMax + 900;
constexpr uint64_t kGeneration = 2;
constexpr uint64_t kNowS = 1'700'000'000;

std::shared_ptr<const KeyRing> RingOf(uint8_t number) {
  CipherKey key;
  std::ranges::fill(key.bytes(), std::byte{number});
  return std::make_shared<const KeyRing>(std::vector<CipherKey>{key});
}
// Ours, and another host's.
const std::shared_ptr<const KeyRing>& Ring(bool is_ours) {
  static const std::shared_ptr<const KeyRing> ours = RingOf(1), other = RingOf(2);
  return is_ours ? ours : other;
}
Status Salt(std::span<std::byte> into) {
  std::ranges::fill(into, std::byte{3});
  return Status::Ok();
}

// What a login asks, and what it hears.
struct Login {
  bool asks_permission = false;
  std::string_view said;
};
constexpr Login kLogins[] = {
    {false, "+PONG\r\n"},
    {true, "+PONG\r\n:0\r\n"},
    {true, "+PONG\r\n-ERR wrong number of arguments for 'pexpire' command\r\n"},
    {true, "+PONG\r\n-NOPERM x\r\n"},
    {true, "+PONG\r\n-MOVED 1 127.0.0.1:1\r\n"},
    {true, "+PONG\r\n-ERR unknown command 'PEXPIRE'\r\n"},
    {true, "+PONG\r\n-LOADING x\r\n"},
    {false, "-LOADING x\r\n"},
};
constexpr uint8_t kPermitted = 1 * 4, kOlder = 2 * 4, kEncrypted = 4 * 8;  // of the first byte

std::byte Content(size_t index) { return static_cast<std::byte>(index * 7 + index / 256); }

RedisBlockName Name(uint64_t number) {
  return {.group = {1, 2},
          .space = {3, 4},
          .key = {5, number},
          .position = 11,
          .generation = kGeneration};
}

// The block as somebody who knows the secret stored it; `bytes` are as they lie there.
RedisManifest Stored(const RedisBlockName& name, const KeyRing* ring, std::span<std::byte> bytes) {
  RedisManifest manifest;
  manifest.group = name.group;
  manifest.space = name.space;
  manifest.key = name.key;
  manifest.position = name.position;
  manifest.generation = name.generation;
  manifest.commit_id = 9;
  manifest.write_id = 10;
  manifest.length_bytes = bytes.size();
  manifest.part_checksums.push_back({1, 2});
  if (ring != nullptr) {
    const Bytes plain(bytes.begin(), bytes.end());
    Require(EncryptRedisPayload(*ring, Salt, plain, bytes, &manifest).ok(), "it is encrypted");
  }
  std::vector<uint32_t> lengths = CutIntoChunks(bytes.size());
  if (!lengths.empty() && lengths.back() <= kRedisTailBytesMax) lengths.pop_back();
  std::span<const std::byte> rest = bytes;
  for (const uint32_t length_bytes : lengths) {
    manifest.chunks.push_back({{}, length_bytes});
  }
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    manifest.chunks[i].checksum =
        RedisChunkChecksum(FuzzSecret(), manifest, i, rest.first(lengths[i]));
    rest = rest.subspan(lengths[i]);
  }
  manifest.tail.assign(rest.begin(), rest.end());
  return manifest;
}

std::string Bulk(std::string_view body) {
  return "$" + std::to_string(body.size()) + "\r\n" + std::string(body) + "\r\n";
}

class World {
 public:
  World(RedisTopology topology, const Login& login, bool is_encrypted)
      : is_encrypted_(is_encrypted),
        login_said_(login.said),
        acceptor_(loop_, stream_protocol::endpoint(path_)) {
    RedisServers::Options options;
    options.node.loop = &loop_;
    options.node.connections = 2;
    options.node.connection.endpoint = {.unix_path = path_};
    if (login.asks_permission) options.node.connection.permission_key = "p";
    options.topology = topology;
    options.endpoints = {{.unix_path = path_}};
    options.master_name = "m";
    options.look_key = "l";
    options.health_changed = [] {};
    servers_ = std::make_unique<RedisServers>(std::move(options));
    const auto unix_us = [] { return kNowS * kUsPerSecond; };
    blocks_ = std::make_unique<RedisBlocks>(
        RedisBlocks::Options{.secret = FuzzSecret(),
                             .unix_us = unix_us,
                             .servers = servers_.get(),
                             .ring = is_encrypted ? Ring(true) : nullptr,
                             .random = Salt});
    generations_ = std::make_unique<RedisGenerations>(RedisGenerations::Options{
        .secret = FuzzSecret(),
        .unix_us = unix_us,
        .steady_us = [this] { return (asked_ + answered_) * kUsPerSecond; },
        .servers = servers_.get()});
    is_mapped_ = topology != RedisTopology::kSingle;
    Accept();
    servers_->Start();
    Turn();
  }

  ~World() {
    servers_->Close(Status(StatusCode::kGone, "the end"));
    acceptor_.close();
    peers_.clear();
    for (int i = 0; i < 4; ++i) Turn();
    Require(asked_ == answered_, "a question has no answer, or two");
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Step(Choices& choices) {
    switch (choices.Below(10)) {
      case 0:
        Fetch(Length(choices));
        break;
      case 1:
        choices.Below(2) == 0 ? Fetch(kLargeBytes) : Store(kLargeBytes);
        break;
      case 2:
        Probe(choices.Below(4));
        break;
      case 3:
        Agree(choices.Byte());
        break;
      case 4:
        Store(Length(choices));
        break;
      case 5:
        Erase();
        break;
      case 6:
        HangUp(choices);
        break;
      case 7:
        Say(choices, Answer(choices));
        break;
      case 8:
        Store(choices.Below(2), kNowS - 1 + choices.Below(3));
        break;
      case 9:
        servers_->LookForWrites();
        break;
    }
    Turn();
  }

 private:
  void Turn() {
    loop_.restart();
    loop_.poll();
  }

  // ---- what is asked ----

  // Most of one chunk, the longest of several.
  static size_t Length(Choices& choices) {
    const size_t number = choices.Number<uint16_t>();
    return number < 60'000 ? 1 + number % 3'000 : number;
  }

  void Fetch(size_t length_bytes) {
    block_bytes_ = length_bytes;
    auto into = std::make_shared<Bytes>(length_bytes);
    const RedisBlockName name = Name(1);
    ++asked_;
    blocks_->Fetch(name, *into, [this, into](Status status, const RedisManifest& manifest) {
      ++answered_;
      if (!status.ok()) return;
      Require(manifest.length_bytes == into->size(), "a block of another length");
      for (size_t i = 0; i < into->size(); ++i) {
        Require((*into)[i] == Content(i), "a block was read that nobody stored");
      }
    });
  }
  void Store(size_t length_bytes, uint64_t expires_at_s = 0) {
    block_bytes_ = length_bytes;
    const auto from = std::make_shared<Bytes>(Block());
    ++asked_;
    RedisManifest manifest = Stored(Name(1), nullptr, *from);
    manifest.expires_at_s = expires_at_s;
    manifest.chunks.clear();
    manifest.tail.clear();
    blocks_->Store(Name(1), std::move(manifest), *from, [this, from](Status) { ++answered_; });
  }
  void Probe(size_t count) {
    std::vector<RedisBlockName> names;
    for (uint64_t i = 0; i < count; ++i) names.push_back(Name(i));
    ++asked_;
    blocks_->Probe(names, [this, count](Status, const std::vector<bool>& is_present) {
      Require(is_present.size() == count, "as many bits as names");
      ++answered_;
    });
  }
  void Agree(uint8_t kind) {
    const uint64_t at_least = kind / 4;
    ++asked_;
    generations_->Agree({.group = {1, 2},
                         .at_least = at_least,
                         .is_from_just_now = (kind & 2) != 0,
                         .is_rise = (kind & 1) != 0},
                        [this, at_least](Status status, const RedisGenerations::Agreed& agreed) {
                          Require(!status.ok() || agreed.generation >= at_least,
                                  "a generation sank");
                          ++answered_;
                        });
  }
  void Erase() {
    ++asked_;
    blocks_->Erase(Name(1), [this](Status) { ++answered_; });
  }

  // ---- the server ----

  void Accept() {
    acceptor_.async_accept([this](const asio::error_code& error, stream_protocol::socket socket) {
      if (error) return;
      peers_.push_back(std::make_unique<stream_protocol::socket>(std::move(socket)));
      Send(*peers_.back(), login_said_);
      Accept();
    });
  }
  void Send(stream_protocol::socket& peer, std::string_view text) {
    (void)!send(peer.native_handle(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void HangUp(Choices& choices) {
    if (peers_.empty()) return;
    peers_.erase(peers_.begin() + choices.Below(static_cast<uint32_t>(peers_.size())));
  }
  // [to whom; in two pieces, cut where]
  void Say(Choices& choices, const std::string& text) {
    if (peers_.empty()) return;
    stream_protocol::socket& peer =
        *peers_[peers_.size() - 1 - choices.Below(static_cast<uint32_t>(peers_.size()))];
    char heard[4096];
    while (recv(peer.native_handle(), heard, sizeof(heard), MSG_DONTWAIT) > 0) {
    }
    const size_t cut = choices.Byte() * text.size() / 255;
    Send(peer, std::string_view(text).substr(0, cut));
    if (cut > 0) loop_.poll();
    Send(peer, std::string_view(text).substr(cut));
  }

  Bytes Block() const {
    Bytes block(block_bytes_);
    for (size_t i = 0; i < block.size(); ++i) block[i] = Content(i);
    return block;
  }

  // The manifest and the chunks of the block that was asked for last, [as patched].
  std::vector<std::string> Values(Choices& choices) const {
    Bytes block = Block();
    const bool is_ours = choices.Below(8) != 6;
    const KeyRing* const ring = is_encrypted_ ? Ring(is_ours).get() : nullptr;
    RedisManifest manifest = Stored(Name(1), ring, block);
    const size_t tail_bytes = manifest.tail.size();
    const bool can_grow = tail_bytes > 0 && tail_bytes < kRedisTailBytesMax;
    if (choices.Below(8) == 7) manifest.length_bytes += can_grow ? 1 : 0;
    std::vector<std::string> values;
    size_t at = 0;
    for (const RedisChunk& chunk : manifest.chunks) {
      values.emplace_back(TextOf(std::span(block).subspan(at, chunk.length_bytes)));
      at += chunk.length_bytes;
    }
    // As a longer block would be: one that is asked for, too, is read right.
    if (manifest.length_bytes != block.size()) manifest.tail.push_back(Content(block.size()));
    values.emplace_back(TextOf(EncodeManifest(manifest, FuzzSecret())));
    if (const uint32_t patched = choices.Byte(); patched > 0) {
      std::string& value = values[patched % values.size()];
      value[choices.Number<uint16_t>() % value.size()] ^= static_cast<char>(choices.Byte());
    }
    return values;
  }

  // What a server says, and then anything.
  std::string Answer(Choices& choices) const {
    constexpr std::string_view kWords[] = {
        "+OK\r\n",          "+QUEUED\r\n",   ":0\r\n",           ":1\r\n",
        "$-1\r\n",          "*0\r\n",        "*-1\r\n",          "-ERR x\r\n",
        "-LOADING x\r\n",   "-NOAUTH x\r\n", "-OOM x\r\n",       "-READONLY x\r\n",
        "-WRONGTYPE x\r\n", "-NOPERM x\r\n", "-EXECABORT x\r\n", "*2\r\n+OK\r\n:1\r\n"};
    const uint8_t kind = choices.Byte();
    switch (kind % 8) {
      case 0: {  // each value of a block
        const std::vector<std::string> values = Values(choices);
        return Bulk(values[choices.Byte() % values.size()]);
      }
      case 1: {  // all of them
        const std::vector<std::string> values = Values(choices);
        std::string text = "*" + std::to_string(values.size()) + "\r\n";
        for (const std::string& value : values) {
          text += choices.Below(8) == 7 ? "$-1\r\n" : Bulk(value);
        }
        return text;
      }
      case 2:
        return Bulk(EncodeGeneration({1, 2}, choices.Byte(), FuzzSecret()));
      case 3:
        return is_mapped_ ? Map(choices) : std::string(TextOf(choices.Take(choices.Byte())));
      case 4:
        return Bulk(std::string(choices.Number<uint16_t>() % 4'096, '\xFF'));
      case 5:
        return (kind < 128 ? "-MOVED " : "-ASK ") + std::to_string(choices.Number<uint16_t>()) +
               " " + Host(choices) + "\r\n";
      case 7: {  // what a transaction did
        const uint32_t count = choices.Below(12);
        std::string text = "*" + std::to_string(count) + "\r\n";
        const uint32_t first = choices.Below(3), refused = choices.Byte();
        for (uint32_t i = 0; i < count; ++i) {
          text +=
              i + 1 == refused ? "-OOM x\r\n" : ":" + std::to_string(i == 0 ? first : 1) + "\r\n";
        }
        return text;
      }
      default:
        break;
    }
    return std::string(kWords[choices.Below(std::size(kWords))]);
  }
  // Nobody's: ports below nine of this host.
  static std::string Host(Choices& choices) {
    return "127.0.0.1:" + std::to_string(choices.Below(9));
  }
  static std::string Map(Choices& choices) {
    if (choices.Below(4) == 3) {
      return "*2\r\n" + Bulk("127.0.0.1") + Bulk(std::to_string(choices.Below(9)));
    }
    const uint32_t range_count = choices.Below(6);
    std::string text = "*" + std::to_string(range_count) + "\r\n";
    for (uint32_t i = 0; i < range_count; ++i) {
      text += "*3\r\n:" + std::to_string(choices.Number<int16_t>()) +
              "\r\n:" + std::to_string(choices.Number<uint16_t>()) + "\r\n*2\r\n" +
              Bulk("127.0.0.1") + ":" + std::to_string(choices.Below(9)) + "\r\n";
    }
    return text;
  }

  const bool is_encrypted_;
  const std::string login_said_;
  const std::string path_ = PathInNoFolder("redis");
  asio::io_context loop_{1};
  stream_protocol::acceptor acceptor_;
  std::vector<std::unique_ptr<stream_protocol::socket>> peers_;
  std::unique_ptr<RedisServers> servers_;
  std::unique_ptr<RedisBlocks> blocks_;
  std::unique_ptr<RedisGenerations> generations_;
  size_t block_bytes_ = 1;
  bool is_mapped_ = false;
  uint64_t asked_ = 0, answered_ = 0;
};

constexpr uint8_t kFetch = 0, kLarge = 1, kProbe = 2, kAgree = 3, kStore = 4, kSay = 7,
                  kStoreExpiring = 8, kLook = 9;

void SayWord(uint8_t word, uint8_t peer, ChoiceWriter* writer) {
  writer->Byte(kSay).Byte(6).Byte(word).Byte(peer).Byte(0);
}
constexpr uint8_t kOk = 0, kQueued = 1, kZero = 2, kOne = 3, kNil = 4;  // words

// A transaction: its answers come by connection `peer`, and it did, with `first` to its question.
Bytes SmallStore(uint8_t world, uint8_t queued, uint8_t first, uint8_t refused, uint8_t peer,
                 uint16_t length = 999) {
  ChoiceWriter writer;
  writer.Byte(world).Byte(kStore).Put<uint16_t>(length);
  for (int i = 0; i < 2; ++i) {
    SayWord(kOk, peer, &writer);
    for (uint8_t each = 0; each < queued; ++each) SayWord(kQueued, peer, &writer);
    writer.Byte(kSay).Byte(7).Byte(queued).Byte(first).Byte(refused).Byte(peer).Byte(0);
    SayWord(kOne, 1 - peer, &writer);  // swept, or marked
  }
  return writer.Take();
}
// Asked whether it is there, chunk by chunk, published.
Bytes LargeStore(uint8_t there, uint8_t published, uint8_t peer) {
  ChoiceWriter writer;
  writer.Byte(0).Byte(kLarge).Byte(1);
  SayWord(there, peer, &writer);
  for (int i = 0; i < 2; ++i) SayWord(kOk, 1 - peer, &writer);
  SayWord(published, peer, &writer);
  SayWord(kOne, peer, &writer);
  return writer.Take();
}
Bytes Agreement(uint8_t replaced, uint8_t peer) {
  ChoiceWriter writer;
  writer.Byte(0).Byte(kAgree).Byte(7);
  for (int i = 0; i < 8; ++i) {
    SayWord(kNil, peer, &writer);
    SayWord(replaced, peer, &writer);
  }
  return writer.Take();
}

std::vector<Seed> Seeds() {
  std::vector<Seed> seeds;
  for (const uint8_t peer : {0, 1}) {
    const std::string to = "_" + std::to_string(peer);
    for (const uint8_t queued : {4, 5, 6}) {
      const std::string of = std::to_string(queued) + to;
      seeds.push_back({"small_store_" + of, SmallStore(kPermitted, queued, 1, 0, peer)});
      seeds.push_back({"small_store_exists_" + of, SmallStore(kPermitted, queued, 0, 0, peer)});
      seeds.push_back({"small_store_refused_" + of, SmallStore(kPermitted, queued, 1, 2, peer)});
      seeds.push_back({"small_store_script_" + of, SmallStore(kOlder, queued, 1, 0, peer)});
    }
    for (const uint8_t queued : {5, 6, 7, 8}) {
      const std::string of = std::to_string(queued) + to;
      seeds.push_back(
          {"store_of_chunks_" + of, SmallStore(kPermitted, queued, 1, 0, peer, 60'001)});
    }
    seeds.push_back({"encrypted_store" + to, SmallStore(kPermitted + kEncrypted, 5, 1, 0, peer)});
    seeds.push_back({"large_store" + to, LargeStore(kZero, kOk, peer)});
    seeds.push_back({"large_store_late" + to, LargeStore(kZero, kNil, peer)});
    seeds.push_back({"large_store_exists" + to, LargeStore(kOne, kOk, peer)});
    seeds.push_back({"agreed" + to, Agreement(kOne, peer)});
    seeds.push_back({"not_agreed" + to, Agreement(kZero, peer)});
  }
  for (uint8_t login = 3; login < std::size(kLogins); ++login) {
    const auto world = static_cast<uint8_t>(login * 4);
    seeds.push_back(
        {"login_" + std::to_string(login), ChoiceWriter().Byte(world).Byte(kProbe).Byte(2).Take()});
  }
  for (const uint8_t whose : {0, 6}) {  // ours, another's
    for (const uint8_t world : {uint8_t{0}, kEncrypted}) {
      ChoiceWriter fetch;
      fetch.Byte(world).Byte(kFetch).Put<uint16_t>(1'499).Byte(kSay).Byte(1).Byte(whose);
      for (int i = 0; i < 6; ++i) fetch.Byte(0);
      seeds.push_back(
          {"fetch_" + std::to_string(world) + "_" + std::to_string(whose), fetch.Take()});
    }
  }
  for (const uint8_t length : {0, 1}) {
    ChoiceWriter expiring;
    for (uint8_t at = 0; at < 3; ++at) {
      if (at == 0) expiring.Byte(kPermitted);
      expiring.Byte(kStoreExpiring).Byte(length).Byte(at);
    }
    SayWord(10, 0, &expiring);  // OOM
    expiring.Byte(kLook).Byte(kStore).Put<uint16_t>(5);
    seeds.push_back({"expiring_" + std::to_string(length), expiring.Take()});
  }
  ChoiceWriter large, store, agree, map;
  large.Byte(0).Byte(kLarge).Byte(0).Byte(kSay).Byte(0);
  for (int i = 0; i < 3; ++i) large.Byte(0);
  large.Byte(255).Byte(0).Byte(0);
  store.Byte(kPermitted).Byte(kStore).Put<uint16_t>(999);
  for (int i = 0; i < 6; ++i) {
    store.Byte(kSay).Byte(6).Byte(static_cast<uint8_t>(i)).Byte(0).Byte(0);
  }
  agree.Byte(0).Byte(kAgree).Byte(6).Byte(kSay).Byte(2).Byte(3).Byte(0).Byte(0);
  agree.Byte(kProbe).Byte(2).Byte(kSay).Byte(4).Put<uint16_t>(512).Byte(0).Byte(0);
  map.Byte(2).Byte(kSay).Byte(3).Byte(0).Byte(1).Put<int16_t>(0).Put<uint16_t>(16'383).Byte(1);
  map.Byte(0).Byte(0).Byte(kFetch).Put<uint16_t>(9).Byte(kSay).Byte(5).Put<uint16_t>(7).Byte(2);
  map.Byte(0).Byte(0);
  seeds.push_back({"large", large.Take()});
  seeds.push_back({"store", store.Take()});
  seeds.push_back({"agree", agree.Take()});
  seeds.push_back({"map", map.Take()});
  return seeds;
}

// [the topology, the login, whether blocks are encrypted]
bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  const uint8_t kind = choices.Byte();
  World world(static_cast<RedisTopology>(kind % 4 % 3), kLogins[kind / 4 % std::size(kLogins)],
              (kind & kEncrypted) != 0);
  for (uint32_t i = 0; i < kStepsMax && !choices.is_empty(); ++i) world.Step(choices);
  return true;
}

// PROMISE: T29 Redis servers that say anything
const Registration registration({"redis_servers", Run, Seeds});

}  // namespace terrace::fuzz::redis_servers
