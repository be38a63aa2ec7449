#include "client/core/request_table.h"

#include <algorithm>
#include <span>
#include <utility>

#include "client/link/frames.h"

namespace terrace::client {
namespace {

constexpr size_t kPooledVectorBytesMax = 256 << 10;

// Keeps the memory of the usual sizes.
template <typename T>
void Empty(std::vector<T>& vector) {
  vector.clear();
  if (vector.capacity() * sizeof(T) > kPooledVectorBytesMax) std::vector<T>().swap(vector);
}

// Everything but what the table guards, and but for the memory of the vectors.
void Clear(Request& request) {
  request.lease.reset();
  Empty(request.written);
  request.has_more = false;
  request.was_returned = false;
  Empty(request.entries);
  Empty(request.checksums);
  Empty(request.body);
  request.callback = nullptr;
  request.status = Status::Ok();
  request.block_count = 0;
  request.user_data = 0;
  request.asked = Asked();
}

}  // namespace

RequestTable::RequestTable(uint32_t requests_max)
    : requests_(std::make_unique<Request[]>(requests_max)), request_count_(requests_max) {
  free_.reserve(requests_max);
  for (uint32_t index = requests_max; index-- > 0;) {
    requests_[index].index = static_cast<uint16_t>(index);
    free_.push_back(static_cast<uint16_t>(index));
  }
}

Request* RequestTable::Take() {
  LockGuard guard(lock_);
  if (free_.empty()) return nullptr;
  Request& request = requests_[free_.back()];
  free_.pop_back();
  request.id = ++sequence_ << kSlotBits | request.index;
  request.is_async = false;
  request.is_done.store(false, std::memory_order_relaxed);
  return &request;
}

void RequestTable::MakePending(Request& request) {
  LockGuard guard(lock_);
  request.state = Request::State::kPending;
  if (request.is_async) async_count_.fetch_add(1);
}

bool RequestTable::Withdraw(Request& request, uint64_t id) {
  LockGuard guard(lock_);
  if (request.id != id || request.state != Request::State::kPending) return false;
  if (request.is_async) async_count_.fetch_sub(1);
  request.state = Request::State::kClaimed;
  return true;
}

RequestTable::Answered RequestTable::ClaimAnswered(uint64_t id) {
  const auto index = static_cast<uint32_t>(id & kUnawaitedSlot);
  if (index >= request_count_) return {};
  Request& slot = requests_[index];
  LockGuard guard(lock_);
  if (slot.id != id) return {};
  switch (slot.state) {
    case Request::State::kPending:
      slot.state = Request::State::kClaimed;
      if (slot.is_async) async_count_.fetch_sub(1);
      return {Claim::kClaimed, &slot, slot.asked.verb};
    case Request::State::kAbandoned:
      slot.state = Request::State::kClaimedAbandoned;
      return {Claim::kAbandoned, &slot, slot.asked.verb};
    case Request::State::kExpiring:
      slot.state = Request::State::kExpiringAnswered;
      return {Claim::kLate, nullptr, slot.asked.verb};
    default:
      return {};
  }
}

Request* RequestTable::ClaimBroken(Cursor* cursor) {
  while (cursor->index < request_count_) {
    Request& slot = requests_[cursor->index++];
    bool is_abandoned = false;
    {
      LockGuard guard(lock_);
      if (slot.state == Request::State::kExpiring) {
        slot.state = Request::State::kExpiringAnswered;
      } else if (slot.state == Request::State::kAbandoned) {
        slot.state = Request::State::kClaimedAbandoned;
        is_abandoned = true;
      } else if (slot.state == Request::State::kPending) {
        slot.state = Request::State::kClaimed;
        if (slot.is_async) async_count_.fetch_sub(1);
        return &slot;
      }
    }
    if (is_abandoned) Free(slot);
  }
  return nullptr;
}

Request* RequestTable::ClaimExpired(uint64_t now_us, Cursor* cursor, uint64_t* next_deadline_us) {
  if (async_count() == 0) return nullptr;
  LockGuard guard(lock_);
  while (cursor->index < request_count_) {
    Request& slot = requests_[cursor->index++];
    if (slot.state != Request::State::kPending || !slot.is_async) continue;
    if (slot.deadline_us > now_us) {
      *next_deadline_us = std::min(*next_deadline_us, slot.deadline_us);
      continue;
    }
    slot.state = Request::State::kExpiring;
    async_count_.fetch_sub(1);
    return &slot;
  }
  return nullptr;
}

void RequestTable::FinishExpiry(Request& request) {
  // A late answer to Commit still says what became of its parts.
  if (request.asked.verb != protocol::Verb::kCommit) request.lease.reset();
  request.callback = nullptr;
  {
    LockGuard guard(lock_);
    if (request.state == Request::State::kExpiring) {
      request.state = Request::State::kAbandoned;
      return;
    }
  }
  Free(request);
}

bool RequestTable::MarkDone(Request& request) {
  LockGuard guard(lock_);
  if (request.state != Request::State::kClaimed) return false;
  request.state = Request::State::kDone;
  request.is_done.store(true);
  return true;
}

bool RequestTable::Abandon(Request& request) {
  LockGuard guard(lock_);
  if (request.state == Request::State::kDone) return false;
  request.state = request.state == Request::State::kPending ? Request::State::kAbandoned
                                                            : Request::State::kClaimedAbandoned;
  request.given_up_join = request.asked.joined;
  if (!request.given_up_join.is_zero()) ++given_up_join_count_;
  return true;
}

bool RequestTable::IsAbandoned(const Request& request) {
  LockGuard guard(lock_);
  return request.state == Request::State::kClaimedAbandoned;
}

bool RequestTable::IsJoinGivenUp(const LeaseToken& token) {
  LockGuard guard(lock_);
  if (token.is_zero() || given_up_join_count_ == 0) return false;
  const std::span<const Request> all(requests_.get(), request_count_);
  return std::ranges::find(all, token, &Request::given_up_join) != all.end();
}

void RequestTable::Free(Request& request) {
  Clear(request);
  LockGuard guard(lock_);
  if (!request.given_up_join.is_zero()) --given_up_join_count_;
  request.given_up_join = {};
  request.state = Request::State::kFree;
  free_.push_back(request.index);
}

}  // namespace terrace::client
