// RedisServers: whoever holds a key: here, one server.
//
// THREADING: the Redis thread. OWNERSHIP: as RedisNode.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tiers/redis_node.h"

namespace terrace {

struct RedisServersStats {
  bool is_ready = false;
  bool is_refused = false;
  RedisNodeCounts counts;
  Status last_trouble;
};

class RedisServers final : public RedisNodeListener {
 public:
  struct Options {
    RedisNode::Options node;  // listener is filled in
    // Some server works now that did not, or the other way round.
    std::function<void()> health_changed;
  };
  explicit RedisServers(Options options);

  void Start();
  // `request.done` follows, once.
  void Send(RedisRequest request);
  void Close(Status status);
  RedisServersStats stats() const;

  // RedisNodeListener
  void OnNodeAnswer(RedisNode* node, RedisRequest request, RedisAnswer answer) override;
  void OnNodeHealth(RedisNode* node) override;

 private:
  const Options options_;
  std::unique_ptr<RedisNode> node_;
};

}  // namespace terrace
