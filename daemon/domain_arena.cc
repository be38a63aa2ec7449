#include "daemon/domain_arena.h"

#include <asio/post.hpp>
#include <utility>

#include "daemon/log.h"

namespace terrace {
namespace {

ArenaBackingChoice ChoiceOf(HugePages hugepages) {
  switch (hugepages) {
    case HugePages::kAuto:
      return ArenaBackingChoice::kAuto;
    case HugePages::kOn:
      return ArenaBackingChoice::kHugetlb;
    case HugePages::kOff:
      return ArenaBackingChoice::kShmem;
  }
  return ArenaBackingChoice::kAuto;
}

}  // namespace

DomainArena::DomainArena(const Options& options, asio::io_context& store_loop, Events events)
    : options_(options), store_loop_(store_loop), events_(std::move(events)) {}

std::function<void(uint32_t, Status)> DomainArena::Posted(
    const std::function<void(uint32_t, Status)>& event) const {
  return [this, &event](uint32_t segment, Status status) {
    asio::post(store_loop_, [&event, segment, status] { event(segment, status); });
  };
}

Status DomainArena::Create(std::string* why) {
  Arena::Options options;
  options.name = options_.domain_name;
  options.segment_bytes = options_.segment_bytes;
  options.segments_max = options_.segments_max;
  options.segments_expected = options_.segments_expected;
  options.backing = ChoiceOf(options_.hugepages);
  options.on_populated = Posted(events_.on_populated);
  options.on_punched = Posted(events_.on_punched);
  Result<std::unique_ptr<Arena>> arena = Arena::Create(std::move(options), why);
  if (!arena.ok()) return arena.status();
  arena_ = std::move(*arena);
  Log(LogLevel::kInfo, "arena",
      {{"domain", options_.domain_name},
       {"segment_bytes", options_.segment_bytes},
       {"segments_max", options_.segments_max},
       {"nodes", arena_->fds().nodes.size()},
       {"backing", arena_->backing() == ArenaBacking::kHugetlb ? "huge pages" : "pages"}});
  for (const std::string& note : arena_->notes()) {
    Log(LogLevel::kInfo, "arena note", {{"domain", options_.domain_name}, {"note", note}});
  }
  return Status::Ok();
}

}  // namespace terrace
