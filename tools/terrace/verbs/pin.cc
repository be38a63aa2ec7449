// `terrace pin`, `unpin` and `pins`: blocks that are kept under a name.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/content/age_text.h"
#include "tools/terrace/content/operator_requests.h"
#include "tools/terrace/verbs/content_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;
using protocol::NamedPinEntry;
using protocol::PinAction;

constexpr char kPinDescription[] =
    "Keep blocks under a name\n\n"
    "They are not evicted from the tiers they lie in, and `terrace evict` skips them, until "
    "`terrace\n"
    "unpin NAME`, the end of --ttl, or the daemon's: pins live in its memory, and a restart knows\n"
    "none. They outlive this command and all engines. A reset and a time to live of the blocks\n"
    "themselves are stronger. The same NAME again adds blocks; what it says of --cap and --ttl "
    "then\n"
    "holds for all of them.";

json JsonOfPin(const NamedPinEntry& entry) {
  json document = {{"name", TextOf(entry.name)},
                   {"block_count", entry.block_count},
                   {"byte_count", entry.byte_count},
                   {"cap_bytes", entry.cap_bytes},
                   {"age_ms", entry.age_ms},
                   {"expires_in_s", nullptr},
                   {"uid", entry.uid}};
  if (entry.expires_in_s != 0) document["expires_in_s"] = entry.expires_in_s;
  return document;
}

std::string Kept(const NamedPinEntry& entry) {
  return fmt::format("{}, {} of {}", FormatCount(entry.block_count, "block"),
                     FormatBytes(entry.byte_count), FormatBytes(entry.cap_bytes));
}

std::string EndOf(const NamedPinEntry& entry) {
  if (entry.expires_in_s == 0) return "until it is unpinned";
  return "for " + FormatMilliseconds(uint64_t{entry.expires_in_s} * 1000);
}

ExitCode Usage(std::string_view verb, std::string_view message) {
  Fail(fmt::format("{}: {}. See `terrace {} --help`", verb, message, verb));
  return kExitUsage;
}

bool CopyName(const std::string& name, protocol::NamedPinRequest* request) {
  if (name.size() >= sizeof(request->name)) return false;
  name.copy(request->name, sizeof(request->name) - 1);
  return true;
}

std::string WhyLongName(const std::string& name) {
  return fmt::format("the name '{}' has {} bytes, the limit is {}: choose a shorter one", name,
                     name.size(), protocol::kPinNameBytes - 1);
}

class PinVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("pin", kPinDescription);
    verb.AddOption("NAME", name_, "1 to 47 letters, digits, '.', '_' and '-'").Required();
    verb.AddOption("KEY", key_texts_, "Blocks to keep (32 hex digits each)");
    verb.AddOption("--prefix", prefix_texts_, "This block and all before it in its prompt")
        .Type("KEY")
        .OneWord();
    verb.AddOption("--cap", cap_text_, "Keep at most so much under this name, such as 4GiB")
        .Type("BYTES")
        .ShowDefault();
    verb.AddOption("--ttl", ttl_text_, "End after this time, such as 2h (default: never)")
        .Type("TIME");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    protocol::NamedPinRequest request{.action = PinAction::kSet};
    if (!CopyName(name_, &request)) return Usage("pin", WhyLongName(name_));
    if (key_texts_.empty() && prefix_texts_.empty()) {
      return Usage("pin", "name blocks by KEY or --prefix KEY");
    }
    if (!ParseBytes(cap_text_, &request.cap_bytes) || request.cap_bytes == 0) {
      return Usage("pin", fmt::format("--cap is '{}'; {}", cap_text_, WantedBytes("4GiB")));
    }
    if (!ttl_text_.empty() && !ReadTtl(&request.ttl_s)) {
      return Usage("pin", WhyNoAge("--ttl", ttl_text_));
    }
    std::vector<BlockKey> keys;
    std::vector<BlockKey> prefixes;
    if (!ReadKeys(prefix_texts_, &prefixes) || !ReadKeys(key_texts_, &keys)) return kExitUsage;
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    std::vector<BlockKey> all;
    if (!prefixes.empty() && !Expand(*link, prefixes, &all)) return kExitFailed;
    all.insert(all.end(), keys.begin(), keys.end());
    return Pin(*link, request, all);
  }

 private:
  bool ReadTtl(uint32_t* ttl_s) const {
    uint64_t ttl_ms = 0;
    if (!ParseAge(ttl_text_, &ttl_ms) || ttl_ms < 1000) return false;
    *ttl_s = static_cast<uint32_t>(ttl_ms / 1000);
    return true;
  }

  static bool ReadKeys(const std::vector<std::string>& texts, std::vector<BlockKey>* keys) {
    for (const std::string& text : texts) {
      if (!ParseKeyArgument(text, &keys->emplace_back())) return false;
    }
    return true;
  }

  // From the root of each prompt down: a cap cuts the tail.
  static bool Expand(AdminLink& link, const std::vector<BlockKey>& prefixes,
                     std::vector<BlockKey>* keys) {
    std::unordered_map<BlockKey, BlockKey> parents;
    const bool is_listed = ListBlocks(link, {}, [&](std::span<const protocol::ListEntry> entries) {
      for (const protocol::ListEntry& entry : entries) parents[entry.key] = entry.parent;
      return parents.size() < kListedBlocksMax;
    });
    if (!is_listed) return false;
    for (const BlockKey& prefix : prefixes) {
      const size_t first = keys->size();
      if (!parents.contains(prefix)) keys->push_back(prefix);  // the daemon counts it as missing
      for (auto at = parents.find(prefix); at != parents.end(); at = parents.find(at->second)) {
        keys->push_back(at->first);
      }
      std::reverse(keys->begin() + static_cast<ptrdiff_t>(first), keys->end());
    }
    return true;
  }

  ExitCode Pin(AdminLink& link, const protocol::NamedPinRequest& request,
               std::span<const BlockKey> keys) {
    protocol::NamedPinReply total;
    NamedPinEntry pin;
    do {
      const size_t count = std::min<size_t>(keys.size(), protocol::kKeysPerRequestMax);
      const auto answer = AskNamedPin(link, request, keys.first(count));
      if (!answer || answer->entries.empty()) return kExitFailed;
      pin = answer->entries.front();
      total.missing_count += answer->reply.missing_count;
      total.left_out_count += answer->reply.left_out_count;
      keys = keys.subspan(count);
    } while (!keys.empty());
    if (pin.block_count == 0) return KeepNothing(link, total);
    Report(pin, total);
    // Less than was asked for: whoever runs this as part of a script hears of it.
    return total.missing_count + total.left_out_count == 0 ? kExitOk : kExitFailed;
  }

  // A name that keeps nothing would stay in `terrace pins`, and take one of the places there are.
  ExitCode KeepNothing(AdminLink& link, const protocol::NamedPinReply& total) const {
    protocol::NamedPinRequest request{.action = PinAction::kClear};
    CopyName(name_, &request);
    const auto answer = AskNamedPin(link, request, {});
    if (!answer || answer->entries.empty()) return kExitFailed;
    Report(answer->entries.front(), total);
    return kExitFailed;
  }

  void Report(const NamedPinEntry& pin, const protocol::NamedPinReply& total) const {
    if (is_json_) {
      json document = JsonOfPin(pin);
      document["missing_count"] = total.missing_count;
      document["left_out_count"] = total.left_out_count;
      return PrintJson(document);
    }
    PrintText(pin.block_count == 0
                  ? fmt::format("there is no pin {}: it would keep nothing\n", name_)
                  : fmt::format("pin {} keeps {}, {}\n", name_, Kept(pin), EndOf(pin)));
    if (total.missing_count > 0) {
      Fail(fmt::format("{} {} no block here: `terrace show KEY` says why",
                       FormatCount(total.missing_count, "key"),
                       total.missing_count == 1 ? "has" : "have"));
    }
    if (total.left_out_count > 0) {
      Fail(fmt::format("{} {} beyond the cap of {} and not kept: raise --cap",
                       FormatCount(total.left_out_count, "block"),
                       total.left_out_count == 1 ? "is" : "are", FormatBytes(pin.cap_bytes)));
    }
  }

  DaemonAddress address_;
  std::string name_;
  std::vector<std::string> key_texts_;
  std::vector<std::string> prefix_texts_;
  std::string cap_text_ = "1GiB";
  std::string ttl_text_;
  bool is_json_ = false;
};

class UnpinVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("unpin", "End a pin: its blocks are as any others");
    verb.AddOption("NAME", name_, "The pin's name").Required();
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    protocol::NamedPinRequest request{.action = PinAction::kClear};
    if (!CopyName(name_, &request)) return Usage("unpin", WhyLongName(name_));
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    const auto answer = AskNamedPin(*link, request, {});
    if (!answer || answer->entries.empty()) return kExitFailed;
    const NamedPinEntry& was = answer->entries.front();
    is_json_ ? PrintJson(JsonOfPin(was))
             : PrintText(fmt::format("pin {} has ended; it kept {}\n", name_, Kept(was)));
    return kExitOk;
  }

 private:
  DaemonAddress address_;
  std::string name_;
  bool is_json_ = false;
};

class PinsVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("pins", "List the pins that have a name");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const auto link = AdminLink::Open(address_);
    if (link == nullptr) return kExitFailed;
    const auto answer = AskNamedPin(*link, {}, {});
    if (!answer) return kExitFailed;
    if (is_json_) {
      json pins = json::array();
      for (const NamedPinEntry& entry : answer->entries) pins.push_back(JsonOfPin(entry));
      PrintJson({{"pins", pins}});
      return kExitOk;
    }
    if (answer->entries.empty()) {
      PrintText("nothing is pinned by name\n");
    } else {
      PrintTable(*answer);
    }
    // What engines pin has no name, and may fill memory all the same.
    const auto stats = FetchStats(*link);
    const uint64_t bytes = stats ? stats->Count("engine_pinned_bytes").value_or(0) : 0;
    if (bytes > 0) {
      PrintText(
          fmt::format("engines have pinned {}, {}, without a name: `terrace ls` shows "
                      "which; their programs unpin them, or a restart of the daemon\n",
                      FormatCount(stats->Count("engine_pinned_blocks").value_or(0), "block"),
                      FormatBytes(bytes)));
    }
    return kExitOk;
  }

 private:
  static void PrintTable(const PinAnswer& answer) {
    using enum TextTable::Align;
    TextTable table({{"NAME", kLeft},
                     {"BLOCKS", kRight},
                     {"BYTES", kRight},
                     {"CAP", kRight},
                     {"AGE", kRight},
                     {"EXPIRES IN", kRight},
                     {"UID", kRight}});
    for (const NamedPinEntry& entry : answer.entries) {
      table.AddRow(
          {TextOf(entry.name), FormatCount(entry.block_count), FormatBytes(entry.byte_count),
           FormatBytes(entry.cap_bytes), FormatMilliseconds(entry.age_ms),
           entry.expires_in_s == 0 ? "-" : FormatMilliseconds(uint64_t{entry.expires_in_s} * 1000),
           std::to_string(entry.uid)});
    }
    PrintText(table.Render());
  }

  DaemonAddress address_;
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakePinVerb() { return std::make_unique<PinVerb>(); }
std::unique_ptr<Verb> MakeUnpinVerb() { return std::make_unique<UnpinVerb>(); }
std::unique_ptr<Verb> MakePinsVerb() { return std::make_unique<PinsVerb>(); }

}  // namespace terrace::tools
