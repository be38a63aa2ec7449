#include "daemon/metrics/families.h"

#include <prometheus/text_serializer.h>

#include "terrace/check.h"

namespace terrace {

using prometheus::ClientMetric;
using prometheus::MetricType;

ClientMetric& Families::Add(const FamilyText& family, MetricType type, const Labels& labels) {
  const auto [place, is_new] = places_.try_emplace(family.name, all_.size());
  if (is_new)
    all_.push_back({.name = family.name, .help = family.help, .type = type, .metric = {}});
  TERRACE_CHECK(all_[place->second].type == type,
                "a family has one type: of two, Prometheus refuses the whole scrape");
  ClientMetric& metric = all_[place->second].metric.emplace_back();
  for (const auto& [name, value] : labels) metric.label.push_back({.name = name, .value = value});
  return metric;
}

void Families::Counter(const FamilyText& family, const Labels& labels, double value) {
  Add(family, MetricType::Counter, labels).counter.value = value;
}

void Families::Gauge(const FamilyText& family, const Labels& labels, double value) {
  Add(family, MetricType::Gauge, labels).gauge.value = value;
}

void Families::Histogram(const FamilyText& family, const Labels& labels, const HistogramView& view,
                         double per_unit) {
  ClientMetric::Histogram& histogram = Add(family, MetricType::Histogram, labels).histogram;
  histogram.sample_sum = static_cast<double>(view.sum) / per_unit;
  for (size_t i = 0; i < view.counts.size(); ++i) {
    histogram.sample_count += view.counts[i];
    if (i == view.bound_count()) break;  // the serializer adds the last one
    histogram.bucket.push_back({.cumulative_count = histogram.sample_count,
                                .upper_bound = static_cast<double>(view.bound_of(i)) / per_unit});
  }
}

std::string Families::Text() const { return prometheus::TextSerializer().Serialize(all_); }

Families::Labels With(Families::Labels labels, const char* name, std::string_view value) {
  labels.emplace_back(name, value);
  return labels;
}

}  // namespace terrace
