#include "tiers/redis/wire/denied_commands.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace terrace {
namespace {

// All that is ever sent. Nothing else that a server says is shown: it may quote anything.
constexpr std::array<std::string_view, 18> kCommands = {
    "GET",    "MGET", "EXISTS", "SET",   "MSETNX", "SETBIT", "UNLINK", "PEXPIRE", "EVAL",
    "STRLEN", "TYPE", "PTTL",   "MULTI", "EXEC",   "PING",   "ASKING", "CLUSTER", "SENTINEL"};

std::string_view KnownCommand(std::string_view word) {
  const auto is_same = [word](std::string_view known) {
    return std::ranges::equal(word, known, {}, [](unsigned char c) { return std::toupper(c); });
  };
  const auto found = std::ranges::find_if(kCommands, is_same);
  return found == kCommands.end() ? std::string_view() : *found;
}

// "… no permissions to run the 'cluster|slots' command": the first word in quotation marks.
std::string_view CommandIn(std::string_view said) {
  const size_t begin = said.find('\'');
  if (begin == said.npos) return {};
  const size_t end = said.find_first_of("'|", begin + 1);
  if (end == said.npos || said.find("' command", begin + 1) == said.npos) return {};
  return KnownCommand(said.substr(begin + 1, end - begin - 1));
}

std::string NameOf(std::string_view user) {
  constexpr size_t kUserBytesMax = 64;
  if (user.empty()) return "the default user";
  const bool is_plain = user.size() <= kUserBytesMax && std::ranges::all_of(user, [](char c) {
                          return c > ' ' && c <= '~' && c != '"';
                        });
  return is_plain ? "user " + std::string(user) : "this user";
}

}  // namespace

void DeniedCommands::OnDenied(std::string_view sent, std::string_view said, bool is_script,
                              uint64_t now_us) {
  std::string_view command = CommandIn(said);
  const bool is_of_keys = command.empty() && !is_script;
  if (is_of_keys) command = KnownCommand(sent);
  const auto known = std::ranges::find(denied_, sent, &Denied::sent);
  Denied& denied = known == denied_.end() ? denied_.emplace_back() : *known;
  denied = {.sent = std::string(sent),
            .command = command,
            .is_script = is_script,
            .is_of_keys = is_of_keys,
            .until_us = now_us + kPauseUs};
}

bool DeniedCommands::OnLet(std::string_view sent) {
  return std::erase_if(denied_, [sent](const Denied& one) { return one.sent == sent; }) > 0;
}

// Another script may be let.
bool DeniedCommands::IsPaused(std::string_view sent, uint64_t now_us) const {
  const auto known = std::ranges::find(denied_, sent, &Denied::sent);
  return known != denied_.end() && !known->is_script && now_us < known->until_us;
}

std::string DeniedCommands::Text(std::string_view user, bool is_of_reads) const {
  std::string names, on_keys;
  for (const Denied& one : denied_) {
    const bool is_read = one.sent == "GET" || one.sent == "MGET";
    if (is_read != is_of_reads || one.command.empty()) continue;
    if (one.is_of_keys) on_keys = " on keys that begin with redis.prefix";
    names += (names.empty() ? "" : ", ") + std::string(one.command);
  }
  if (names.empty()) return names;
  return "does not let " + NameOf(user) + " run " + names + on_keys +
         " (docs/REDIS_FORMAT.md lists what it must allow)";
}

}  // namespace terrace
