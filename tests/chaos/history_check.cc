#include "chaos/history_check.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <unordered_map>
#include <utility>

namespace terrace::chaos {

namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
constexpr size_t kFindingsMax = 100;

struct Span {
  uint64_t began_ns = 0;
  uint64_t ended_ns = kNever;
};

bool Earlier(const Span& a, const Span& b) { return a.began_ns < b.began_ns; }

// What is known of one commit.
struct Commit {
  uint64_t block = 0;
  Span grant;
  uint64_t began_ns = kNever;  // of its first Commit
  uint64_t ended_ns = kNever;  // from when on it is done, if it is
  uint64_t dead_ns = kNever;   // who asks from then on must not find it
  bool is_accepted = false;
};

// Finds, of spans, the first end among those that begin late enough.
class Erasures {
 public:
  void Add(Span span) { spans_.push_back(span); }
  void Seal() {
    std::sort(spans_.begin(), spans_.end(), Earlier);
    for (size_t i = spans_.size(); i-- > 1;) {
      spans_[i - 1].ended_ns = std::min(spans_[i - 1].ended_ns, spans_[i].ended_ns);
    }
  }
  // When the first is over that begins after `from_ns`.
  uint64_t FirstEndAfter(uint64_t from_ns) const {
    const auto found = std::upper_bound(spans_.begin(), spans_.end(), Span{from_ns, 0}, Earlier);
    return found == spans_.end() ? kNever : found->ended_ns;
  }

 private:
  std::vector<Span> spans_;
};

// By their begins; the end of each becomes the latest of all up to it.
void Accumulate(std::vector<Span>* spans) {
  std::sort(spans->begin(), spans->end(), Earlier);
  for (size_t i = 1; i < spans->size(); ++i) {
    (*spans)[i].ended_ns = std::max((*spans)[i - 1].ended_ns, (*spans)[i].ended_ns);
  }
}

// Whether one of what was accumulated begins by `begun_ns` and is not over at `over_ns`.
bool HasOneOver(const std::vector<Span>& spans, uint64_t begun_ns, uint64_t over_ns) {
  const auto behind = std::upper_bound(spans.begin(), spans.end(), Span{begun_ns, 0}, Earlier);
  return behind != spans.begin() && std::prev(behind)->ended_ns >= over_ns;
}

// What is known of one block, from all histories.
struct Block {
  Erasures erasures;
  std::vector<Span> tried_erasures;  // whatever was answered
  std::vector<CommitId> commit_ids;
  std::vector<std::pair<Span, CommitId>> writing;  // from a grant to its Commit, which was accepted
  std::vector<Span> held;                          // in a lease of somebody
};

class Checker {
 public:
  Checker(const std::vector<std::span<const uint64_t>>& histories, const Rules& rules)
      : histories_(histories), rules_(rules) {}

  Verdict Check() {
    ForEach([this](size_t history, const EventView& view) { Note(history, view); });
    for (auto& [name, block] : blocks_) Settle(block);
    ForEach([this](size_t history, const EventView& view) { Judge(history, view); });
    for (auto& [name, block] : blocks_) JudgeGrants(name, block);
    return std::move(verdict_);
  }

 private:
  template <typename Visit>
  void ForEach(Visit visit) {
    for (size_t history = 0; history < histories_.size(); ++history) {
      HistoryReader reader(histories_[history]);
      EventView view;
      while (reader.Next(&view)) visit(history, view);
    }
  }

  uint64_t NameOf(uint32_t prompt, uint32_t index) const {
    if (index < rules_.family_blocks) {
      prompt = prompt / rules_.prompts_per_family * rules_.prompts_per_family;
    }
    return uint64_t{prompt} << 16 | index;
  }

  void Find(Fault fault, size_t history, const EventView& view, uint32_t index, CommitId id) {
    ++verdict_.finding_count;
    if (verdict_.findings.size() == kFindingsMax) return;
    verdict_.findings.push_back({fault, history, view.at, view.event.prompt, index, id});
  }

  // ---- the first pass: commits, erasures and leases ----
  void Note(size_t history, const EventView& view) {
    const Event& event = view.event;
    if (event.ended_ns != 0 && event.kind != EventKind::kHeld) ++verdict_.operations;
    if (event.kind == EventKind::kReserve) NoteGrant(view);
    if (event.kind == EventKind::kCommit) NoteCommit(view);
    if (event.kind == EventKind::kErase) NoteErasure(event);
    if (event.kind == EventKind::kHeld && rules_.is_settled) NoteHeld(history, view);
  }

  // The kRead of a lease that is read again.
  EventView EarlierOf(size_t history, const Event& held) const {
    HistoryReader reader(histories_[history].subspan(held.earlier));
    EventView earlier;
    return reader.Next(&earlier) ? earlier : EventView{};
  }

  void NoteHeld(size_t history, const EventView& view) {
    if (view.event.ended_ns == 0 || view.event.status != StatusCode::kOk) return;
    const Span held{EarlierOf(history, view.event).event.ended_ns, view.event.began_ns};
    for (uint32_t i = 0; i < view.ids.size(); ++i) {
      blocks_[NameOf(view.event.prompt, view.event.first + i)].held.push_back(held);
    }
  }

  void NoteGrant(const EventView& view) {
    if (view.event.ended_ns == 0) return;
    for (uint32_t i = 0; i < view.ids.size(); ++i) {
      if (view.ids[i] == 0) continue;
      Commit& commit = commits_[view.ids[i]];
      commit.block = NameOf(view.event.prompt, view.event.first + i);
      commit.grant = {view.event.began_ns, view.event.ended_ns};
      Block& block = blocks_[commit.block];
      block.commit_ids.push_back(view.ids[i]);
      if (rules_.is_settled) block.erasures.Add(commit.grant);
    }
  }

  // Its grants stand before it in the same history.
  void NoteCommit(const EventView& view) {
    const Event& event = view.event;
    const bool is_refused = event.ended_ns != 0 && (event.status == StatusCode::kCorrupt ||
                                                    event.status == StatusCode::kInvalid);
    for (const CommitId id : view.ids) {
      const auto found = commits_.find(id);
      if (id == 0 || found == commits_.end() || is_refused) continue;
      Commit& commit = found->second;
      commit.began_ns = std::min(commit.began_ns, event.began_ns);
      // One that had no answer in time, or lost its daemon, may still happen.
      if (event.ended_ns == 0 || event.status != StatusCode::kOk) continue;
      commit.ended_ns = event.ended_ns;
      commit.is_accepted = event.asked == view.ids.size();
      ++verdict_.commits;
      if (commit.is_accepted && commit.grant.ended_ns <= event.began_ns) {
        blocks_[commit.block].writing.push_back({{commit.grant.ended_ns, event.began_ns}, id});
      }
    }
  }

  void NoteErasure(const Event& event) {
    if (event.ended_ns == 0) return;
    // Whether it was answered "ok" or not, it may have erased; only "ok" says that it has.
    const Span span{event.began_ns, event.ended_ns};
    const bool is_done = event.status == StatusCode::kOk;
    verdict_.erasures += is_done ? 1 : 0;
    for (uint32_t i = event.first; i < event.asked; ++i) {
      Block& block = blocks_[NameOf(event.prompt, i)];
      if (is_done) block.erasures.Add(span);
      if (rules_.is_settled) block.tried_erasures.push_back(span);
    }
  }

  // ---- between them ----
  void Settle(Block& block) {
    block.erasures.Seal();
    for (const CommitId id : block.commit_ids) {
      Commit& commit = commits_[id];
      commit.dead_ns =
          commit.ended_ns == kNever ? kNever : block.erasures.FirstEndAfter(commit.ended_ns);
    }
    Accumulate(&block.held);
  }

  // ---- the second pass: reads ----
  void Judge(size_t history, const EventView& view) {
    const Event& event = view.event;
    if (event.kind == EventKind::kHeld) return JudgeHeld(history, view);
    if (event.kind != EventKind::kRead || event.ended_ns == 0) return;
    for (uint32_t i = 0; i < view.ids.size(); ++i) {
      JudgeRead(history, view, event.first + i, view.ids[i]);
    }
    verdict_.blocks_read += view.ids.size();
    const uint32_t missed = event.first + view.ids.size();
    if (rules_.is_settled && event.status == StatusCode::kOk && missed < event.asked &&
        IsHeldThroughout(event, missed)) {
      Find(Fault::kLost, history, view, missed, 0);
    }
  }

  void JudgeRead(size_t history, const EventView& view, uint32_t index, CommitId id) {
    const auto found = commits_.find(id);
    if (found == commits_.end() || found->second.block != NameOf(view.event.prompt, index)) {
      return Find(Fault::kUnknown, history, view, index, id);
    }
    const Commit& commit = found->second;
    if (commit.began_ns > view.event.ended_ns) {
      return Find(Fault::kUncommitted, history, view, index, id);
    }
    if (view.event.began_ns > commit.dead_ns) Find(Fault::kErased, history, view, index, id);
  }

  // An Evict leaves what is leased; who asks beside one is given the benefit of the doubt.
  bool IsHeldThroughout(const Event& event, uint32_t index) {
    const Block& block = blocks_[NameOf(event.prompt, index)];
    if (!HasOneOver(block.held, event.began_ns, event.ended_ns)) return false;
    return std::none_of(
        block.tried_erasures.begin(), block.tried_erasures.end(), [&](const Span& erasure) {
          return erasure.ended_ns >= event.began_ns && erasure.began_ns <= event.ended_ns;
        });
  }

  void JudgeHeld(size_t history, const EventView& view) {
    if (view.event.ended_ns == 0 || view.event.status != StatusCode::kOk) return;
    const EventView earlier = EarlierOf(history, view.event);
    const size_t count = std::min(view.ids.size(), earlier.ids.size());
    verdict_.blocks_held += count;
    for (uint32_t i = 0; i < count; ++i) {
      if (view.ids[i] == earlier.ids[i]) continue;
      Find(Fault::kChanged, history, view, view.event.first + i, view.ids[i]);
    }
  }

  // No two write the same block at once.
  void JudgeGrants(uint64_t name, Block& block) {
    std::sort(block.writing.begin(), block.writing.end(),
              [](const auto& a, const auto& b) { return a.first.began_ns < b.first.began_ns; });
    uint64_t until_ns = 0;
    for (const auto& [span, id] : block.writing) {
      if (span.began_ns < until_ns) {
        EventView view;
        view.event.prompt = static_cast<uint32_t>(name >> 16);
        Find(Fault::kShared, 0, view, name & 0xFFFF, id);
      }
      until_ns = std::max(until_ns, span.ended_ns);
    }
  }

  const std::vector<std::span<const uint64_t>>& histories_;
  const Rules rules_;
  std::unordered_map<CommitId, Commit> commits_;
  std::unordered_map<uint64_t, Block> blocks_;  // by NameOf
  Verdict verdict_;
};

}  // namespace

const char* FaultName(Fault fault) {
  constexpr const char* kNames[] = {"unknown", "uncommitted", "erased",
                                    "changed", "shared",      "lost"};
  return kNames[static_cast<size_t>(fault)];
}

Verdict CheckHistories(const std::vector<std::span<const uint64_t>>& histories,
                       const Rules& rules) {
  return Checker(histories, rules).Check();
}

}  // namespace terrace::chaos
