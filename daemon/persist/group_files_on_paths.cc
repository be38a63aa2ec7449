#include "daemon/persist/group_files_on_paths.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "terrace/check.h"

namespace terrace {

GroupFilesOnPaths::GroupFilesOnPaths(std::vector<DiskGroupFiles::Options> paths) {
  TERRACE_CHECK(!paths.empty(), "the files lie on one path at least");
  for (DiskGroupFiles::Options& options : paths) {
    options.are_copies = !paths_.empty();
    paths_.push_back(std::make_unique<DiskGroupFiles>(std::move(options)));
  }
}

void GroupFilesOnPaths::Keep(uint32_t domain_index, const SpaceGroupSpec& spec) {
  for (const auto& files : paths_) files->Keep(domain_index, spec);
}

void GroupFilesOnPaths::Inherit(uint32_t domain_index, const SpaceGroupSpec& spec) {
  for (const auto& files : paths_) files->Inherit(domain_index, spec);
}

void GroupFilesOnPaths::Drop(uint32_t domain_index, const GroupId& id) {
  for (const auto& files : paths_) files->Drop(domain_index, id);
}

GroupFiles::State GroupFilesOnPaths::StateElsewhere(uint32_t domain_index,
                                                    const GroupId& id) const {
  // Its key may be destroyed, and another one not made yet.
  if (!IsWhole(domain_index, id)) return State::kFailed;
  State best = State::kFailed;
  for (size_t i = 1; i < paths_.size() && best != State::kKept; ++i) {
    const State state = paths_[i]->StateOf(domain_index, id);
    if (state != State::kFailed) best = state;
  }
  return best;
}

GroupFiles::State GroupFilesOnPaths::StateOf(uint32_t domain_index, const GroupId& id) const {
  const State state = first().StateOf(domain_index, id);
  if (state == State::kKept) return state;
  const State elsewhere = StateElsewhere(domain_index, id);
  return elsewhere == State::kFailed ? state : elsewhere;
}

bool GroupFilesOnPaths::IsLost(uint32_t domain_index, const GroupId& id) const {
  return std::ranges::all_of(paths_,
                             [&](const auto& files) { return files->IsLost(domain_index, id); });
}

GroupFilesTrouble GroupFilesOnPaths::TroubleOf(uint32_t domain_index) const {
  return first().TroubleOf(domain_index, [&](const GroupId& id) {
    return StateElsewhere(domain_index, id) == State::kKept;
  });
}

bool GroupFilesOnPaths::IsWhole(uint32_t domain_index, const GroupId& id) const {
  return first().IsWhole(domain_index, id);
}

void GroupFilesOnPaths::DestroyKey(uint32_t domain_index, const GroupId& id) {
  first().DestroyKey(domain_index, id);
}

bool GroupFilesOnPaths::AreKeysDestroyed(uint32_t domain_index) const {
  return first().AreKeysDestroyed(domain_index);
}

void GroupFilesOnPaths::SetRing(uint32_t domain_index, std::shared_ptr<const KeyRing> ring,
                                std::function<void(const std::vector<std::string>& notes)> done) {
  first().SetRing(domain_index, std::move(ring), std::move(done));
}

bool GroupFilesOnPaths::Drain(uint64_t timeout_us) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::microseconds(timeout_us);
  bool have_all = true;
  for (const auto& files : paths_) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - Clock::now());
    have_all &= files->Drain(static_cast<uint64_t>(std::max<int64_t>(left.count(), 0)));
  }
  return have_all;
}

}  // namespace terrace
