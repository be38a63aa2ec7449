#include "cuda/copy/transfer_plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>

namespace terrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kTrialBytesMax =
    8 * kMiB;  // of a call: several stages' worth costs too much time
constexpr uint32_t kTrialRunsMax = 32;
constexpr uint32_t kTrialPagesMax = 64;
constexpr uint32_t kTokensOfRunMax = 16;
constexpr TransferPath kPaths[kTransferPathCount] = {TransferPath::kDirect, TransferPath::kStaged,
                                                     TransferPath::kZeroCopy};

uint64_t ElapsedUs(Clock::time_point since) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - since).count());
}

// Of how many tokens a run is made: one, where it is no longer than a token may be.
uint32_t TokensOfRun(uint64_t run_bytes) {
  uint32_t token_count = 1;
  while (token_count <= kTokensOfRunMax &&
         (run_bytes % token_count != 0 || run_bytes / token_count > kMiB)) {
    ++token_count;
  }
  return token_count;
}

// A tensor a layer, whose pages are one run each.
PagedLayout ScratchLayout(const PathShape& shape, const std::byte* address) {
  const uint32_t token_count = TokensOfRun(shape.run_bytes);
  PagedLayout layout;
  layout.layer_count = shape.run_count;
  layout.plane_count = layout.head_count = 1;
  layout.page_tokens = layout.block_tokens = token_count;
  layout.page_count = shape.page_count;
  layout.head_bytes = shape.run_bytes / token_count;
  layout.head_stride_bytes = layout.token_stride_bytes = layout.head_bytes;
  layout.block_stride_bytes = shape.run_bytes;
  for (uint32_t layer = 0; layer < shape.run_count; ++layer) {
    layout.bases.push_back(reinterpret_cast<uint64_t>(address) +
                           layer * shape.page_count * shape.run_bytes);
  }
  return layout;
}

}  // namespace

bool PathTrial::CanBeRun(uint64_t run_bytes) { return TokensOfRun(run_bytes) <= kTokensOfRunMax; }

PathTrial::PathTrial(DeviceBuffer pages, DeviceBuffer slots)
    : pages_(std::move(pages)), slots_(std::move(slots)) {}

Result<std::unique_ptr<PathTrial>> PathTrial::Create(const Device& device, const PathShape& shape,
                                                     const CopierOptions& options,
                                                     std::string* why) {
  const uint64_t page_bytes = uint64_t{shape.run_count} * shape.run_bytes;
  Result<DeviceBuffer> pages =
      DeviceBuffer::Allocate(device, DeviceMemory::kDevice, page_bytes * shape.page_count);
  if (!pages.ok()) return pages.status();
  Result<PagedNest> nest = CompileNest(ScratchLayout(shape, pages->address()),
                                       {.layers_per_part = shape.run_count}, why);
  if (!nest.ok()) return nest.status();
  Result<DeviceBuffer> slots =
      DeviceBuffer::Allocate(device, DeviceMemory::kPinned, nest->slot_bytes * shape.page_count);
  if (!slots.ok()) return slots.status();
  std::memset(slots->address(), 1, slots->byte_count());  // pages that nobody touched are not there
  std::unique_ptr<PathTrial> trial(
      new PathTrial(std::move(pages).value(), std::move(slots).value()));
  std::vector<uint64_t> order(shape.page_count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937_64(1));
  for (uint64_t i = 0; i < order.size(); ++i) {
    std::byte* slot = trial->slots_.address() + i * nest->slot_bytes;
    trial->asked_.push_back({order[i], slot, slot});
  }
  Result<std::unique_ptr<PagedCopier>> copier =
      PagedCopier::Create(device, std::move(nest).value(), options, why);
  if (!copier.ok()) return copier.status();
  trial->copier_ = std::move(copier).value();
  return trial;
}

uint64_t PathTrial::byte_count() const {
  const PagedNest& nest = copier_->nest();
  return nest.layer_bytes * nest.layer_count() * asked_.size();
}

Result<double> PathTrial::Copy(PagedDirection direction) {
  const Clock::time_point began = Clock::now();
  if (direction == PagedDirection::kGather) {
    Result<StoreTicket> ticket = copier_->Store(asked_, KvWritten::Already());
    if (!ticket.ok()) return ticket.status();
    TERRACE_RETURN_IF_ERROR(ticket->slots_written.AwaitOnHost());
  } else {
    Result<LoadTicket> ticket = copier_->Load(asked_, DestinationFree::Already());
    if (!ticket.ok()) return ticket.status();
    const uint32_t last_layer = copier_->nest().layer_count() - 1;
    TERRACE_RETURN_IF_ERROR(ticket->layer_ready.AwaitOnHost(last_layer));
    TERRACE_RETURN_IF_ERROR(ticket->slots_read.AwaitOnHost());
  }
  return std::chrono::duration<double>(Clock::now() - began).count();
}

CopierOptions TransferPlan::Apply(CopierOptions options) const {
  options.store_path = store_path;
  options.load_path = load_path;
  return options;
}

TransferPlan PlanByRule(const PagedNest& nest, bool is_host) {
  TransferPath path = TransferPath::kStaged;
  if (nest.run_bytes >= kDirectRunBytesMin) path = TransferPath::kDirect;
  if (is_host) path = TransferPath::kZeroCopy;
  return {.store_path = path, .load_path = path};
}

namespace {

PathShape TrialShape(const PagedNest& nest) {
  PathShape shape;
  shape.run_bytes = std::min<uint64_t>(nest.run_bytes, kMiB);
  shape.run_count =
      static_cast<uint32_t>(std::clamp<uint64_t>(nest.runs_per_page(), 1, kTrialRunsMax));
  const uint64_t page_bytes = shape.run_count * shape.run_bytes;
  shape.page_count =
      static_cast<uint32_t>(std::clamp<uint64_t>(kTrialBytesMax / page_bytes, 1, kTrialPagesMax));
  return shape;
}

// The best of the calls that fit the time; the first one makes what is made on first use.
double BestBytesPerSecond(PathTrial& trial, PagedDirection direction, Clock::time_point began,
                          uint64_t until_us) {
  double best_seconds = 0;
  for (int call = 0; ElapsedUs(began) < until_us; ++call) {
    const Result<double> seconds = trial.Copy(direction);
    if (!seconds.ok()) return 0;
    if (call > 0 && (best_seconds == 0 || *seconds < best_seconds)) best_seconds = *seconds;
  }
  return best_seconds == 0 ? 0 : static_cast<double>(trial.byte_count()) / best_seconds;
}

void Adopt(const PathMeasurement& measured, double* best, TransferPath* path) {
  if (measured.bytes_per_second <= *best) return;
  *best = measured.bytes_per_second;
  *path = measured.path;
}

}  // namespace

TransferPlan Calibrate(const Device& device, const PagedNest& nest, const CopierOptions& options) {
  const Clock::time_point began = Clock::now();
  TransferPlan plan = PlanByRule(nest, std::string_view(device.ops().backend) == "host");
  // The last tenth is for the call that began just before its time was over.
  constexpr uint64_t kShareUs = kCalibrationUsMax * 9 / 10 / (2 * kTransferPathCount);
  double best_store = 0;
  double best_load = 0;
  uint64_t until_us = 0;
  for (const TransferPath path : kPaths) {
    CopierOptions tried = options;
    tried.store_path = tried.load_path = path;
    tried.stage_bytes = std::min<uint64_t>(options.stage_bytes, kTrialBytesMax / 2);
    std::string why;
    const Result<std::unique_ptr<PathTrial>> trial =
        PathTrial::Create(device, TrialShape(nest), tried, &why);
    for (const PagedDirection direction : {PagedDirection::kGather, PagedDirection::kScatter}) {
      until_us += kShareUs;
      if (!trial.ok()) continue;
      const PathMeasurement measured{
          path, direction, BestBytesPerSecond(*trial.value(), direction, began, until_us)};
      plan.measurements.push_back(measured);
      const bool stores = direction == PagedDirection::kGather;
      Adopt(measured, stores ? &best_store : &best_load,
            stores ? &plan.store_path : &plan.load_path);
    }
  }
  plan.spent_us = ElapsedUs(began);
  return plan;
}

}  // namespace terrace
