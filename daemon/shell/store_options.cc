#include "daemon/shell/store_options.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "daemon/config/segment_shares.h"
#include "terrace/check.h"

namespace terrace {

constexpr uint32_t kConnectionsWithoutHelloMax = 64;

StoreOptions StoreOptionsOf(const DaemonConfig& config) {
  StoreOptions options;
  options.segments_total = static_cast<uint32_t>(config.dram_bytes / config.segment_bytes);
  options.segments_spare = config.segments_spare;
  options.read_ahead_blocks = config.nvme.read_ahead_blocks;
  options.lease_ttl_ms = config.lease_ttl_ms;
  options.sessions = {.sessions_max = config.sessions_max,
                      .sessions_per_uid_max = config.sessions_per_uid_max,
                      .sessions_per_process_max = config.sessions_per_process_max,
                      .operator_uid = geteuid()};
  options.groups_max = config.groups_max;
  options.blocks_max = config.blocks_max;
  options.leases_per_session_max = config.leases_per_session_max;
  options.lease_blocks_per_session_max = config.lease_blocks_per_session_max;
  options.lease_blocks_max = config.lease_blocks_max;
  options.pending_per_session_max = config.pending_per_session_max;
  options.fenced_bytes_max = config.fenced_bytes_max;
  options.default_deadline_us = static_cast<uint32_t>(config.deadline_default_ms * kUsPerMs);
  options.deadline_us_max = static_cast<uint32_t>(config.deadline_ms_max * kUsPerMs);
  options.eviction_policy = config.eviction;
  options.lower_eviction_policy = config.nvme.eviction;
  options.admission_policy = config.nvme.admission;
  return options;
}

DomainOptions DomainOptionsOf(const DaemonConfig& config, size_t domain_index) {
  const DomainConfig& domain = config.domains[domain_index];
  DomainOptions options;
  options.name = domain.name;
  options.key_hash = domain.key_hash;
  options.allow_models = domain.allow_models;
  options.segment_bytes = config.segment_bytes;
  options.segments_guaranteed = GuaranteedSegmentsOf(config, domain_index);
  options.segments_lent_max =
      static_cast<uint32_t>(domain.dram_lent_bytes_max / config.segment_bytes);
  options.borrow_priority = domain.borrow_priority;
  options.ttl_default_s = domain.ttl_default_s;
  if (config.nvme.write_bytes_per_day < kWriteBytesPerDayMax) {
    options.write_bytes_per_day =
        std::max<uint64_t>(config.nvme.write_bytes_per_day / config.domains.size(), 1);
  }
  options.scrub_bytes_per_second = config.nvme.scrub_bytes_per_second;
  options.scrub_interval_us = uint64_t{config.nvme.scrub_interval_s} * 1'000'000;
  options.shared.is_storing = config.redis.use != RedisUse::kFetch;
  options.shared.is_fetching = config.redis.use != RedisUse::kStore;
  options.shared.is_storing_hits_only = config.redis.admission == RedisAdmission::kHit;
  options.shared.queue_bytes_max = config.redis.queue_bytes_max;
  options.shared.seek_us = config.redis.probe_timeout_us;
  options.device.hits_min = config.hbm.hits_min;
  return options;
}

DomainArena::Options ArenaOptionsOf(const DaemonConfig& config, size_t domain_index) {
  return {.domain_name = config.domains[domain_index].name,
          .segment_bytes = config.segment_bytes,
          .segments_max = SegmentsMaxOf(config, domain_index),
          .segments_expected = SegmentsExpected(config)[domain_index],
          .hugepages = config.hugepages};
}

SessionTableOptions SessionLimitsOf(const DaemonConfig& config) {
  return {
      .lease_ttl_ms = config.lease_ttl_ms,
      .strangers_max = kConnectionsWithoutHelloMax,
      .pending_per_session_max = config.pending_per_session_max,
      .output_bytes_max = config.session_output_bytes_max,
      .buffers_bytes_max = config.session_buffers_bytes_max,
      .slow_request_ms = config.slow_request_ms,
  };
}

SessionTableOptions SessionOptionsOf(const DaemonConfig& config, uint64_t boot_id,
                                     const std::vector<DomainSecret>& secrets,
                                     const std::vector<std::unique_ptr<DomainArena>>& arenas) {
  TERRACE_CHECK(secrets.size() == config.domains.size() && arenas.size() == config.domains.size(),
                "a client gets its own domain's secret and memory: both are found by its index");
  SessionTableOptions options = SessionLimitsOf(config);
  options.boot_id = boot_id;
  for (size_t i = 0; i < config.domains.size(); ++i) {
    options.domains.push_back({
        .name = config.domains[i].name,
        .secret = secrets[i],
        .key_hash = config.domains[i].key_hash,
        .segment_bytes = config.segment_bytes,
        .segments_max = arenas[i]->segments_max(),
        .segments_per_node = arenas[i]->arena().segments_per_node(),
        .node_count = static_cast<uint16_t>(arenas[i]->arena().fds().nodes.size()),
    });
  }
  return options;
}

}  // namespace terrace
