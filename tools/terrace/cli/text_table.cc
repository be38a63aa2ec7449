#include "tools/terrace/cli/text_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "src/printable_text.h"
#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, 5> kByteUnits = {"B", "KiB", "MiB", "GiB", "TiB"};

// Columns a terminal uses for `text`: its UTF-8 characters (all of width one in what Terrace
// prints).
size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string FormatBytes(uint64_t byte_count) {
  if (byte_count < kKiB) return fmt::format("{} B", byte_count);
  double amount = static_cast<double>(byte_count);
  size_t unit = 0;
  // 1023.96 KiB would be written "1024.0 KiB": go on to the next unit then.
  while (amount >= 1023.95 && unit + 1 < kByteUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kByteUnits[unit]);
}

std::string FormatCount(uint64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string FormatCount(uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", FormatCount(count), thing, count == 1 ? "" : "s");
}

std::string CountOr(std::optional<uint64_t> count) { return count ? FormatCount(*count) : "-"; }

std::string CountOr(std::optional<uint64_t> count, std::string_view thing) {
  return count ? FormatCount(*count, thing) : fmt::format("- {}s", thing);
}

std::string FormatMilliseconds(uint64_t time_ms) {
  if (time_ms < 1000) return fmt::format("{} ms", time_ms);
  if (time_ms < 60'000) return fmt::format("{:.1f} s", static_cast<double>(time_ms / 100) / 10);
  uint64_t seconds = time_ms / 1000;
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  uint64_t minutes = seconds / 60;
  if (minutes < 24 * 60) return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  return fmt::format("{} d {} h", minutes / (24 * 60), minutes / 60 % 24);
}

std::string FormatShare(uint64_t part_count, uint64_t whole_count) {
  if (whole_count == 0) return "-";
  return fmt::format("{:.1f} %",
                     100.0 * static_cast<double>(part_count) / static_cast<double>(whole_count));
}

bool ParseBytes(std::string_view text, uint64_t* byte_count) {
  const char* end = text.data() + text.size();
  double amount = 0;
  auto [rest, error] = std::from_chars(text.data(), end, amount, std::chars_format::fixed);
  if (error != std::errc() || amount < 0) return false;
  std::string unit;
  for (char c : std::string_view(rest, static_cast<size_t>(end - rest))) {
    if (c != ' ') unit += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  if (unit.ends_with("IB")) {
    unit.resize(unit.size() - 2);
    if (unit.empty()) return false;
  } else if (unit == "B") {
    unit.clear();
  }
  constexpr std::string_view kPrefixes = "KMGT";
  uint64_t scale = 1;
  if (!unit.empty()) {
    size_t power = kPrefixes.find(unit);
    if (unit.size() != 1 || power == std::string_view::npos) return false;
    scale = kKiB << (10 * power);
  }
  double total = amount * static_cast<double>(scale);
  constexpr double kBytesMax = 1e18;                      // as WantedBytes says
  if (!(total >= 0 && total <= kBytesMax)) return false;  // nor is a NaN a size
  if (total != static_cast<double>(static_cast<uint64_t>(total))) return false;
  *byte_count = static_cast<uint64_t>(total);
  return true;
}

std::string WantedBytes(std::string_view example) {
  return fmt::format(
      "write bytes above 0 and up to 10^18, as a number or with KiB, MiB, GiB or TiB, such as {}",
      example);
}

std::string WithShortWords(std::string_view sentence) {
  constexpr size_t kWordBytesMax = 1024, kShownBytes = 64;
  std::string text;
  while (!sentence.empty()) {
    const size_t word_bytes = std::min(sentence.find(' '), sentence.size());
    if (word_bytes > kWordBytesMax) {
      text += fmt::format("{}... ({})", sentence.substr(0, kShownBytes),
                          FormatCount(word_bytes, "byte"));
    } else {
      text += sentence.substr(0, word_bytes);
    }
    const size_t taken = std::min(word_bytes + 1, sentence.size());
    text += sentence.substr(word_bytes, taken - word_bytes);
    sentence.remove_prefix(taken);
  }
  return text;
}

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

void TextTable::AddRow(std::vector<std::string> cells) {
  TERRACE_CHECK(cells.size() == columns_.size(), "a row has one cell a column");
  for (std::string& cell : cells) cell = PrintableText(cell);
  rows_.push_back(std::move(cells));
}

std::string TextTable::Render() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(Width(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  auto add_line = [&](auto cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      std::string padding(widths[i] - Width(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kRight ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) -> const std::string& { return row[i]; });
  return text;
}

}  // namespace terrace::tools
