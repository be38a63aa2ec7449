// A completion as a test compares it.
#pragma once

#include <ostream>

#include "unit/daemon/store/store_fixture.h"

namespace terrace {

struct Line {
  StatusCode status;
  uint32_t block, blocks, part, parts;
  bool is_last;
  bool operator==(const Line&) const = default;
  friend void PrintTo(const Line& l, std::ostream* out) {
    *out << StatusCodeName(l.status) << " block " << l.block << "+" << l.blocks << " part "
         << l.part << "+" << l.parts << (l.is_last ? " last" : "");
  }
};

// Of one that a listener was told.
template <typename Told>
Line LineOf(const Told& told) {
  const protocol::Completion& c = told.completion;
  return {told.status, c.first_block, c.block_count, c.part_first, c.part_count, told.is_last()};
}

}  // namespace terrace
