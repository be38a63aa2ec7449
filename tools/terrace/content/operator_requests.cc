#include "tools/terrace/content/operator_requests.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, protocol::kTierKindCount> kTierNames = {"hbm", "dram",
                                                                               "nvme", "redis"};

// A head and an array of the rest. False, told, if they have other sizes.
template <typename Head, typename Entry>
bool ReadAnswer(std::span<const std::byte> body, std::string_view name, Head* head,
                std::vector<Entry>* entries) {
  if (body.size() >= sizeof(*head)) {
    std::memcpy(head, body.data(), sizeof(*head));
    const std::span<const std::byte> rest = body.subspan(sizeof(*head));
    if (rest.size() == size_t{head->entry_count} * sizeof(Entry)) {
      entries->resize(head->entry_count);
      if (!rest.empty()) std::memcpy(entries->data(), rest.data(), rest.size());
      return true;
    }
  }
  return Fail(fmt::format("{}'s answer has another size: another release?", name)) == kExitOk;
}

std::vector<std::byte> BodyOf(const protocol::NamedPinRequest& request,
                              std::span<const BlockKey> keys) {
  std::vector<std::byte> body(sizeof(request) + keys.size_bytes());
  std::memcpy(body.data(), &request, sizeof(request));
  if (!keys.empty()) std::memcpy(body.data() + sizeof(request), keys.data(), keys.size_bytes());
  return body;
}

}  // namespace

std::optional<protocol::EvictReply> AskEvictWhere(AdminLink& link,
                                                  const protocol::EvictWhereRequest& request,
                                                  std::string* why) {
  const auto body = link.Ask(protocol::kVerbEvictWhere, std::as_bytes(std::span(&request, 1)));
  protocol::EvictReply reply;
  if (!body.ok()) {
    *why = WhyRefused(link, "EvictWhere");
    return std::nullopt;
  }
  if (body->size() != sizeof(reply)) {
    *why = "EvictWhere's answer has another size: another release?";
    return std::nullopt;
  }
  std::memcpy(&reply, body->data(), sizeof(reply));
  return reply;
}

std::optional<PinAnswer> AskNamedPin(AdminLink& link, protocol::NamedPinRequest request,
                                     std::span<const BlockKey> keys) {
  request.key_count = static_cast<uint32_t>(keys.size());
  const auto body = link.Ask(protocol::kVerbNamedPin, BodyOf(request, keys));
  if (!body.ok() && body.status().code() == StatusCode::kNotFound) {
    Fail(fmt::format("there is no pin {}; `terrace pins` lists them", TextOf(request.name)));
    return std::nullopt;
  }
  if (!body.ok() && body.status().code() == StatusCode::kNoSpace) {
    Fail(fmt::format("pin {}: {} pins have a name, the limit; `terrace unpin NAME` ends one",
                     TextOf(request.name), protocol::kNamedPinsMax));
    return std::nullopt;
  }
  PinAnswer answer;
  if (!body.ok()) {
    Fail(WhyRefused(link, "NamedPin"));
    return std::nullopt;
  }
  if (!ReadAnswer(*body, "NamedPin", &answer.reply, &answer.entries)) return std::nullopt;
  return answer;
}

std::vector<protocol::NamedPinEntry> PinsOf(AdminLink& link, const BlockKey& key) {
  const protocol::NamedPinRequest request{.key_count = 1};
  const auto body = link.Ask(protocol::kVerbNamedPin, BodyOf(request, std::span(&key, 1)));
  PinAnswer answer;
  if (body.ok()) (void)ReadAnswer(*body, "NamedPin", &answer.reply, &answer.entries);
  return answer.entries;
}

std::optional<LogAnswer> AskOperatorLog(AdminLink& link, uint32_t entry_count_max) {
  const protocol::OperatorLogRequest request{.entry_count_max = entry_count_max};
  const auto body = link.Ask(protocol::kVerbOperatorLog, std::as_bytes(std::span(&request, 1)));
  LogAnswer answer;
  if (!body.ok()) {
    Fail(WhyRefused(link, "OperatorLog"));
    return std::nullopt;
  }
  if (!ReadAnswer(*body, "OperatorLog", &answer.reply, &answer.entries)) return std::nullopt;
  return answer;
}

bool IsDomain(const AdminLink& link, std::string_view domain) {
  if (domain.empty() || domain == link.domain_name()) return true;
  Fail(
      fmt::format("this daemon's socket is of domain '{}', not '{}': name the socket of that "
                  "domain with --socket, and nothing was done",
                  link.domain_name(), domain));
  return false;
}

protocol::TierKind TierNamed(std::string_view name) {
  const auto found = std::ranges::find(kTierNames, name);
  return static_cast<protocol::TierKind>(found - kTierNames.begin());
}

}  // namespace terrace::tools
