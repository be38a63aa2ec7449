// A small file of state_dir that a domain keeps whole: lines between a title and a seal under the
// domain's secret, written beside its place and renamed into it.
//
// All block but the seals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/checksum.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr size_t kKeptSealBytes = 22;  // "seal ", 16 hex digits, a line's end

std::string Hex16(uint64_t number);  // 16 digits

// The last line of a file with this content.
std::string KeptSealOf(std::string_view content, const DomainSecret& secret);
// What lies between title and seal. False: it is not what was sealed.
bool UnsealKept(std::string_view content, std::string_view title, const DomainSecret& secret,
                std::string_view* inside);

// What came into a directory or went from it stays so. kIo, in the words `failure`.
Status SyncDirectory(const std::string& directory, const char* failure);
// Synced, with its directory, which is made. There is always a whole one. kIo.
Status WriteKeptFile(const std::string& path, const std::string& content);
// A regular file's; of a longer one that much and one byte. kNotFound: there is none. kIo.
Result<std::string> ReadKeptFile(const std::string& path, size_t bytes_max);

}  // namespace terrace
