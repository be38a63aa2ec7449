// `terrace explain`: how far a prompt's prefix is there, and why it ends where it ends.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/terrace/cli/admin_link.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/introspection_names.h"
#include "tools/terrace/cli/miss_text.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/trace/vllm_hash.h"
#include "tools/terrace/verbs/introspection_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;
using protocol::ExplainNear;
using protocol::ExplainReply;
using protocol::StopReason;

constexpr std::array<std::string_view, 8> kReasonNames = {
    "none",          "never_seen", "forgotten",  "expired",
    "being_written", "tier_off",   "unverified", "window"};
constexpr size_t kPromptBytesMax = 64 << 20;
const std::string kTerraceHash = "terrace";
const std::string kVllmHash = "sha256_cbor";

template <size_t bytes>
std::string TextOfField(const char (&text)[bytes]) {
  return std::string(text, std::find(text, text + bytes, '\0'));
}

// Token ids, separated by white space or commas. False with `*why`, which names the line.
bool ParseTokens(const std::string& text, std::vector<uint32_t>* tokens, std::string* why) {
  uint64_t line = 1;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    if (*at == '\n') ++line;
    if (std::strchr(" \t\r\n,[]", *at) != nullptr) {
      ++at;
      continue;
    }
    uint32_t token = 0;
    const auto [rest, error] = std::from_chars(at, end, token);
    if (error != std::errc()) {
      const std::string word(at, std::find_if(at, std::min(end, at + 24), [](char c) {
                               return std::strchr(" \t\r\n,", c) != nullptr;
                             }));
      *why =
          fmt::format("line {} has '{}' where a token id (0 to 4294967295) should be", line, word);
      return false;
    }
    tokens->push_back(token);
    at = rest;
  }
  return true;
}

// Of a file, or of a pipe, whose length nobody knows before its end.
bool ReadTokens(const std::string& path, std::vector<uint32_t>* tokens, std::string* why) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char piece[64 << 10];
  while (file && text.size() <= kPromptBytesMax) {
    file.read(piece, sizeof(piece));
    text.append(piece, static_cast<size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad() || (errno != 0 && text.empty())) {
    *why = fmt::format("cannot read prompt file {}: {}", path, std::strerror(errno));
    return false;
  }
  if (text.size() > kPromptBytesMax) {
    *why = fmt::format("prompt file {} has more than {} bytes, the limit", path, kPromptBytesMax);
    return false;
  }
  if (ParseTokens(text, tokens, why)) return true;
  *why = fmt::format("{}, {}. A prompt file holds token ids as numbers", path, *why);
  return false;
}

class ExplainVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb =
        parent.AddVerb("explain", "How far a prefix is there, and why it ends where it ends");
    verb.AddOption("KEYS", key_texts_, "Block keys from the root of the prompt (32 hex digits)");
    verb.AddOption("--prompt-file", prompt_path_, "Token ids of a prompt, in place of KEYS")
        .Type("FILE");
    verb.AddOption("--hash", hash_,
                   "Who hashes the prompt: terrace, or sha256_cbor as vLLM with that algorithm")
        .OneOf({kTerraceHash, kVllmHash});
    verb.AddOption("--hash-seed", hash_seed_, "The engine's PYTHONHASHSEED, if it had one");
    verb.AddOption("--hash-block-tokens", vllm_.block_tokens,
                   "vLLM's hash block size, where it is not the group's block size");
    verb.AddOption("--cache-salt", vllm_.extra_keys, "Of the request").OneWord();
    verb.AddOption("--group", group_, "The SpaceGroup asked about; may be left out if there is one")
        .Type("NAME");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    if (key_texts_.empty() == prompt_path_.empty()) {
      Fail("explain: give block keys, or --prompt-file. See `terrace explain --help`");
      return kExitUsage;
    }
    if (hash_ != kVllmHash && HasVllmOptions()) {
      Fail(
          fmt::format("explain: --hash-seed, --hash-block-tokens and --cache-salt are of vLLM's "
                      "keys: add --hash {}, or leave them out",
                      kVllmHash));
      return kExitUsage;
    }
    if (prompt_path_.empty() && hash_ == kVllmHash) {
      Fail("explain: --hash is of a prompt: KEYS are looked for as they are");
      return kExitUsage;
    }
    for (const std::string& text : key_texts_) {
      if (!ParseKeyArgument(text, &keys_.emplace_back())) return kExitUsage;
    }
    std::string why;
    if (!prompt_path_.empty() && !ReadTokens(prompt_path_, &tokens_, &why)) return Fail(why);
    const auto link = AdminLink::Open(address_);
    if (link == nullptr || !ChooseGroup(*link)) return kExitFailed;
    if (!prompt_path_.empty() && !HashPrompt(*link, *chosen_, &keys_)) return kExitFailed;
    const auto explained = AskExplain(*link, {.group = *chosen_, .keys = keys_});
    if (!explained) return kExitFailed;
    // The same tokens under a Space that differs in one field are other keys.
    for (const ExplainNear& near : explained->nears) {
      std::vector<BlockKey> keys;
      near_counts_.push_back(std::nullopt);
      if (tokens_.empty() || near.block_tokens == 0) continue;
      if (!AppendKeys(*link, near.group, near.block_tokens, &keys).empty()) continue;
      if (keys.empty()) continue;
      if (const auto other = AskExplain(*link, {.group = near.group, .keys = keys})) {
        near_counts_.back() = other->reply.block_count;
      }
    }
    if (is_json_) {
      PrintJson(ToJson(*explained));
    } else {
      PrintText(Render(*explained));
    }
    return kExitOk;
  }

 private:
  bool HasVllmOptions() const {
    return !hash_seed_.empty() || vllm_.block_tokens != 0 || !vllm_.extra_keys.empty();
  }

  bool ChooseGroup(AdminLink& link) {
    stats_ = FetchStats(link);
    if (!stats_) return false;
    const std::vector<StatsView> groups = stats_->Each("groups");
    if (group_.empty() && groups.size() == 1) group_ = groups[0].Text("name");
    if (group_.empty()) {
      std::string names;
      for (const StatsView& group : groups) names += " " + group.Text("name");
      if (groups.empty()) {
        return Fail("the domain has no group: no engine has opened one yet") == kExitOk;
      }
      return Fail(fmt::format("the domain has {}:{}. Name one with --group",
                              FormatCount(groups.size(), "group"), names)) == kExitOk;
    }
    chosen_ = FindGroup(*stats_, group_);
    if (!chosen_) return false;
    for (const StatsView& group : groups) {
      if (group.Text("name") == group_) {
        block_tokens_ = static_cast<uint32_t>(group.Count("block_tokens").value_or(0));
      }
    }
    return true;
  }

  bool HashPrompt(const AdminLink& link, const GroupId& group, std::vector<BlockKey>* keys) const {
    if (block_tokens_ == 0) return Fail("the daemon does not tell the block size") == kExitOk;
    const std::string why = AppendKeys(link, group, block_tokens_, keys);
    if (!why.empty()) return Fail(why) == kExitOk;
    if (!keys->empty()) return true;
    return Fail(fmt::format("prompt file {} has {} tokens; a block of group {} has {}: there is no "
                            "full block to look for",
                            prompt_path_, tokens_.size(), group_, block_tokens_)) == kExitOk;
  }

  // The prompt's keys under that group; a sentence if there can be none.
  std::string AppendKeys(const AdminLink& link, const GroupId& group, uint32_t block_tokens,
                         std::vector<BlockKey>* keys) const {
    const PrefixHasher hasher(
        {.key_hash = link.key_hash(), .group = group, .block_tokens = block_tokens}, link.secret());
    if (hash_ == kTerraceHash) {
      hasher.AppendKeys(tokens_, keys);
      return "";
    }
    VllmHashOptions options = vllm_;
    if (!hash_seed_.empty()) options.seed = hash_seed_;
    if (options.block_tokens == 0) options.block_tokens = block_tokens;
    if (block_tokens % options.block_tokens != 0) {
      return fmt::format(
          "--hash-block-tokens is {}; blocks of the group have {} tokens: name a "
          "number that divides it",
          options.block_tokens, block_tokens);
    }
    // A block's last hash covers all before it.
    const size_t hashes_per_block = block_tokens / options.block_tokens;
    const std::vector<VllmHash> hashes = VllmBlockHashes(tokens_, options);
    for (size_t i = hashes_per_block; i <= hashes.size(); i += hashes_per_block) {
      keys->push_back(hasher.FromDigest(hashes[i - 1]).value());
    }
    return "";
  }

  static std::string ReasonText(const ExplainReply& reply) {
    const std::string age = FormatMilliseconds(reply.age_ms);
    switch (reply.reason) {
      case StopReason::kNone:
        return "";
      case StopReason::kNeverSeen:
        return "never stored, or longer ago than the daemon remembers";
      case StopReason::kForgotten:
        return fmt::format("{}, {} ago", CauseText(reply.cause), age);
      case StopReason::kExpired:
        return fmt::format("past its time to live since {}", age);
      case StopReason::kBeingWritten:
        return fmt::format("being written by session {} since {}",
                           ToHex(0, reply.writer_session).substr(16), age);
      case StopReason::kTierOff:
        return "only in a tier that is switched off after errors";
      case StopReason::kUnverified:
        return "stored by another user, and its bytes are not verified yet";
      case StopReason::kWindow:
        return "bytes of a windowed member are missing";
    }
    return "for a reason that this terrace does not know";
  }

  std::string Render(const Explained& explained) const {
    const ExplainReply& reply = explained.reply;
    std::string text =
        fmt::format("{} of {} {} usable", FormatCount(reply.block_count),
                    FormatCount(reply.key_count, "block"), reply.block_count == 1 ? "is" : "are");
    if (block_tokens_ > 0) {
      text += fmt::format(", {} tokens", FormatCount(uint64_t{reply.block_count} * block_tokens_));
    }
    text += fmt::format(": {} in DRAM", FormatCount(reply.dram_count));
    if (reply.below_count > 0) {
      const auto kind = std::min<size_t>(static_cast<size_t>(reply.below_kind), 3);
      text += fmt::format(", {} in {} and there in {}", FormatCount(reply.below_count),
                          kTierKindNames[kind], FormatMilliseconds(reply.eta_us / 1000 + 1));
    }
    text += "\n";
    if (const std::string why = WhyUnserved(*stats_); !why.empty()) text += why + "\n";
    if (reply.reason != StopReason::kNone && reply.stop_index < keys_.size()) {
      text += fmt::format("block {} ({}): {}\n", reply.stop_index, ToHex(keys_[reply.stop_index]),
                          ReasonText(reply));
    }
    for (size_t i = 0; i < explained.nears.size(); ++i) {
      const ExplainNear& near = explained.nears[i];
      text += fmt::format("group {} differs only in {}: '{}', not '{}'. It holds {}",
                          TextOfField(near.name), TextOfField(near.field), TextOfField(near.other),
                          TextOfField(near.asked), FormatCount(near.block_count, "block"));
      if (near_counts_[i])
        text += fmt::format(", {} of this prompt", FormatCount(*near_counts_[i]));
      text += "\n";
    }
    return text;
  }

  json ToJson(const Explained& explained) const {
    const ExplainReply& reply = explained.reply;
    const auto reason = std::min<size_t>(static_cast<size_t>(reply.reason), 7);
    const bool is_stopped = reply.reason != StopReason::kNone;
    const bool is_forgotten = reply.reason == StopReason::kForgotten;
    const auto cause = std::min<size_t>(static_cast<size_t>(reply.cause), 8);
    json document = {
        {"group", group_},
        {"serving", stats_->Text("domain.serving")},
        {"key_count", reply.key_count},
        {"block_count", reply.block_count},
        {"dram_count", reply.dram_count},
        {"below_count", reply.below_count},
        {"eta_us", reply.eta_us},
        {"reason", kReasonNames[reason]},
        {"cause", is_forgotten ? json(kMissCauseNames[cause]) : json()},
        {"stop_index", is_stopped ? json(reply.stop_index) : json()},
        {"age_ms", reply.age_ms},
        {"writer_session",
         reply.writer_session == 0 ? json() : json(ToHex(0, reply.writer_session).substr(16))},
        {"near", json::array()}};
    for (size_t i = 0; i < explained.nears.size(); ++i) {
      const ExplainNear& near = explained.nears[i];
      document["near"].push_back(
          {{"group", TextOfField(near.name)},
           {"field", TextOfField(near.field)},
           {"asked", TextOfField(near.asked)},
           {"other", TextOfField(near.other)},
           {"block_count", near.block_count},
           {"prompt_block_count", near_counts_[i] ? json(*near_counts_[i]) : json()}});
    }
    return document;
  }

  DaemonAddress address_;
  std::vector<std::string> key_texts_;
  std::string prompt_path_;
  std::string hash_ = kTerraceHash;
  std::string hash_seed_;  // empty: vLLM's own
  VllmHashOptions vllm_;
  std::string group_;
  bool is_json_ = false;

  std::optional<StatsView> stats_;
  std::optional<GroupId> chosen_;
  uint32_t block_tokens_ = 0;
  std::vector<uint32_t> tokens_;
  std::vector<BlockKey> keys_;
  std::vector<std::optional<uint32_t>> near_counts_;
};

}  // namespace

std::unique_ptr<Verb> MakeExplainVerb() { return std::make_unique<ExplainVerb>(); }

}  // namespace terrace::tools
