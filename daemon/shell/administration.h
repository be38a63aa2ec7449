// Administration: what an administrator rules over while the daemon runs: whether domains serve
// (DomainServing), and the configuration (LiveConfig), which a SIGHUP reloads, too. And how much of
// dram_bytes is held while others lack memory (MemoryYield): looked at each kLookPeriod where there
// is a memory_reserve_bytes, by reading files of /proc and of the cgroup.
//
// THREADING: store thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/arenas/memory_yield.h"
#include "daemon/block/seams.h"
#include "daemon/config/config.h"
#include "daemon/domain/domain_nvme.h"
#include "daemon/domain/domain_quotas.h"
#include "daemon/domain/domain_serving.h"
#include "daemon/session/session.h"
#include "daemon/shell/live_config.h"
#include "daemon/store/store.h"

namespace terrace {

class Administration {
 public:
  // All of them outlive it. `config` is what LoadConfig made of `source`; live keys of it change.
  struct Parts {
    asio::io_context& loop;
    DaemonConfig& config;
    const Clock& clock;
    // Runs its argument as a turn of the store thread, later. Any thread.
    std::function<void(std::function<void()> work)> post;
    std::function<void(const KeyRings& rings)> take_rings;  // see LiveConfig::Hooks
  };
  Administration(Parts parts, ConfigSource source);

  int notice_fd(uint32_t domain_index) const { return serving_.notice_fd(domain_index); }
  // Domains begin to serve, or not, as they did last; sessions may ask. Once; all outlive it.
  struct Served {
    Store& store;
    SessionTable& sessions;
    const std::vector<std::unique_ptr<DomainNvme>>& nvme;
    DomainQuotas& quotas;
  };
  void Serve(const Served& served);
  // From here on a SIGHUP reloads the configuration. REQUIRES: Serve was called.
  void AwaitHangUps();
  // No turn is to come. False: a reload hangs, and this cannot be destroyed; it is told.
  bool EndReload();

 private:
  static constexpr std::chrono::milliseconds kLookPeriod{250};

  void Apply();
  // How many bytes of DRAM may be held from here on.
  uint64_t Retune();
  void LookAtMemory();

  const Parts parts_;
  asio::signal_set hang_ups_;
  asio::steady_timer next_look_;
  bool is_looking_ = false;
  MemoryYield yield_;
  DomainServing serving_;
  LiveConfig config_;
  Store* store_ = nullptr;
  SessionTable* sessions_ = nullptr;
  DomainQuotas* quotas_ = nullptr;
  const std::vector<std::unique_ptr<DomainNvme>>* nvme_ = nullptr;
  uint64_t nvme_capacity_bytes_ = 0;  // as drives were compared with it
};

}  // namespace terrace
