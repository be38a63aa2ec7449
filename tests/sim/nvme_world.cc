#include "sim/nvme_world.h"

#include <algorithm>
#include <cstring>

namespace terrace::sim {
namespace {

constexpr size_t kComplaintsMax = 8;
constexpr uint32_t kMember = 2;
constexpr uint64_t kTickUs = 500'000;  // as the daemon's store

GroupId TheGroup() { return {0xA, 0xB}; }
SpaceId TheSpace() { return {0xC, 0xD}; }
BlockKey KeyOf(uint64_t key) { return {key, ~key}; }

}  // namespace

NvmeWorld::NvmeWorld(const Options& options)
    : options_(options),
      random_(options.seed),
      media_(options.disk_count),
      capacity_slabs_(options.slab_count) {
  Start();
}

NvmeWorld::~NvmeWorld() { rig_.reset(); }

void NvmeWorld::Expect(bool holds, const std::string& what) {
  if (!holds && complaints_.size() < kComplaintsMax) complaints_.push_back(what);
}

void NvmeWorld::Fill(const Block& block, std::span<std::byte> bytes) {
  uint64_t word = block.key * 0x9E3779B97F4A7C15 + block.commit_id * 0xD6E8FEB86659FD93;
  for (size_t at = 0; at < bytes.size(); at += sizeof(word)) {
    word ^= word >> 29;
    word *= 0xBF58476D1CE4E5B9;
    word += at;
    std::memcpy(&bytes[at], &word, sizeof(word));
  }
}

std::vector<Checksum> NvmeWorld::ChecksumsOf(const Block& block,
                                             std::span<const std::byte> bytes) const {
  std::vector<Checksum> checksums;
  const size_t part_bytes = bytes.size() / block.part_count;
  for (uint32_t part = 0; part < block.part_count; ++part) {
    const uint64_t seed = ChecksumSeed(secret_, {.space = TheSpace(),
                                                 .key = KeyOf(block.key),
                                                 .commit_id = block.commit_id,
                                                 .part_index = part});
    checksums.push_back(ChecksumPart(bytes.subspan(part * part_bytes, part_bytes), seed));
  }
  return checksums;
}

BlockRecord NvmeWorld::RecordOf(const Block& block) const {
  BlockRecord record;
  record.group = TheGroup();
  record.space = TheSpace();
  record.key = KeyOf(block.key);
  record.commit_id = block.commit_id;
  record.member = kMember;
  record.priority = block.priority;
  record.owner = static_cast<uint32_t>(block.key);
  record.part_checksums = block.checksums;
  return record;
}

// ---- a capacity that changes ----

uint64_t NvmeWorld::file_bytes() const {
  uint64_t sum_bytes = 0;
  for (const SimMedium& medium : media_) sum_bytes += medium.used_bytes();
  return sum_bytes;
}

void NvmeWorld::ShareOut() {
  const TierShares::Share all{.guaranteed_bytes = capacity_bytes(), .max_bytes = capacity_bytes()};
  if (shares_ == nullptr) {
    shares_ = std::make_unique<TierShares>(TierShares::Lending::kAll, capacity_bytes(),
                                           std::vector<TierShares::Share>{all});
  } else {
    shares_->Set(capacity_bytes(), {all});
  }
}

void NvmeWorld::Resize(uint64_t slab_count) {
  capacity_slabs_ = slab_count;
  ShareOut();
  above_bytes_max_ = shares_->stats(0, 0).above_bytes;
  counts_.shrinks += above_bytes_max_ > 0;
}

// As a store does, some at a time.
void NvmeWorld::GiveBack() {
  std::vector<uint32_t> owners;
  (void)tier().AppendOwnersToGive(&owners);
  for (const uint32_t owner : owners) {
    if (live_.contains(owner)) Drop(owner);
  }
}

// ---- what moves when it goes down ----

void NvmeWorld::MoveSome() {
  std::vector<uint32_t> owners;
  while (tier().AppendOwnersToMove(&owners)) {
  }
  for (const uint32_t owner : owners) {
    const auto found = live_.find(owner);
    if (found == live_.end()) continue;
    Block& block = found->second;
    const bool may_move = block.is_persisted && block.move_to.length_bytes == 0;
    if (may_move && tier().IsToMove(block.extent)) BeginMove(block);
  }
}

void NvmeWorld::BeginMove(Block& block) {
  const uint64_t length_bytes = block.extent.length_bytes;
  const Result<Extent> extent = tier().Allocate(0, length_bytes, block.part_count);
  if (extent.code() == StatusCode::kNoSpace) return Drop(block.key);
  if (!extent.ok()) return;
  Buffer buffer{.length_bytes = length_bytes};
  buffer.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(4096, length_bytes)));
  const TransferId id = next_transfer_++;
  if (!tier().Read(id, block.extent, {buffer.bytes.get(), length_bytes}).ok()) {
    return tier().Free(*extent);
  }
  block.move_to = *extent;
  ++block.reads_in_flight;
  transfers_[id] = {
      .key = block.key, .is_read = true, .is_move = true, .buffer = std::move(buffer)};
}

void NvmeWorld::OnMoveDone(const Transfer& transfer, Status status) {
  Block& block = live_.at(transfer.key);
  --block.reads_in_flight;
  const std::span<std::byte> bytes(transfer.buffer.bytes.get(), transfer.buffer.length_bytes);
  if (!status.ok() || (transfer.is_read && ChecksumsOf(block, bytes) != block.checksums)) {
    return EndMove(block, false);
  }
  if (!transfer.is_read) {
    block.is_copied = true;
    return;
  }
  BlockRecord record = RecordOf(block);
  record.is_moved = true;
  block.moved_priority = block.priority;
  const TransferId id = next_transfer_++;
  if (!tier().Write(id, block.move_to, record, bytes).ok()) return EndMove(block, false);
  ++block.reads_in_flight;
  Buffer buffer{.length_bytes = transfer.buffer.length_bytes};
  buffer.bytes.reset(const_cast<Transfer&>(transfer).buffer.bytes.release());
  transfers_[id] = {.key = block.key, .is_move = true, .buffer = std::move(buffer)};
}

void NvmeWorld::EndMoves() {
  for (auto& [key, block] : live_) {
    if (!block.is_copied || block.reads_in_flight > 0) continue;
    const MovedState state = tier().StateOfMoved(block.move_to);
    if (state != MovedState::kComing) EndMove(block, state == MovedState::kDurable);
  }
}

void NvmeWorld::EndMove(Block& block, bool is_good) {
  const Extent to = std::exchange(block.move_to, {});
  block.is_copied = false;
  tier().Free(is_good ? std::exchange(block.extent, to) : to);
  if (!is_good) return;
  ++counts_.moved;
  if (block.priority == block.moved_priority) return;
  block.is_amending = true;
  tier().Amend(block.extent, RecordOf(block));
}

void NvmeWorld::StepResize() {
  if (random_() % 100 == 0) Resize(1 + random_() % options_.slab_count);
  if (random_() % 10 == 0) GiveBack();
  if (random_() % 10 == 0) MoveSome();
  if (random_() % 10 == 0) EndMoves();
  if (random_() % 200 == 0) tier().GiveUpMoving();
  CheckCapacity();
}

// What is above the capacity when it is lowered only ever falls.
void NvmeWorld::CheckCapacity() {
  const ShareStats share = shares_->stats(0, 0);
  Expect(file_bytes() <= share.held_bytes, "a file is counted by nobody");
  Expect(share.above_bytes <= above_bytes_max_, "the files take more than they may");
  above_bytes_max_ = share.above_bytes;
}

// A slab at a time, and none for a while where none could go.
void NvmeWorld::GiveAll() {
  const uint64_t rounds = 4 * options_.slab_count;
  for (uint64_t round = 0; round < rounds && file_bytes() > capacity_bytes(); ++round) {
    if (round >= 2 * options_.slab_count) tier().GiveUpMoving();
    GiveBack();
    MoveSome();
    rig_->Settle();
    EndMoves();
    rig_->Settle();
  }
  EndMoves();
  rig_->Settle();
  Expect(file_bytes() <= capacity_bytes(), "the files never come down to what they may take");
  CheckCapacity();
}

// ---- lives of a daemon ----

void NvmeWorld::Start() {
  for (auto& [id, transfer] : transfers_) abandoned_.push_back(std::move(transfer.buffer));
  transfers_.clear();
  live_.clear();
  rig_.reset();
  shares_.reset();
  ShareOut();
  std::vector<SimMedium*> media;
  for (SimMedium& medium : media_) media.push_back(&medium);
  rig_ = std::make_unique<NvmeRig>(media,
                                   NvmeRig::Options{.tier = {.secret = secret_,
                                                             .shares = shares_.get(),
                                                             .slab_bytes = options_.slab_bytes,
                                                             .stuck_us = 3'000'000,
                                                             .probe_interval_us = 500'000},
                                                    .disk = options_.disk,
                                                    .seed = random_()},
                                   this);
  next_tick_us_ = rig_->now_us() + kTickUs;
  const Status status = rig_->Restore([this](const BlockRecord& record, const Extent& extent) {
    const uint64_t key = record.key.low;
    Expect(!live_.contains(key), "key " + std::to_string(key) + " was restored twice");
    Expect(record.group == TheGroup() && record.space == TheSpace() && record.member == kMember,
           "a record came back changed");
    Block& block = live_[key];
    block = {.key = key,
             .commit_id = record.commit_id,
             .part_count = static_cast<uint32_t>(record.part_checksums.size()),
             .extent = extent,
             .priority = record.priority,
             .is_ready = true,
             .is_persisted = true,
             .checksums = {record.part_checksums.begin(), record.part_checksums.end()}};
    freed_.erase(record.commit_id);  // it may, since its erasure was under way
    ++counts_.restored;
    return static_cast<uint32_t>(key);
  });
  Expect(status.ok(), "the tables could not be scanned");
  counts_.cuts += shares_->stats(0, 0).above_bytes > 0;
  if (options_.resizes) CheckCapacity();
}

void NvmeWorld::OnTransferDone(TransferId transfer_id, Status status) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end()) return Expect(false, "a transfer nobody began was answered");
  const Transfer transfer = std::move(found->second);
  transfers_.erase(found);
  if (transfer.is_move) return OnMoveDone(transfer, status);
  Block& block = live_.at(transfer.key);
  if (transfer.is_read) {
    --block.reads_in_flight;
    if (status.ok()) {
      Judge(block, transfer.buffer);
    } else {
      ++counts_.reads_failed;
    }
  } else if (status.ok()) {
    block.is_ready = true;
    ++counts_.stored;
  } else {
    tier().Free(block.extent);
    live_.erase(transfer.key);
  }
}

void NvmeWorld::OnPersisted(uint32_t /*domain_index*/, uint32_t owner, CommitId commit_id,
                            uint32_t member) {
  const auto found = live_.find(owner);
  const bool is_known = found != live_.end() && found->second.commit_id == commit_id;
  Expect(is_known && found->second.is_ready && member == kMember,
         "a block that nobody has was called persisted");
  if (!is_known) return;
  Expect(!found->second.is_persisted, "a block was called persisted twice");
  found->second.is_persisted = true;
  found->second.persisted_us = rig_->now_us();
}

void NvmeWorld::OnRecordInDoubt(uint32_t /*domain_index*/, uint32_t owner) {
  const auto found = live_.find(owner);
  Expect(found != live_.end() && found->second.is_ready, "a record of nobody is in doubt");
  if (found != live_.end()) tier().Amend(found->second.extent, RecordOf(found->second));
}

void NvmeWorld::Judge(const Block& block, const Buffer& buffer) {
  const std::span<const std::byte> bytes(buffer.bytes.get(), buffer.length_bytes);
  if (ChecksumsOf(block, bytes) != block.checksums) {
    ++counts_.reads_detected;
    return;
  }
  std::vector<std::byte> expected(bytes.size());
  Fill(block, expected);
  const bool is_right = std::ranges::equal(bytes, expected);
  is_right ? ++counts_.reads_right : ++counts_.lies;
  Expect(is_right, "key " + std::to_string(block.key) + ": wrong bytes verified");
}

NvmeWorld::Block* NvmeWorld::PickReady() {
  if (live_.empty()) return nullptr;
  auto at = live_.lower_bound(random_() % options_.key_count);
  if (at == live_.end()) at = live_.begin();
  return at->second.is_ready ? &at->second : nullptr;
}

void NvmeWorld::Drop(uint64_t key) {
  const Block& block = live_.at(key);
  if (!block.is_ready || block.reads_in_flight > 0) return;
  freed_.insert(block.commit_id);
  if (block.move_to.length_bytes > 0) tier().Free(block.move_to);
  tier().Free(block.extent);
  live_.erase(key);
}

void NvmeWorld::FreeOne() {
  if (const Block* block = PickReady()) Drop(block->key);
}

void NvmeWorld::MakeRoom(uint64_t length_bytes, uint32_t part_count) {
  std::vector<uint32_t> owners;
  tier().AppendOwnersToDrop(length_bytes, part_count, &owners);
  for (const uint32_t owner : owners) {
    if (live_.contains(owner)) Drop(owner);
  }
  if (owners.empty()) FreeOne();
}

void NvmeWorld::Store() {
  const uint64_t key = random_() % options_.key_count;
  if (live_.contains(key)) return;
  const Options::Shape& shape = options_.shapes[random_() % options_.shapes.size()];
  const Result<Extent> extent = tier().Allocate(0, shape.length_bytes, shape.part_count);
  if (extent.code() == StatusCode::kNoSpace) MakeRoom(shape.length_bytes, shape.part_count);
  if (!extent.ok()) return;
  Block block{.key = key,
              .commit_id = next_commit_++,
              .part_count = shape.part_count,
              .extent = *extent,
              .priority = static_cast<uint8_t>(random_() % 100)};
  Buffer buffer{.length_bytes = shape.length_bytes};
  buffer.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(4096, shape.length_bytes)));
  const std::span<std::byte> bytes(buffer.bytes.get(), buffer.length_bytes);
  Fill(block, bytes);
  block.checksums = ChecksumsOf(block, bytes);
  const TransferId id = next_transfer_++;
  if (!tier().Write(id, *extent, RecordOf(block), bytes).ok()) {
    tier().Free(*extent);
    return;
  }
  transfers_[id] = {.key = key, .buffer = std::move(buffer)};
  live_[key] = std::move(block);
}

void NvmeWorld::ReadOne(uint64_t key) {
  Block& block = live_.at(key);
  if (!block.is_ready) return;
  Buffer buffer{.length_bytes = block.extent.length_bytes};
  buffer.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(4096, buffer.length_bytes)));
  const TransferId id = next_transfer_++;
  const Status status = tier().Read(id, block.extent, {buffer.bytes.get(), buffer.length_bytes});
  if (!status.ok()) {
    counts_.reads_failed += status.code() == StatusCode::kIo;
    return;
  }
  ++block.reads_in_flight;
  transfers_[id] = {.key = key, .is_read = true, .buffer = std::move(buffer)};
}

void NvmeWorld::AmendOne() {
  Block* block = PickReady();
  if (block == nullptr) return;
  block->priority = static_cast<uint8_t>(random_() % 100);
  block->is_amending = true;
  tier().Amend(block->extent, RecordOf(*block));
}

void NvmeWorld::Pass(uint64_t us) {
  const uint64_t until_us = rig_->now_us() + us;
  for (; next_tick_us_ <= until_us; next_tick_us_ += kTickUs) {
    if (next_tick_us_ > rig_->now_us()) rig_->Advance(next_tick_us_ - rig_->now_us());
    tier().Tick();
  }
  if (until_us > rig_->now_us()) rig_->Advance(until_us - rig_->now_us());
}

void NvmeWorld::Step() {
  const uint64_t dice = random_() % 100;
  if (dice < 40) {
    Store();
  } else if (dice < 52) {
    FreeOne();
  } else if (dice < 60) {
    AmendOne();
  } else if (dice < 70) {
    if (const Block* block = PickReady()) ReadOne(block->key);
  } else if (dice < 96) {
    Pass(random_() % 200);
  } else if (dice < 98) {
    Pass(random_() % 400'000);
  } else {
    rig_->Drain();
    Pass(0);
  }
  if (!tier().has_erasures_pending()) erased_.merge(freed_), freed_.clear();
  if (options_.resizes) StepResize();
}

void NvmeWorld::Settle() {
  rig_->Settle();
  if (options_.resizes) GiveAll();
  Expect(!tier().has_erasures_pending(), "erasures never end");
  erased_.merge(freed_);
  freed_.clear();
  for (auto& [key, block] : live_) {
    Expect(block.is_persisted, "key " + std::to_string(key) + " is never persisted");
    block.is_durable = block.is_persisted;
    block.is_amending = false;
  }
}

void NvmeWorld::Recover() {
  for (size_t index = 0; index < rig_->disk_count(); ++index) {
    rig_->disk(index).HealAll();
    rig_->disk(index).ReleaseStuck();
  }
  rig_->Settle();
  ReadAll();
  rig_->Settle();
  if (options_.resizes) GiveAll();
  Expect(!tier().has_erasures_pending(), "erasures never end");
  Expect(tier().stats().is_healthy, "the disks are well and the tier is off");
  Expect(transfers_.empty(), "a transfer was never answered");
}

std::vector<Extent> NvmeWorld::extents() const {
  std::vector<Extent> extents;
  for (const auto& [key, block] : live_) extents.push_back(block.extent);
  return extents;
}

void NvmeWorld::ReadAll() {
  std::vector<uint64_t> keys;
  for (const auto& [key, block] : live_) keys.push_back(key);
  for (const uint64_t key : keys) {
    const uint64_t right_before = counts_.reads_right;
    ReadOne(key);
    rig_->Drain();
    const auto found = live_.find(key);
    if (counts_.reads_right > right_before || found == live_.end()) continue;
    if (found->second.reads_in_flight > 0 || !found->second.is_ready) continue;
    freed_.insert(found->second.commit_id);
    if (found->second.move_to.length_bytes > 0) tier().Free(found->second.move_to);
    tier().Quarantine(found->second.extent);
    live_.erase(found);
  }
}

void NvmeWorld::Reopen() {
  rig_->KillProcess();
  Start();
}

void NvmeWorld::Restart(Ending ending) {
  if (ending == Ending::kCleanStop) Settle();
  if (ending == Ending::kPowerLoss) {
    rig_->PowerLoss();
  } else {
    rig_->KillProcess();
  }
  const uint64_t ended_us = rig_->now_us();
  std::map<uint64_t, Block> before = std::move(live_);
  // Some of them go at once, but where the next daemon may have all again: then what was being
  // moved is looked at.
  const bool is_above = file_bytes() > capacity_bytes();
  if (is_above && random_() % 2 == 0) {
    capacity_slabs_ = options_.slab_count;
  } else if (is_above) {
    before.clear();
  }
  Start();
  if (ending == Ending::kPowerLoss) CountLost(before, ended_us);
  CheckSurvivors(ending, before);
  const uint64_t detected_before = counts_.reads_detected;
  ReadAll();
  if (ending != Ending::kPowerLoss) {
    Expect(counts_.reads_detected == detected_before, "an entry named bytes that are not there");
  }
  // What does not verify has left.
  if (options_.resizes && ending == Ending::kPowerLoss) CheckSurvivors(ending, before);
  rig_->Settle();
}

void NvmeWorld::CountLost(const std::map<uint64_t, Block>& before, uint64_t ended_us) {
  for (const auto& [key, block] : before) {
    const auto found = live_.find(key);
    const bool survived = found != live_.end() && found->second.commit_id == block.commit_id;
    if (survived || !block.is_persisted || block.is_amending) continue;
    ++counts_.lost_to_power;
    counts_.lost_age_us_max = std::max(counts_.lost_age_us_max, ended_us - block.persisted_us);
  }
}

void NvmeWorld::CheckSurvivors(Ending ending, const std::map<uint64_t, Block>& before) {
  for (const auto& [key, block] : before) {
    const bool must_survive = ending == Ending::kPowerLoss ? block.is_durable : block.is_persisted;
    const auto found = live_.find(key);
    const bool survived = found != live_.end() && found->second.commit_id == block.commit_id;
    if (must_survive && !(ending == Ending::kPowerLoss && block.is_amending)) {
      Expect(survived, "key " + std::to_string(key) + " was persisted and is gone");
    }
    if (survived && ending == Ending::kCleanStop) {
      Expect(found->second.priority == block.priority, "an amended entry is the old one");
      Expect(found->second.extent == block.extent, "a block moved");
    }
  }
  if (ending == Ending::kCleanStop) {
    Expect(live_.size() == before.size(), "more came back than there was");
  }
  for (const auto& [key, block] : live_) {
    Expect(!erased_.contains(block.commit_id), "an erased block came back");
  }
}

}  // namespace terrace::sim
