#include "tools/terrace/content/group_opener.h"

#include <fmt/core.h>

#include <utility>

#include "tools/terrace/cli/admin_requests.h"

namespace terrace::tools {

std::unique_ptr<GroupOpener> GroupOpener::Connect(const DaemonAddress& address) {
  std::unique_ptr<GroupOpener> opener(new GroupOpener(address));
  opener->link_ = AdminLink::Open(address);
  if (opener->link_ == nullptr) return nullptr;
  opener->stats_ = FetchStats(*opener->link_);
  if (!opener->stats_) return nullptr;
  // A bypassed client asks nobody: it would take everything for missing.
  if (opener->stats_->Text("domain.serving") == "bypassed") {
    Fail(WhyUnserved(*opener->stats_));
    return nullptr;
  }
  opener->client_ = ConnectOrExplain(address);
  return opener->client_ == nullptr ? nullptr : std::move(opener);
}

const OpenedGroup* GroupOpener::Open(const std::string& name) {
  const std::optional<GroupId> id = FindGroup(*stats_, name);
  return id ? Open(*id) : nullptr;
}

const OpenedGroup* GroupOpener::Open(const GroupId& id) {
  if (const auto found = opened_.find(id); found != opened_.end()) return &found->second;
  const auto names = GroupNamesOf(*stats_);
  const auto name = names.find(id);
  if (name == names.end()) {
    Fail(fmt::format("the daemon names no group {}: `terrace spaces` lists them", ToHex(id)));
    return nullptr;
  }
  const auto spec = Describe(id, name->second);
  return spec ? Open(*spec) : nullptr;
}

const OpenedGroup* GroupOpener::Open(const SpaceGroupSpec& spec) {
  const GroupId id = spec.Id();
  if (const auto found = opened_.find(id); found != opened_.end()) return &found->second;
  const Result<GroupRef> ref =
      client_->Open(spec, spec.local_member_mask(), address_.deadline_us());
  if (!ref.ok()) {
    FailRequest(*client_, fmt::format("cannot open group {}", spec.name), ref.status());
    return nullptr;
  }
  return &opened_.emplace(id, OpenedGroup{.id = id, .ref = *ref, .spec = spec}).first->second;
}

std::optional<SpaceGroupSpec> GroupOpener::Describe(const GroupId& id, const std::string& name) {
  const BlockKey no_key;  // that nobody has: all that is asked for is what the group is
  const auto explained = AskExplain(
      *link_, {.group = id, .keys = std::span(&no_key, 1), .flags = protocol::kExplainMembers});
  if (!explained) return std::nullopt;
  if (!explained->members) {
    Fail(
        fmt::format("the daemon is older than this command and does not tell the Spaces of group "
                    "{}: restart it with this release",
                    name));
    return std::nullopt;
  }
  SpaceGroupSpec spec{.name = name, .members = {}};
  for (const SpaceMember& member : *explained->members) {
    std::string why;
    SpaceGroupMember& added = spec.members.emplace_back();
    added.is_remote = member.is_remote;
    if (!SpaceSpec::Parse(member.text, &added.spec, &why).ok()) {
      Fail(fmt::format("group {} has a Space that this command cannot read: {}", name, why));
      return std::nullopt;
    }
  }
  return spec;
}

}  // namespace terrace::tools
