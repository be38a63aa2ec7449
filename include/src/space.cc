// SpaceSpec of terrace/space.h. One table of fields drives the canonical text, the parser, the
// limits and the difference of two specs; a field is added by adding its row.
#include "terrace/space.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <variant>

#include "src/xxh3.h"
#include "terrace/arena_layout.h"
#include "terrace/codec.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using Member = std::variant<std::string SpaceSpec::*, uint32_t SpaceSpec::*,
                            AttentionKind SpaceSpec::*, std::vector<uint64_t> SpaceSpec::*>;

// `min` and `max` bound the bytes of a string, the value of a number or enumerator, the count of
// parts.
struct Field {
  std::string_view name;
  Member member;
  uint64_t min = 0;
  uint64_t max = 0;
};

constexpr uint64_t kNumberMax = std::numeric_limits<uint32_t>::max();

constexpr std::array kAttentionNames = {"mha", "gqa", "mla", "sliding", "state", "chunked"};

constexpr std::array<Field, 21> kFields = {{
    {"model", &SpaceSpec::model, 1, kSpaceStringBytesMax},
    {"revision", &SpaceSpec::revision, 1, kSpaceStringBytesMax},
    {"adapter", &SpaceSpec::adapter, 0, kSpaceStringBytesMax},
    {"dtype", &SpaceSpec::dtype, 1, kSpaceStringBytesMax},
    {"quantisation", &SpaceSpec::quantisation, 0, kSpaceStringBytesMax},
    {"layers", &SpaceSpec::layers, 1, kNumberMax},
    {"kv_heads", &SpaceSpec::kv_heads, 1, kNumberMax},
    {"head_size", &SpaceSpec::head_size, 1, kNumberMax},
    {"attention", &SpaceSpec::attention, 0, kAttentionNames.size() - 1},
    {"window_tokens", &SpaceSpec::window_tokens, 0, kNumberMax},
    {"layout", &SpaceSpec::layout, 1, kSpaceStringBytesMax},
    {"block_tokens", &SpaceSpec::block_tokens, 1, kBlockTokensMax},
    {"tp_rank", &SpaceSpec::tp_rank, 0, kNumberMax},
    {"tp_size", &SpaceSpec::tp_size, 1, kNumberMax},
    {"pp_rank", &SpaceSpec::pp_rank, 0, kNumberMax},
    {"pp_size", &SpaceSpec::pp_size, 1, kNumberMax},
    {"cp_rank", &SpaceSpec::cp_rank, 0, kNumberMax},
    {"cp_size", &SpaceSpec::cp_size, 1, kNumberMax},
    {"attention_group", &SpaceSpec::attention_group, 0, kGroupMembersMax - 1},
    {"salt", &SpaceSpec::salt, 0, kSpaceStringBytesMax},
    {"part_bytes", &SpaceSpec::part_bytes, 1, kPartsPerSpaceMax},
}};

constexpr char kHexDigits[] = "0123456789ABCDEF";
constexpr size_t kShownBytesMax = 64;

// Only these bytes stand for themselves; '%' and '=' are escaped so that a line has one reading.
bool IsPlain(char c) { return c >= 0x20 && c <= 0x7e && c != '%' && c != '='; }

// --- value → text -------------------------------------------------------------------------------

std::string Render(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (IsPlain(c)) {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text += {'%', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    }
  }
  return text;
}

std::string Render(uint32_t value) { return std::to_string(value); }

std::string Render(AttentionKind value) {
  const auto index = static_cast<size_t>(value);
  return index < kAttentionNames.size() ? kAttentionNames[index] : std::to_string(index);
}

// Runs of equal sizes: eight parts of 128 KiB are "8x131072".
std::string Render(const std::vector<uint64_t>& parts) {
  std::string text;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i + 1;
    while (end < parts.size() && parts[end] == parts[i]) ++end;
    if (i > 0) text += ',';
    text += std::to_string(end - i) + 'x' + std::to_string(parts[i]);
    i = end;
  }
  return text;
}

std::string RenderField(const SpaceSpec& spec, const Field& field) {
  return std::visit([&spec](auto member) { return Render(spec.*member); }, field.member);
}

// --- text → value: false unless the text is well formed ------------------------------------------

template <typename Number>
bool ReadNumber(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool Read(std::string_view text, uint32_t* value) { return ReadNumber(text, value); }

bool Read(std::string_view text, std::string* value) {
  value->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      value->push_back(text[i]);
      continue;
    }
    if (text.size() - i < 3) return false;
    const std::string_view digits(kHexDigits, 16);
    const size_t high = digits.find(text[i + 1]);
    const size_t low = digits.find(text[i + 2]);
    if (high == digits.npos || low == digits.npos) return false;
    value->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

bool Read(std::string_view text, AttentionKind* value) {
  const auto found = std::find(kAttentionNames.begin(), kAttentionNames.end(), text);
  if (found == kAttentionNames.end()) return false;
  *value = static_cast<AttentionKind>(found - kAttentionNames.begin());
  return true;
}

bool Read(std::string_view text, std::vector<uint64_t>* parts) {
  parts->clear();
  while (!text.empty()) {
    const std::string_view run = text.substr(0, text.find(','));
    const size_t cross = run.find('x');
    if (cross == run.npos) return false;
    uint64_t count = 0, part_bytes = 0;
    if (!ReadNumber(run.substr(0, cross), &count)) return false;
    if (!ReadNumber(run.substr(cross + 1), &part_bytes)) return false;
    if (count == 0 || count > kPartsPerSpaceMax - parts->size()) return false;
    parts->insert(parts->end(), count, part_bytes);
    text.remove_prefix(std::min(text.size(), run.size() + 1));
  }
  return true;
}

// --- reasons ------------------------------------------------------------------------------------

Status Refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return Status(StatusCode::kInvalid, "the space is not valid");
}

// What a hostile text said, short and printable.
std::string Shown(std::string_view text) {
  std::string shown = "'";
  shown += Render(std::string(text.substr(0, kShownBytesMax)));
  shown += text.size() > kShownBytesMax ? "...'" : "'";
  return shown;
}

std::string NameOf(const Field& field) { return "field '" + std::string(field.name) + "'"; }

std::string FormOf(const Field& field) {
  struct Forms {
    std::string operator()(std::string SpaceSpec::*) const {
      return "bytes other than printable ASCII, and '%' and '=', as %XX with upper-case digits";
    }
    std::string operator()(uint32_t SpaceSpec::*) const {
      return "a decimal number up to " + std::to_string(kNumberMax) + " without leading zeros";
    }
    std::string operator()(AttentionKind SpaceSpec::*) const {
      return "one of mha, gqa, mla, sliding, state, chunked";
    }
    std::string operator()(std::vector<uint64_t> SpaceSpec::*) const {
      return "runs such as 8x131072 or 7x131072,1x65536, at most " +
             std::to_string(kPartsPerSpaceMax) + " parts in all";
    }
  };
  return std::visit(Forms(), field.member);
}

// The line at the head of `rest` is not `expected`'s.
Status RefuseLine(std::string_view rest, size_t expected, std::string* why) {
  const std::string place = "where " + NameOf(kFields[expected]) + " is due: write the " +
                            std::to_string(kFields.size()) + " fields once each, in order";
  if (rest.empty()) return Refuse(why, "the text ends " + place);
  const std::string_view line = rest.substr(0, rest.find('\n'));
  const std::string_view name = line.substr(0, line.find('='));
  const auto* found = std::find_if(kFields.begin(), kFields.end(),
                                   [name](const Field& field) { return field.name == name; });
  if (found == kFields.end()) return Refuse(why, "unknown field " + Shown(name) + " " + place);
  if (found == &kFields[expected]) return Refuse(why, "no '=' or no end of line " + place);
  const bool was_read = found < &kFields[expected];
  return Refuse(why, NameOf(*found) + (was_read ? " comes again " : " comes too early ") + place);
}

Status ParseField(const Field& field, std::string_view value, SpaceSpec* spec, std::string* why) {
  const bool is_read =
      std::visit([&](auto member) { return Read(value, &(spec->*member)); }, field.member);
  // Reading back must give the same text: one spec, one text.
  if (is_read && RenderField(*spec, field) == value) return Status::Ok();
  return Refuse(why, NameOf(field) + " is " + Shown(value) + "; write " + FormOf(field));
}

// --- limits -------------------------------------------------------------------------------------

uint64_t Measure(const std::string& value) { return value.size(); }
uint64_t Measure(uint32_t value) { return value; }
uint64_t Measure(AttentionKind value) { return static_cast<uint64_t>(value); }
uint64_t Measure(const std::vector<uint64_t>& parts) { return parts.size(); }

Status ValidateField(const SpaceSpec& spec, const Field& field, std::string* why) {
  const uint64_t measure =
      std::visit([&spec](auto member) { return Measure(spec.*member); }, field.member);
  if (measure >= field.min && measure <= field.max) return Status::Ok();
  const std::string range = std::to_string(field.min) + " to " + std::to_string(field.max);
  const std::string number = std::to_string(measure);
  struct Reasons {
    const std::string& number;
    const std::string& range;
    std::string operator()(std::string SpaceSpec::*) const {
      return " has " + number + " bytes; it must have " + range + ": name it, and name it shorter";
    }
    std::string operator()(uint32_t SpaceSpec::*) const {
      return " is " + number + "; it must be " + range + ": set it as the engine has it";
    }
    std::string operator()(AttentionKind SpaceSpec::*) const {
      return " is kind " + number + "; the kinds are " + range + ": use a named one";
    }
    std::string operator()(std::vector<uint64_t> SpaceSpec::*) const {
      return " has " + number + " parts; it must have " + range +
             ": list the payload bytes of each range of layers";
    }
  };
  return Refuse(why, NameOf(field) + std::visit(Reasons{number, range}, field.member));
}

Status ValidateRank(std::string_view kind, uint32_t rank, uint32_t size, std::string* why) {
  if (rank < size) return Status::Ok();
  const std::string name(kind);
  return Refuse(why, "field '" + name + "_rank' is " + std::to_string(rank) + " but '" + name +
                         "_size' is " + std::to_string(size) +
                         ": ranks count from 0 to the size less one");
}

Status ValidateWindow(const SpaceSpec& spec, std::string* why) {
  const bool needs_window = spec.attention == AttentionKind::kSliding ||
                            spec.attention == AttentionKind::kState ||
                            spec.attention == AttentionKind::kChunked;
  if (needs_window == spec.is_windowed()) return Status::Ok();
  return Refuse(why,
                "field 'window_tokens' is " + std::to_string(spec.window_tokens) +
                    " but 'attention' is " + Render(spec.attention) +
                    (needs_window ? ": say how many trailing tokens it needs (at least 1)"
                                  : ": only sliding, state and chunked have one, set it to 0"));
}

Status ValidateParts(const SpaceSpec& spec, std::string* why) {
  for (size_t i = 0; i < spec.part_bytes.size(); ++i) {
    if (spec.part_bytes[i] >= 1 && spec.part_bytes[i] <= kSegmentBytesMax) continue;
    return Refuse(why, "field 'part_bytes' has " + std::to_string(spec.part_bytes[i]) +
                           " bytes in part " + std::to_string(i) + "; a part has 1 to " +
                           std::to_string(kSegmentBytesMax) + ": cut the layers in more parts");
  }
  if (spec.slot_bytes() <= kSegmentBytesMax) return Status::Ok();
  return Refuse(why, "field 'part_bytes' makes slots of " + std::to_string(spec.slot_bytes()) +
                         " bytes; a slot has at most " + std::to_string(kSegmentBytesMax) +
                         ": use fewer tokens per block or more ranks");
}

}  // namespace

uint32_t SpaceSpec::window_blocks() const {
  if (block_tokens == 0) return 0;
  return static_cast<uint32_t>((uint64_t{window_tokens} + block_tokens - 1) / block_tokens);
}

uint64_t SpaceSpec::slot_bytes() const {
  return part_offset_bytes(static_cast<uint32_t>(part_bytes.size()));
}

uint64_t SpaceSpec::part_offset_bytes(uint32_t part_index) const {
  uint64_t offset_bytes = 0;
  for (size_t i = 0; i < std::min<size_t>(part_index, part_bytes.size()); ++i) {
    offset_bytes += RoundUp(part_bytes[i], kPartAlignmentBytes);
  }
  return offset_bytes;
}

Status SpaceSpec::Validate(std::string* why) const {
  for (const Field& field : kFields) {
    TERRACE_RETURN_IF_ERROR(ValidateField(*this, field, why));
  }
  TERRACE_RETURN_IF_ERROR(ValidateWindow(*this, why));
  TERRACE_RETURN_IF_ERROR(ValidateRank("tp", tp_rank, tp_size, why));
  TERRACE_RETURN_IF_ERROR(ValidateRank("pp", pp_rank, pp_size, why));
  TERRACE_RETURN_IF_ERROR(ValidateRank("cp", cp_rank, cp_size, why));
  TERRACE_RETURN_IF_ERROR(ValidateParts(*this, why));
  SpaceCodec codec;
  TERRACE_RETURN_IF_ERROR(SpaceCodec::Of(*this, &codec, why));
  if (const size_t text_bytes = CanonicalText().size(); text_bytes > kSpaceTextBytesMax) {
    return Refuse(why, "the canonical text has " + std::to_string(text_bytes) +
                           " bytes; it may have " + std::to_string(kSpaceTextBytesMax) +
                           ": shorten the names or use parts of equal size");
  }
  return Status::Ok();
}

std::string SpaceSpec::CanonicalText() const {
  std::string text;
  for (const Field& field : kFields) {
    text += field.name;
    text += '=';
    text += RenderField(*this, field);
    text += '\n';
  }
  return text;
}

Status SpaceSpec::Parse(std::string_view canonical_text, SpaceSpec* spec, std::string* why) {
  if (canonical_text.size() > kSpaceTextBytesMax) {
    return Refuse(why, "the canonical text has " + std::to_string(canonical_text.size()) +
                           " bytes; it may have " + std::to_string(kSpaceTextBytesMax) +
                           ": shorten the names or use parts of equal size");
  }
  SpaceSpec parsed;
  std::string_view rest = canonical_text;
  for (size_t i = 0; i < kFields.size(); ++i) {
    const Field& field = kFields[i];
    const size_t end = rest.find('\n');
    const size_t name_end = field.name.size();
    if (end == rest.npos || !rest.starts_with(field.name) || rest[name_end] != '=') {
      return RefuseLine(rest, i, why);
    }
    const std::string_view value = rest.substr(name_end + 1, end - name_end - 1);
    TERRACE_RETURN_IF_ERROR(ParseField(field, value, &parsed, why));
    rest.remove_prefix(end + 1);
  }
  if (!rest.empty()) {
    return Refuse(why, "after field 'part_bytes' comes " + Shown(rest) + ": nothing may follow");
  }
  *spec = std::move(parsed);
  return Status::Ok();
}

SpaceId SpaceSpec::Id() const {
  const std::string text = CanonicalText();
  const XXH128_hash_t hash = xxh3::Hash128(std::as_bytes(std::span(text)));
  return SpaceId{.low = hash.low64, .high = hash.high64};
}

SpaceDifference FirstDifference(const SpaceSpec& left, const SpaceSpec& right) {
  for (const Field& field : kFields) {
    std::string left_text = RenderField(left, field);
    std::string right_text = RenderField(right, field);
    if (left_text != right_text) {
      return {std::string(field.name), std::move(left_text), std::move(right_text)};
    }
  }
  return {};
}

uint32_t CountDifferences(const SpaceSpec& left, const SpaceSpec& right) {
  return static_cast<uint32_t>(
      std::count_if(kFields.begin(), kFields.end(), [&left, &right](const Field& field) {
        return RenderField(left, field) != RenderField(right, field);
      }));
}

}  // namespace terrace
