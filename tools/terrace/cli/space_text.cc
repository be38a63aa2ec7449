#include "tools/terrace/cli/space_text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "terrace/protocol.h"

namespace terrace::tools {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

Fields FieldsOf(std::string_view text) {
  Fields fields;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t equal = std::min(line.find('='), line.size());
    fields.emplace_back(line.substr(0, equal), line.substr(std::min(equal + 1, line.size())));
  }
  return fields;
}

std::optional<uint64_t> NumberOf(const std::string& text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

// "0-7" of numbers that follow each other, else "a,b,c".
std::string Joined(const std::vector<std::string>& values) {
  bool is_run = values.size() > 2;
  for (size_t i = 0; i < values.size() && is_run; ++i) {
    const auto first = NumberOf(values[0]), number = NumberOf(values[i]);
    is_run = first && number && *number == *first + i;
  }
  if (is_run) return values.front() + "-" + values.back();
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

}  // namespace

std::optional<std::vector<SpaceMember>> ReadSpaceMembers(std::span<const std::byte> body) {
  std::vector<SpaceMember> members;
  while (!body.empty()) {
    protocol::OpenMember head;
    if (body.size() < sizeof(head)) return std::nullopt;
    std::memcpy(&head, body.data(), sizeof(head));
    body = body.subspan(sizeof(head));
    if (body.size() < head.text_bytes) return std::nullopt;
    members.push_back(
        {.text = std::string(reinterpret_cast<const char*>(body.data()), head.text_bytes),
         .is_remote = head.is_remote != 0});
    body = body.subspan(head.text_bytes);
  }
  return members;
}

std::string DescribeSpaces(std::span<const SpaceMember> members) {
  // In the order of the first member's fields, each with its different values in members' order.
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;
  for (const SpaceMember& member : members) {
    for (const auto& field : FieldsOf(member.text)) {
      auto row = std::find_if(rows.begin(), rows.end(),
                              [&](const auto& known) { return known.first == field.first; });
      if (row == rows.end()) row = rows.insert(rows.end(), {field.first, {}});
      auto& values = row->second;
      if (std::find(values.begin(), values.end(), field.second) == values.end()) {
        values.push_back(field.second);
      }
    }
  }
  std::string text;
  for (const auto& [name, values] : rows) {
    if (values.size() == 1 && values[0].empty()) continue;
    text += (text.empty() ? "" : " ") + name + "=" + Joined(values);
  }
  const auto remote = std::count_if(members.begin(), members.end(),
                                    [](const SpaceMember& member) { return member.is_remote; });
  if (remote > 0) text += " (" + std::to_string(remote) + " on other hosts)";
  return text;
}

nlohmann::json ToJson(std::span<const SpaceMember> members) {
  nlohmann::json list = nlohmann::json::array();
  for (const SpaceMember& member : members) {
    nlohmann::json fields = nlohmann::json::object();
    for (const auto& [name, value] : FieldsOf(member.text)) fields[name] = value;
    list.push_back({{"is_remote", member.is_remote}, {"spec", std::move(fields)}});
  }
  return list;
}

}  // namespace terrace::tools
