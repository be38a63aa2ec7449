#include "daemon/persist/group_file_text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>
#include <utility>

namespace terrace {
namespace {

// terrace-group-1
// name=llama3-70b
// members=2
// member=local 412          and 412 bytes of canonical text
// member=remote 413
// seal=<16 hex digits: KeyedHash64 of all before this line>
constexpr std::string_view kTitle = "terrace-group-";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kName = "name=";
constexpr std::string_view kMembers = "members=";
constexpr std::string_view kLocal = "member=local ";
constexpr std::string_view kRemote = "member=remote ";
constexpr std::string_view kSeal = "seal=";
constexpr size_t kSealBytes = kSeal.size() + 16 + 1;

Status Refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return Status(StatusCode::kCorrupt, "not a whole group file of this domain");
}

// Takes a line that begins with `prefix` off the front of `*rest`; what follows the prefix.
bool TakeLine(std::string_view prefix, std::string_view* rest, std::string_view* value) {
  const size_t end = rest->find('\n');
  if (end == rest->npos || !rest->starts_with(prefix)) return false;
  *value = rest->substr(prefix.size(), end - prefix.size());
  rest->remove_prefix(end + 1);
  return true;
}

// As it is written, and in no other way.
bool ReadCount(std::string_view text, size_t max, size_t* count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc() && *count <= max && std::to_string(*count) == text;
}

bool TakeMember(std::string_view* rest, SpaceGroupMember* member, std::string* why) {
  std::string_view value;
  member->is_remote = rest->starts_with(kRemote);
  if (!TakeLine(member->is_remote ? kRemote : kLocal, rest, &value)) return false;
  size_t text_bytes = 0;
  if (!ReadCount(value, std::min(kSpaceTextBytesMax, rest->size()), &text_bytes)) return false;
  if (!SpaceSpec::Parse(rest->substr(0, text_bytes), &member->spec, why).ok()) return false;
  rest->remove_prefix(text_bytes);
  return true;
}

// What stands between the members and the title; the seal is not looked at.
bool ReadBody(std::string_view rest, SpaceGroupSpec* spec, std::string* why) {
  std::string_view name, count_text;
  size_t count = 0;
  *why = "its head cannot be read";
  if (!TakeLine(kName, &rest, &name) || !TakeLine(kMembers, &rest, &count_text) ||
      !ReadCount(count_text, kGroupMembersMax, &count)) {
    return false;
  }
  SpaceGroupSpec parsed;
  parsed.name = name;
  parsed.members.resize(count);
  for (SpaceGroupMember& member : parsed.members) {
    *why = "its members cannot be read";
    if (!TakeMember(&rest, &member, why)) return false;
  }
  *why = "more follows its last member";
  if (!rest.empty() || !parsed.Validate(why).ok()) return false;
  *spec = std::move(parsed);
  return true;
}

}  // namespace

std::string GroupFileSeal(std::string_view content, const DomainSecret& secret) {
  const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
  return ToHex(0, KeyedHash64(secret, std::span(bytes, content.size()))).substr(16);
}

std::string FormatGroupFile(const SpaceGroupSpec& spec, const DomainSecret& secret) {
  std::string content = std::string(kTitle) + std::string(kVersion) + '\n';
  content += std::string(kName) + spec.name + '\n';
  content += std::string(kMembers) + std::to_string(spec.members.size()) + '\n';
  for (const SpaceGroupMember& member : spec.members) {
    const std::string text = member.spec.CanonicalText();
    content += member.is_remote ? kRemote : kLocal;
    content += std::to_string(text.size()) + '\n' + text;
  }
  const std::string seal = GroupFileSeal(content, secret);
  return content + std::string(kSeal) + seal + '\n';
}

Status ParseGroupFile(std::string_view content, const DomainSecret& secret, SpaceGroupSpec* spec,
                      std::string* why) {
  std::string_view rest = content, version;
  if (!TakeLine(kTitle, &rest, &version)) return Refuse(why, "it is no group file");
  if (version != kVersion) {
    *why = "it has format version " + std::string(version.substr(0, 16)) + ", known is " +
           std::string(kVersion);
    return Status(StatusCode::kUnsupported, "a group file of another version");
  }
  // The seal first: what it does not cover is not looked at.
  if (content.size() < kSealBytes) return Refuse(why, "its end is lost");
  const std::string_view sealed = content.substr(0, content.size() - kSealBytes);
  if (content.substr(sealed.size()) != std::string(kSeal) + GroupFileSeal(sealed, secret) + '\n') {
    return Refuse(why, "its seal does not hold: it is damaged, or another domain's");
  }
  rest = sealed.substr(sealed.size() - (rest.size() - kSealBytes));
  if (!ReadBody(rest, spec, why)) return Refuse(why, *why);
  return Status::Ok();
}

bool ReadUnsealedGroupFile(std::string_view content, SpaceGroupSpec* spec) {
  std::string why;
  const std::string title = std::string(kTitle) + std::string(kVersion) + '\n';
  if (!content.starts_with(title) || content.size() < title.size() + kSealBytes) return false;
  content.remove_suffix(kSealBytes);
  return ReadBody(content.substr(title.size()), spec, &why);
}

}  // namespace terrace
