// The Spaces of a SpaceGroup as a daemon tells them, and as people read them.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace terrace::tools {

struct SpaceMember {
  std::string text;  // canonical, terrace/space.h
  bool is_remote = false;
};

// OpenMembers, each with its text behind it. Absent if they are cut or something is behind them.
std::optional<std::vector<SpaceMember>> ReadSpaceMembers(std::span<const std::byte> body);

// "model=llama dtype=bf16 tp_rank=0-7": a field that all members share once, else its values in
// order. Fields without a value are left out.
std::string DescribeSpaces(std::span<const SpaceMember> members);
// Of each member an object of its fields, all of them, as texts.
nlohmann::json ToJson(std::span<const SpaceMember> members);

}  // namespace terrace::tools
