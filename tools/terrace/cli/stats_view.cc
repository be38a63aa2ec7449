#include "tools/terrace/cli/stats_view.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

const nlohmann::json* Member(const nlohmann::json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  auto found = object.find(std::string(name));
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

Result<StatsView> StatsView::Parse(std::string_view text, std::string* why) {
  nlohmann::json document = ParseJson(text, why);
  if (document.is_object()) return StatsView(std::move(document));
  if (!document.is_discarded()) *why = "is no JSON object";
  return Status(StatusCode::kInvalid, "not a JSON object");
}

Result<StatsView> StatsView::Parse(std::string_view text) {
  std::string unused;
  return Parse(text, &unused);
}

const nlohmann::json* StatsView::Find(std::string_view name) const {
  const nlohmann::json* object = &document_;
  for (size_t dot; (dot = name.find('.')) != std::string_view::npos; name.remove_prefix(dot + 1)) {
    object = Member(*object, name.substr(0, dot));
    if (object == nullptr) return nullptr;
  }
  if (const nlohmann::json* found = Member(*object, name)) return found;
  const nlohmann::json* domain = Member(*object, "domain");
  return domain == nullptr ? nullptr : Member(*domain, name);
}

std::optional<uint64_t> StatsView::Count(std::string_view name) const {
  const nlohmann::json* found = Find(name);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  if (found->is_number_unsigned()) return found->get<uint64_t>();
  double value = found->get<double>();
  constexpr double kBeyond = 18446744073709551616.0;  // 2^64
  if (!(value >= 0 && value < kBeyond)) return std::nullopt;
  return static_cast<uint64_t>(value);
}

std::string StatsView::Text(std::string_view name) const {
  const nlohmann::json* found = Find(name);
  if (found == nullptr) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::vector<uint64_t> StatsView::Counts(std::string_view name) const {
  std::vector<uint64_t> counts;
  const nlohmann::json* found = Find(name);
  if (found == nullptr || !found->is_array()) return counts;
  for (const nlohmann::json& entry : *found) {
    counts.push_back(entry.is_number_unsigned() ? entry.get<uint64_t>() : 0);
  }
  return counts;
}

std::vector<std::string> StatsView::Texts(std::string_view name) const {
  std::vector<std::string> texts;
  const nlohmann::json* found = Find(name);
  if (found == nullptr || !found->is_array()) return texts;
  for (const nlohmann::json& entry : *found) {
    if (entry.is_string()) texts.push_back(entry.get<std::string>());
  }
  return texts;
}

std::vector<StatsView> StatsView::Each(std::string_view name) const {
  std::vector<StatsView> views;
  const nlohmann::json* found = Find(name);
  if (found == nullptr || !found->is_array()) return views;
  for (const nlohmann::json& entry : *found) {
    if (entry.is_object()) views.push_back(StatsView(entry));
  }
  return views;
}

std::optional<StatsView> FetchStats(Client& client, uint64_t deadline_us) {
  Result<std::string> text = client.Stats(deadline_us);
  if (!text.ok()) {
    FailRequest(client, "the daemon did not answer Stats", text.status());
    return std::nullopt;
  }
  std::string why;
  Result<StatsView> stats = StatsView::Parse(*text, &why);
  if (!stats.ok()) {
    Fail(
        fmt::format("the daemon's answer to Stats {}. Are `terrace` and `terraced` of the same "
                    "release?",
                    why));
    return std::nullopt;
  }
  return std::move(*stats);
}

std::map<GroupId, std::string> GroupNamesOf(const StatsView& stats) {
  std::map<GroupId, std::string> names;
  for (const StatsView& group : stats.Each("groups")) {
    if (Result<GroupId> id = ParseId<GroupIdTag>(group.Text("id")); id.ok()) {
      names.emplace(*id, group.Text("name"));
    }
  }
  return names;
}

std::optional<GroupId> FindGroup(const StatsView& stats, std::string_view name) {
  std::vector<std::string> known;
  for (const StatsView& group : stats.Each("groups")) {
    if (group.Text("name") == name) {
      if (Result<GroupId> id = ParseId<GroupIdTag>(group.Text("id")); id.ok()) return *id;
    }
    known.push_back(group.Text("name"));
  }
  Fail(known.empty()
           ? fmt::format("no group '{}': no engine has opened a group in this domain yet", name)
           : fmt::format(
                 "no group '{}' in this domain. Its groups, each by the name that its Spaces "
                 "were opened under first: {}",
                 name, fmt::join(known, ", ")));
  return std::nullopt;
}

std::optional<uint64_t> StatsView::MappedBytes() const {
  const auto segment_bytes = Count("segment_bytes"), segments_max = Count("segments_max");
  if (!segment_bytes || !segments_max) return std::nullopt;
  return *segment_bytes * *segments_max;
}

std::optional<uint64_t> StatsView::DramCapacityBytes() const {
  const auto capacity_bytes = Count("dram_capacity_bytes");
  return capacity_bytes ? capacity_bytes : MappedBytes();
}

}  // namespace terrace::tools
