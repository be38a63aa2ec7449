// What Query and List answer of a block beside protocol.h's flags: for those who show blocks.
#pragma once

#include <cstdint>

namespace terrace::protocol {

// Of QueriedBlock::flags and ListEntry::flags, beside kQueriedPersisted and kQueriedPinned: never
// written below DRAM (kHintNoStore).
inline constexpr uint8_t kQueriedNoStore = 4;

}  // namespace terrace::protocol
