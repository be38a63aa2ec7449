// LineChart: lines over a logarithmic x axis, drawn as one SVG element: no script, no network, no
// font but the viewer's own.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace terrace::tools {

struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // by x, rising; x > 0
  };
  std::string x_title;
  std::string y_title;
  double y_max = 100;
  std::vector<Series> series;

  std::string ToSvg() const;
};

// With <, >, & and quotes written so that HTML shows them.
std::string EscapeHtml(const std::string& text);

}  // namespace terrace::tools
