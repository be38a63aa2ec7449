// PrintableText: text from elsewhere as a terminal may show it. Daemons, files and clients may name
// things with anything: escape sequences that move the cursor or rename the window, characters that
// turn the direction of what follows, half a character of UTF-8.
//
// THREADING: a pure function. LIMITS: no longer than the text. Nothing fails.
#pragma once

#include <string>
#include <string_view>

namespace terrace {

enum class LineFeeds { kKept, kReplaced };

// `text` with '?' for each control character, each control of direction and each byte that is no
// UTF-8. Of a document its own line feeds stay; in a name or a sentence one is as bad as the rest.
std::string PrintableText(std::string_view text, LineFeeds line_feeds = LineFeeds::kReplaced);

}  // namespace terrace
