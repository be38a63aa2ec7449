// Texts that a person, a file or a daemon gives to the `terrace` command and to the daemon's
// smaller parsers: lists to warm, configurations of models, JSON of Stats, listings, Spaces as a
// daemon tells them, ages, addresses, names of devices, lists of NUMA nodes. Each is refused in a
// sentence or read, and what is read is what was written.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#include "cuda/host/device_name.h"
#include "daemon/config/listen_address.h"
#include "fuzz/fuzz.h"
#include "terrace/protocol_operator.h"
#include "terrace/units.h"
#include "tiers/arena/numa_nodes.h"
#include "tools/terrace/cli/block_tree.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/space_text.h"
#include "tools/terrace/cli/stats_view.h"
#include "tools/terrace/content/age_text.h"
#include "tools/terrace/content/warm_list.h"
#include "tools/terrace/plan/capacity_plan.h"
#include "tools/terrace/plan/model_shape.h"

namespace terrace::fuzz::texts {

constexpr size_t kTextBytesMax = 16 * kKiB;
constexpr uint64_t kHeapBytesMax = 64 * kKiB;
constexpr uint64_t kHeapFactor = 512;  // a JSON value is a few nodes, and they are shown once more

void TryWarmList(Choices& choices) {
  const std::string text(TextOf(choices.Rest()));
  const auto line_count = static_cast<uint64_t>(1 + std::ranges::count(text, '\n'));
  std::istringstream in(text);
  tools::WarmList list(in);
  uint64_t line = 0;
  while (const std::optional<tools::WarmItem> item = list.Next()) {
    Require(item->line > line && item->line <= line_count, "an item of no line");
    Require(item->keys.empty() || item->tokens.empty(), "keys and tokens");
    line = item->line;
  }
  Require(list.why().empty() || list.why().starts_with("line "), "refused, and nobody says where");
}

// [ranks; text of a model's configuration]
void TryModel(Choices& choices) {
  const uint32_t rank_count = 1 + choices.Byte();
  const uint64_t token_count = choices.Number<uint32_t>();
  std::string why;
  const nlohmann::json config = tools::ParseJson(TextOf(choices.Rest()), &why);
  if (config.is_discarded()) return Require(!why.empty(), "refused, and nobody says why");
  tools::ModelShape shape;
  const Error error = tools::ReadModelShape(config, {.rank_count = rank_count}, &shape);
  if (!error.ok()) return Require(!error.sentence().empty(), "refused, and nobody says why");
  Require(!shape.kinds.empty(), "a model without layers");
  for (const tools::KvKind& kind : shape.kinds) {
    Require(kind.layer_count > 0 && (kind.token_bytes > 0 || kind.state_bytes > 0),
            "layers that keep nothing");
  }
  if (shape.MayHold(token_count)) {
    Require(shape.session_bytes(token_count) <= tools::kSessionBytesMax, "more than it may hold");
  }
}

void TryStats(Choices& choices) {
  std::string why;
  const std::string_view text = TextOf(choices.Rest());
  HeapMeter meter;
  const auto stats = tools::StatsView::Parse(text, &why);
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, text.size());
  if (!stats.ok()) return Require(!why.empty(), "refused, and nobody says why");
  for (const std::string_view name : {"a", "b.c", "groups", "domain.name", "..", ""}) {
    (void)stats->Count(name);
    (void)stats->Text(name);
    (void)stats->Counts(name);
    (void)stats->Texts(name);
    for (const tools::StatsView& each : stats->Each(name)) (void)each.Text("id");
  }
  (void)tools::GroupNamesOf(*stats);
}

// [entries of a listing, each from few keys; how deep it is shown]
void TryTree(Choices& choices) {
  std::vector<protocol::ListEntry> entries;
  const uint32_t depth_max = choices.Below(8);
  while (!choices.is_empty() && entries.size() < 64) {
    protocol::ListEntry& entry = entries.emplace_back();
    entry.key = {choices.Below(16), 1};
    entry.parent = {choices.Below(16), 1};
    entry.group = {choices.Below(2), 1};
    entry.byte_count = choices.Number<uint64_t>();
    entry.tier_mask = entry.flags = entry.priority = choices.Byte();
  }
  const tools::BlockTree tree(entries);
  size_t shown_count = 0;
  for (const tools::BlockRun& run : tree.runs()) {
    Require(!run.blocks.empty(), "a run of no blocks");
    shown_count += run.blocks.size();
  }
  Require(shown_count <= entries.size(), "a block is shown twice");
  (void)tree.Render(depth_max, {});
  (void)tree.ToJson(depth_max, {}).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void TryMembers(Choices& choices) {
  const std::span<const std::byte> body = choices.Rest();
  const auto members = tools::ReadSpaceMembers(body);
  if (!members) return;
  Bytes again;
  for (const tools::SpaceMember& member : *members) {
    protocol::OpenMember head{.text_bytes = static_cast<uint32_t>(member.text.size()),
                              .is_remote = member.is_remote};
    const auto head_bytes = std::as_bytes(std::span(&head, 1));
    again.insert(again.end(), head_bytes.begin(), head_bytes.end());
    const Bytes text = BytesOfText(member.text);
    again.insert(again.end(), text.begin(), text.end());
  }
  Require(again.size() == body.size(), "members of other bytes than there are");
  (void)tools::DescribeSpaces(*members);
  (void)tools::ToJson(*members).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void JudgeAddress(std::string_view text) {
  ListenAddress address;
  if (!ParseListenAddress(text, &address)) return;
  const std::string again = (address.is_v6 ? "[" + address.host + "]" : address.host) + ":" +
                            std::to_string(address.port);
  ListenAddress read;
  Require(address.port > 0 && ParseListenAddress(again, &read) && read.host == address.host &&
              read.port == address.port && read.is_loopback == address.is_loopback,
          "an address does not come back");
}

void TryWords(Choices& choices) {
  const std::string_view text = TextOf(choices.Rest());
  uint64_t age_ms = 0;
  Require(!tools::ParseAge(text, &age_ms) || age_ms <= protocol::kEvictWhereIdleMsMax,
          "older than anything");
  JudgeAddress(text);
  if (const auto choice = ParseDeviceChoice(text); choice.ok() && choice->uuid) {
    const std::string named = "cuda:" + FormatDeviceUuid(*choice->uuid);
    Require(ParseDeviceChoice(named).value().uuid == choice->uuid, "a device does not come back");
  }
  (void)ParseNodeList(text);
  tools::PlannedTier tier;
  (void)tools::ParseTier(text, &tier);
  tools::PrefillPoint point;
  if (tools::ParsePrefill(text, &point).ok()) {
    Require(point.token_count > 0 && point.seconds > 0, "a prefill of nothing");
  }
}

constexpr void (*kTries[])(Choices&) = {TryWarmList, TryModel,   TryStats,
                                        TryTree,     TryMembers, TryWords};

constexpr std::string_view kModel =
    R"({"model_type":"llama","num_hidden_layers":32,"num_attention_heads":32,"hidden_size":4096,
"num_key_value_heads":8,"torch_dtype":"bfloat16","max_position_embeddings":8192})";
constexpr std::string_view kSlidingModel =
    R"({"text_config":{"model_type":"gemma3_text","num_hidden_layers":6,"num_attention_heads":4,
"head_dim":256,"sliding_window":512,"sliding_window_pattern":6,"layer_types":["full_attention",
"sliding_attention","linear_attention","chunked_attention","full_attention","full_attention"]}})";
constexpr std::string_view kLatentModel =
    R"({"num_hidden_layers":61,"kv_lora_rank":512,"qk_rope_head_dim":64,"index_head_dim":128,
"dtype":"fp8"})";
constexpr std::string_view kMixedModel =
    R"({"num_hidden_layers":8,"num_attention_heads":16,"hidden_size":2048,"linear_num_key_heads":16,
"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,
"linear_conv_kernel_dim":4,"full_attention_interval":4,"no_rope_layers":[1,0]})";
// Of Llama 4, Qwen 2, Gemma 2 and Mamba; a layer's kind that nobody knows; wrong numbers.
constexpr std::string_view kOtherModels[] = {
    R"({"num_hidden_layers":4,"num_attention_heads":4,"hidden_size":64,"attention_chunk_size":8192,
"no_rope_layers":[1,1,1,0]})",
    R"({"num_hidden_layers":4,"num_attention_heads":4,"hidden_size":64,"attention_chunk_size":8192,
"no_rope_layer_interval":2})",
    R"({"num_hidden_layers":4,"num_attention_heads":4,"hidden_size":64,"attention_chunk_size":8192,
"no_rope_layers":[]})",
    R"({"model_type":"qwen2","num_hidden_layers":4,"num_attention_heads":4,"hidden_size":64,
"sliding_window":128,"use_sliding_window":true,"max_window_layers":2})",
    R"({"model_type":"gemma2","num_hidden_layers":4,"num_attention_heads":4,"hidden_size":64,
"sliding_window":128})",
    R"({"model_type":"gemma3","num_hidden_layers":7,"num_attention_heads":4,"hidden_size":64,
"sliding_window":128})",
    R"({"num_hidden_layers":4,"num_attention_heads":4,"hidden_size":64,"mamba_d_state":16})",
    R"({"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64,
"layer_types":["full",[1]]})",
    R"({"num_hidden_layers":{"a":1}})",
    R"({"num_hidden_layers":[4]})",
    R"({"num_hidden_layers":"0123456789012345678901234567890123456789012345678901234567890123"})",
    R"({"num_hidden_layers":-1})",
    R"({"num_hidden_layers":1e999})",
};
constexpr std::string_view kStats =
    R"({"a":7,"b":{"c":1.5},"groups":[{"id":"00000000000000010000000000000002","name":"g"}],
"domain":{"name":"d","a":[1,-2,"x"]}})";

std::vector<Seed> Seeds() {
  const auto seed = [](const std::string& name, uint8_t kind, std::string_view text) {
    return Seed{name, ChoiceWriter().Byte(kind).Append(text).Take()};
  };
  const auto model = [](const std::string& name, std::string_view text) {
    return Seed{name, ChoiceWriter().Byte(1).Byte(1).Put<uint32_t>(4'096).Append(text).Take()};
  };
  std::vector<Seed> seeds;
  for (const std::string_view text : kOtherModels) {
    seeds.push_back(model("model_" + std::to_string(seeds.size()), text));
  }
  ChoiceWriter tree, members;
  tree.Byte(3).Byte(3);
  for (uint8_t i = 1; i < 9; ++i) {
    tree.Byte(i).Byte(i / 2).Byte(0).Put<uint64_t>(4'096).Byte(i);
  }
  members.Byte(4);
  for (const std::string_view text :
       {"model=a\ntp_rank=0\n", "model=a\ntp_rank=1\nx", "model=b\ntp_rank=2\n"}) {
    members.Put(protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())});
    members.Append(text);
  }
  const std::vector<Seed> others = {
      seed("warm_wrong_id", 0, "{\"space\": \"g\", \"tokens\": [4294967296]}\n"),
      seed("warm", 0,
           "# x\n0123456789abcdef0123456789abcdef\r\n{\"group\": \"g\", \"tokens\": [1, 2]}\n"
           "{\"space\": \"g\", \"keys\": [\"0123456789abcdef0123456789abcdef\"]}\n"),
      model("llama", kModel),
      model("sliding", kSlidingModel),
      model("latent", kLatentModel),
      model("mixed", kMixedModel),
      seed("stats", 2, kStats),
      {"tree", tree.Take()},
      {"members", members.Take()},
      seed("age", 5, "1d12h"),
      seed("address", 5, "[::1]:9090"),
      seed("device", 5, "cuda:GPU-8f3c2d1e-0000-1111-2222-333344445555"),
      seed("nodes", 5, "0-3,7"),
      seed("tier", 5, "nvme=4TiB@6GiB/s"),
      seed("address_v4", 5, "127.0.0.1:9090"),
      seed("prefill", 5, "8192=1.3")};
  seeds.insert(seeds.end(), others.begin(), others.end());
  return seeds;
}

bool Run(std::span<const std::byte> input) {
  if (input.size() > kTextBytesMax) return false;
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 texts for the command
const Registration registration({"texts", Run, Seeds});

}  // namespace terrace::fuzz::texts
