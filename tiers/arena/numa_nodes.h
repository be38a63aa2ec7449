// Which NUMA nodes have memory, as the kernel lists them in /sys/devices/system/node.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Reads the kernel's list format; empty if it is none. Example: "0-2,5" → 0, 1, 2, 5.
std::vector<uint32_t> ParseNodeList(std::string_view text);

// The nodes of `directory`/has_memory, ascending; node 0 alone where the kernel does not say.
std::vector<uint32_t> NodesWithMemory(const std::string& directory = "/sys/devices/system/node");

}  // namespace terrace
