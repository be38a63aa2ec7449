// FdStore: descriptors that outlive the daemon because somebody else holds them too, by name: the
// arenas' memfds, and what tells of the end of each session that may still touch them. Where nobody
// holds them, the next daemon starts with empty DRAM.
//
// What could not be handed over is not there for a successor. It must notice by itself: nothing
// here is acknowledged, so that the store thread never waits. What the holder does not read at once
// is sent again, in order, with the next call and at Retry().
//
// THREADING: one thread. LIMITS: of systemd, FileDescriptorStoreMax=; of a keeper, kKeptFdsMax;
// kHandoversWaitingMax unsent, beyond which the holder is given up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace {

inline constexpr size_t kHandoversWaitingMax = 16'384;

// Names no domain and no .socket unit has.
std::string ArenaFdName(std::string_view domain, size_t node_index);
std::string SlotTableFdName(std::string_view domain);
std::string PeerFdName(uint64_t session);  // a pidfd
std::string LifeFdName(uint64_t session);  // our end of its life socket
std::string LoneFdName(uint64_t session);  // the same, of a session without a pidfd
bool IsStoredFdName(std::string_view name);

class FdStore {
 public:
  virtual ~FdStore() = default;
  // Who holds them: "systemd", "keeper", "nobody".
  virtual std::string_view holder() const = 0;
  // Duplicates of what is held, for the caller to close. Once, before anything else; may block for
  // kKeeperPatience. kBusy: another daemon uses the holder. Else, without it: kOk and nothing, and
  // `*why` says why.
  virtual Status TakeAll(std::map<std::string, int>* fds, std::string* why) = 0;
  // Holds a duplicate of `fd`. Never blocks.
  virtual void Put(const std::string& name, int fd) = 0;
  virtual void Drop(const std::string& name) = 0;
  // Call about once a second.
  virtual void Retry() = 0;
  // False once it is known that a successor will find nothing.
  virtual bool is_holding() const = 0;
};

// A keeper at `keeper_socket` if it is named, else systemd's descriptor store if it is this
// process's supervisor, else nobody. `activated` is what systemd passed at the start.
std::unique_ptr<FdStore> MakeFdStore(const std::string& keeper_socket,
                                     std::map<std::string, int> activated);

}  // namespace terrace
