#include "tiny_llama/terrace_prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

#include "terrace/block_key.h"

namespace terrace::tiny_llama {
namespace {

static_assert(kLayersMax <= kPartsPerSpaceMax, "one layer is one part");

constexpr uint32_t kMember = 0;  // the group has one Space
constexpr uint64_t kSelfMask = uint64_t{1} << kMember;

constexpr std::array<const char*, protocol::kTierKindCount> kTierNames = {"hbm", "dram", "nvme",
                                                                          "redis"};

std::string Revision(const TinyLlama& model) {
  const std::string text = "weights=" + std::to_string(kWeightsVersion) +
                           " arithmetic=" + std::to_string(kArithmeticVersion) + " " +
                           model.shape().CanonicalText() + " kernels=" + TinyLlama::KernelName();
  const XXH128_hash_t digest = XXH3_128bits(text.data(), text.size());
  return ToHex(digest.high64, digest.low64);
}

}  // namespace

SpaceGroupSpec GroupOf(const TinyLlama& model) {
  const Shape& shape = model.shape();
  SpaceSpec spec;
  spec.model = "tiny-llama-" + std::to_string(model.seed());
  spec.revision = Revision(model);
  spec.dtype = "f32";
  spec.layers = shape.layers;
  spec.kv_heads = shape.kv_heads;
  spec.head_size = shape.head_size;
  spec.attention = AttentionKind::kGqa;
  spec.layout = "lkvhtd";
  spec.block_tokens = shape.block_tokens;
  spec.part_bytes.assign(shape.layers, shape.layer_bytes());
  // A name is refused with another spec, so models that differ only in revision need two names.
  return SpaceGroupSpec{.name = spec.model + "-" + spec.revision.substr(0, 8),
                        .members = {{.spec = spec}}};
}

std::string TerracePrefixCache::Account::RestoredTiers() const {
  std::string tiers;
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    if (restored_blocks_by_tier[tier] == 0) continue;
    if (!tiers.empty()) tiers += '+';
    tiers += kTierNames[tier];
  }
  return tiers;
}

TerracePrefixCache::TerracePrefixCache(const TinyLlama& model, const Options& options)
    : options_(options),
      group_spec_(GroupOf(model)),
      layer_bytes_(model.shape().layer_bytes()),
      layers_(model.shape().layers) {
  std::string why;
  Result<std::unique_ptr<Client>> client = Client::Create(
      {.socket_path = options.socket_path, .client_name = "terrace-tiny-llama"}, &why);
  if (!client.ok()) {
    account_.troubles.push_back("Terrace is not used: " + why);
    return;
  }
  client_ = std::move(*client);
  is_open_ = Connect();
}

bool TerracePrefixCache::Connect() {
  if (const Status status = client_->WaitConnected(options_.connect_deadline_us); !status.ok()) {
    Trouble("no connection to " + options_.socket_path, status);
    return false;
  }
  const Result<GroupRef> group =
      client_->Open(group_spec_, kSelfMask, options_.connect_deadline_us);
  if (!group.ok()) {
    Trouble("the group " + group_spec_.name + " was not opened", group.status());
    return false;
  }
  group_ = *group;
  return true;
}

uint32_t TerracePrefixCache::Restore(std::span<const uint8_t> tokens, PagedKv& kv) {
  std::vector<BlockKey> keys;
  if (!KeysOf(tokens, &keys)) return 0;
  Result<ReadLease> lease =
      client_->Acquire(group_, keys, {.deadline_us = options_.restore_deadline_us});
  if (!lease.ok()) {
    Trouble("nothing was restored", lease.status());
    return 0;
  }
  if (lease->block_count() == 0) return 0;
  if (const Status status =
          client_->WaitReady(*lease, lease->block_count(), options_.restore_deadline_us);
      !status.ok()) {
    Trouble("not every block came in time", status);
  }
  uint32_t blocks = std::min<uint32_t>(CopyOut(*lease, kv), static_cast<uint32_t>(keys.size()));
  // Slots of a lease that was revoked under the copy may have held other bytes by then.
  if (blocks > 0 && !lease->is_valid()) {
    account_.troubles.push_back("the lease was revoked while its blocks were copied: computing");
    blocks = 0;
  }
  for (const protocol::BlockSpan& span : lease->spans()) {
    if (span.first_block >= blocks) break;
    account_.restored_blocks_by_tier[static_cast<size_t>(span.tier) % kTierNames.size()] +=
        std::min(span.block_count, blocks - span.first_block);
  }
  lease->Release();
  return blocks;
}

void TerracePrefixCache::Store(std::span<const uint8_t> tokens, PagedKv& kv, uint32_t first_block,
                               uint32_t block_count) {
  std::vector<BlockKey> keys;
  if (!KeysOf(tokens, &keys)) return;
  RequestOptions options{.deadline_us = options_.store_deadline_us};
  if (first_block > 0) {
    options.parent = keys[first_block - 1];
    options.first_position = first_block;
  }
  Result<WriteLease> lease =
      client_->Reserve(group_, std::span(keys).subspan(first_block, block_count), options);
  if (!lease.ok()) {
    Trouble("nothing was stored", lease.status());
    return;
  }
  for (const protocol::ReservedKey& key : lease->keys()) {
    const StatusCode code = static_cast<StatusCode>(key.status);
    if (code == StatusCode::kExists) ++account_.existing_blocks;
    if (code == StatusCode::kBusy || code == StatusCode::kNoSpace) ++account_.refused_blocks;
  }
  if (CopyIn(*lease, kv, first_block) == 0) return;
  const Result<uint32_t> sealed =
      client_->Commit(*lease, {.deadline_us = options_.store_deadline_us});
  if (!sealed.ok()) {
    Trouble("what was written was not committed", sealed.status());
    return;
  }
  account_.stored_blocks += *sealed;
}

bool TerracePrefixCache::KeysOf(std::span<const uint8_t> tokens, std::vector<BlockKey>* keys) {
  if (!is_open_) return false;
  const Result<PrefixHasher> hasher = client_->Hasher(group_);
  if (!hasher.ok()) {
    Trouble("no keys", hasher.status());
    return false;
  }
  const std::vector<uint32_t> wide(tokens.begin(), tokens.end());
  hasher->AppendKeys(wide, keys);
  return true;
}

uint32_t TerracePrefixCache::CopyOut(const ReadLease& lease, PagedKv& kv) {
  const uint32_t ready = std::min(lease.ready_count(), kv.pages_max());
  for (uint32_t block = 0; block < ready; ++block) {
    const std::span<std::byte> page = kv.PageBytes(block);
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      const Status status =
          lease.CopyPart(block, kMember, layer, page.subspan(layer * layer_bytes_, layer_bytes_));
      if (status.ok()) continue;
      Trouble("block " + std::to_string(block) + " was not copied", status);
      return block;
    }
  }
  return ready;
}

uint32_t TerracePrefixCache::CopyIn(WriteLease& lease, PagedKv& kv, uint32_t first_block) {
  uint32_t written = 0;
  for (uint32_t i = 0; i < lease.keys().size(); ++i) {
    if (!lease.is_reserved(i)) continue;
    const std::span<const std::byte> page = kv.PageBytes(first_block + i);
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      const Status status =
          lease.WritePart(i, kMember, layer, page.subspan(layer * layer_bytes_, layer_bytes_));
      if (status.ok()) continue;
      // A block that lacks a part is never sealed; those before it are whole.
      Trouble("block " + std::to_string(first_block + i) + " was not written", status);
      return written;
    }
    ++written;
  }
  return written;
}

void TerracePrefixCache::Trouble(const std::string& what, Status status) {
  std::string sentence = what + ": " + std::string(StatusCodeName(status.code()));
  if (*status.what() != '\0') sentence += std::string(", ") + status.what();
  if (const std::string words = client_->last_error(); !words.empty()) sentence += "; " + words;
  account_.troubles.push_back(sentence);
}

}  // namespace terrace::tiny_llama
