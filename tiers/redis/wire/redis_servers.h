// RedisServers: whoever holds a key: one server, the master that Sentinels name, or the nodes of a
// Cluster by slot. A key that has moved is asked for where it is said to be, and the map of slots
// is corrected; a key that is only being moved (ASK) is asked for there once, and the map stays.
//
// THREADING: the Redis thread. OWNERSHIP: as RedisNode: Close, then run the loop until it is idle.
// LIMITS: kRedisNodesMax servers, kRedisRedirectsMax for one request.
#pragma once

#include <asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tiers/redis/wire/redis_node.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace {

inline constexpr size_t kRedisNodesMax = 64;
inline constexpr uint32_t kRedisRedirectsMax = 3;

struct RedisServersStats {
  bool is_ready = false;
  // How often one of them worked that had not, or took over from one that does not: what hosts had
  // told it, or that one, it may have lost.
  uint64_t returns = 0;
  RedisRefusal refusal = RedisRefusal::kNone;  // of one of them
  RedisNodeCounts counts;
  std::string trouble;                           // why it is not ready, for a person
  RedisError write_refusal = RedisError::kNone;  // of one of them
  // For a person, of one of them: why it takes no writes while it answers; why it gives nothing, or
  // not all, while it, or another one, does. Of a Cluster it is named.
  std::string write_trouble, part_trouble;
  bool is_denied = false;  // its ACL forbids what reads
};

class RedisServers final : public RedisNodeListener {
 public:
  struct Options {
    RedisNode::Options node;  // listener and endpoint are filled in
    RedisTopology topology = RedisTopology::kSingle;
    // The server; the Sentinels; some nodes of the Cluster. At least one.
    std::vector<RedisEndpoint> endpoints;
    std::string master_name;                // as the Sentinels know it
    uint64_t look_again_us = kUsPerSecond;  // for a master, or the map of slots, while one is amiss
    std::string look_key;                   // as RedisNode::LookForWrites
    // Some server works now, or takes writes, that did not, or the other way round.
    std::function<void()> health_changed;
  };
  explicit RedisServers(Options options);

  void Start();
  // `request.done` follows, once.
  void Send(RedisRequest request);
  void Close(Status status);
  RedisServersStats stats() const;
  // False: whoever holds that slot has just refused a write, and is not given another one now.
  bool TakesWrites(uint32_t slot) const;
  // The same of a rise; once in a while one is to be tried.
  bool TakesRise(uint32_t slot);
  // Servers that refused one are asked whether they take them again. Now and then.
  void LookForWrites();
  // All of them do, as far as is known.
  bool knows_expire_nx() const;

  // RedisNodeListener
  void OnNodeAnswer(RedisNode* node, RedisRequest request, RedisAnswer answer) override;
  void OnNodeHealth(RedisNode* node) override;

 private:
  static constexpr size_t kNone = SIZE_MAX;

  void TellTroubles(RedisServersStats* stats) const;
  std::unique_ptr<RedisNode> MakeNode(const RedisEndpoint& endpoint, bool is_sentinel);
  // The index of the node at that address, made if it is new. kNone: there are too many.
  size_t NodeAt(const RedisEndpoint& endpoint);
  size_t NodeOf(uint32_t slot) const;
  // A slot is `node`'s from now on.
  bool TakesOver(size_t node, uint32_t slot) const;
  // One that the node holds, that one if it does. None: it holds none any more.
  std::optional<uint32_t> SlotOn(size_t node, uint32_t slot) const;
  // From `first` on, or before it.
  size_t AnyReady(const std::vector<std::unique_ptr<RedisNode>>& nodes, size_t first = 0) const;
  bool IsAmiss() const;
  void LookAgain();
  void WatchAmiss();
  void TakeMaster(size_t asked, const RedisAnswer& answer);
  bool HasTakenMaster(const RedisReply& reply);
  void TakeMap(const std::string& host, const RedisReply& reply);
  void DropUnused();
  void Retire(std::unique_ptr<RedisNode> node);

  const Options options_;
  std::vector<std::unique_ptr<RedisNode>> nodes_;      // those that hold keys
  std::vector<std::unique_ptr<RedisNode>> sentinels_;  // those that know where the master is
  std::vector<size_t> node_of_slot_;                   // of a Cluster
  uint64_t returns_before_ = 0;                        // of none that is there
  size_t sentinel_first_ = 0;                          // who is asked first
  std::string sentinel_trouble_;                       // why none has named a master, for a person
  asio::steady_timer timer_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool is_map_stale_ = true;
  bool is_looking_ = false;
  bool is_watching_ = false;
  bool is_closed_ = false;
};

}  // namespace terrace
