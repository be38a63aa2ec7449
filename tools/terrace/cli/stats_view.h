// The daemon's Stats document as the tools read it. Fields may be missing (another daemon version):
// what is not there reads as absent and is shown as "-".
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/client.h"
#include "terrace/status.h"

namespace terrace::tools {

class StatsView {
 public:
  // kInvalid unless `text` is a JSON object; then `*why`, which goes on where "the answer" stood.
  static Result<StatsView> Parse(std::string_view text, std::string* why);
  static Result<StatsView> Parse(std::string_view text);

  // A field of the daemon, of its domain, or, with "a.b", of an object inside.
  std::optional<uint64_t> Count(std::string_view name) const;
  std::string Text(std::string_view name) const;  // "" if absent
  // An array of numbers; empty if absent.
  std::vector<uint64_t> Counts(std::string_view name) const;
  std::vector<std::string> Texts(std::string_view name) const;
  // An array of objects; empty if absent.
  std::vector<StatsView> Each(std::string_view name) const;
  const nlohmann::json& document() const { return document_; }

  // Of the domain's memory: what clients have mapped of it; the most it may hold by now, which an
  // older daemon takes for the same.
  std::optional<uint64_t> MappedBytes() const;
  std::optional<uint64_t> DramCapacityBytes() const;

 private:
  explicit StatsView(nlohmann::json document) : document_(std::move(document)) {}
  const nlohmann::json* Find(std::string_view name) const;

  nlohmann::json document_;
};

// Asks the daemon. On failure an explanation is on stderr already.
std::optional<StatsView> FetchStats(Client& client, uint64_t deadline_us);

// Names of all groups by id.
std::map<GroupId, std::string> GroupNamesOf(const StatsView& stats);

// The group people call `name`. On failure the known names are on stderr already.
std::optional<GroupId> FindGroup(const StatsView& stats, std::string_view name);

}  // namespace terrace::tools
