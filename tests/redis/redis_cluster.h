// RedisCluster: masters of the test's own with equal shares of the slots, and replicas of the first
// of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "redis/redis_process.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace::testing {

class RedisCluster {
 public:
  struct Options {
    size_t masters = 3;
    size_t replicas = 0;  // the first is the first master's
    uint32_t node_timeout_ms = 5000;
  };
  explicit RedisCluster(const Options& options) : master_count_(options.masters) {
    std::vector<uint16_t> bus_ports;
    const size_t count = options.masters + options.replicas;
    for (size_t i = 0; i < count; ++i) {
      bus_ports.push_back(FreePort());
      nodes_.push_back(std::make_unique<RedisProcess>(RedisProcess::Options{
          .arguments = {"--cluster-enabled", "yes", "--cluster-port",
                        std::to_string(bus_ports.back()), "--cluster-node-timeout",
                        std::to_string(options.node_timeout_ms), "--repl-diskless-sync-delay",
                        "0"}}));
    }
    for (size_t i = 0; i < count; ++i) {
      if (i < master_count_) {
        const size_t first = kRedisSlotCount * i / master_count_;
        const size_t last = kRedisSlotCount * (i + 1) / master_count_ - 1;
        raw(i)->Command({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)});
      }
      raw(i)->Command({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[0]->port()),
                       std::to_string(bus_ports[0])});
      ids_.push_back(raw(i)->Text({"CLUSTER", "MYID"}));
    }
  }

  // Every node that lives knows all and says that all slots are served.
  bool IsUp() const {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const std::unique_ptr<RawRedis> node = raw(i);
      if (node == nullptr) continue;
      const std::string info = node->Text({"CLUSTER", "INFO"});
      if (info.find("cluster_state:ok") == std::string::npos ||
          info.find("cluster_known_nodes:" + std::to_string(nodes_.size())) == std::string::npos) {
        return false;
      }
    }
    return true;
  }
  // Once IsUp. False: not yet, ask again.
  bool HaveReplicas() const {
    bool are_linked = true;
    for (size_t i = master_count_; i < nodes_.size(); ++i) {
      raw(i)->Command({"CLUSTER", "REPLICATE", ids_[i - master_count_]});
      are_linked &=
          raw(i)->Text({"INFO", "replication"}).find("master_link_status:up") != std::string::npos;
    }
    return are_linked;
  }

  // A replica has taken over, as it says itself. Until its master is missed the cluster is up.
  bool IsMaster(size_t i) const {
    return raw(i)->Text({"INFO", "replication"}).find("role:master") != std::string::npos;
  }

  std::unique_ptr<RawRedis> raw(size_t i) const { return nodes_[i]->Connect(); }
  RedisProcess& node(size_t i) const { return *nodes_[i]; }
  const std::string& id(size_t i) const { return ids_[i]; }
  size_t size() const { return nodes_.size(); }
  size_t OwnerOf(uint32_t slot) const {
    for (size_t i = 0; i < master_count_; ++i) {
      if (slot < kRedisSlotCount * (i + 1) / master_count_) return i;
    }
    return size();
  }
  // How many commands a node turned away with that word.
  uint64_t ErrorsOf(size_t i, const std::string& word) const {
    const std::string info = raw(i)->Text({"INFO", "errorstats"});
    const std::string field = "errorstat_" + word + ":count=";
    const size_t at = info.find(field);
    return at == std::string::npos ? 0 : std::stoull(info.substr(at + field.size()));
  }

 private:
  const size_t master_count_;
  std::vector<std::unique_ptr<RedisProcess>> nodes_;
  std::vector<std::string> ids_;
};

}  // namespace terrace::testing
