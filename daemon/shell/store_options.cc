#include "daemon/shell/store_options.h"

#include <unistd.h>

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

SessionTableOptions SessionOptionsOf(const DaemonConfig& config, uint64_t boot_id,
                                     const std::vector<DomainSecret>& secrets,
                                     const std::vector<std::unique_ptr<DomainArena>>& arenas) {
  SessionTableOptions options{
      .boot_id = boot_id,
      .lease_ttl_ms = config.lease_ttl_ms,
      .strangers_max = kConnectionsWithoutHelloMax,
      .pending_per_session_max = config.pending_per_session_max,
      .output_bytes_max = config.session_output_bytes_max,
      .buffers_bytes_max = config.session_buffers_bytes_max,
  };
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
