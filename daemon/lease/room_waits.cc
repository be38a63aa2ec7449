#include "daemon/lease/room_waits.h"

#include <algorithm>
#include <utility>

namespace terrace {

void RoomWaits::Await(SessionId session, uint64_t request_id, uint64_t until_us) {
  Wait& wait =
      waits_.emplace_back(Wait{.session = session, .request_id = request_id, .id = next_id_++});
  wait.deadline = d_.seams.deadlines.Add({.due_us = until_us,
                                          .kind = DeadlineKind::kRoom,
                                          .domain_index = d_.domain_index,
                                          .id = wait.id});
}

void RoomWaits::Wake() {
  const std::vector<Wait> waits = std::exchange(waits_, {});
  for (const Wait& wait : waits) {
    d_.seams.deadlines.Remove(wait.deadline);
    d_.seams.listener.OnSeekDone(wait.session, wait.request_id);
  }
}

void RoomWaits::OnDeadline(uint32_t id) {
  const auto found = std::ranges::find(waits_, id, &Wait::id);
  if (found == waits_.end()) return;
  const Wait wait = *found;
  waits_.erase(found);
  d_.seams.listener.OnSeekDone(wait.session, wait.request_id);
}

}  // namespace terrace
