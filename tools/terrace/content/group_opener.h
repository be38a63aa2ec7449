// GroupOpener: opens the SpaceGroups that a daemon knows, by name, as their engines have: a tool
// has only the name, and asks for the Spaces.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "terrace/client.h"
#include "terrace/space.h"
#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

struct OpenedGroup {
  GroupId id;
  GroupRef ref;
  SpaceGroupSpec spec;
};

class GroupOpener {
 public:
  // Null after telling the person why not.
  static std::unique_ptr<GroupOpener> Connect(const DaemonAddress& address);

  // Null, told on stderr: there is no such group, or it cannot be opened.
  const OpenedGroup* Open(const std::string& name);
  const OpenedGroup* Open(const GroupId& id);
  // One that the daemon may not know yet.
  const OpenedGroup* Open(const SpaceGroupSpec& spec);

  AdminLink& link() { return *link_; }
  Client& client() { return *client_; }
  const StatsView& stats() const { return *stats_; }
  uint64_t deadline_us() const { return address_.deadline_us(); }

 private:
  explicit GroupOpener(const DaemonAddress& address) : address_(address) {}
  std::optional<SpaceGroupSpec> Describe(const GroupId& id, const std::string& name);

  const DaemonAddress address_;
  std::unique_ptr<AdminLink> link_;
  std::unique_ptr<Client> client_;
  std::optional<StatsView> stats_;
  std::map<GroupId, OpenedGroup> opened_;
};

}  // namespace terrace::tools
