// Clients, as the world sees them: what they and the daemon say to each other, how connections and
// clients end, and, where DRAM outlives the daemon, what goes on of them beside the next one.
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kLastActsMax = 16;
constexpr uint64_t kLateUs = 20'000;  // a message that others overtake, or its double
constexpr uint64_t kMuteUs = 3'000'000;

}  // namespace

// Frames of one process stay in order: both directions have a constant delay per process.
uint64_t World::Send(SessionId session, std::span<const std::byte> bytes, Attach) {
  TraceBytes(bytes);
  const uint32_t process = process_of_session_.at(session);
  while (!bytes.empty()) {
    uint32_t frame_bytes = 0;
    std::memcpy(&frame_bytes, bytes.data(), sizeof(frame_bytes));
    const auto frame = bytes.first(frame_bytes);
    NoteReply(session, frame);
    Post(7 + process, {Deliver::kToClient, process, session, {frame.begin(), frame.end()}});
    bytes = bytes.subspan(frame_bytes);
  }
  return 0;
}

void World::ResumeInput(SessionId session) { resumed_.push_back(session); }

// The daemon hung up. It may on a client whose messages make no sense, else it did nothing wrong.
void World::Close(SessionId session, CloseReason reason) {
  if (!garbled_.contains(session)) {
    Fail(std::string("the daemon closed a session: ") + CloseReasonName(reason));
  }
  closed_.insert(session);
  ++garblers_refused_;
}

void World::DeliverBytes(SessionId session, const std::vector<std::byte>& bytes) {
  if (closed_.contains(session)) return;
  auto& held_back = held_back_[session];
  held_back.push_back(bytes);
  if (held_back.size() > 1) return;
  if (sessions_->OnBytes(session, held_back.front())) held_back.pop_front();
}

void World::Post(uint64_t delay_us, Envelope envelope) {
  mail_.emplace(world_us_ + delay_us, std::move(envelope));
}

void World::SendToDaemon(uint32_t process, std::vector<std::byte> frame) {
  if (is_haunting_) return;
  const SessionId session = processes_[process]->session_id;
  Post(5 + process, {Deliver::kToDaemon, process, session, std::move(frame)});
}

void World::Connect(uint32_t process) {
  SimProcess& client = *processes_[process];
  client.session_id = next_session_id_++;
  client.is_connected = true;
  process_of_session_[client.session_id] = process;
  open_sessions_[client.session_id] = client.options().domain_index;
  const PeerIdentity peer{
      .domain_index = client.options().domain_index, .uid = UidOf(process), .pid = 100 + process};
  sessions_->OnAccept(client.session_id, peer);
  client.Begin();
}

// The connection ends first, the proof of death comes later; until then DMA may still land.
void World::Kill(SimProcess& process) {
  Trace(0xDEAD0000 + process.options().number);
  process.life = SimProcess::Life::kDying;
  process.is_connected = false;
  const uint32_t number = process.options().number;
  Post(20 + random_.Pick(2'000), {Deliver::kHangUp, number, process.session_id, {}});
  Post(2'100 + random_.Pick(900'000), {Deliver::kDeath, number, process.session_id, {}});
}

bool World::MaybeGarble(SimProcess& process, uint32_t plain_ppm) {
  for (const Kind how : {Kind::kMessagesLost, Kind::kMessagesDoubled, Kind::kMessagesOvertaken}) {
    if (!dice_.Happens(how, plain_ppm)) continue;
    Garble(process, how);
    return true;
  }
  return false;
}

// What the process says last is mixed up on its way; it hears no answer any more, and dies later.
void World::Garble(SimProcess& process, Kind how) {
  const uint32_t number = process.options().number;
  const SessionId session = process.session_id;
  Trace(0x6A4B1ED0000 + (static_cast<uint64_t>(how) << 8) + number);
  for (uint64_t acts = 1 + random_.Pick(kLastActsMax); acts > 0; --acts) process.Act();
  process.life = SimProcess::Life::kDying;
  garbled_.insert(session);
  std::vector<Envelope> said;
  std::erase_if(mail_, [&](const auto& entry) {
    const Envelope& message = entry.second;
    if (message.deliver != Deliver::kToDaemon || message.session != session) return false;
    said.push_back(message);
    return true;
  });
  for (const Envelope& message : said) {
    const bool is_hit = random_.Pick(2) == 0;
    const uint64_t late_us = random_.Pick(kLateUs);
    messages_garbled_ += is_hit ? 1 : 0;
    if (is_hit && how == Kind::kMessagesLost) continue;
    if (is_hit && how == Kind::kMessagesDoubled) Post(5 + number + late_us, message);
    const bool is_late = is_hit && how == Kind::kMessagesOvertaken;
    Post(5 + number + (is_late ? late_us : 0), message);
  }
  const uint64_t end_us = kLateUs + random_.Pick(kMuteUs);
  Post(end_us, {Deliver::kHangUp, number, session, {}});
  Post(end_us + 2'100 + random_.Pick(900'000), {Deliver::kDeath, number, session, {}});
}

void World::DeliverDue() {
  while (!mail_.empty() && mail_.begin()->first <= world_us_) {
    const Envelope envelope = std::move(mail_.begin()->second);
    mail_.erase(mail_.begin());
    SimProcess& client = *processes_[envelope.process];
    const bool is_current = client.session_id == envelope.session;
    switch (envelope.deliver) {
      case Deliver::kToClient:
        if (const auto ghost = ghosts_.find(envelope.session); ghost != ghosts_.end()) {
          ghost->second->OnMessage(envelope.bytes);
        } else if (is_current && (client.life == SimProcess::Life::kRunning ||
                                  client.life == SimProcess::Life::kStopped)) {
          client.OnMessage(envelope.bytes);
        }
        break;
      case Deliver::kToDaemon:
        if (is_current && client.is_connected) {
          DeliverRequest(envelope.session, envelope.bytes);
        }
        break;
      case Deliver::kHangUp:
        if (is_current) client.is_connected = false;
        if (!closed_.contains(envelope.session)) sessions_->OnHangUp(envelope.session);
        break;
      case Deliver::kDeath:
        EndSession(envelope.process, envelope.session);
        break;
    }
  }
}

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
