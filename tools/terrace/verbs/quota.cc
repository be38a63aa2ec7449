// `terrace quota`: what each domain has of each tier, what it is guaranteed, its limit, and who
// borrows.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "terrace/protocol_admin.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/admin_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr char kDescription[] =
    "What each domain has of each tier, and may have\n\n"
    "HELD counts against guarantee and limit: memory in segments, drives in slab files, of a\n"
    "Redis server what this host gave it within redis.ttl_s. USED is what of that holds blocks.\n"
    "Who holds more than its guarantee BORROWS, and gives it back when another asks for its own.";

constexpr size_t kNameShownMax = 20;  // so that lines have 80 columns

std::string Shown(const json& tier, const char* name) {
  const auto found = tier.find(name);
  if (found == tier.end() || !found->is_number_unsigned()) return "-";
  return FormatBytes(found->get<uint64_t>());
}

uint64_t CountOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string TextOf(const json& object, const char* name) {
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
  return CountOf(tier, name) == 0 ? "-" : Shown(tier, name);
}

// Who waits for room, and who makes it; priorities and times to live where they are set.
std::string NotesOn(const json& domain) {
  const std::string name = TextOf(domain, "name");
  std::string notes;
  for (const json& tier : ArrayOf(domain, "tiers")) {
    const std::string of = TextOf(tier, "tier");
    if (CountOf(tier, "asked_bytes") > 0) {
      notes += fmt::format("{} waits for {} of {}.\n", name, Shown(tier, "asked_bytes"), of);
    }
    if (CountOf(tier, "leaving_bytes") > 0) {
      notes += fmt::format("{} gives back {} of {}.\n", name, Shown(tier, "leaving_bytes"), of);
    }
  }
  notes += fmt::format("{}: borrow_priority {}", name, CountOf(domain, "borrow_priority"));
  const uint64_t ttl_s = CountOf(domain, "ttl_default_s");
  if (ttl_s > 0) notes += fmt::format(", blocks live {}", FormatMilliseconds(ttl_s * 1000));
  return notes + "\n";
}

std::string Render(const json& document) {
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
    example = TextOf(domain, "name");
    std::string name = ShownName(example);
    for (const json& tier : ArrayOf(domain, "tiers")) {
      table.AddRow({std::exchange(name, ""), TextOf(tier, "tier"), Shown(tier, "used_bytes"),
                    Shown(tier, "held_bytes"), OrDash(tier, "guaranteed_bytes"),
                    Shown(tier, "max_bytes"), OrDash(tier, "borrowed_bytes")});
    }
    notes += NotesOn(domain);
  }
  return table.Render() + notes +
         fmt::format(
             "To change one until the next reload or restart:\n"
             "  terrace config set domain.{}.nvme_guaranteed_bytes=100GiB\n"
             "Keys: dram_guaranteed_bytes, nvme_guaranteed_bytes, nvme_max_bytes,\n"
             "redis_guaranteed_bytes, redis_max_bytes, borrow_priority, ttl_default_s\n",
             example);
}

class QuotaVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("quota", kDescription);
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const std::optional<json> document = AskConfig(address_, protocol::ConfigAction::kQuota, "");
    if (!document) return kExitFailed;
    if (is_json_) {
      PrintJson(*document);
    } else {
      PrintText(Render(*document));
    }
    return kExitOk;
  }

 private:
  DaemonAddress address_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeQuotaVerb() { return std::make_unique<QuotaVerb>(); }

}  // namespace terrace::tools
