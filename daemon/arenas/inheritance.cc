#include "daemon/arenas/inheritance.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "daemon/log/log.h"
#include "daemon/socket/peer.h"
#include "terrace/arena_layout.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::string_view kPeerPrefix = "peer.";
constexpr std::string_view kLifePrefix = "life.";
constexpr std::string_view kLonePrefix = "lone.";

// Of a file of huge pages: those that it has.
uint64_t HugeBytesOf(int fd) {
  constexpr uint64_t kBlockBytes = 512;  // stat(2)
  struct stat64 status = {};
  if (fstat64(fd, &status) != 0 || static_cast<uint64_t>(status.st_blksize) < kArenaHugePageBytes) {
    return 0;
  }
  return static_cast<uint64_t>(status.st_blocks) * kBlockBytes;
}

// The session that a name of `prefix` speaks of; 0 for none.
SessionId SessionIn(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return 0;
  name.remove_prefix(prefix.size());
  SessionId session = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), session);
  return error == std::errc() && end == name.data() + name.size() ? session : 0;
}

bool IsArenaFdName(std::string_view name, std::string_view domain_name) {
  std::string first = ArenaFdName(domain_name, 0);
  first.pop_back();
  return name.starts_with(first);
}

}  // namespace

Inheritance::Inheritance(asio::io_context& loop, std::unique_ptr<FdStore> holder,
                         OnSessionEnd on_session_end, MayAdopt may_adopt)
    : loop_(loop),
      holder_(std::move(holder)),
      on_session_end_(std::move(on_session_end)),
      may_adopt_(std::move(may_adopt)) {}

Inheritance::~Inheritance() {
  for (const auto& [name, fd] : held_) close(fd);
}

// ---- taking over --------------------------------------------------------------------------------

Status Inheritance::Take(std::string* why) {
  std::map<std::string, int> fds;
  why->clear();
  TERRACE_RETURN_IF_ERROR(holder_->TakeAll(&fds, why));
  if (!why->empty()) Log(LogLevel::kWarn, "nobody keeps the arenas", {{"why", *why}});
  if (why->empty()) Log(LogLevel::kInfo, "keeper", {{"holder", std::string(holder())}});
  is_loss_told_ = !holder_->is_holding();
  why->clear();
  for (const auto& [name, fd] : fds) Keep(name, fd);
  return Status::Ok();
}

void Inheritance::Keep(const std::string& name, int fd) {
  const SessionId peer = SessionIn(name, kPeerPrefix);
  const SessionId lone = SessionIn(name, kLonePrefix);
  const SessionId life = lone != 0 ? lone : SessionIn(name, kLifePrefix);
  if (peer == 0 && life == 0) {
    held_.emplace(name, fd);
    return;
  }
  std::unique_ptr<Kept>& kept = kept_[peer != 0 ? peer : life];
  if (kept == nullptr) kept = std::make_unique<Kept>(loop_);
  asio::error_code error;
  (peer != 0 ? kept->pidfd : kept->life).assign(fd, error);
  if (error) close(fd);  // nothing that can be waited for
  kept->is_life_alone |= lone != 0 && !error;
}

// What is rejected, or wanted by none, is let go of by and by, and its huge pages come back.
Status Inheritance::Furnish(std::span<DomainArena* const> arenas, std::string* why) {
  std::vector<DomainArena*> without;
  uint64_t coming_bytes = 0;
  for (DomainArena* arena : arenas) {
    if (!TakeOver(*arena, &coming_bytes)) without.push_back(arena);
  }
  coming_bytes += HeldHugeBytes();
  int64_t segments_owed = 0;  // below 0: more come back
  for (const DomainArena* arena : arenas) segments_owed += arena->SegmentsOwed();
  for (DomainArena* arena : without) {
    const auto coming = static_cast<int64_t>(coming_bytes / arena->segment_bytes());
    const auto free_min = static_cast<uint32_t>(std::max<int64_t>(segments_owed - coming, 0));
    TERRACE_RETURN_IF_ERROR(arena->Create(free_min, why));
    // It has claimed one. If there were too few, there are for the next one, too.
    if (free_min > 0 && arena->arena().backing() == ArenaBacking::kHugetlb) --segments_owed;
  }
  return Status::Ok();
}

void Inheritance::Settle() {
  for (const Domain& domain : domains_) {
    if (domain.nodes_rejected > 0) DropArena(domain.arena->domain_name(), domain.nodes_rejected);
  }
  DropTheRest();
  for (const Domain& domain : domains_) {
    if (!domain.is_adopted) PutArena(*domain.arena);
  }
}

// False: there is none, or none that fits, which the log tells.
bool Inheritance::TakeOver(DomainArena& arena, uint64_t* coming_bytes) {
  const std::string& name = arena.domain_name();
  domains_.push_back({.arena = &arena});
  const ArenaFds fds = TakeArena(name);
  if (fds.nodes.empty() && fds.slot_table < 0) return false;
  uint64_t huge_bytes = 0;
  for (const int node : fds.nodes) huge_bytes += HugeBytesOf(node);
  std::string why_cold;
  if (Adopt(arena, fds, &why_cold).ok()) return true;
  Log(LogLevel::kWarn, "arena not taken over", {{"domain", name}, {"why", why_cold}});
  arena.Abandon();
  *coming_bytes += huge_bytes;
  domains_.back().nodes_rejected = std::max<size_t>(fds.nodes.size(), 1);
  return false;
}

uint64_t Inheritance::HeldHugeBytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, fd] : held_) bytes += HugeBytesOf(fd);
  return bytes;
}

Status Inheritance::Adopt(DomainArena& arena, const ArenaFds& fds, std::string* why) {
  TERRACE_RETURN_IF_ERROR(arena.Adopt(fds, why));
  TERRACE_RETURN_IF_ERROR(CheckSessions(arena, why));
  const auto domain_index = static_cast<uint32_t>(domains_.size() - 1);
  if (may_adopt_ && !may_adopt_(domain_index, arena.arena().table_seed())) {
    *why = "arena of domain " + arena.domain_name() +
           ": another daemon has served since without it, and something was erased: it may hold "
           "what was, and starts cold";
    return Status(StatusCode::kInvalid, "memory that missed an erasure");
  }
  domains_.back().is_adopted = true;
  for (const SessionId session : arena.arena().NotedSessions()) {
    Kept& kept = *kept_.find(session)->second;
    kept.is_noted = true;
    kept.domain_index = domain_index;
  }
  return Status::Ok();
}

ArenaFds Inheritance::TakeArena(const std::string& domain_name) {
  ArenaFds fds;
  const auto take = [this](const std::string& name) {
    const auto found = held_.find(name);
    return found == held_.end() ? -1 : held_.extract(found).mapped();
  };
  fds.slot_table = take(SlotTableFdName(domain_name));
  for (size_t node = 0;; ++node) {
    const int fd = take(ArenaFdName(domain_name, node));
    if (fd < 0) return fds;
    fds.nodes.push_back(fd);
  }
}

Status Inheritance::CheckSessions(const DomainArena& arena, std::string* why) const {
  const auto unknown = [&](const std::string& sentence) {
    *why = "arena of domain " + arena.domain_name() + ": " + sentence +
           ", so nobody knows when its fences fall: it starts cold";
    return Status(StatusCode::kInvalid, "sessions that cannot be watched");
  };
  if (arena.arena().has_unnoted_sessions()) {
    return unknown("more than " + std::to_string(kNotedSessionsMax) + " sessions had it at once");
  }
  for (const SessionId session : arena.arena().NotedSessions()) {
    const auto found = kept_.find(session);
    const bool is_told = found != kept_.end() && !found->second->is_noted &&
                         (found->second->pidfd.is_open() || found->second->is_life_alone);
    if (!is_told) {
      return unknown("the end of session " + std::to_string(session) +
                     " cannot be told (FileDescriptorStoreMax=, or the keeper's limit of open "
                     "files, is too low)");
    }
  }
  return Status::Ok();
}

void Inheritance::DropArena(const std::string& domain_name, size_t node_count) {
  for (size_t node = 0; node < node_count; ++node) holder_->Drop(ArenaFdName(domain_name, node));
  holder_->Drop(SlotTableFdName(domain_name));
  // Behind a gap there may be more, whose names the new arena will bear.
  for (auto held = held_.begin(); held != held_.end();) {
    if (!IsArenaFdName(held->first, domain_name)) {
      ++held;
      continue;
    }
    holder_->Drop(held->first);
    close(held->second);
    held = held_.erase(held);
  }
}

void Inheritance::PutArena(const DomainArena& arena) {
  const ArenaFds& fds = arena.arena().fds();
  for (size_t node = 0; node < fds.nodes.size(); ++node) {
    holder_->Put(ArenaFdName(arena.domain_name(), node), fds.nodes[node]);
  }
  holder_->Put(SlotTableFdName(arena.domain_name()), fds.slot_table);
}

void Inheritance::DropTheRest() {
  for (const auto& [name, fd] : held_) {
    holder_->Drop(name);
    close(fd);
  }
  held_.clear();
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    if (kept->second->is_noted) {
      ++kept;
      continue;
    }
    DropSession(kept->first);
    kept = kept_.erase(kept);
  }
}

std::vector<SessionId> Inheritance::SessionsOf(uint32_t domain_index) const {
  std::vector<SessionId> sessions;
  for (const auto& [session, kept] : kept_) {
    if (kept->is_noted && kept->domain_index == domain_index) sessions.push_back(session);
  }
  return sessions;
}

// ---- the predecessor's sessions -----------------------------------------------------------------

void Inheritance::BeginWatch() {
  for (const auto& [session, kept] : kept_) {
    TERRACE_CHECK(kept->is_noted, "a session of no adopted arena was dropped: it has no domain");
    if (kept->life.is_open()) WatchLife(session, *kept);
    if (kept->pidfd.is_open()) WatchProcess(session, *kept);
  }
}

void Inheritance::WatchProcess(SessionId session, Kept& kept) {
  kept.pidfd.async_wait(asio::posix::descriptor_base::wait_read,
                        [this, session](const asio::error_code& error) {
                          if (!error) End(session);
                        });
}

void Inheritance::WatchLife(SessionId session, Kept& kept) {
  kept.life.async_wait(asio::posix::descriptor_base::wait_read,
                       [this, session](const asio::error_code& error) {
                         if (!error) OnLifeReadable(session);
                       });
}

void Inheritance::OnLifeReadable(SessionId session) {
  const auto found = kept_.find(session);
  if (found == kept_.end()) return;
  Kept& kept = *found->second;
  const LifeSign sign = ReadLife(kept.life.native_handle());
  if (sign == LifeSign::kAlive) return WatchLife(session, kept);
  if (sign == LifeSign::kGoodbye || kept.is_life_alone) End(session);
}

void Inheritance::End(SessionId session) {
  const auto found = kept_.find(session);
  if (found == kept_.end()) return;
  const uint32_t domain_index = found->second->domain_index;
  kept_.erase(found);
  noted_.emplace(session, domain_index);
  on_session_end_(domain_index, session);
  ForgetSession(session);
}

// ---- this daemon's sessions ---------------------------------------------------------------------

// The arena says so first: a note without descriptors makes the successor start cold, descriptors
// without a note would let it believe that nobody is there.
void Inheritance::NoteSession(uint32_t domain_index, SessionId session, int pidfd, int life_fd) {
  if (holder_->holder() == "nobody") return;
  TERRACE_CHECK(domain_index < domains_.size(), "arenas are furnished before anybody is served");
  noted_.emplace(session, domain_index);
  domains_[domain_index].arena->arena().NoteSession(session);
  if (pidfd >= 0) holder_->Put(PeerFdName(session), pidfd);
  holder_->Put(pidfd >= 0 ? LifeFdName(session) : LoneFdName(session), life_fd);
}

void Inheritance::ForgetSession(SessionId session) {
  const auto found = noted_.find(session);
  if (found == noted_.end()) return;
  domains_[found->second].arena->arena().ForgetSession(session);
  noted_.erase(found);
  DropSession(session);
}

void Inheritance::Retry() {
  holder_->Retry();
  if (is_loss_told_ || holder_->is_holding()) return;
  is_loss_told_ = true;
  Log(LogLevel::kWarn, "nobody keeps the arenas any more",
      {{"holder", std::string(holder_->holder())},
       {"why", "it is gone, or does not read: the next daemon starts with empty DRAM"}});
}

void Inheritance::DropSession(SessionId session) {
  for (const auto& name : {PeerFdName(session), LifeFdName(session), LoneFdName(session)}) {
    holder_->Drop(name);
  }
}

}  // namespace terrace
