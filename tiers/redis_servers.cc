#include "tiers/redis_servers.h"

#include <utility>

namespace terrace {

RedisServers::RedisServers(Options options) : options_(std::move(options)) {
  RedisNode::Options node = options_.node;
  node.listener = this;
  node_ = std::make_unique<RedisNode>(std::move(node));
}

void RedisServers::Start() { node_->Start(); }

void RedisServers::Send(RedisRequest request) { node_->Send(std::move(request)); }

void RedisServers::Close(Status status) { node_->Close(status); }

RedisServersStats RedisServers::stats() const {
  return {.is_ready = node_->is_ready(),
          .is_refused = node_->is_refused(),
          .counts = node_->counts(),
          .last_trouble = node_->last_trouble()};
}

void RedisServers::OnNodeAnswer(RedisNode* /*node*/, RedisRequest request, RedisAnswer answer) {
  request.done(answer);
}

void RedisServers::OnNodeHealth(RedisNode* /*node*/) { options_.health_changed(); }

}  // namespace terrace
