#include "tools/terrace/plan/capacity_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "terrace/check.h"
#include "tools/terrace/cli/text_table.h"

namespace terrace::tools {
namespace {

// What a measurement can say: a number beyond has lost its digits, or is a slip.
constexpr double kSecondsMin = 1e-9;
constexpr double kSecondsMax = 1e9;
constexpr uint64_t kPrefillTokensMax = uint64_t{1} << 32;

bool ParseSeconds(std::string_view text, double* seconds) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), *seconds);
  return error == std::errc() && rest == text.data() + text.size() && *seconds >= kSecondsMin &&
         *seconds <= kSecondsMax;
}

Error Refuse(std::string_view option, std::string_view text, std::string_view expected) {
  return {StatusCode::kInvalid, fmt::format("{} '{}': expected {}", option, text, expected)};
}

}  // namespace

PrefillCost::PrefillCost(const std::vector<PrefillPoint>& points) {
  TERRACE_CHECK(!points.empty(), "a prefill's cost follows from one point or more");
  // With x = n / t and y = n^2 / t every point says linear * x + square * y = 1.
  double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
  for (const PrefillPoint& point : points) {
    TERRACE_CHECK(point.token_count > 0 && point.seconds > 0, "a prefill takes time");
    const auto n = static_cast<double>(point.token_count);
    const double x = n / point.seconds;
    const double y = n * n / point.seconds;
    xx += x * x, xy += x * y, yy += y * y, x1 += x, y1 += y;
  }
  const double determinant = xx * yy - xy * xy;
  if (determinant > 1e-9 * xx * yy) {
    linear_s_ = (x1 * yy - y1 * xy) / determinant;
    square_s_ = (y1 * xx - x1 * xy) / determinant;
  }
  if (linear_s_ <= 0 && square_s_ > 0) linear_s_ = 0, square_s_ = y1 / yy;
  if (square_s_ <= 0) linear_s_ = x1 / xx, square_s_ = 0;
}

double PrefillCost::Seconds(uint64_t token_count) const {
  const auto n = static_cast<double>(token_count);
  return linear_s_ * n + square_s_ * n * n;
}

std::string WhyPrefillsDisagree(const std::vector<PrefillPoint>& points, const PrefillCost& cost) {
  const auto misfit = [&cost](const PrefillPoint& point) {
    return std::abs(cost.Seconds(point.token_count) / point.seconds - 1);
  };
  const auto worst = std::ranges::max_element(points, {}, misfit);
  if (worst == points.end() || misfit(*worst) <= kMisfitMax) return "";
  return fmt::format(
      "the measured prefills do not agree: {} tokens took {:.4g} s, and the curve that fits all of "
      "them best says {:.4g} s. Measure again, with prompts that find nothing cached, or give "
      "lengths nearer to those that you plan for",
      worst->token_count, worst->seconds, cost.Seconds(worst->token_count));
}

double BreakEvenBytesPerSecond(const ModelShape& shape, const PrefillCost& cost,
                               uint64_t token_count) {
  return static_cast<double>(shape.session_bytes(token_count)) / cost.Seconds(token_count);
}

std::optional<uint64_t> LoadFromTokens(const ModelShape& shape, const PrefillCost& cost,
                                       uint64_t bytes_per_s, uint64_t token_count_max) {
  // A longer prefix never asks for more speed: its bytes grow at most as its tokens do, what it
  // costs to compute at least as they do.
  const auto is_worth_it = [&](uint64_t token_count) {
    return BreakEvenBytesPerSecond(shape, cost, token_count) <= static_cast<double>(bytes_per_s);
  };
  if (token_count_max == 0 || !is_worth_it(token_count_max)) return std::nullopt;
  uint64_t low = 0;
  uint64_t high = token_count_max;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (is_worth_it(middle) ? high : low) = middle;
  }
  return high;
}

Error ParseTier(std::string_view text, PlannedTier* tier) {
  constexpr std::string_view kExpected =
      "NAME=SIZE or NAME=SIZE@SPEED with KiB, MiB, GiB or TiB, such as dram=256GiB or "
      "nvme=4TiB@6GiB/s";
  constexpr std::string_view kPerSecond = "/s";
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) return Refuse("--tier", text, kExpected);
  const size_t at = text.find('@', equals);
  std::string_view speed = at == std::string_view::npos ? "" : text.substr(at + 1);
  *tier = {.name = std::string(text.substr(0, equals))};
  const std::string_view size = text.substr(equals + 1, at - equals - 1);
  if (!ParseBytes(size, &tier->capacity_bytes) || tier->capacity_bytes == 0) {
    return Refuse("--tier", text, kExpected);
  }
  if (at == std::string_view::npos) return {};
  if (speed.ends_with(kPerSecond)) speed.remove_suffix(kPerSecond.size());
  if (!ParseBytes(speed, &tier->bytes_per_s) || tier->bytes_per_s == 0) {
    return Refuse("--tier", text, kExpected);
  }
  return {};
}

Error ParsePrefill(std::string_view text, PrefillPoint* point) {
  const size_t equals = text.find('=');
  std::string_view seconds = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  if (seconds.ends_with('s')) seconds.remove_suffix(1);
  if (equals == std::string_view::npos ||
      !ParseBytes(text.substr(0, equals), &point->token_count) || point->token_count == 0 ||
      point->token_count > kPrefillTokensMax || !ParseSeconds(seconds, &point->seconds)) {
    return Refuse("--prefill", text,
                  fmt::format("TOKENS=SECONDS as measured, such as 8192=1.3: 1 to {} tokens, {} to "
                              "{} seconds",
                              kPrefillTokensMax, kSecondsMin, kSecondsMax));
  }
  return {};
}

}  // namespace terrace::tools
