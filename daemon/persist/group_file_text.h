// What a group's file says: the canonical texts of its members, sealed.
#pragma once

#include <string>
#include <string_view>

#include "terrace/checksum.h"
#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

// The content of a group's file, sealed under the domain's secret, and its reading. kCorrupt with
// `*why` for anything FormatGroupFile did not write under this secret, kUnsupported for another
// version of it.
std::string FormatGroupFile(const SpaceGroupSpec& spec, const DomainSecret& secret);
Status ParseGroupFile(std::string_view content, const DomainSecret& secret, SpaceGroupSpec* spec,
                      std::string* why);

// Whatever secret sealed it. False: it is no whole group file.
bool ReadUnsealedGroupFile(std::string_view content, SpaceGroupSpec* spec);
// 16 hex digits.
std::string GroupFileSeal(std::string_view content, const DomainSecret& secret);

}  // namespace terrace
