#include "daemon/metrics/exposition.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "terrace/units.h"
#include "test_paths.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A domain with everything there may be, and groups, of which the first are shown.
DomainSnapshot FullDomain(const std::string& name, uint32_t group_count, uint32_t shown_count) {
  DomainSnapshot domain;
  domain.name = name;
  DomainFigures& figures = domain.figures;
  figures.hits = {.requests = 9, .blocks_asked = 1000, .blocks_hit = {1, 2, 3, 4}};
  figures.hits.blocks_missed[0] = 990;
  figures.write_bytes_per_day = 5;
  for (uint32_t g = 0; g < shown_count; ++g) {
    domain.groups.labels.push_back({.name = "g" + std::to_string(g), .block_tokens = 16});
    domain.groups.counts.push_back({.blocks_asked = 2, .blocks_hit = {0, 1, 0, 0}});
  }
  figures.hits.blocks_hit[1] += group_count;
  figures.hits.blocks_asked += 2 * group_count;
  figures.acquire_tokens_asked = 16 * figures.hits.blocks_asked;
  for (size_t t = 0; t < 4; ++t) {
    figures.acquire_tokens_by_tier[t] = 16 * figures.hits.blocks_hit[t];
  }
  figures.lower_tiers = {{.kind = protocol::TierKind::kHbm}, {.kind = protocol::TierKind::kNvme}};
  figures.lower_tiers[1].stats.share.max_bytes = kGiB;
  figures.shared = DomainFigures::SharedStats{};
  figures.shared->share.max_bytes = kGiB;
  figures.device = DomainFigures::DeviceStats{};
  domain.kv_events.emplace();
  return domain;
}
DomainSnapshot FullDomain(const std::string& name, uint32_t group_count) {
  return FullDomain(name, group_count, group_count);
}

Snapshot Of(std::vector<DomainSnapshot> domains) {
  Snapshot snapshot;
  snapshot.process.dram_holder = "nobody";
  snapshot.domains = std::move(domains);
  return snapshot;
}

// Value by series.
std::map<std::string, double> SeriesOf(const std::string& text) {
  std::map<std::string, double> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(series.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << "twice: " << line;
  }
  return series;
}

double SumOf(const std::map<std::string, double>& series, const std::string& family) {
  double sum = 0;
  for (const auto& [name, value] : series) {
    if (name.starts_with(family + "{")) sum += value;
  }
  return sum;
}

class ExpositionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasExposition()) GTEST_SKIP() << "built without prometheus-cpp";
  }
};

TEST_F(ExpositionTest, EachFigureIsTold) {
  const std::string text = Exposition(Of({FullDomain("a", 1)}));
  EXPECT_THAT(text, HasSubstr("# TYPE terrace_acquire_blocks_hit_total counter\n"));
  EXPECT_THAT(text, HasSubstr("terrace_acquire_blocks_hit_total{domain=\"a\",tier=\"dram\"} 3\n"));
  EXPECT_THAT(text,
              HasSubstr("terrace_acquire_blocks_missed_total{domain=\"a\",cause=\"cold\"} 990\n"));
  EXPECT_THAT(text, HasSubstr("terrace_build_info{version=\""));
}

TEST_F(ExpositionTest, HistogramsAreInSecondsAndCumulative) {
  DomainSnapshot domain = FullDomain("a", 0);
  RequestTimes& times = domain.figures.request_us[0];
  times.Add(4);
  times.Add(5);
  times.Add(60'000'000);
  const auto series = SeriesOf(Exposition(Of({domain})));
  const std::string labels = "{domain=\"a\",verb=\"acquire\"";
  EXPECT_EQ(series.at("terrace_request_seconds_bucket" + labels + ",le=\"4e-06\"}"), 1);
  EXPECT_EQ(series.at("terrace_request_seconds_bucket" + labels + ",le=\"8e-06\"}"), 2);
  EXPECT_EQ(series.at("terrace_request_seconds_bucket" + labels + ",le=\"+Inf\"}"), 3);
  EXPECT_EQ(series.at("terrace_request_seconds_count" + labels + "}"), 3);
  EXPECT_DOUBLE_EQ(series.at("terrace_request_seconds_sum" + labels + "}"), 60.000009);
}

// Those that are shown, and the others together: the sum stays the domain's.
TEST_F(ExpositionTest, GroupsThatAreNotShownAreToldTogether) {
  const auto series = SeriesOf(Exposition(Of({FullDomain("a", 5000, kGroupsShownMax)})));
  size_t group_count = 0;
  for (const auto& [name, value] : series) group_count += name.starts_with("terrace_group_blocks{");
  EXPECT_EQ(group_count, kGroupsShownMax + 1);
  EXPECT_EQ(series.at("terrace_group_blocks_hit_total{domain=\"a\",group=\"\u2026other\",tier="
                      "\"dram\"}"),
            5000 - kGroupsShownMax + 2);
  for (const char* what : {"blocks_asked", "tokens_asked", "blocks_hit", "tokens_hit"}) {
    EXPECT_EQ(SumOf(series, std::string("terrace_group_") + what + "_total"),
              SumOf(series, std::string("terrace_acquire_") + what + "_total"))
        << what;
  }
}

// Names are the clients' choice; of a series there must be one.
TEST_F(ExpositionTest, GroupsOfOneNameAreOneSeries) {
  DomainSnapshot domain = FullDomain("a", 3);
  domain.groups.labels[2].name = domain.groups.labels[0].name;
  domain.groups.labels[2].block_tokens = 32;
  const auto series = SeriesOf(Exposition(Of({domain})));
  EXPECT_EQ(series.at("terrace_group_blocks_asked_total{domain=\"a\",group=\"g0\"}"), 4);
  EXPECT_EQ(series.at("terrace_group_tokens_asked_total{domain=\"a\",group=\"g0\"}"), 2 * 48);
  EXPECT_EQ(series.at("terrace_group_blocks_asked_total{domain=\"a\",group=\"g1\"}"), 2);
}

TEST_F(ExpositionTest, SixtyFourDomainsAreSoManySeriesAtMost) {
  std::vector<DomainSnapshot> domains;
  for (int i = 0; i < 64; ++i) {
    domains.push_back(FullDomain("d" + std::to_string(i), 300, GroupsShownOf(64)));
  }
  const auto series = SeriesOf(Exposition(Of(std::move(domains))));
  EXPECT_LT(series.size(), 27'500u) << "docs/METRICS.md says so";
  EXPECT_GT(series.size(), 20'000u) << "and not far less";
}

// A group's name is what a client chose: quotes, backslashes and what looks like a comment.
TEST_F(ExpositionTest, NamesOfGroupsBreakNoLine) {
  DomainSnapshot domain = FullDomain("a", 1);
  domain.groups.labels[0].name = "x\"} 1\\ # {";
  EXPECT_THAT(Exposition(Of({domain})),
              HasSubstr("terrace_group_blocks{domain=\"a\",group=\"x\\\"} 1\\\\ # {\"} 0\n"));
}

// The page is what a person reads of a metric.
TEST_F(ExpositionTest, TheDocumentNamesAllFamiliesAndNoOther) {
  std::set<std::string> told, documented;
  std::istringstream lines(Exposition(Of({FullDomain("a", 1)})));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name;
    words >> hash >> kind >> name;
    if (kind == "TYPE") told.insert(name);
  }
  std::ifstream file(std::string(TERRACE_SOURCE_DIR) + "/docs/METRICS.md");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::regex name("`(terrace_[a-z_]+)");
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
    documented.insert((*it)[1]);
  }
  std::vector<std::string> differing;
  std::ranges::set_symmetric_difference(told, documented, std::back_inserter(differing));
  EXPECT_THAT(differing, IsEmpty());
}

}  // namespace
}  // namespace terrace
