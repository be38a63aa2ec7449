// Families: the figures of one scrape, by family, on their way to Prometheus' text.
#pragma once

#include <prometheus/metric_family.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/policy/histogram.h"

namespace terrace {

struct FamilyText {
  const char* name;
  const char* help;
};

class Families {
 public:
  using Labels = std::vector<std::pair<const char*, std::string>>;

  void Counter(const FamilyText& family, const Labels& labels, double value);
  void Gauge(const FamilyText& family, const Labels& labels, double value);
  // `per_unit`: so many of the histogram's values are one of the family's.
  void Histogram(const FamilyText& family, const Labels& labels, const HistogramView& view,
                 double per_unit);

  std::string Text() const;
  const std::vector<prometheus::MetricFamily>& all() const { return all_; }

 private:
  prometheus::ClientMetric& Add(const FamilyText& family, prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> all_;
  std::unordered_map<std::string_view, size_t> places_;  // by name
};

// Labels with one more.
Families::Labels With(Families::Labels labels, const char* name, std::string_view value);

}  // namespace terrace
