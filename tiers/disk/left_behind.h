// What a device, the kernel or a stuck thread may still use when its owner goes is kept until the
// process ends, on purpose: freed, its memory would be somebody else's while they write to it.
//
// THREADING: any. LIMITS: none of its own; each disk leaves behind at most what it owns, once.
#pragma once

#include <memory>

namespace terrace {

void LeaveBehind(std::shared_ptr<const void> what);

}  // namespace terrace
