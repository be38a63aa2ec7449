#include "tiers/redis/wire/redis_servers.h"

#include <algorithm>
#include <asio/post.hpp>
#include <charconv>
#include <chrono>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr const char* kSentinelsLogin =
    " wants a password, and none is sent to Sentinels: redis.credentials_file is the servers'. "
    "Take "
    "its requirepass away, or let its default user ask";
const Status kNobody(StatusCode::kUnsupported, "no Redis server works for this key now");

}  // namespace

RedisServers::RedisServers(Options options)
    : options_(std::move(options)), timer_(*options_.node.loop) {
  TERRACE_CHECK(!options_.endpoints.empty(), "Redis servers without an address");
  const bool is_sentinel = options_.topology == RedisTopology::kSentinel;
  for (const RedisEndpoint& endpoint : options_.endpoints) {
    (is_sentinel ? sentinels_ : nodes_).push_back(MakeNode(endpoint, is_sentinel));
    if (options_.topology == RedisTopology::kSingle) break;
  }
  if (options_.topology == RedisTopology::kCluster) node_of_slot_.assign(kRedisSlotCount, kNone);
}

std::unique_ptr<RedisNode> RedisServers::MakeNode(const RedisEndpoint& endpoint, bool is_sentinel) {
  RedisNode::Options node = options_.node;
  node.listener = this;
  node.connection.endpoint = endpoint;
  if (is_sentinel) {
    node.connections = 1;
    node.connection.credentials_file.clear();  // the servers' password is not the Sentinels'
    node.connection.permission_key.clear();
  }
  node.connection.is_of_cluster = options_.topology == RedisTopology::kCluster;
  return std::make_unique<RedisNode>(std::move(node));
}

void RedisServers::Start() {
  for (const auto& node : nodes_) node->Start();
  for (const auto& sentinel : sentinels_) sentinel->Start();
}

void RedisServers::Close(Status status) {
  is_closed_ = true;
  timer_.cancel();
  for (const auto& node : nodes_) node->Close(status);
  for (const auto& sentinel : sentinels_) sentinel->Close(status);
}

void RedisServers::TellTroubles(RedisServersStats* stats) const {
  const bool is_cluster = options_.topology == RedisTopology::kCluster;
  const auto tell = [is_cluster](const RedisNode& node, const std::string& why, std::string* told) {
    if (told->empty() && !why.empty()) {
      *told = (is_cluster ? ToText(node.endpoint()) + ": " : "") + why;
    }
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const RedisNode& node = *nodes_[i];
    const WriteRefusal& refusal = node.write_refusal();
    const bool has_refused = refusal.error() != RedisError::kNone;
    const bool is_well = node.is_ready() && !has_refused && !node.has_denials();
    if (is_well || !SlotOn(i, refusal.slot()).has_value()) continue;
    if (!node.is_ready()) {
      if (is_cluster) tell(node, node.trouble(), &stats->part_trouble);
      continue;
    }
    if (stats->write_refusal == RedisError::kNone) stats->write_refusal = refusal.error();
    const std::string denied = node.read_trouble();
    stats->is_denied |= !denied.empty();
    tell(node, denied, &stats->part_trouble);
    tell(node, node.write_trouble(), &stats->write_trouble);
  }
}

RedisServersStats RedisServers::stats() const {
  RedisServersStats stats;
  stats.returns = returns_before_;
  TellTroubles(&stats);
  for (const auto* nodes : {&nodes_, &sentinels_}) {
    for (const auto& node : *nodes) {
      const RedisNodeCounts counts = node->counts();
      stats.is_ready |= nodes == &nodes_ && node->is_ready();
      const bool is_sentinel = nodes == &sentinels_;
      const bool is_login = node->trouble() == StatusOfRedisError(RedisError::kNoAuth).what();
      const bool is_counted = !is_sentinel || node->refusal() != RedisRefusal::kLogin;
      if (stats.refusal == RedisRefusal::kNone && is_counted) stats.refusal = node->refusal();
      stats.returns += counts.returns;
      stats.counts.connections += counts.connections;
      stats.counts.attempts += counts.attempts;
      stats.counts.connections_lost += counts.connections_lost;
      stats.counts.breaker_opened += counts.breaker_opened;
      if (!stats.trouble.empty()) continue;
      stats.trouble = is_sentinel && is_login
                          ? "the Sentinel at " + ToText(node->endpoint()) + kSentinelsLogin
                          : node->trouble();
    }
  }
  if (!stats.is_ready && !sentinel_trouble_.empty()) {
    stats.trouble = sentinel_trouble_;
    if (stats.refusal == RedisRefusal::kNone) stats.refusal = RedisRefusal::kKind;
  }
  if (nodes_.empty() && stats.trouble.empty()) {
    stats.trouble = "no Sentinel has named a master yet";
  }
  return stats;
}

// ---- writes ----

bool RedisServers::TakesWrites(uint32_t slot) const {
  const size_t node = NodeOf(slot);
  return node == kNone || !nodes_[node]->write_refusal().IsPaused(RedisNowUs());
}

bool RedisServers::TakesRise(uint32_t slot) {
  const size_t node = NodeOf(slot);
  return node == kNone || nodes_[node]->TakesRise();
}

void RedisServers::LookForWrites() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i]->write_refusal().error() == RedisError::kNone) continue;
    const std::optional<uint32_t> slot = SlotOn(i, nodes_[i]->write_refusal().slot());
    if (slot) nodes_[i]->LookForWrites(options_.look_key, *slot);
  }
}

std::optional<uint32_t> RedisServers::SlotOn(size_t node, uint32_t slot) const {
  if (options_.topology != RedisTopology::kCluster || node_of_slot_[slot] == node) return slot;
  const auto held = std::ranges::find(node_of_slot_, node);
  if (held == node_of_slot_.end()) return std::nullopt;
  return static_cast<uint32_t>(held - node_of_slot_.begin());
}

// ---- requests ----

size_t RedisServers::AnyReady(const std::vector<std::unique_ptr<RedisNode>>& nodes,
                              size_t first) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    const size_t node = (first + i) % nodes.size();
    if (nodes[node]->is_ready()) return node;
  }
  return kNone;
}

size_t RedisServers::NodeOf(uint32_t slot) const {
  if (options_.topology != RedisTopology::kCluster) return nodes_.empty() ? kNone : 0;
  // Whoever is asked for a key of another knows better.
  return node_of_slot_[slot] != kNone ? node_of_slot_[slot] : AnyReady(nodes_);
}

// From one that works all of it comes along.
bool RedisServers::TakesOver(size_t node, uint32_t slot) const {
  const size_t before = node_of_slot_[slot];
  return before != kNone && before != node && node != kNone && !nodes_[before]->is_ready();
}

void RedisServers::Send(RedisRequest request) {
  const size_t node = is_closed_ ? kNone : NodeOf(request.slot);
  if (node == kNone) {
    const auto done = std::move(request.done);
    done({.status = kNobody});
    return;
  }
  TERRACE_CHECK(node < nodes_.size(), "slots are of nodes that are left, whoever was dropped");
  nodes_[node]->Send(std::move(request));
}

void RedisServers::OnNodeAnswer(RedisNode* node, RedisRequest request, RedisAnswer answer) {
  if (answer.error == RedisError::kReadOnly) {  // no master any more
    is_map_stale_ = true;
    WatchAmiss();
  }
  if (IsRedirect(answer.error) && options_.topology == RedisTopology::kCluster && !is_closed_ &&
      request.redirects < kRedisRedirectsMax) {
    const Result<RedisRedirect> redirect = ParseRedisRedirect(answer.reply.text);
    const size_t target =
        redirect.ok()
            ? NodeAt({.host = redirect->host.empty() ? node->endpoint().host : redirect->host,
                      .port = redirect->port})
            : kNone;
    if (target != kNone) {
      ++request.redirects;
      if (answer.error == RedisError::kAsk) {
        nodes_[target]->SendAsking(std::move(request));
      } else {
        if (TakesOver(target, redirect->slot)) ++returns_before_;
        node_of_slot_[redirect->slot] = target;
        is_map_stale_ = true;
        WatchAmiss();
        nodes_[target]->Send(std::move(request));
      }
      return;
    }
  }
  const auto done = std::move(request.done);
  done(answer);
}

size_t RedisServers::NodeAt(const RedisEndpoint& endpoint) {
  const auto known = std::ranges::find_if(
      nodes_, [&endpoint](const auto& node) { return node->endpoint() == endpoint; });
  if (known != nodes_.end()) return static_cast<size_t>(known - nodes_.begin());
  if (nodes_.size() >= kRedisNodesMax) return kNone;
  nodes_.push_back(MakeNode(endpoint, false));
  nodes_.back()->Start();
  return nodes_.size() - 1;
}

// ---- who holds what ----

bool RedisServers::knows_expire_nx() const {
  return std::ranges::all_of(nodes_, [](const auto& node) { return node->knows_expire_nx(); });
}

void RedisServers::OnNodeHealth(RedisNode* /*node*/) {
  if (is_closed_) return;
  if (options_.topology != RedisTopology::kSingle) {
    if (is_map_stale_) LookAgain();
    WatchAmiss();
  }
  options_.health_changed();
}

bool RedisServers::IsAmiss() const {
  if (is_map_stale_ || nodes_.empty()) return true;
  if (options_.topology == RedisTopology::kSentinel) return !nodes_[0]->is_ready();
  return std::ranges::any_of(
      node_of_slot_, [this](size_t node) { return node == kNone || !nodes_[node]->is_ready(); });
}

void RedisServers::WatchAmiss() {
  if (is_watching_ || is_closed_ || options_.topology == RedisTopology::kSingle) return;
  is_watching_ = true;
  timer_.expires_after(std::chrono::microseconds(options_.look_again_us));
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (alive.expired()) return;
    is_watching_ = false;
    if (error || is_closed_ || !IsAmiss()) return;
    LookAgain();
    WatchAmiss();
  });
}

void RedisServers::LookAgain() {
  const bool is_sentinel = options_.topology == RedisTopology::kSentinel;
  const size_t asked = is_sentinel ? AnyReady(sentinels_, sentinel_first_) : AnyReady(nodes_);
  if (is_looking_ || asked == kNone) return;
  is_looking_ = true;
  if (is_sentinel) {
    sentinels_[asked]->Send({.command = FormatRedisCommand(
                                 {"SENTINEL", "get-master-addr-by-name", options_.master_name}),
                             .done = [this, asked](const RedisAnswer& answer) {
                               is_looking_ = false;
                               if (answer.status.ok() && !is_closed_) TakeMaster(asked, answer);
                             }});
    return;
  }
  nodes_[asked]->Send(
      {.command = FormatRedisCommand({"CLUSTER", "SLOTS"}),
       .done = [this, host = nodes_[asked]->endpoint().host](const RedisAnswer& answer) {
         is_looking_ = false;
         if (answer.status.ok() && !is_closed_) TakeMap(host, answer.reply);
       }});
}

void RedisServers::TakeMaster(size_t asked, const RedisAnswer& answer) {
  std::string trouble;
  if (!HasTakenMaster(answer.reply)) {
    sentinel_first_ = (asked + 1) % sentinels_.size();
    const std::string address = ToText(sentinels_[asked]->endpoint());
    if (answer.error == RedisError::kUnknownCommand) {
      trouble = address +
                " is no Sentinel: with redis.mode = \"sentinel\" redis.endpoints names "
                "the Sentinels, not the servers that keep keys";
    } else if (answer.reply.kind == RedisReply::Kind::kNil) {
      trouble = "the Sentinel at " + address + " knows no master of the name \"" +
                options_.master_name + "\": set redis.master_name to what it calls the master";
    } else {
      trouble = RedisTroubleText(Status(StatusCode::kBusy, "a Sentinel does not name the master"),
                                 FirstWordsOf(answer.reply.text));
    }
  }
  if (trouble == sentinel_trouble_) return;
  sentinel_trouble_ = std::move(trouble);
  options_.health_changed();
}

// [address, port] of the master.
bool RedisServers::HasTakenMaster(const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kArray || reply.elements.size() != 2) return false;
  RedisEndpoint endpoint{.host = reply.elements[0].text};
  const std::string& port = reply.elements[1].text;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (error != std::errc() || endpoint.port == 0 || endpoint.host.empty()) return false;
  is_map_stale_ = false;
  if (!nodes_.empty() && nodes_[0]->endpoint() == endpoint) return true;
  if (!nodes_.empty()) Retire(std::move(nodes_[0]));
  nodes_.clear();
  NodeAt(endpoint);
  return true;
}

// [[first slot, last slot, [address, port, …] of the master, … of replicas], …]
void RedisServers::TakeMap(const std::string& host, const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kArray) return;
  std::vector<size_t> map(kRedisSlotCount, kNone);
  for (const RedisReply& range : reply.elements) {
    if (range.elements.size() < 3 || range.elements[2].elements.size() < 2) return;
    const int64_t first = range.elements[0].integer;
    const int64_t last = range.elements[1].integer;
    const RedisReply& address = range.elements[2].elements[0];
    const int64_t port = range.elements[2].elements[1].integer;
    if (first < 0 || last < first || last >= kRedisSlotCount || port <= 0 || port > 65535) return;
    const size_t node = NodeAt(
        {.host = address.text.empty() ? host : address.text, .port = static_cast<uint16_t>(port)});
    std::fill(map.begin() + first, map.begin() + last + 1, node);
  }
  bool has_taken_over = false;
  for (uint32_t slot = 0; slot < kRedisSlotCount; ++slot) {
    has_taken_over = has_taken_over || TakesOver(map[slot], slot);
  }
  node_of_slot_ = std::move(map);
  is_map_stale_ = false;
  DropUnused();
  if (!has_taken_over) return;
  ++returns_before_;
  options_.health_changed();
}

// Nodes that hold no slot, but for those the configuration names.
void RedisServers::DropUnused() {
  for (size_t i = nodes_.size(); i-- > 0;) {
    const bool is_used = std::ranges::find(node_of_slot_, i) != node_of_slot_.end();
    const bool is_named =
        std::ranges::find(options_.endpoints, nodes_[i]->endpoint()) != options_.endpoints.end();
    if (is_used || is_named) continue;
    Retire(std::move(nodes_[i]));
    nodes_.erase(nodes_.begin() + static_cast<ptrdiff_t>(i));
    for (size_t& node : node_of_slot_) {
      if (node != kNone && node > i) --node;
    }
  }
}

// What is under way on it is answered now; it may be on the stack, so it goes later.
void RedisServers::Retire(std::unique_ptr<RedisNode> node) {
  RedisNode* const retired = node.get();
  returns_before_ += node->counts().returns;
  asio::post(*options_.node.loop, [retired, gone = std::move(node)] {
    retired->Close(Status(StatusCode::kBusy, "the Redis server is no longer of use"));
  });
}

}  // namespace terrace
