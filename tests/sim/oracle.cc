#include "sim/oracle.h"

#include <cstring>

namespace terrace::sim {
namespace {

uint64_t Mix(uint64_t word) {
  word ^= word >> 30;
  word *= 0xBF58476D1CE4E5B9;
  word ^= word >> 27;
  word *= 0x94D049BB133111EB;
  return word ^ (word >> 31);
}

uint64_t PatternSeed(const PartName& name) {
  uint64_t seed = Mix(name.commit_id + 1);
  seed = Mix(seed ^ name.key.low);
  seed = Mix(seed ^ name.key.high);
  seed = Mix(seed ^ (uint64_t{name.domain_index} << 48 | uint64_t{name.group_number} << 32 |
                     uint64_t{name.member} << 16 | name.part));
  return seed;
}

// Word i of the pattern: cheap enough to write and check at memory speed, and no two places agree.
uint64_t PatternWord(uint64_t seed, uint64_t word_index) {
  return seed + word_index * 0x9E3779B97F4A7C15;
}

}  // namespace

void FillPart(const PartName& name, std::span<std::byte> bytes) {
  const uint64_t seed = PatternSeed(name);
  const size_t word_count = bytes.size() / 8;
  for (size_t i = 0; i < word_count; ++i) {
    const uint64_t word = i == 0 ? name.commit_id : PatternWord(seed, i);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  const uint64_t tail = PatternWord(seed, word_count);
  std::memcpy(bytes.data() + 8 * word_count, &tail, bytes.size() % 8);
}

CommitId ClaimedCommit(std::span<const std::byte> bytes) {
  CommitId commit_id;
  std::memcpy(&commit_id, bytes.data(), sizeof(commit_id));
  return commit_id;
}

bool HoldsPart(const PartName& name, std::span<const std::byte> bytes) {
  const uint64_t seed = PatternSeed(name);
  const size_t word_count = bytes.size() / 8;
  uint64_t difference = ClaimedCommit(bytes) ^ name.commit_id;
  for (size_t i = 1; i < word_count; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    difference |= word ^ PatternWord(seed, i);
  }
  const uint64_t tail = PatternWord(seed, word_count);
  return difference == 0 &&
         std::memcmp(bytes.data() + 8 * word_count, &tail, bytes.size() % 8) == 0;
}

void Oracle::PartCommitted(const PartName& name) {
  committed_[{name.domain_index, name.group_number, name.key, name.commit_id}][name.member] |=
      uint64_t{1} << name.part;
}

void Oracle::PartClaimedWrongly(const PartName& name, uint32_t writer_uid) {
  ++parts_claimed_wrongly_;
  const Commit commit = {name.domain_index, name.group_number, name.key, name.commit_id};
  wrong_claims_[commit][{name.member, name.part}] = writer_uid;
}

std::string Oracle::Judge(PartName name, std::span<const std::byte> bytes, uint32_t uid) const {
  ++parts_judged_;
  name.commit_id = ClaimedCommit(bytes);
  const std::string where = "domain " + std::to_string(name.domain_index) + " group " +
                            std::to_string(name.group_number) + " key " + ToHex(name.key) +
                            " member " + std::to_string(name.member) + " part " +
                            std::to_string(name.part);
  const auto commit =
      committed_.find({name.domain_index, name.group_number, name.key, name.commit_id});
  if (commit == committed_.end()) return where + ": bytes of no commit of this key";
  const auto member = commit->second.find(name.member);
  if (member == commit->second.end() || (member->second >> name.part & 1) == 0) {
    return where + ": served before this part was committed";
  }
  if (!HoldsPart(name, bytes)) return where + ": wrong bytes";
  const auto claims = wrong_claims_.find(commit->first);
  if (claims == wrong_claims_.end()) return "";
  const auto wrong = claims->second.find({name.member, name.part});
  if (wrong != claims->second.end() && wrong->second != uid) {
    return where + ": served to another uid, though its checksum was wrong";
  }
  return "";
}

}  // namespace terrace::sim
