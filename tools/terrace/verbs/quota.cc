// `terrace quota`: what each domain has of each tier, what it is guaranteed, its limit, and who
// borrows; and changes of that while the daemon runs.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/config/config_text.h"
#include "terrace/protocol_admin.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/admin_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr char kQuotaDescription[] =
    "What each domain has of each tier, and may have; changes it\n\n"
    "HELD counts against guarantee and limit: memory in segments, drives in slab files, of a\n"
    "Redis server what this host gave it within redis.ttl_s. USED is what of that holds blocks.\n"
    "Who holds more than its guarantee BORROWS, and gives it back when another asks for its own.";

constexpr std::array<std::string_view, 7> kQuotaKeys = {
    "dram_guaranteed_bytes", "nvme_guaranteed_bytes", "nvme_max_bytes", "redis_guaranteed_bytes",
    "redis_max_bytes",       "borrow_priority",       "ttl_default_s"};
constexpr size_t kNameShownMax = 20;  // so that lines have 80 columns
constexpr size_t kColumnsMax = 80;

std::string ShownBytes(const json& tier, const char* name) {
  const auto found = tier.find(name);
  if (found == tier.end() || !found->is_number_unsigned()) return "-";
  return FormatBytes(found->get<uint64_t>());
}

uint64_t NumberOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string StringOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "?";
}

json ArrayOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : json::array();
}

std::string ShownName(const std::string& name) {
  return name.size() <= kNameShownMax ? name : name.substr(0, kNameShownMax - 3) + "...";
}

std::string OrDash(const json& tier, const char* name) {
  return NumberOf(tier, name) == 0 ? "-" : ShownBytes(tier, name);
}

// Who waits for room, and who makes it; priorities and times to live where they are set.
std::string NotesOn(const json& domain) {
  const std::string name = StringOf(domain, "name");
  std::string notes;
  for (const json& tier : ArrayOf(domain, "tiers")) {
    const std::string of = StringOf(tier, "tier");
    const uint64_t asked_bytes = NumberOf(tier, "asked_bytes");
    const bool is_own =
        NumberOf(tier, "held_bytes") + asked_bytes <= NumberOf(tier, "guaranteed_bytes");
    if (asked_bytes > 0 && is_own) {
      notes += fmt::format("{} waits for {} of {}.\n", name, ShownBytes(tier, "asked_bytes"), of);
    }
    if (NumberOf(tier, "above_bytes") > 0) {
      notes += fmt::format("{} has {} of {} above its limit.\n", name,
                           ShownBytes(tier, "above_bytes"), of);
    }
    if (NumberOf(tier, "leaving_bytes") > 0) {
      notes +=
          fmt::format("{} gives back {} of {}.\n", name, ShownBytes(tier, "leaving_bytes"), of);
    }
  }
  notes += fmt::format("{}: borrow_priority {}", name, NumberOf(domain, "borrow_priority"));
  const uint64_t ttl_s = NumberOf(domain, "ttl_default_s");
  if (ttl_s > 0) notes += fmt::format(", blocks live {}", FormatMilliseconds(ttl_s * 1000));
  return notes + "\n";
}

// Of `tier`, such as "nvme", or of all: "borrow_priority".
bool IsKeyOf(std::string_view key, std::string_view tier) {
  const std::string_view suffix = "_bytes";
  return !key.ends_with(suffix) || key.starts_with(std::string(tier) + "_");
}

// What the domain has now, as a change: it is within all limits.
std::string ExampleOf(const json& document, const std::string& domain_name) {
  std::string example = "borrow_priority=50";
  for (const json& domain : ArrayOf(document, "domains")) {
    if (StringOf(domain, "name") != domain_name) continue;
    example = fmt::format("borrow_priority={}", NumberOf(domain, "borrow_priority"));
    for (const json& tier : ArrayOf(domain, "tiers")) {
      const uint64_t guaranteed_bytes = NumberOf(tier, "guaranteed_bytes");
      const uint64_t max_bytes = NumberOf(tier, "max_bytes");
      const std::string kind = StringOf(tier, "tier");
      if (guaranteed_bytes > max_bytes) continue;
      if (kind == "dram" && guaranteed_bytes > 0) {
        example = "dram_guaranteed_bytes=" + terrace::FormatBytes(guaranteed_bytes);
      }
      if (kind == "nvme") example = "nvme_max_bytes=" + terrace::FormatBytes(max_bytes);
    }
  }
  return example;
}

// How a quota is changed, with keys of tiers that the daemon has.
std::string RenderKeys(const json& document, const std::string& domain_name) {
  const auto is_there = [&document](std::string_view key) {
    for (const json& domain : ArrayOf(document, "domains")) {
      for (const json& tier : ArrayOf(domain, "tiers")) {
        if (IsKeyOf(key, StringOf(tier, "tier"))) return true;
      }
    }
    return false;
  };
  std::string text =
      fmt::format("To change one until the next reload or restart:\n  terrace quota {} {}\n",
                  domain_name, ExampleOf(document, domain_name));
  std::string line = "Keys:";
  for (const std::string_view key : kQuotaKeys) {
    if (!is_there(key)) continue;
    if (!line.ends_with(':')) line += ',';
    if (line.size() + key.size() + 2 > kColumnsMax) {
      text += std::exchange(line, "") + "\n";
    } else {
      line += ' ';
    }
    line += key;
  }
  return text + line + "\n";
}

std::string RenderQuotas(const json& document) {
  using enum TextTable::Align;
  TextTable table({{"DOMAIN", kLeft},
                   {"TIER", kLeft},
                   {"USED", kRight},
                   {"HELD", kRight},
                   {"GUARANTEE", kRight},
                   {"LIMIT", kRight},
                   {"BORROWS", kRight}});
  std::string notes;
  std::string example = "NAME";
  for (const json& domain : ArrayOf(document, "domains")) {
    example = StringOf(domain, "name");
    std::string name = ShownName(example);
    for (const json& tier : ArrayOf(domain, "tiers")) {
      table.AddRow({std::exchange(name, ""), StringOf(tier, "tier"), ShownBytes(tier, "used_bytes"),
                    ShownBytes(tier, "held_bytes"), OrDash(tier, "guaranteed_bytes"),
                    ShownBytes(tier, "max_bytes"), OrDash(tier, "borrowed_bytes")});
    }
    notes += NotesOn(domain);
  }
  return table.Render() + notes + RenderKeys(document, example);
}

class QuotaVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("quota", kQuotaDescription);
    verb.AddOption("DOMAIN", domain_, "This one alone");
    verb.AddOption("KEY=VALUE", changes_,
                   "Changes it, until the next reload or restart; of several all, or none:\n"
                   "borrow_priority=20 ttl_default_s=3600");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    for (const std::string& change : changes_) {
      const std::string key = change.substr(0, change.find('='));
      if (change.find('=') != change.npos && std::ranges::find(kQuotaKeys, key) != kQuotaKeys.end())
        continue;
      Fail(
          fmt::format("quota: '{}' changes no quota: name one of {}, as KEY=VALUE. Other keys are "
                      "for `terrace config set`",
                      change, fmt::join(kQuotaKeys, ", ")));
      return kExitUsage;
    }
    if (!changes_.empty() && !ChangeAll()) return kExitFailed;
    std::optional<json> document = AskConfig(address_, protocol::ConfigAction::kQuota, "");
    if (!document) return kExitFailed;
    if (!domain_.empty() && !KeepOne(*document)) return kExitFailed;
    if (is_json_) {
      PrintJson(*document);
    } else {
      PrintText(RenderQuotas(*document));
    }
    return kExitOk;
  }

 private:
  // All of them, or none: they may only fit together. False, told.
  bool ChangeAll() const {
    std::vector<std::string> lines;
    for (const std::string& change : changes_) {
      lines.push_back(fmt::format("domain.{}.{}", domain_, change));
    }
    return AskConfigSet(address_, lines).has_value();
  }

  // Leaves the domain that was named. False after telling the person that there is none.
  bool KeepOne(json& document) const {
    std::string names;
    for (const json& domain : ArrayOf(document, "domains")) {
      if (StringOf(domain, "name") == domain_) {
        document["domains"] = json::array({domain});
        return true;
      }
      names += (names.empty() ? "" : ", ") + StringOf(domain, "name");
    }
    Fail(fmt::format("the daemon has no domain '{}'; there are: {}", domain_, names));
    return false;
  }

  DaemonAddress address_;
  std::string domain_;
  std::vector<std::string> changes_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeQuotaVerb() { return std::make_unique<QuotaVerb>(); }

}  // namespace terrace::tools
