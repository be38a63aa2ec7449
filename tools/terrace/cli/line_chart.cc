#include "tools/terrace/cli/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 420;
constexpr double kLeft = 60;
constexpr double kRight = 150;  // names of the lines
constexpr double kTop = 16;
constexpr double kBottom = 48;
constexpr int kYTicks = 5;
constexpr size_t kMarkedPointsMax = 16;
constexpr double kNameStep = 18;
constexpr std::array<const char*, 10> kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                                  "#ff7f0e", "#17becf", "#8c564b", "#e377c2",
                                                  "#7f7f7f", "#bcbd22"};

struct Axes {
  double x_min = 1;
  double x_max = 10;
  double y_max = 100;

  double X(double x) const {
    const double share = std::log(x / x_min) / std::log(x_max / x_min);
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double Y(double y) const { return kHeight - kBottom - y / y_max * (kHeight - kTop - kBottom); }
};

std::string Line(double x1, double y1, double x2, double y2) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#ddd"/>)", x1,
                     y1, x2, y2);
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)", x, y, anchor,
                     EscapeHtml(text));
}

std::string Grid(const LineChart& chart, const Axes& axes) {
  std::string svg;
  for (int i = 0; i <= kYTicks; ++i) {
    const double y = axes.y_max * i / kYTicks;
    svg += Line(kLeft, axes.Y(y), kWidth - kRight, axes.Y(y));
    svg += Text(kLeft - 6, axes.Y(y) + 4, "end", fmt::format("{:.0f}", y));
  }
  for (double x = std::pow(10, std::ceil(std::log10(axes.x_min))); x <= axes.x_max; x *= 10) {
    svg += Line(axes.X(x), kTop, axes.X(x), kHeight - kBottom);
    svg += Text(axes.X(x), kHeight - kBottom + 16, "middle", FormatCount(static_cast<uint64_t>(x)));
  }
  svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", chart.x_title);
  svg += fmt::format(
      R"svg(<text transform="translate(16 {:.0f}) rotate(-90)" text-anchor="middle">{}</text>)svg",
      (kTop + kHeight - kBottom) / 2, EscapeHtml(chart.y_title));
  return svg;
}

}  // namespace

std::string EscapeHtml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string LineChart::ToSvg() const {
  Axes axes{.x_min = 1e300, .x_max = 0, .y_max = y_max};
  for (const Series& line : series) {
    for (const auto& [x, y] : line.points) {
      axes.x_min = std::min(axes.x_min, x);
      axes.x_max = std::max(axes.x_max, x);
    }
  }
  if (axes.x_max == 0) axes = {.x_min = 1, .x_max = 1, .y_max = y_max};
  if (axes.x_max == axes.x_min) {  // one point: in the middle
    axes.x_min /= 2;
    axes.x_max *= 2;
  }
  std::string svg =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" )"
                  R"(font-family="sans-serif" font-size="12">)",
                  kWidth, kHeight);
  svg += Grid(*this, axes);
  for (size_t i = 0; i < series.size(); ++i) {
    const char* const colour = kColours[i % kColours.size()];
    std::string points;
    std::string marks;
    for (const auto& [x, y] : series[i].points) {
      const double at_y = axes.Y(std::clamp(y, 0.0, y_max));
      points += fmt::format("{:.1f},{:.1f} ", axes.X(x), at_y);
      if (series[i].points.size() > kMarkedPointsMax) continue;
      marks += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"/>)", axes.X(x), at_y);
    }
    svg += fmt::format(R"(<polyline fill="none" stroke="{}" stroke-width="2" points="{}"/>)",
                       colour, points);
    const double y = kTop + 12 + kNameStep * static_cast<double>(i);
    svg += fmt::format(R"(<g fill="{}">{}{}</g>)", colour, marks,
                       Text(kWidth - kRight + 12, y, "start", series[i].name));
  }
  return svg + "</svg>";
}

}  // namespace terrace::tools
