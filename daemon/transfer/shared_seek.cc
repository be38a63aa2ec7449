// What the shared tier may have: asking once for what nobody here knows, and remembering it for a
// moment. The rest is shared_reader.cc.
#include <algorithm>

#include "daemon/transfer/shared_reader.h"
#include "terrace/check.h"

namespace terrace {

bool SharedReader::is_on() const {
  const SharedUse& use = d_.options.shared;
  return use.tier != nullptr && use.is_fetching && use.tier->is_ready();
}

bool SharedReader::IsWorth(const KeysQuery& query, size_t block_count) {
  const Group& group = *d_.groups[query.group_index];
  const uint64_t ns_per_token = query.hints.recompute_ns_per_token != 0
                                    ? query.hints.recompute_ns_per_token
                                    : group.recompute_ns_per_token;
  if (ns_per_token == 0) return true;  // nobody said what a miss costs
  const uint64_t compute_us = block_count * group.block_tokens() * ns_per_token / 1000;
  if (d_.options.shared.tier->PredictReadUs(block_count * group.block_bytes()) <= compute_us) {
    return true;
  }
  counts_.blocks_not_worth += block_count;
  return false;
}

Status SharedReader::Seek(const KeysQuery& query, size_t from_index, uint64_t until_us) {
  if (!is_on()) return Status::Ok();
  const Group& group = *d_.groups[query.group_index];
  const BlockKey& first = query.keys[from_index];
  if (findings_.Find({group.id(), first}, d_.NowUs()) != nullptr) return Status::Ok();
  if (group.locals().empty() || !IsWorth(query, query.keys.size() - from_index)) {
    return Status::Ok();
  }
  if (JoinSeek(query, first, until_us)) {
    return Status(StatusCode::kBusy, "the shared tier is being asked");
  }
  std::vector<SharedPlace> sought =
      NameKeys(d_.index, query, from_index, kSeekNamesMax / group.locals().size());
  if (sought.empty() || seeks_.count() >= kSeeksMax) return Status::Ok();

  std::vector<RedisBlockName> names;
  for (const SharedPlace& one : sought) {
    for (const LocalMember& local : group.locals()) {
      names.push_back({.group = group.id(),
                       .space = local.space,
                       .key = one.key,
                       .run = one.run,
                       .position = one.position});
    }
  }
  const uint32_t number = seeks_.Take({.stamp = ++seek_count_});
  SeekJob& seek = seeks_[number];
  const uint64_t probe_id = (uint64_t{seek.stamp} << 32) | number;
  if (!d_.options.shared.tier->Probe(probe_id, names).ok()) {
    seeks_.Give(number);
    return Status::Ok();
  }
  seek.group = group.id();
  for (const LocalMember& local : group.locals()) {
    seek.member_bits.push_back(uint64_t{1} << local.member);
  }
  seek.full_mask = group.full_mask();
  seek.sought = std::move(sought);
  seek.waiters.push_back({query.session, query.request_id});
  seek.until_us = until_us;
  seek.deadline = d_.seams.deadlines.Add({.due_us = until_us,
                                          .kind = DeadlineKind::kSeek,
                                          .domain_index = d_.domain_index,
                                          .id = number});
  ++counts_.seeks;
  return Status(StatusCode::kBusy, "the shared tier is being asked");
}

// Somebody asks for the same already. What differs further behind is asked for later.
bool SharedReader::JoinSeek(const KeysQuery& query, const BlockKey& first, uint64_t until_us) {
  const GroupId& group = d_.groups[query.group_index]->id();
  SeekJob* found = nullptr;
  seeks_.ForEach([&](uint32_t, SeekJob& seek) {
    const bool is_same = seek.deadline != kHandleNone && seek.until_us <= until_us &&
                         seek.group == group && seek.sought.front().key == first &&
                         seek.waiters.size() < kSeekWaitersMax;
    if (is_same && found == nullptr) found = &seek;
  });
  if (found == nullptr) return false;
  found->waiters.push_back({query.session, query.request_id});
  ++counts_.seeks_joined;
  return true;
}

void SharedReader::TellWaiters(SeekJob& seek) {
  for (const Waiter& waiter : seek.waiters) {
    d_.seams.listener.OnSeekDone(waiter.session, waiter.request_id);
  }
  seek.waiters.clear();
}

// They go on with what is here. The answer may still come, and serve the next.
void SharedReader::OnSeekDeadline(uint32_t number) {
  TERRACE_CHECK(seeks_.is_taken(number), "a Seek takes its deadline back when it ends");
  SeekJob& seek = seeks_[number];
  seek.deadline = kHandleNone;
  ++counts_.seeks_late;
  TellWaiters(seek);
}

void SharedReader::OnProbed(uint64_t probe_id, Status status, const std::vector<bool>& is_present) {
  const auto number = static_cast<uint32_t>(probe_id);
  TERRACE_CHECK(seeks_.is_taken(number) && seeks_[number].stamp == probe_id >> 32,
                "a probe is answered once");
  SeekJob& seek = seeks_[number];
  if (status.ok()) Remember(seek, is_present);
  if (seek.deadline != kHandleNone) d_.seams.deadlines.Remove(seek.deadline);
  TellWaiters(seek);
  seeks_.Give(number);
}

// A prefix: behind a block that is not there none is of use.
void SharedReader::Remember(const SeekJob& seek, const std::vector<bool>& is_present) {
  const size_t member_count = seek.member_bits.size();
  TERRACE_CHECK(is_present.size() == seek.sought.size() * member_count, "an answer for every name");
  for (size_t i = 0; i < seek.sought.size(); ++i) {
    uint64_t member_mask = 0;
    for (size_t m = 0; m < member_count; ++m) {
      if (is_present[i * member_count + m]) member_mask |= seek.member_bits[m];
    }
    if (member_mask == 0 || (member_mask & seek.full_mask) != seek.full_mask) {
      std::vector<BlockId> here;
      d_.index.FindAll(seek.sought[i].key, &here);
      if (here.empty()) d_.shared_copies.Remove({seek.group, seek.sought[i].key});
      return;
    }
    const SharedFinding finding{
        .member_mask = member_mask, .run = seek.sought[i].run, .position = seek.sought[i].position};
    if (!findings_.Add({seek.group, seek.sought[i].key}, finding, d_.NowUs())) return;
    ++counts_.blocks_found;
  }
}

void SharedReader::Tick() {
  findings_.Expire(d_.NowUs());
  Step();
}

}  // namespace terrace
