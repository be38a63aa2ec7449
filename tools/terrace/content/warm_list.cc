#include "tools/terrace/content/warm_list.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/terrace/cli/json_text.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr size_t kShownMax = 60;

std::string Shown(const std::string& text) {
  return text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "…";
}

// Empty: the object says what is to be warmed.
std::string ReadObject(const json& object, WarmItem* item) {
  item->is_chain = true;
  for (const char* name : {"group", "space"}) {
    if (!object.contains(name)) continue;
    if (!object[name].is_string()) return fmt::format("\"{}\" is no text", name);
    item->group = object[name];
  }
  const bool has_keys = object.contains("keys");
  if (has_keys == object.contains("tokens")) return "it has not one of \"keys\" and \"tokens\"";
  const json& values = object[has_keys ? "keys" : "tokens"];
  if (!values.is_array()) return fmt::format("\"{}\" is no array", has_keys ? "keys" : "tokens");
  for (const json& value : values) {
    if (has_keys) {
      const std::string text = value.is_string() ? value.get<std::string>() : std::string();
      const Result<BlockKey> key = ParseId<BlockKeyTag>(text);
      if (!key.ok()) return fmt::format("{} is no key of 32 hex digits", Shown(value.dump()));
      item->keys.push_back(*key);
      continue;
    }
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) {
      return fmt::format("{} is no token id from 0 to {}", Shown(value.dump()), UINT32_MAX);
    }
    item->tokens.push_back(value.get<uint32_t>());
  }
  return "";
}

}  // namespace

bool WarmList::ReadLine(std::string* text) {
  text->clear();
  for (char c; in_.get(c);) {
    if (c == '\n') return true;
    if (text->size() == kWarmLineBytesMax) return true;  // too long, as Next sees
    text->push_back(c);
  }
  return !text->empty();
}

std::optional<WarmItem> WarmList::Next() {
  why_.clear();
  for (std::string text; ReadLine(&text);) {
    ++line_;
    if (text.size() == kWarmLineBytesMax) {
      return Refuse(fmt::format("it is longer than {} bytes: split it", kWarmLineBytesMax));
    }
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (text.empty() || text.front() == '#') continue;
    return Read(text);
  }
  if (in_.bad()) {
    why_ = fmt::format("cannot be read on after line {}: {}", line_, std::strerror(errno));
  }
  return std::nullopt;
}

std::optional<WarmItem> WarmList::Read(const std::string& text) {
  WarmItem item{.line = line_, .group = {}, .keys = {}, .tokens = {}};
  if (text.front() != '{') {
    const Result<BlockKey> key = ParseId<BlockKeyTag>(text);
    if (!key.ok()) return Refuse(fmt::format("'{}' is no key of 32 hex digits", Shown(text)));
    item.keys.push_back(*key);
    return item;
  }
  std::string why;
  const json object = ParseJson(text, &why);
  if (object.is_discarded()) return Refuse(fmt::format("'{}' {}", Shown(text), why));
  why = ReadObject(object, &item);
  return why.empty() ? std::optional(std::move(item)) : Refuse(why);
}

std::optional<WarmItem> WarmList::Refuse(const std::string& what) {
  why_ = fmt::format(
      "line {}: {}. Write a key a line, or {{\"group\": NAME, \"tokens\": [1, 2, …]}} or "
      "{{\"group\": NAME, \"keys\": [\"…\"]}}",
      line_, what);
  return std::nullopt;
}

}  // namespace terrace::tools
