#include "daemon/persist/catalog.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "src/thread_name.h"
#include "terrace/check.h"
#include "tiers/nvme/header_table.h"

namespace terrace {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds kStallPause{2'000};
constexpr size_t kAnswersPerTurnMax = 1024;

}  // namespace

struct Catalog::State {
  explicit State(Options chosen) : options(std::move(chosen)) {}

  const Options options;
  // Constant after Start.
  Links links;
  bool is_partial = false;

  // Under `mutex`.
  mutable std::mutex mutex;
  std::condition_variable wake;  // of the thread
  std::condition_variable ended;
  DirtySlots dirty;
  CatalogChanges records;  // groups, priors, audit: no extents
  std::vector<SlabSlots> rewrite_asked;
  bool is_rewrite_asked = false;
  std::vector<SlotName> look_asked;
  std::function<void(Look look)> look_done;  // none: no look is under way
  size_t audit_lines_max = 0;
  std::function<void(std::vector<std::string> lines)> audit_done;  // none: nobody asked
  bool is_on = false;
  std::string why_off;          // for a person
  std::string set_aside;        // a sentence that nobody has been told yet
  bool is_rewrite_due = false;  // it is back, and Rewrite has not been called yet
  std::vector<CatalogChanges::Record> groups_while_off;
  bool is_stopping = false;   // after catching up
  bool is_abandoned = false;  // at once
  bool has_ended = false;
  CatalogStats counts;

  // The thread's own once it runs.
  std::unique_ptr<CatalogDb> db;
  std::thread thread;
  std::vector<SlabSlots> rewrite;  // slabs left, the last one first
  uint32_t rewrite_slot = 0;       // the next one of rewrite.back()
  bool is_complete = true;
  bool is_sync_due = false;
  SteadyClock::time_point synced_at = SteadyClock::now();
  CatalogChanges changes;
  std::vector<SlotName> names;  // of the batch: those that changed, then those to rewrite
  size_t changed_count = 0;
  std::vector<std::byte> entry;
  std::string why_closed;            // it could not be opened again
  SteadyClock::time_point retry_at;  // while it is off
  uint64_t retry_us = 0;             // how long it waited for that
  Status final_status = Status(StatusCode::kGone, "the catalog is off");

  void Run();
  bool WaitForWork();
  bool TakeBatch();
  void TakeRewriteSlots();
  bool TakeLook(std::vector<SlotName>* asked);
  void LookUp(const std::vector<SlotName>& asked);
  void AnswerAudit();
  void ReadEntriesBack();
  Status ApplyBatch();
  void Reopen();
  void AnswerBatch();
  void SyncIfDue();
  void SwitchOff(const std::string& why);
  void SayThatItIsOff();
  void NoteSetAside(const CatalogDb::Opened& opened);
  void SayWhatIsSetAside();
  void RetryLater();
  void RetryIfDue();
  std::string OpenAgain();
  bool Pause(microseconds pause);
  void End();
  void KeepRecord(std::vector<CatalogChanges::Record> CatalogChanges::*list,
                  CatalogChanges::Record record);
  bool HasRoomForRecord();
};

// False when the thread is to end.
bool Catalog::State::WaitForWork() {
  std::unique_lock lock(mutex);
  const auto has_work = [this] {
    return is_stopping || is_abandoned || dirty.waiting_count() > 0 || !records.is_empty() ||
           is_rewrite_asked || !rewrite.empty() || !look_asked.empty() || audit_done;
  };
  if (!is_on) {
    wake.wait_until(lock, retry_at, has_work);
  } else if (is_sync_due) {
    wake.wait_until(lock, synced_at + microseconds(options.sync_interval_us), has_work);
  } else {
    wake.wait(lock, has_work);
  }
  if (is_abandoned) return false;
  // Nothing gathers while slots are left to rewrite: they fill the batches.
  const auto is_enough = [this] {
    return is_stopping || is_abandoned || dirty.waiting_count() >= options.batch_slots_max;
  };
  if (dirty.waiting_count() > 0 && rewrite.empty()) {
    wake.wait_for(lock, microseconds(options.gather_us), is_enough);
  }
  if (is_abandoned) return false;
  return !is_stopping || dirty.waiting_count() > 0 || !records.is_empty() || is_rewrite_asked ||
         !rewrite.empty();
}

bool Catalog::State::TakeBatch() {
  changes.Clear();
  names.clear();
  {
    const std::lock_guard lock(mutex);
    std::swap(changes, records);
    if (is_rewrite_asked) {
      rewrite = std::move(rewrite_asked);
      rewrite_slot = 0;
      is_rewrite_asked = false;
      changes.is_anew = true;
      is_complete = true;  // once every slot has been read, and none before has StopClean its way
    }
    dirty.Take(options.batch_slots_max, &names);
    changed_count = names.size();
  }
  TakeRewriteSlots();
  return !names.empty() || !changes.is_empty();
}

void Catalog::State::TakeRewriteSlots() {
  while (!rewrite.empty() && names.size() < options.batch_slots_max) {
    TERRACE_CHECK(rewrite_slot <= rewrite.back().slot_count, "a slab is rewritten slot by slot");
    if (rewrite_slot == rewrite.back().slot_count) {
      rewrite.pop_back();
      rewrite_slot = 0;
      continue;
    }
    names.push_back({.slab = rewrite.back().slab, .slot = rewrite_slot++});
  }
  if (rewrite.empty()) {
    const std::lock_guard lock(mutex);
    counts.is_rewriting = is_rewrite_asked || is_rewrite_due;
  }
}

void Catalog::State::ReadEntriesBack() {
  TERRACE_CHECK(changed_count <= names.size() && changes.entry_bytes.empty(),
                "a batch is what changed, then what is rewritten");
  for (const SlotName name : names) {
    entry.clear();
    const Status status = links.read_entry(name.slab, name.slot, &entry);
    CatalogChanges::Extent extent{.name = name, .offset_bytes = changes.entry_bytes.size()};
    // A damaged entry is kept as it is: to a reader of the catalog, too, its slot is damaged.
    const bool is_kept = status.code() == StatusCode::kCorrupt ||
                         (status.ok() && ClaimedState(entry) != SlabEntryState::kFree);
    if (is_kept && !entry.empty()) {
      extent.length_bytes = entry.size();
      changes.entry_bytes.insert(changes.entry_bytes.end(), entry.begin(), entry.end());
    } else if (!status.ok() && status.code() != StatusCode::kNotFound) {
      is_complete = false;  // nobody knows what the entry says
    }
    changes.extents.push_back(extent);
  }
}

// False when the thread is to end at once.
bool Catalog::State::Pause(microseconds pause) {
  std::unique_lock lock(mutex);
  return !wake.wait_for(lock, pause, [this] { return is_abandoned; });
}

Status Catalog::State::ApplyBatch() {
  bool has_stalled = false;
  uint32_t reopens = 0;
  while (true) {
    const Status status =
        db != nullptr ? db->Apply(changes) : Status(StatusCode::kIo, "it cannot be opened again");
    if (status.ok()) return status;
    if (status.code() == StatusCode::kBusy) {
      const std::lock_guard lock(mutex);
      counts.stalls += has_stalled ? 0 : 1;
      has_stalled = true;
    } else if (reopens++ >= options.reopen_attempts_max) {
      return status;
    }
    const bool is_stall = status.code() == StatusCode::kBusy;
    if (!Pause(is_stall ? kStallPause : microseconds(options.reopen_interval_us))) return status;
    if (!is_stall) Reopen();
  }
}

// After a failure. What has been applied so far is most probably all there, but nobody knows.
void Catalog::State::Reopen() {
  is_complete = false;
  why_closed = OpenAgain();
}

void Catalog::State::SyncIfDue() {
  if (!is_sync_due || SteadyClock::now() - synced_at < microseconds(options.sync_interval_us)) {
    return;
  }
  synced_at = SteadyClock::now();
  is_sync_due = false;
  if (!db->Sync().ok()) Reopen();
}

void Catalog::State::SwitchOff(const std::string& why) {
  is_complete = false;
  {
    const std::lock_guard lock(mutex);
    if (!is_on || is_abandoned) return;
    is_on = false;
    why_off = why;
    for (CatalogChanges::Record& group : changes.groups) {
      groups_while_off.push_back(std::move(group));
    }
  }
  retry_us = 0;
  RetryLater();
  SayThatItIsOff();
}

void Catalog::State::SayThatItIsOff() {
  links.trouble("the catalog " + options.db.directory + " is off (" + why_off +
                "): blocks are kept, the next start reads the slabs' tables instead, and what is "
                "erased meanwhile is not in the audit. Check the drive, its free space and who may "
                "write there; it is tried again within a minute");
}

void Catalog::State::RetryLater() {
  retry_us = retry_us == 0 ? options.retry_first_us : std::min(2 * retry_us, options.retry_max_us);
  retry_at = SteadyClock::now() + microseconds(retry_us);
}

void Catalog::State::NoteSetAside(const CatalogDb::Opened& opened) {
  if (opened.set_aside.empty()) return;
  set_aside = "the catalog " + options.db.directory + " cannot be used (" + opened.why +
              "): an empty one takes its place, and is written from the slabs' tables. The audit "
              "of before is in the other";
}

void Catalog::State::SayWhatIsSetAside() {
  if (!set_aside.empty()) links.trouble(std::exchange(set_aside, ""));
}

// Empty: it is open, with what it held before.
std::string Catalog::State::OpenAgain() {
  db.reset();
  std::error_code error;
  if (!std::filesystem::is_directory(std::filesystem::path(options.db.directory).parent_path(),
                                     error)) {
    return "the directory that it is in is not there";  // nothing is made below a mount that went
  }
  CatalogDb::Opened opened = CatalogDb::Open(options.db);
  NoteSetAside(opened);
  SayWhatIsSetAside();
  if (opened.db == nullptr) return opened.why;
  const Status status = opened.db->MarkProven();
  if (!status.ok()) return status.what();
  db = std::move(opened.db);
  return "";
}

void Catalog::State::RetryIfDue() {
  {
    const std::lock_guard lock(mutex);
    if (is_on || is_stopping || is_abandoned || SteadyClock::now() < retry_at) return;
  }
  std::string why = OpenAgain();
  {
    const std::lock_guard lock(mutex);
    if (!why.empty()) {
      why_off = std::move(why);
      return RetryLater();
    }
    why_closed.clear();
    is_on = is_rewrite_due = counts.is_rewriting = true;
    for (CatalogChanges::Record& group : groups_while_off) {
      records.groups.push_back(std::move(group));
    }
    groups_while_off.clear();
  }
  is_complete = false;  // until the Rewrite
  if (links.is_back) links.is_back();
}

bool Catalog::State::TakeLook(std::vector<SlotName>* asked) {
  const std::lock_guard lock(mutex);
  *asked = std::exchange(look_asked, {});
  return !asked->empty();
}

void Catalog::State::LookUp(const std::vector<SlotName>& asked) {
  Look look;
  {
    const std::lock_guard lock(mutex);
    look.has_records = is_on && db != nullptr && !counts.is_rewriting;
  }
  std::string record;
  for (const SlotName name : asked) {
    Looked& slot = look.slots.emplace_back(Looked{.name = name});
    slot.status = links.read_entry(name.slab, name.slot, &slot.entry);
    if (!look.has_records) continue;
    const Status found = db->GetExtent(name, &record);
    if (!found.ok() && found.code() != StatusCode::kNotFound) {
      look.has_records = false;
      continue;
    }
    slot.has_record = found.ok();
    slot.is_same = found.ok() && record.size() == slot.entry.size() &&
                   std::memcmp(record.data(), slot.entry.data(), record.size()) == 0;
  }
  std::function<void(Look)> done;
  {
    const std::lock_guard lock(mutex);
    std::swap(done, look_done);
  }
  TERRACE_CHECK(done, "a look is answered once, to whoever asked");
  done(std::move(look));
}

void Catalog::State::AnswerAudit() {
  std::function<void(std::vector<std::string>)> done;
  size_t lines_max = 0;
  bool is_usable = false;
  {
    const std::lock_guard lock(mutex);
    std::swap(done, audit_done);
    lines_max = audit_lines_max;
    is_usable = is_on && db != nullptr;
  }
  if (!done) return;
  std::deque<std::string> newest;
  if (is_usable) {
    (void)db->ForEachAudit([&](std::string_view, std::string_view line) {
      newest.emplace_front(line);
      if (newest.size() > lines_max) newest.pop_back();
    });
  }
  done({newest.begin(), newest.end()});
}

void Catalog::State::Run() {
  std::vector<SlotName> looks;
  while (WaitForWork()) {
    if (TakeLook(&looks)) LookUp(looks);
    AnswerAudit();
    RetryIfDue();
    if (!TakeBatch()) {
      SyncIfDue();
      continue;
    }
    bool is_usable = false;
    {
      const std::lock_guard lock(mutex);
      is_usable = is_on;
    }
    if (is_usable) {
      ReadEntriesBack();
      const Status status = ApplyBatch();
      if (!status.ok()) SwitchOff(why_closed.empty() ? status.what() : why_closed);
      is_sync_due = status.ok();
      const std::lock_guard lock(mutex);
      if (is_abandoned) break;
      for (const CatalogChanges::Extent& extent : changes.extents) {
        ++(extent.length_bytes > 0 ? counts.puts : counts.deletes);
      }
      ++counts.batches;
      counts.is_complete = is_complete && !is_partial;
      counts.memory_bytes = db != nullptr ? db->memory_bytes_used() : 0;
    }
    AnswerBatch();
    SyncIfDue();
  }
  End();
}

void Catalog::State::AnswerBatch() {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex);
    is_first = dirty.Answer(std::span(names).first(changed_count));
  }
  if (is_first) links.has_answers();
}

void Catalog::State::End() {
  if (is_partial) {
    final_status = Status(StatusCode::kGone, "slab files were left alone: it does not know them");
  }
  bool is_clean = false;
  {
    const std::lock_guard lock(mutex);
    is_clean = is_on && is_complete && !is_partial && is_stopping && !is_abandoned;
  }
  if (is_clean) final_status = db->CloseClean();
  db.reset();
  const std::lock_guard lock(mutex);
  is_on = false;
  has_ended = true;
  ended.notify_all();
}

Catalog::Catalog(Options options) : state_(std::make_unique<State>(std::move(options))) {}

Catalog::~Catalog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_abandoned = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

bool Catalog::Open(std::string* why) {
  CatalogDb::Opened opened = CatalogDb::Open(state_->options.db);
  state_->NoteSetAside(opened);
  state_->db = std::move(opened.db);
  state_->is_on = state_->db != nullptr;
  state_->is_complete = opened.is_believed;
  state_->why_off = opened.why;
  *why = std::move(opened.why);
  return opened.is_believed;
}

// The mark of an unproven catalog still stands: the next Open moves it away.
void Catalog::Renew(std::string why) {
  state_->db.reset();
  CatalogDb::Opened opened = CatalogDb::Open(state_->options.db);
  if (opened.db != nullptr) opened.why = std::move(why) + "; it is now " + opened.set_aside;
  state_->NoteSetAside(opened);
  state_->db = std::move(opened.db);
  state_->why_off = std::move(opened.why);
  state_->is_on = state_->db != nullptr;
  state_->is_complete = false;
}

void Catalog::LeavePartial() { state_->is_partial = true; }

const CatalogDb* Catalog::db() const { return state_->db.get(); }

void Catalog::Start(Links links) {
  state_->links = std::move(links);
  state_->counts.is_complete = state_->is_complete && !state_->is_partial;
  state_->SayWhatIsSetAside();
  if (!state_->is_on) {
    // What was named so far is as persisted as it will be.
    std::vector<SlotName> names;
    state_->dirty.Take(state_->dirty.waiting_count(), &names);
    if (state_->dirty.Answer(names)) state_->links.has_answers();
    state_->RetryLater();
    state_->SayThatItIsOff();
  } else if (!state_->db->MarkProven().ok()) {
    state_->is_complete = false;
  }
  state_->thread = StartThread(
      "terrace-catalog", [state = state_.get()] { state->Run(); }, Waking::kPatient);
}

void Catalog::OnEntryWritten(uint32_t slab, uint32_t slot) {
  const SlotName name{.slab = slab, .slot = slot};
  bool is_first_answer = false;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_on || !state_->links.has_answers) {
      state_->dirty.Add(name);  // before Start, nobody can be told that there is no catalog
    } else {
      is_first_answer = state_->dirty.Answer(std::span(&name, 1));
    }
  }
  if (is_first_answer) {
    state_->links.has_answers();
  } else {
    state_->wake.notify_one();
  }
}

bool Catalog::TakeAnswers(std::vector<SlotName>* slots) {
  const std::lock_guard lock(state_->mutex);
  return state_->dirty.TakeAnswers(kAnswersPerTurnMax, slots);
}

void Catalog::Rewrite(std::vector<SlabSlots> slabs) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->is_on) return;
    state_->rewrite_asked = std::move(slabs);
    state_->is_rewrite_asked = true;
    state_->is_rewrite_due = false;
    state_->counts.is_rewriting = true;
  }
  state_->wake.notify_one();
}

bool Catalog::LookUp(std::vector<SlotName> names, std::function<void(Look look)> done) {
  TERRACE_CHECK(!names.empty(), "somebody looks at something");
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->thread.joinable() || state_->has_ended || state_->look_done) return false;
    state_->look_asked = std::move(names);
    state_->look_done = std::move(done);
  }
  state_->wake.notify_one();
  return true;
}

bool Catalog::ReadAudit(size_t lines_max,
                        std::function<void(std::vector<std::string> lines)> done) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->thread.joinable() || !state_->is_on || state_->audit_done) return false;
    state_->audit_lines_max = lines_max;
    state_->audit_done = std::move(done);
  }
  state_->wake.notify_one();
  return true;
}

bool Catalog::State::HasRoomForRecord() {
  if (!is_on) return false;
  const size_t waiting = records.groups.size() + records.priors.size() + records.audit.size();
  if (waiting < kRecordsWaitingMax) return true;
  ++counts.records_lost;
  return false;
}

void Catalog::State::KeepRecord(std::vector<CatalogChanges::Record> CatalogChanges::*list,
                                CatalogChanges::Record record) {
  {
    const std::lock_guard lock(mutex);
    if (!is_on && list == &CatalogChanges::groups) {
      if (groups_while_off.size() == kRecordsWaitingMax) return;
      return groups_while_off.push_back(std::move(record));
    }
    if (!HasRoomForRecord()) return;
    (records.*list).push_back(std::move(record));
  }
  wake.notify_one();
}

void Catalog::KeepGroup(const GroupId& id, std::string content) {
  state_->KeepRecord(&CatalogChanges::groups, {.key = ToHex(id), .value = std::move(content)});
}

void Catalog::KeepPrior(std::string key, std::string value) {
  TERRACE_CHECK(key.size() + value.size() <= kPriorBytesMax, "a prior is small");
  state_->KeepRecord(&CatalogChanges::priors, {.key = std::move(key), .value = std::move(value)});
}

void Catalog::KeepAudit(std::string line) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->HasRoomForRecord()) return;
    state_->records.audit.push_back(std::move(line));
  }
  state_->wake.notify_one();
}

Status Catalog::StopClean(uint64_t timeout_us) {
  State& state = *state_;
  if (!state.thread.joinable()) return Status(StatusCode::kGone, "the catalog is off");
  {
    std::unique_lock lock(state.mutex);
    state.is_stopping = true;
    state.wake.notify_all();
    if (!state.ended.wait_for(lock, microseconds(timeout_us), [&] { return state.has_ended; })) {
      state.is_abandoned = true;
      state.wake.notify_all();
      return Status(StatusCode::kBusy, "the catalog could not catch up in time");
    }
  }
  state.thread.join();
  return state.final_status;
}

bool Catalog::Abandon(uint64_t timeout_us) {
  State& state = *state_;
  if (!state.thread.joinable()) return true;
  {
    std::unique_lock lock(state.mutex);
    state.is_abandoned = true;
    state.wake.notify_all();
    if (!state.ended.wait_for(lock, microseconds(timeout_us), [&] { return state.has_ended; })) {
      return false;
    }
  }
  state.thread.join();
  return true;
}

std::string Catalog::trouble() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_on || state_->has_ended ? "" : state_->why_off;
}

CatalogStats Catalog::stats() const {
  const std::lock_guard lock(state_->mutex);
  CatalogStats stats = state_->counts;
  stats.is_on = state_->is_on;
  stats.is_complete = stats.is_on && stats.is_complete && !stats.is_rewriting;
  stats.slots_waiting = state_->dirty.waiting_count();
  return stats;
}

}  // namespace terrace
