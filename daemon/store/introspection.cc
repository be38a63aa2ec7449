#include "daemon/store/introspection.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/store/store_rooms.h"
#include "daemon/store/visibility.h"
#include "terrace/check.h"

namespace terrace {

using protocol::ExplainNear;
using protocol::ExplainReply;
using protocol::HitRateCounts;
using protocol::HitRateRow;
using protocol::MissCause;
using protocol::StopReason;
using protocol::TierKind;

namespace {

constexpr uint32_t kGroupsComparedMax = 128;  // for near ones

template <size_t bytes>
void CopyText(std::string_view text, char (&to)[bytes]) {
  text.copy(to, bytes - 1);
}

// The only field in which all members differ, if there is one.
bool IsNear(const SpaceGroupSpec& asked, const SpaceGroupSpec& other, SpaceDifference* difference) {
  if (asked.members.size() != other.members.size()) return false;
  for (size_t m = 0; m < asked.members.size(); ++m) {
    const SpaceSpec& left = asked.members[m].spec;
    const SpaceSpec& right = other.members[m].spec;
    if (CountDifferences(left, right) != 1) return false;
    const SpaceDifference own = FirstDifference(left, right);
    if (m > 0 && own.field != difference->field) return false;
    *difference = own;
  }
  return !asked.members.empty();
}

}  // namespace

Status Introspection::HitRates(SessionId session, uint32_t first_row, protocol::HitRateReply* reply,
                               std::vector<HitRateRow>* rows) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  caller.rooms->deferred_hits.CountAsked();
  const CacheDomain& domain = caller.domain();
  const uint64_t now_us = domain.NowUs();
  const HitMeterOptions& tiers = domain.meter.options();
  *reply = {.dram_bytes = tiers.dram_bytes,
            .below_bytes = tiers.below_bytes,
            .sample_weight = domain.meter.weight()};
  if (!domain.lower.empty()) reply->below_kind = domain.lower[0].tier->kind();
  rows->clear();
  const auto row_count = static_cast<uint32_t>(domain.groups.size()) + 1;
  uint32_t row = first_row;
  for (; row < row_count && rows->size() < protocol::kHitRateRowsMax; ++row) {
    const uint32_t group = row == 0 ? protocol::kHitRateAllGroups : row - 1;
    HitRateRow& added = rows->emplace_back();
    if (row > 0) added.group = domain.groups[group]->id();
    const auto windows = domain.meter.Counts(group, now_us);
    std::copy(windows.begin(), windows.end(), added.windows);
  }
  reply->row_count = static_cast<uint32_t>(rows->size());
  reply->next_row = row < row_count ? row : 0;
  return Status::Ok();
}

// ---- why a prefix ends ----

namespace {

// The next keys of a chain; a lookup like any other, but it pins nothing and counts nothing.
class Explainer {
 public:
  Explainer(const Caller& caller, uint32_t group_index, PrefixWalk* walk, ExplainReply* reply)
      : caller_(caller), group_index_(group_index), walk_(*walk), reply_(*reply) {}

  // True if the chain ends at one of them.
  bool Walk(std::span<const BlockKey> keys) {
    const CacheDomain& domain = caller_.domain();
    for (const BlockKey& key : keys) {
      const BlockId id = domain.index.Find(group_index_, key);
      const Visibility found = id == kBlockNone ? Visibility::kNothing : VisibilityOf(caller_, id);
      if (found == Visibility::kNothing || found == Visibility::kReserved) {
        Stop(key, found);
        return true;
      }
      const uint64_t members = MembersOf(domain, domain.block(id));
      if (!WalkOn(*caller_.group, members, &walk_)) {
        reply_.reason = StopReason::kWindow;
        return true;
      }
      if (found == Visibility::kReady) {
        ++reply_.dram_count;
        continue;
      }
      const auto coming = ComingFrom(*caller_.rooms, id, &walk_.unqueued);
      ++reply_.below_count;
      reply_.below_kind = coming.tier;
      reply_.eta_us = std::max(reply_.eta_us, coming.eta_us);
    }
    return false;
  }

 private:
  void Stop(const BlockKey& key, Visibility found) {
    const CacheDomain& domain = caller_.domain();
    const uint64_t now_us = domain.NowUs();
    ExplainReply& reply = reply_;
    const BlockId id = domain.index.Find(group_index_, key);
    if (id == kBlockNone) {
      const ForgottenKeys::Entry* const forgotten = domain.forgotten.Find(group_index_, key);
      reply.reason = forgotten == nullptr ? StopReason::kNeverSeen : StopReason::kForgotten;
      if (forgotten == nullptr) return;
      reply.cause = forgotten->cause;
      reply.age_ms = (now_us / kUsPerSecond + 1 - forgotten->time_s) * 1000;
      return;
    }
    const Block& b = domain.block(id);
    reply.age_ms = (now_us - b.created_us) / kUsPerMs;
    if (caller_.rooms->residency.candidates.IsExpired(id)) {
      reply.reason = StopReason::kExpired;
      reply.age_ms = (now_us - b.expires_us) / kUsPerMs;
    } else if (found == Visibility::kReserved) {
      reply.reason = StopReason::kBeingWritten;
      reply.writer_session = b.writer_session;
    } else {
      reply.reason = StopReason::kTierOff;
    }
  }

  const Caller& caller_;
  const uint32_t group_index_;
  PrefixWalk& walk_;
  ExplainReply& reply_;
};

void AddNear(const CacheDomain& domain, uint32_t group_index, std::vector<ExplainNear>* nears) {
  const SpaceGroupSpec& asked = domain.groups[group_index]->spec();
  const auto group_count = static_cast<uint32_t>(domain.groups.size());
  for (uint32_t g = 0; g < std::min(group_count, kGroupsComparedMax); ++g) {
    SpaceDifference difference;
    if (g == group_index || nears->size() == protocol::kExplainNearMax ||
        !IsNear(asked, domain.groups[g]->spec(), &difference)) {
      continue;
    }
    ExplainNear& near = nears->emplace_back();
    near.group = domain.groups[g]->id();
    near.block_count = domain.index.runs().group(g).block_count;
    near.block_tokens = domain.groups[g]->block_tokens();
    CopyText(domain.groups[g]->spec().name, near.name);
    CopyText(difference.field, near.field);
    CopyText(difference.left, near.asked);
    CopyText(difference.right, near.other);
  }
}

// As Open's body has them.
void AddMembers(const SpaceGroupSpec& spec, std::vector<std::byte>* body) {
  const auto add = [body](std::span<const std::byte> bytes) {
    body->insert(body->end(), bytes.begin(), bytes.end());
  };
  for (const SpaceGroupMember& member : spec.members) {
    const std::string text = member.spec.CanonicalText();
    const protocol::OpenMember head{.text_bytes = static_cast<uint32_t>(text.size()),
                                    .is_remote = member.is_remote};
    add(std::as_bytes(std::span(&head, 1)));
    add(std::as_bytes(std::span(text)));
  }
}

}  // namespace

Status ExplainOperation::Explain(std::span<const BlockKey> keys) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(tie_.store()->Enter(query_.session, kAllGroups, &caller));
  const auto& groups = caller.domain().groups;
  const auto found = std::find_if(groups.begin(), groups.end(), [this](const auto& known) {
    return known != nullptr && known->id() == query_.group;
  });
  if (found == groups.end()) {
    return Status(StatusCode::kNotFound, "the domain has no such group");
  }
  const auto group_index = static_cast<uint32_t>(found - groups.begin());
  caller.group = found->get();
  ExplainReply& reply = answer_->reply;
  if (has_ended_) {
    AddNear(caller.domain(), group_index, &answer_->nears);
    is_through_ = true;
  } else {
    has_ended_ = Explainer(caller, group_index, &walk_, &reply).Walk(keys);
    passed_count_ += static_cast<uint32_t>(keys.size());
    is_through_ = !has_ended_ && passed_count_ >= query_.key_count;
  }
  if (is_through_ && (query_.flags & protocol::kExplainMembers) != 0) {
    AddMembers(caller.group->spec(), &answer_->members);
  }
  reply.key_count = query_.key_count;
  reply.stop_index = walk_.walked_count;
  // Every block is there, and none of the last ones has its window whole.
  if (is_through_ && reply.reason == StopReason::kNone && walk_.usable_count < query_.key_count) {
    reply.reason = StopReason::kWindow;
    reply.stop_index = walk_.usable_count;
  }
  reply.block_count = walk_.usable_count;
  reply.near_count = static_cast<uint32_t>(answer_->nears.size());
  return Status::Ok();
}

Result<Progress> ExplainOperation::Step(std::span<const BlockKey> keys) {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  const Status explained = Explain(keys);
  if (explained.ok() && !is_through_) return has_ended_ ? Progress::kStays : Progress::kGoesOn;
  tie_.Cut();
  if (!explained.ok()) return explained;
  return Progress::kDone;
}

ExplainOperation Introspection::Explain(const ExplainOperation::Query& query,
                                        ExplainResult* answer) {
  return {store_.operations, query, answer};
}

}  // namespace terrace
