#include "daemon/config/config_text.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <sstream>

#include "daemon/config/config_keys.h"
#include "daemon/config/toml_depth.h"
#include "src/masked_address.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

struct UnitName {
  std::string_view name;
  uint64_t bytes;
};
constexpr UnitName kUnits[] = {
    {"TiB", uint64_t{1} << 40}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}};

Status Refuse(std::string* why, std::string sentence) {
  *why = std::move(sentence);
  return Status(StatusCode::kInvalid, "the configuration is not valid");
}

// What the text is called, and where a refusal of it is told.
struct Source {
  const std::string& origin;  // empty: it has no lines that anybody wrote
  std::string* why;

  std::string PlaceOf(uint32_t line) const {
    return origin.empty() ? "" : origin + ":" + std::to_string(line) + ": ";
  }
  Status RefuseAt(uint32_t line, const std::string& sentence) const {
    return Refuse(why, PlaceOf(line) + sentence);
  }
  Status RefuseAt(const toml::node& node, const std::string& sentence) const {
    return RefuseAt(node.source().begin.line, sentence);
  }
};

// Insertions, deletions and substitutions that turn `from` into the first 0, 1, … letters of `to`.
std::vector<size_t> EditDistances(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t substituted = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row;
}

// What was most likely meant: one that goes on where `name` ends, else the one with the fewest
// differing letters, else one that begins much like it ("nvme.capcity"). None if half of what
// follows its section differs, or a quarter of such a beginning: that would mislead.
template <typename Names>
std::optional<std::string> Nearest(std::string_view name, const Names& candidates) {
  const auto distance = [name](std::string_view candidate) -> size_t {
    return candidate.starts_with(name) ? 0 : EditDistances(name, candidate).back();
  };
  const auto distance_of_beginning = [name](std::string_view candidate) {
    return std::ranges::min(EditDistances(name, candidate));
  };
  const auto nearest = std::ranges::min_element(candidates, {}, distance);
  const size_t own_size = name.size() - (name.find('.') + 1);  // npos + 1 == 0
  if (own_size == 0) return std::nullopt;
  if (distance(*nearest) * 2 <= own_size) return std::string(*nearest);
  const auto alike = std::ranges::min_element(candidates, {}, distance_of_beginning);
  if (distance_of_beginning(*alike) * 4 > own_size) return std::nullopt;
  return std::string(*alike);
}

// As TOML, but for what may be the login in an address.
std::string ShownWithoutLogins(const toml::node& node) {
  std::ostringstream text;
  if (const toml::array* const array = node.as_array()) {
    for (const toml::node& element : *array) {
      text << (text.view().empty() ? "[ " : ", ") << ShownWithoutLogins(element);
    }
    text << (array->empty() ? "[]" : " ]");
  } else if (const toml::table* const table = node.as_table()) {
    for (const auto& [name, element] : *table) {
      text << (text.view().empty() ? "{ " : ", ") << name.str() << " = "
           << ShownWithoutLogins(element);
    }
    text << (table->empty() ? "{}" : " }");
  } else if (const toml::value<std::string>* const string = node.as_string()) {
    const std::string& value = string->get();
    const bool is_harmless = value.find_first_of("@:") == value.npos;
    text << toml::value<std::string>(is_harmless ? value : MaskedAddress(value));
  } else {
    node.visit([&text](const auto& value) { text << toml::node_view<const toml::node>(value); });
  }
  return text.str();
}

// One value on its way into a field: where it stands, and how a refusal is worded.
struct Place {
  const Source& source;
  std::string name;  // "daemon.dram_bytes"
  const toml::node& node;

  std::string Shown() const { return ShownWithoutLogins(node).substr(0, 64); }
  Status RefuseValue(const std::string& wanted) const {
    return source.RefuseAt(node, name + " is " + Shown() + "; write " + wanted);
  }
};

Status ReadNumber(const Place& place, uint64_t min, uint64_t max, const std::string& wanted,
                  uint64_t value) {
  if (value < min || value > max) return place.RefuseValue(wanted);
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const CountField<Section>& field, Section& section) {
  const std::string wanted =
      "a whole number from " + std::to_string(field.min) + " to " + std::to_string(field.max);
  const auto number = place.node.value_exact<int64_t>();
  if (!number || *number < 0) return place.RefuseValue(wanted);
  TERRACE_RETURN_IF_ERROR(
      ReadNumber(place, field.min, field.max, wanted, static_cast<uint64_t>(*number)));
  section.*field.member = static_cast<uint32_t>(*number);
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const BytesField<Section>& field, Section& section) {
  const std::string wanted = WantedBytes(field.min, field.max);
  uint64_t value = 0;
  if (const auto number = place.node.value_exact<int64_t>(); number && *number >= 0) {
    value = static_cast<uint64_t>(*number);
  } else if (const auto text = place.node.value_exact<std::string>()) {
    const Result<uint64_t> parsed = ParseBytes(*text);
    if (!parsed.ok()) return place.RefuseValue(wanted);
    value = *parsed;
  } else {
    return place.RefuseValue(wanted);
  }
  TERRACE_RETURN_IF_ERROR(ReadNumber(place, field.min, field.max, wanted, value));
  section.*field.member = value;
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const TextField<Section>& field, Section& section) {
  const auto text = place.node.value_exact<std::string>();
  if (!text || text->empty() || text->size() > field.bytes_max ||
      text->find('\0') != std::string::npos) {
    const bool is_long = text && text->size() > field.bytes_max;
    return place.RefuseValue("a text in quotes of 1 to " + std::to_string(field.bytes_max) +
                             " bytes" +
                             (is_long ? ": it has " + std::to_string(text->size()) : ""));
  }
  section.*field.member = *text;
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const ModeField<Section>& field, Section& section) {
  const std::string text = place.node.value_exact<std::string>().value_or("");
  uint32_t mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 0777) {
    return place.RefuseValue("octal permissions in quotes, such as \"0660\"");
  }
  section.*field.member = mode;
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const IdsField<Section>& field, Section& section) {
  const std::string wanted =
      "a list of at most " + std::to_string(kAllowedIdsMax) + " numeric ids, such as [1000, 1001]";
  const toml::array* array = place.node.as_array();
  if (array == nullptr || array->size() > kAllowedIdsMax) return place.RefuseValue(wanted);
  std::vector<uint32_t> ids;
  for (const toml::node& element : *array) {
    const auto number = element.value_exact<int64_t>();
    if (!number || *number < 0 || *number > UINT32_MAX) return place.RefuseValue(wanted);
    ids.push_back(static_cast<uint32_t>(*number));
  }
  section.*field.member = std::move(ids);
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const TextsField<Section>& field, Section& section) {
  const std::string wanted = "a list of 1 to " + std::to_string(field.count_max) +
                             " texts in quotes of 1 to " + std::to_string(field.bytes_max) +
                             " bytes";
  const toml::array* array = place.node.as_array();
  if (array == nullptr || array->empty() || array->size() > field.count_max) {
    return place.RefuseValue(wanted);
  }
  std::vector<std::string> texts;
  for (const toml::node& element : *array) {
    const auto text = element.value_exact<std::string>();
    if (!text || text->empty() || text->size() > field.bytes_max ||
        text->find('\0') != std::string::npos) {
      return place.RefuseValue(wanted);
    }
    texts.push_back(*text);
  }
  section.*field.member = std::move(texts);
  return Status::Ok();
}

template <typename Section>
Status Read(const Place& place, const ChoiceField<Section>& field, Section& section) {
  const auto text = place.node.value_exact<std::string>();
  const auto found =
      text ? std::find(field.names.begin(), field.names.end(), *text) : field.names.end();
  if (found == field.names.end()) {
    std::string wanted = "one of";
    for (const std::string_view name : field.names) wanted += " \"" + std::string(name) + "\"";
    const auto nearest = text ? Nearest(*text, field.names) : std::nullopt;
    if (nearest) wanted += "; the nearest is \"" + *nearest + "\"";
    return place.RefuseValue(wanted);
  }
  field.set(section, static_cast<size_t>(found - field.names.begin()));
  return Status::Ok();
}

// A section as ConfigKeyNames has it, and as a refusal says it: a domain's with its own name.
struct SectionName {
  SectionName(const char* name) : kind(name), shown(name) {}
  SectionName(const char* name, std::string own) : kind(name), shown(std::move(own)) {}
  std::string kind, shown;
};

template <typename Section>
Status ReadSection(const Source& source, const SectionName& section_name, const toml::table& table,
                   std::span<const ConfigKey<Section>> keys, Section& section) {
  const std::string kind = section_name.kind + ".";
  const std::string shown = section_name.shown + ".";
  for (const auto& [name, node] : table) {
    const auto key = std::find_if(keys.begin(), keys.end(), [&name = name](const auto& candidate) {
      return candidate.name == name.str();
    });
    const std::string key_name(name.str());
    if (key == keys.end()) {
      auto nearest = Nearest(kind + key_name, ConfigKeyNames());
      if (nearest && nearest->starts_with(kind)) nearest = shown + nearest->substr(kind.size());
      return source.RefuseAt(
          node, shown + key_name.substr(0, 96) + " is no known key" +
                    (nearest ? "; the nearest is " + *nearest + ". Correct or remove it"
                             : ": `terraced --print-config` prints those "
                               "that there are"));
    }
    const Place place{source, shown + key_name, node};
    TERRACE_RETURN_IF_ERROR(
        std::visit([&](const auto& field) { return Read(place, field, section); }, key->field));
  }
  return Status::Ok();
}

Status ReadDomains(const Source& source, const toml::node& node, DaemonConfig* config) {
  const toml::array* domains = node.as_array();
  if (domains == nullptr || !domains->is_array_of_tables()) {
    return source.RefuseAt(node, "domain is no list of tables: write [[domain]], once a domain");
  }
  for (const toml::node& element : *domains) {
    const toml::table& table = *element.as_table();
    const auto name = table["name"].value<std::string>().value_or("");
    const bool is_named = !name.empty() && name.size() <= kDomainNameBytesMax;
    DomainConfig domain;
    domain.place = source.PlaceOf(element.source().begin.line);
    TERRACE_RETURN_IF_ERROR(
        ReadSection(source, SectionName{"domain", is_named ? "domain." + name : "domain"}, table,
                    DomainKeys(), domain));
    config->domains.push_back(std::move(domain));
  }
  return Status::Ok();
}

Status ReadRoot(const Source& source, const toml::table& root, DaemonConfig* config) {
  for (const auto& [name, node] : root) {
    if (name.str() == "daemon" && node.is_table()) {
      TERRACE_RETURN_IF_ERROR(
          ReadSection(source, "daemon", *node.as_table(), DaemonKeys(), *config));
    } else if (name.str() == "nvme" && node.is_table()) {
      TERRACE_RETURN_IF_ERROR(
          ReadSection(source, "nvme", *node.as_table(), NvmeKeys(), config->nvme));
    } else if (name.str() == "hbm" && node.is_table()) {
      TERRACE_RETURN_IF_ERROR(ReadSection(source, "hbm", *node.as_table(), HbmKeys(), config->hbm));
    } else if (name.str() == "redis" && node.is_table()) {
      TERRACE_RETURN_IF_ERROR(
          ReadSection(source, "redis", *node.as_table(), RedisKeys(), config->redis));
    } else if (name.str() == "kv_events" && node.is_table()) {
      TERRACE_RETURN_IF_ERROR(
          ReadSection(source, "kv_events", *node.as_table(), KvEventsKeys(), config->kv_events));
    } else if (name.str() == "metrics" && node.is_table()) {
      TERRACE_RETURN_IF_ERROR(
          ReadSection(source, "metrics", *node.as_table(), MetricsKeys(), config->metrics));
    } else if (name.str() == "domain") {
      TERRACE_RETURN_IF_ERROR(ReadDomains(source, node, config));
    } else {
      constexpr std::string_view kTables[] = {"daemon", "nvme",      "hbm",
                                              "redis",  "kv_events", "metrics"};
      const std::string shown(name.str().substr(0, 64));
      if (std::ranges::find(kTables, shown) != std::end(kTables)) {
        return source.RefuseAt(node, "'" + shown + "' is " +
                                         (node.is_array() ? "a list" : "a value") +
                                         "; there is one of it, a section: write [" + shown + "]");
      }
      return source.RefuseAt(
          node, "'" + shown +
                    "' is no known section; the sections are [daemon], [nvme], [hbm], [redis], "
                    "[kv_events], [metrics] and [[domain]]");
    }
  }
  return Status::Ok();
}

std::string Quoted(const std::string& text) {
  std::ostringstream quoted;
  quoted << toml::value<std::string>(text);
  return quoted.str();
}

// A field as TOML; empty when it has no value.
template <typename Section>
struct Print {
  const Section& section;
  std::string operator()(const CountField<Section>& field) const {
    return std::to_string(section.*field.member);
  }
  std::string operator()(const BytesField<Section>& field) const {
    // A size that was not named and cannot be worked out: there is none.
    if (section.*field.member == 0 && field.min > 0) return "";
    return '"' + FormatBytes(section.*field.member) + '"';
  }
  std::string operator()(const TextField<Section>& field) const {
    if ((section.*field.member).empty()) return "";
    return Quoted(section.*field.member);
  }
  std::string operator()(const ModeField<Section>& field) const {
    const uint32_t mode = section.*field.member;
    std::string text = "\"0";
    for (int shift = 6; shift >= 0; shift -= 3)
      text += static_cast<char>('0' + (mode >> shift & 7));
    return text + '"';
  }
  std::string operator()(const IdsField<Section>& field) const {
    if (!(section.*field.member).has_value()) return "";
    std::string text = "[";
    for (const uint32_t id : *(section.*field.member)) {
      text += (text.size() > 1 ? ", " : "") + std::to_string(id);
    }
    return text + "]";
  }
  std::string operator()(const TextsField<Section>& field) const {
    std::string text;
    for (const std::string& entry : section.*field.member) {
      text += (text.empty() ? "[" : ", ") + Quoted(entry);
    }
    return text.empty() ? text : text + "]";
  }
  std::string operator()(const ChoiceField<Section>& field) const {
    return '"' + std::string(field.names[field.get(section)]) + '"';
  }
};

template <typename Section>
std::string PrintSection(const Section& section, std::span<const ConfigKey<Section>> keys) {
  std::string text;
  for (const ConfigKey<Section>& key : keys) {
    const std::string value = std::visit(Print<Section>{section}, key.field);
    text += "# " + std::string(key.meaning) + "\n";
    text += value.empty() ? "# " + std::string(key.name) + " is not set\n"
                          : std::string(key.name) + " = " + value + "\n";
  }
  return text;
}

// visit(section's name, section of `config`, section of `other`, its keys) of each. Domains are
// those that have one name in both.
template <typename Config, typename Visit>
void ForEachSection(Config& config, const DaemonConfig& other, const Visit& visit) {
  visit(std::string("daemon"), config, other, DaemonKeys());
  visit(std::string("nvme"), config.nvme, other.nvme, NvmeKeys());
  visit(std::string("hbm"), config.hbm, other.hbm, HbmKeys());
  visit(std::string("redis"), config.redis, other.redis, RedisKeys());
  visit(std::string("kv_events"), config.kv_events, other.kv_events, KvEventsKeys());
  visit(std::string("metrics"), config.metrics, other.metrics, MetricsKeys());
  for (auto& domain : config.domains) {
    const auto same = std::ranges::find(other.domains, domain.name, &DomainConfig::name);
    if (same != other.domains.end()) visit("domain." + domain.name, domain, *same, DomainKeys());
  }
}

// A field's value into another configuration's.
template <typename Section>
struct Copy {
  const Section& from;
  Section& to;
  void operator()(const auto& field) const { to.*field.member = from.*field.member; }
  void operator()(const ChoiceField<Section>& field) const { field.set(to, field.get(from)); }
};

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  const Status invalid(StatusCode::kInvalid, "not a number of bytes");
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return invalid;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (text.empty()) return number;
  for (const UnitName& unit : kUnits) {
    if (text != unit.name) continue;
    if (number > UINT64_MAX / unit.bytes) return invalid;
    return number * unit.bytes;
  }
  return invalid;
}

std::string WantedBytes(uint64_t min, uint64_t max) {
  return "bytes, as a whole number or a whole number of KiB, MiB, GiB or TiB, such as \"8GiB\", "
         "from " +
         FormatBytes(min) + " to " + FormatBytes(max);
}

std::string FormatBytes(uint64_t value_bytes) {
  for (const UnitName& unit : kUnits) {
    if (value_bytes != 0 && value_bytes % unit.bytes == 0) {
      return std::to_string(value_bytes / unit.bytes) + std::string(unit.name);
    }
  }
  return std::to_string(value_bytes);
}

std::string NearestName(std::string_view name, const std::vector<std::string>& candidates) {
  return candidates.empty() ? "" : Nearest(name, candidates).value_or("");
}

// A value without quotes is what most often is no TOML, and a parser takes 1GiB for a number. The
// line itself is not told: it may be a password.
static std::string QuotesHint(std::string_view toml_text, uint32_t line) {
  for (; line > 1; --line)
    toml_text = toml_text.substr(std::min(toml_text.find('\n'), toml_text.size() - 1) + 1);
  toml_text = toml_text.substr(0, toml_text.find_first_of("\n#"));
  const size_t equals = toml_text.find('=');
  if (equals == toml_text.npos || toml_text.find_first_of("\"'[]{}", equals) != toml_text.npos)
    return "";
  return ". Text, sizes and addresses are written in quotes, as in dram_bytes = \"1GiB\"";
}

Status ParseConfig(std::string_view toml_text, const std::string& origin, DaemonConfig* config,
                   std::string* why) {
  const Source source{origin, why};
  if (const uint32_t line = LineTooDeep(toml_text); line != 0) {
    return source.RefuseAt(line, "a name has more than " + std::to_string(kNamePartsMax) +
                                     " parts with dots between, the limit; no section or key has "
                                     "more than two. Correct or remove it");
  }
  toml::table root;
  try {
    root = toml::parse(toml_text, origin);
  } catch (const toml::parse_error& error) {
    const uint32_t line = error.source().begin.line;
    return source.RefuseAt(
        line, "this is no TOML: " + std::string(error.description()) + QuotesHint(toml_text, line));
  }
  DaemonConfig parsed;
  TERRACE_RETURN_IF_ERROR(ReadRoot(source, root, &parsed));
  *config = std::move(parsed);
  return Status::Ok();
}

// A pipe that nobody writes to would be waited for, for good; one that ends with nothing in it, as
// on a reload, would set every key back to its default, who may connect among them.
Status ReadConfigText(const std::string& path, std::string* text, std::string* why) {
  constexpr size_t kFileBytesMax = kMiB;
  constexpr std::chrono::seconds kWholeWithin(4);  // who asks for a reload waits 5 s for its answer
  const std::string name = "configuration file " + path;
  const auto unreadable = [&](int error) {
    *why = name + ": cannot read it: " + std::strerror(error) + "; name another with --config";
    return Status(error == ENOENT ? StatusCode::kNotFound : StatusCode::kIo,
                  "the configuration file cannot be read", error);
  };
  const OpenFile file(path, O_RDONLY | O_NONBLOCK, 0);
  if (file.fd() < 0) return unreadable(errno);
  text->assign(kFileBytesMax + 1, '\0');
  size_t done_bytes = 0;
  const auto until = std::chrono::steady_clock::now() + kWholeWithin;
  while (done_bytes < text->size()) {
    pollfd readable{.fd = file.fd(), .events = POLLIN, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    const int ready_count = poll(&readable, 1, std::max(0, static_cast<int>(left.count())));
    if (ready_count < 0 && errno == EINTR) continue;  // what is read now may not be the end
    if (ready_count == 0) {
      return Refuse(why, name + " is a pipe or the like, and was not written to its end within " +
                             std::to_string(kWholeWithin.count()) +
                             " s: write the text into a file, and name that with --config");
    }
    const ssize_t got = read(file.fd(), text->data() + done_bytes, text->size() - done_bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return unreadable(errno);
    if (got == 0) break;
    done_bytes += static_cast<size_t>(got);
  }
  text->resize(done_bytes);
  struct stat facts {};
  if (text->empty() && fstat(file.fd(), &facts) == 0 && S_ISFIFO(facts.st_mode)) {
    return Refuse(why, name +
                           " is a pipe that was closed before anything was written to it: name "
                           "a file with --config, or what is written to");
  }
  if (text->size() > kFileBytesMax) {
    return Refuse(
        why, name + " is larger than " + FormatBytes(kFileBytesMax) + ": this is no configuration");
  }
  return Status::Ok();
}

Status ReadConfigFile(const std::string& path, DaemonConfig* config, std::string* why) {
  std::string text;
  TERRACE_RETURN_IF_ERROR(ReadConfigText(path, &text, why));
  return ParseConfig(text, path, config, why);
}

std::string PrintConfig(const DaemonConfig& config) {
  std::string text = "[daemon]\n" + PrintSection(config, DaemonKeys());
  text += "\n[nvme]\n" + PrintSection(config.nvme, NvmeKeys());
  text += "\n[hbm]\n" + PrintSection(config.hbm, HbmKeys());
  text += "\n[kv_events]\n" + PrintSection(config.kv_events, KvEventsKeys());
  text += "\n[redis]\n" + PrintSection(config.redis, RedisKeys());
  text += "\n[metrics]\n" + PrintSection(config.metrics, MetricsKeys());
  for (const DomainConfig& domain : config.domains) {
    text += "\n[[domain]]\n" + PrintSection(domain, DomainKeys());
  }
  return text;
}

std::vector<std::string> ConfigKeyNames() {
  std::vector<std::string> names;
  for (const auto& key : DaemonKeys()) names.push_back("daemon." + std::string(key.name));
  for (const auto& key : NvmeKeys()) names.push_back("nvme." + std::string(key.name));
  for (const auto& key : HbmKeys()) names.push_back("hbm." + std::string(key.name));
  for (const auto& key : KvEventsKeys()) names.push_back("kv_events." + std::string(key.name));
  for (const auto& key : RedisKeys()) names.push_back("redis." + std::string(key.name));
  for (const auto& key : MetricsKeys()) names.push_back("metrics." + std::string(key.name));
  for (const auto& key : DomainKeys()) names.push_back("domain." + std::string(key.name));
  return names;
}

std::vector<ConfigEntry> ConfigEntries(const DaemonConfig& config) {
  std::vector<ConfigEntry> entries;
  ForEachSection(config, config,
                 [&]<typename Section>(const std::string& name, const Section& section,
                                       const Section&, std::span<const ConfigKey<Section>> keys) {
                   for (const ConfigKey<Section>& key : keys) {
                     entries.push_back({.key = name + "." + std::string(key.name),
                                        .value = std::visit(Print<Section>{section}, key.field),
                                        .meaning = key.meaning,
                                        .is_live = key.change == KeyChange::kLive});
                   }
                 });
  return entries;
}

Status CopyLive(const DaemonConfig& from, std::string_view wanted, DaemonConfig* to) {
  bool is_found = wanted.empty();
  ForEachSection(
      *to, from,
      [&]<typename Section>(const std::string& name, Section& section, const Section& other,
                            std::span<const ConfigKey<Section>> keys) {
        for (const ConfigKey<Section>& key : keys) {
          const bool is_meant = wanted.empty() || wanted == name + "." + std::string(key.name);
          if (!is_meant || key.change != KeyChange::kLive) continue;
          std::visit(Copy<Section>{other, section}, key.field);
          is_found = true;
        }
      });
  return is_found ? Status::Ok() : Status(StatusCode::kNotFound, "no such live key");
}

std::map<std::string, uint32_t> ConfigLines(std::string_view toml_text) {
  std::map<std::string, uint32_t> lines;
  const auto add = [&lines](const std::string& section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      lines[section + "." + std::string(name.str())] = node.source().begin.line;
    }
  };
  if (LineTooDeep(toml_text) != 0) return lines;
  try {
    const toml::table root = toml::parse(toml_text);
    for (const auto& [name, node] : root) {
      if (const toml::table* const table = node.as_table()) add(std::string(name.str()), *table);
      const toml::array* const domains = node.as_array();
      for (size_t i = 0; domains != nullptr && i < domains->size(); ++i) {
        const toml::table* const table = (*domains)[i].as_table();
        if (table == nullptr) continue;
        add("domain." + (*table)["name"].value_or(std::string()), *table);
      }
    }
  } catch (const toml::parse_error&) {
    lines.clear();
  }
  return lines;
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<ConfigChange> ConfigChangesOf(std::string_view lines) {
  std::vector<ConfigChange> changes;
  for (size_t begin = 0; begin <= lines.size() && changes.size() <= kConfigChangesMax;) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    const size_t equals = line.find('=');
    ConfigChange& change = changes.emplace_back();
    change.text = line;
    change.key = Trimmed(line.substr(0, equals));
    if (equals != line.npos) change.value = Trimmed(line.substr(equals + 1));
    begin = end + 1;
  }
  return changes;
}

}  // namespace terrace
