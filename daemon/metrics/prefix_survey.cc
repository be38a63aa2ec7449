#include "daemon/metrics/prefix_survey.h"

#include <algorithm>
#include <asio/post.hpp>

#include "daemon/metrics/page.h"
#include "terrace/check.h"

namespace terrace {

void PrefixSurvey::Begin(Post post, AddGroups add_groups, Walk walk) {
  question_.SetAsker([this, post = std::move(post), add_groups = std::move(add_groups),
                      walk = std::move(walk)](std::function<void()> done) {
    post([this, add_groups, walk, step = step_, done = std::move(done)] {
      if (step->has_groups) {
        step->status = walk(step->domain_index, &step->cursor, &step->entries);
      } else {
        step->next_group = add_groups(step->domain_index, step->next_group, &step->groups);
        step->has_groups = step->next_group == 0;
      }
      asio::post(loop_, done);
    });
  });
}

void PrefixSurvey::Ask(uint32_t domain_index, Told told) {
  const auto kept = std::ranges::find(kept_, domain_index, &Kept::domain_index);
  if (kept != kept_.end() && std::chrono::steady_clock::now() - kept->at < kKeptFor) {
    return told(&kept->document);
  }
  asked_.push_back({.domain_index = domain_index, .told = std::move(told)});
  if (asked_.size() == 1) BeginNext();
}

void PrefixSurvey::BeginNext() {
  TERRACE_CHECK(step_ == nullptr && !runs_,
                "runs are of one domain: one walk ends before the next");
  step_ = std::make_shared<Step>(Step{.domain_index = asked_.front().domain_index});
  GoOn();
}

void PrefixSurvey::GoOn() {
  question_.Ask([this](bool is_answered) { OnStep(is_answered); });
}

void PrefixSurvey::OnStep(bool is_answered) {
  if (!is_answered || !step_->status.ok()) return End(false, false);
  if (!runs_) {
    if (step_->has_groups) runs_.emplace(SavedUsOf(step_->groups));
    return GoOn();
  }
  for (const protocol::ListEntry& block : step_->entries) {
    if (!runs_->Add(block)) return End(true, true);
  }
  if (step_->cursor == 0) return End(true, false);
  GoOn();
}

void PrefixSurvey::End(bool is_found, bool is_cut) {
  const uint32_t domain_index = asked_.front().domain_index;
  std::string document;
  if (is_found) {
    runs_->Finish();
    document = PrefixesDocument(*runs_, is_cut, step_->groups);
    std::erase_if(kept_, [&](const Kept& kept) { return kept.domain_index == domain_index; });
    kept_.push_back({.domain_index = domain_index,
                     .at = std::chrono::steady_clock::now(),
                     .document = document});
  }
  runs_.reset();
  step_.reset();
  const auto others = std::stable_partition(asked_.begin(), asked_.end(), [&](const Asked& asked) {
    return asked.domain_index != domain_index;
  });
  const std::vector<Asked> answered(std::make_move_iterator(others),
                                    std::make_move_iterator(asked_.end()));
  asked_.erase(others, asked_.end());
  if (!asked_.empty()) BeginNext();
  for (const Asked& asked : answered) asked.told(is_found ? &document : nullptr);
}

}  // namespace terrace
