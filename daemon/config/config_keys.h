// The tables of configuration keys: what a key is called, where it lands, what it may be, and its
// one-line meaning. Reading, printing and the list of names all walk these tables, so a key cannot
// be read and not printed.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "daemon/config/config.h"

namespace terrace {

// Forms a value can have. Section is DaemonConfig, DomainConfig, …
template <typename Section>
struct CountField {
  uint32_t Section::*member;
  uint32_t min, max;
};
template <typename Section>
struct BytesField {
  uint64_t Section::*member;
  uint64_t min, max;
};
template <typename Section>
struct TextField {
  std::string Section::*member;
  size_t bytes_max;
};
template <typename Section>
struct ModeField {  // octal permissions in quotes
  uint32_t Section::*member;
};
template <typename Section>
struct IdsField {
  std::optional<std::vector<uint32_t>> Section::*member;
};
template <typename Section>
struct TextsField {
  std::vector<std::string> Section::*member;
  size_t count_max;
  size_t bytes_max;  // of one
};
template <typename Section>
struct ChoiceField {
  std::span<const std::string_view> names;
  void (*set)(Section& section, size_t index);
  size_t (*get)(const Section& section);
};

// What a change of a key's value takes.
enum class KeyChange : uint8_t {
  kRestart,
  kLive,  // a reload; whoever uses the value reads it anew, or is told (Shell, on_config)
};

template <typename Section>
struct ConfigKey {
  std::string_view name;
  std::variant<CountField<Section>, BytesField<Section>, TextField<Section>, ModeField<Section>,
               IdsField<Section>, TextsField<Section>, ChoiceField<Section>>
      field;
  std::string_view meaning;
  KeyChange change = KeyChange::kRestart;
};

std::span<const ConfigKey<DaemonConfig>> DaemonKeys();
std::span<const ConfigKey<NvmeConfig>> NvmeKeys();
std::span<const ConfigKey<HbmConfig>> HbmKeys();
std::span<const ConfigKey<KvEventsConfig>> KvEventsKeys();
std::span<const ConfigKey<RedisConfig>> RedisKeys();
std::span<const ConfigKey<MetricsConfig>> MetricsKeys();
std::span<const ConfigKey<DomainConfig>> DomainKeys();

inline constexpr size_t kConfigKeyBytesMax = 160;  // domain.NAME.KEY
// What was given for a key, as anybody may be shown it: as much as a key has, and no login.
std::string ShownKey(std::string_view given);
// The keys that a change's lines name (ConfigChangesOf), so shown.
std::string ShownKeys(std::string_view lines);

}  // namespace terrace
