// Inheritance: what this daemon took over from the one before it, and what it leaves to the next:
// the arenas' memfds and, for each session that may touch them, the descriptors that tell of its
// end. Others hold the descriptors (FdStore); each arena notes the sessions whose ends matter. An
// arena is taken over only if the end of every session noted in it can be told: else it cannot be
// said when its fences fall, and its domain starts cold.
//
// THREADING: store thread; Take and Furnish block. OWNERSHIP: outlived by the event loop, the
// arenas, and whatever on_session_end touches.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/arenas/domain_arena.h"
#include "daemon/block/store_listener.h"
#include "daemon/handover/fd_store.h"

namespace terrace {

class Inheritance {
 public:
  // A session that the predecessor served cannot touch the domain's arena any more.
  using OnSessionEnd = std::function<void(uint32_t domain_index, SessionId session)>;

  // Memory with this seed has missed nothing that was erased. Empty: none ever has.
  using MayAdopt = std::function<bool(uint32_t domain_index, uint64_t seed)>;

  Inheritance(asio::io_context& loop, std::unique_ptr<FdStore> holder, OnSessionEnd on_session_end,
              MayAdopt may_adopt = {});
  ~Inheritance();

  // Asks the holder for what it holds. kBusy with `*why`: another daemon uses it.
  Status Take(std::string* why);
  // Gives each domain the arena that was left for it, or makes a new one. Once. Not kOk: neither,
  // and `*why`; what is held is as it was.
  Status Furnish(std::span<DomainArena* const> arenas, std::string* why);
  // Lets go of what no domain wanted; new arenas are held from now on. After Furnish, when the
  // start is not to be refused any more.
  void Settle();

  bool is_adopted(uint32_t domain_index) const { return domains_[domain_index].is_adopted; }
  // Sessions that may still touch the domain's adopted arena.
  std::vector<SessionId> SessionsOf(uint32_t domain_index) const;
  // Their ends are told from now on.
  void BeginWatch();

  // A session of this daemon is about to get its first slot; `pidfd` may be -1. It cannot touch
  // the arena any more once it is forgotten.
  void NoteSession(uint32_t domain_index, SessionId session, int pidfd, int life_fd);
  void ForgetSession(SessionId session);

  // What the holder did not take at once. Call about once a second.
  void Retry();

  // "systemd", "keeper", "nobody".
  std::string_view holder() const { return is_holding() ? holder_->holder() : "nobody"; }
  bool is_holding() const { return holder_->is_holding(); }

 private:
  // A session as the predecessor noted it.
  struct Kept {
    explicit Kept(asio::io_context& loop) : pidfd(loop), life(loop) {}
    uint32_t domain_index = 0;
    bool is_noted = false;  // in an adopted arena
    asio::posix::stream_descriptor pidfd;
    asio::posix::stream_descriptor life;
    bool is_life_alone = false;  // it never had a pidfd: the end of `life` is its proof
  };
  struct Domain {
    DomainArena* arena = nullptr;
    bool is_adopted = false;
    size_t nodes_rejected = 0;  // of the arena that was left, and is not used
  };

  void Keep(const std::string& name, int fd);
  bool TakeOver(DomainArena& arena, uint64_t* coming_bytes);
  uint64_t HeldHugeBytes() const;
  void DropTheRest();
  Status Adopt(DomainArena& arena, const ArenaFds& fds, std::string* why);
  ArenaFds TakeArena(const std::string& domain_name);
  void DropArena(const std::string& domain_name, size_t node_count);
  Status CheckSessions(const DomainArena& arena, std::string* why) const;
  void PutArena(const DomainArena& arena);
  void WatchProcess(SessionId session, Kept& kept);
  void WatchLife(SessionId session, Kept& kept);
  void OnLifeReadable(SessionId session);
  void End(SessionId session);
  void DropSession(SessionId session);

  asio::io_context& loop_;
  const std::unique_ptr<FdStore> holder_;
  const OnSessionEnd on_session_end_;
  const MayAdopt may_adopt_;
  std::vector<Domain> domains_;
  std::map<std::string, int> held_;  // of arenas, until somebody wants them
  std::unordered_map<SessionId, std::unique_ptr<Kept>> kept_;
  std::unordered_map<SessionId, uint32_t> noted_;  // of this daemon: in which domain
  bool is_loss_told_ = false;  // the log says that nobody holds anything any more
};

}  // namespace terrace
