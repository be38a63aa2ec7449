// The world whose DRAM outlives the daemon: so do its clients, with all that it had given them.
#include <iterator>
#include <utility>

#include "sim/world.h"

namespace terrace::sim {

// Where DRAM goes with the daemon its clients do, too, for simplicity. Else what it had sent still
// arrives, and what was sent to it does not.
void World::EndClients() {
  if (options_.keeps_dram) {
    token_board_.clear();
    std::erase_if(mail_, [](const auto& entry) {
      const Deliver deliver = entry.second.deliver;
      return deliver == Deliver::kToDaemon || deliver == Deliver::kHangUp;
    });
    return;
  }
  for (auto& process : processes_) {
    process->life = SimProcess::Life::kGone;
    process->is_connected = false;
  }
  mail_.clear();
  open_sessions_.clear();
}

// Clients connect to the next daemon at once; what they were goes on until it lets go.
void World::LeaveGhosts() {
  for (std::unique_ptr<SimProcess>& process : processes_) {
    if (process->life == SimProcess::Life::kGone) continue;
    const SimProcess::Options options = process->options();
    const SessionId session = process->session_id;
    if (process->life != SimProcess::Life::kDying) {
      Post(2'100 + random_.Pick(3'000'000), {Deliver::kDeath, options.number, session, {}});
    }
    ghosts_.emplace(session, std::exchange(process, std::make_unique<SimProcess>(options)));
    Connect(options.number);
  }
}

void World::AdoptDram() {
  for (uint32_t d = 0; d < domains_.size(); ++d) {
    std::vector<SessionId> sessions;
    for (const auto& [session, domain_index] : open_sessions_) {
      if (domain_index == d) sessions.push_back(session);
    }
    store_->restoration().AdoptSlots(d, sessions);
  }
}

void World::HauntOnce() {
  auto ghost = ghosts_.begin();
  std::advance(ghost, random_.Pick(ghosts_.size()));
  is_haunting_ = true;
  if (ghost->second->life != SimProcess::Life::kDying) {
    ghost->second->DrainInbox();
    ghost->second->JudgeReads();
  }
  ghost->second->StrayWrite();
  is_haunting_ = false;
}

// It is dead, or has said goodbye.
void World::EndSession(uint32_t process, SessionId session) {
  const auto ended = open_sessions_.extract(session);
  if (ghosts_.erase(session) > 0) {
    store_->restoration().PredecessorSessionEnded(ended.mapped(), session);
    return;
  }
  SimProcess& client = *processes_[process];
  if (client.session_id == session) client.life = SimProcess::Life::kGone;
  sessions_->OnProofOfDeath(session);
}

}  // namespace terrace::sim
