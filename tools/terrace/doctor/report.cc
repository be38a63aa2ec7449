#include "tools/terrace/doctor/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "src/printable_text.h"

namespace terrace::tools {
namespace {

constexpr size_t kColumnsMax = 80;
constexpr size_t kLevelColumns = 9;  // "problem" and two blanks
constexpr size_t kCheckColumns = 15;
constexpr size_t kIndent = kLevelColumns + kCheckColumns;

constexpr std::array<std::string_view, 4> kLevelNames = {"ok", "note", "warning", "problem"};

std::string_view NameOf(FindingLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

size_t ColumnsOf(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

// Lines of at most `columns`, broken at blanks; a longer word has a line of its own.
std::vector<std::string> Wrap(std::string_view text, size_t columns) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    std::string& line = lines.back();
    if (!line.empty() && ColumnsOf(line) + 1 + ColumnsOf(word) > columns) {
      lines.emplace_back(word);
    } else {
      line += (line.empty() ? "" : " ") + std::string(word);
    }
  }
  return lines;
}

std::string Indented(std::string_view text, size_t indent, std::string_view first) {
  std::string rendered;
  for (const std::string& line : Wrap(PrintableText(text), kColumnsMax - indent)) {
    rendered += rendered.empty() ? std::string(first) : std::string(indent, ' ');
    rendered += line + "\n";
  }
  return rendered;
}

std::string Render(const Finding& finding) {
  const std::string head = fmt::format("{:<{}}{:<{}}", NameOf(finding.level), kLevelColumns,
                                       finding.check, kCheckColumns);
  std::string text = Indented(finding.found, kIndent, head);
  if (finding.level == FindingLevel::kOk) return text;
  const std::string blanks(kIndent, ' ');
  if (!finding.meaning.empty()) text += Indented(finding.meaning, kIndent, blanks);
  if (!finding.remedy.empty()) text += Indented(finding.remedy, kIndent + 3, blanks + "-> ");
  return text;
}

std::string Counted(size_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace

size_t CountOf(std::span<const Finding> findings, FindingLevel level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [level](const Finding& finding) { return finding.level == level; }));
}

std::string RenderFindings(std::span<const Finding> findings) {
  std::string text;
  for (const Finding& finding : findings) text += Render(finding);
  return text + fmt::format("{}, {}, {}, {} ok\n",
                            Counted(CountOf(findings, FindingLevel::kProblem), "problem"),
                            Counted(CountOf(findings, FindingLevel::kWarning), "warning"),
                            Counted(CountOf(findings, FindingLevel::kNote), "note"),
                            CountOf(findings, FindingLevel::kOk));
}

nlohmann::json ToJson(std::span<const Finding> findings) {
  nlohmann::json rows = nlohmann::json::array(), counts = nlohmann::json::object();
  for (const Finding& finding : findings) {
    rows.push_back({{"check", finding.check},
                    {"level", NameOf(finding.level)},
                    {"found", finding.found},
                    {"meaning", finding.meaning},
                    {"remedy", finding.remedy}});
  }
  for (size_t level = 0; level < kLevelNames.size(); ++level) {
    counts[std::string(kLevelNames[level])] = CountOf(findings, static_cast<FindingLevel>(level));
  }
  return {{"findings", std::move(rows)}, {"counts", std::move(counts)}};
}

}  // namespace terrace::tools
