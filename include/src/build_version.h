// Which build a program is of. Made at build time (include/build_version.cmake), so that what links
// it is linked anew with each commit: programs only, no library.
#pragma once

namespace terrace {

// Such as "0.2.0 (5f3c21ab90de)"; of a tree with changes that are not committed
// "0.2.0 (5f3c21ab90de-dirty)", of sources without their history "0.2.0 (unknown)".
const char* BuildVersion();

}  // namespace terrace
