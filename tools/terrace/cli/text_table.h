// Numbers and tables as a person reads them in a terminal: binary units, thousands separators,
// columns that line up, no colour.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::tools {

std::string FormatBytes(uint64_t byte_count);  // "512 B", "1.5 KiB", "20.0 GiB"
std::string FormatCount(uint64_t count);       // "1,234,567"
// "1 block", "0 blocks", "1,234 blocks".
std::string FormatCount(uint64_t count, std::string_view thing);
// The same of what may be absent: then "-", "- blocks".
std::string CountOr(std::optional<uint64_t> count);
std::string CountOr(std::optional<uint64_t> count, std::string_view thing);
std::string FormatMilliseconds(uint64_t time_ms);  // "850 ms", "12.3 s", "4 min 10 s", "3 h 2 min"
// "87.3 %"; "-" of nothing.
std::string FormatShare(uint64_t part_count, uint64_t whole_count);
// What FormatBytes writes, and "64K", "1M", "2G", "65536": for arguments. False on anything else.
bool ParseBytes(std::string_view text, uint64_t* byte_count);

// What to write where ParseBytes is asked for more than none, for a person.
std::string WantedBytes(std::string_view example);
// A sentence in which a word of more than 1,024 bytes, which somebody may have named anything by,
// is its first 64 and how many it has.
std::string WithShortWords(std::string_view sentence);

// Columns two spaces apart; every column is left-aligned unless it says kRight.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit TextTable(std::vector<Column> columns);

  // REQUIRES: one cell a column. Names from elsewhere may be in them: shown as PrintableText.
  void AddRow(std::vector<std::string> cells);
  // Title line and rows, each ended by a line feed, without trailing blanks.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace terrace::tools
