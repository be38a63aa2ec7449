#include "tools/terrace/bench/device_sweep.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <utility>

namespace terrace::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kRunsPerPageMax = 32;
constexpr uint64_t kVictimBytes = 64 * kMiB;
constexpr double kVictimSecondsMin = 0.02;  // of one timing: some dozen calls of any path
constexpr uint32_t kVictimCopiesMax = 4096;
constexpr TransferPath kPaths[] = {TransferPath::kDirect, TransferPath::kStaged,
                                   TransferPath::kZeroCopy};
constexpr PagedDirection kDirections[] = {PagedDirection::kGather, PagedDirection::kScatter};

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

PathShape ShapeOf(uint64_t piece_bytes, uint64_t call_bytes) {
  PathShape shape{.run_bytes = piece_bytes};
  shape.run_count =
      static_cast<uint32_t>(std::clamp<uint64_t>(call_bytes / piece_bytes, 1, kRunsPerPageMax));
  shape.page_count = static_cast<uint32_t>(
      std::clamp<uint64_t>(call_bytes / (piece_bytes * shape.run_count), 1, kPagesPerCallMax));
  return shape;
}

Result<std::unique_ptr<PathTrial>> MakeTrial(const Device& device, uint64_t piece_bytes,
                                             uint64_t call_bytes, TransferPath path,
                                             std::string* why) {
  CopierOptions options;
  options.store_path = options.load_path = path;
  return PathTrial::Create(device, ShapeOf(piece_bytes, call_bytes), options, why);
}

// One contiguous copy: the most that a copy engine moves.
class PeakCopy {
 public:
  static Result<std::unique_ptr<PeakCopy>> Create(const Device& device, uint64_t byte_count) {
    Result<DeviceBuffer> inside = DeviceBuffer::Allocate(device, DeviceMemory::kDevice, byte_count);
    if (!inside.ok()) return inside.status();
    Result<DeviceBuffer> outside =
        DeviceBuffer::Allocate(device, DeviceMemory::kPinned, byte_count);
    if (!outside.ok()) return outside.status();
    std::memset(outside->address(), 1, byte_count);
    Result<Stream> stream = Stream::Create(device, StreamPriority::kLoad);
    if (!stream.ok()) return stream.status();
    Result<Event> done = Event::Create(device);
    if (!done.ok()) return done.status();
    return std::unique_ptr<PeakCopy>(
        new PeakCopy(std::move(inside).value(), std::move(outside).value(),
                     std::move(stream).value(), std::move(done).value()));
  }

  Result<double> BytesPerSecond(PagedDirection direction) {
    const bool stores = direction == PagedDirection::kGather;
    const CopyPiece piece = {stores ? outside_.address() : inside_.address(),
                             stores ? inside_.address() : outside_.address(), inside_.byte_count()};
    const Clock::time_point began = Clock::now();
    TERRACE_RETURN_IF_ERROR(
        stream_.Copy(stores ? CopyDirection::kToHost : CopyDirection::kToDevice, {&piece, 1}));
    TERRACE_RETURN_IF_ERROR(done_.Record(stream_));
    TERRACE_RETURN_IF_ERROR(done_.Await());
    return static_cast<double>(inside_.byte_count()) / Seconds(began);
  }

 private:
  PeakCopy(DeviceBuffer inside, DeviceBuffer outside, Stream stream, Event done)
      : inside_(std::move(inside)),
        outside_(std::move(outside)),
        stream_(std::move(stream)),
        done_(std::move(done)) {}

  DeviceBuffer inside_;
  DeviceBuffer outside_;
  Stream stream_;
  Event done_;
};

// One round of one piece size; a round before the first warms up and is not kept.
Status MeasureRound(PeakCopy& peak, std::vector<std::unique_ptr<PathTrial>>& trials, bool is_kept,
                    std::span<PathRow> rows) {
  size_t row = 0;
  for (const PagedDirection direction : kDirections) {
    const Result<double> most = peak.BytesPerSecond(direction);
    if (!most.ok()) return most.status();
    for (const std::unique_ptr<PathTrial>& trial : trials) {
      const Result<double> seconds = trial->Copy(direction);
      if (!seconds.ok()) return seconds.status();
      const double speed = static_cast<double>(trial->byte_count()) / *seconds;
      if (is_kept) {
        rows[row].gigabytes_per_second.push_back(speed / 1e9);
        rows[row].share_of_peak.push_back(speed / *most);
      }
      ++row;
    }
  }
  return Status::Ok();
}

}  // namespace

Status MeasurePaths(const Device& device, const DeviceSweepOptions& options,
                    std::vector<PathRow>* rows, std::string* why) {
  *why = "scratch memory for the paths";
  Result<std::unique_ptr<PeakCopy>> peak = PeakCopy::Create(device, options.call_bytes);
  if (!peak.ok()) return peak.status();
  for (const uint64_t piece_bytes : options.piece_bytes) {
    std::vector<std::unique_ptr<PathTrial>> trials;
    for (const TransferPath path : kPaths) {
      Result<std::unique_ptr<PathTrial>> trial =
          MakeTrial(device, piece_bytes, options.call_bytes, path, why);
      if (!trial.ok()) return trial.status();
      trials.push_back(std::move(trial).value());
    }
    const size_t first = rows->size();
    for (const PagedDirection direction : kDirections) {
      for (const TransferPath path : kPaths) rows->push_back({piece_bytes, direction, path});
    }
    for (uint32_t round = 0; round <= options.round_count; ++round) {
      TERRACE_RETURN_IF_ERROR(
          MeasureRound(**peak, trials, round > 0, std::span(*rows).subspan(first)));
    }
  }
  return Status::Ok();
}

namespace {

// Copies within the device, as an engine's memory-bound kernels are.
class Victim {
 public:
  static Result<std::unique_ptr<Victim>> Create(const Device& device) {
    Result<DeviceBuffer> from = DeviceBuffer::Allocate(device, DeviceMemory::kDevice, kVictimBytes);
    if (!from.ok()) return from.status();
    Result<DeviceBuffer> to = DeviceBuffer::Allocate(device, DeviceMemory::kDevice, kVictimBytes);
    if (!to.ok()) return to.status();
    Result<Stream> stream = Stream::Create(device, StreamPriority::kLoad);
    if (!stream.ok()) return stream.status();
    Result<Event> done = Event::Create(device);
    if (!done.ok()) return done.status();
    return std::unique_ptr<Victim>(new Victim(std::move(from).value(), std::move(to).value(),
                                              std::move(stream).value(), std::move(done).value()));
  }

  // As many copies as take kVictimSecondsMin alone.
  Status Calibrate() {
    while (copy_count_ < kVictimCopiesMax) {
      const Result<double> alone = SecondsBeside(nullptr);
      if (!alone.ok()) return alone.status();
      if (*alone >= kVictimSecondsMin) break;
      copy_count_ *= 2;
    }
    return Status::Ok();
  }

  // How long its copies take beside `beside`, which runs again and again until they are done; what
  // is under way then is not counted.
  Result<double> SecondsBeside(const std::function<Status()>& beside) {
    const Clock::time_point began = Clock::now();
    const CopyPiece piece{to_.address(), from_.address(), kVictimBytes};
    for (uint32_t i = 0; i < copy_count_; ++i) {
      TERRACE_RETURN_IF_ERROR(stream_.Copy(CopyDirection::kWithinDevice, {&piece, 1}));
    }
    TERRACE_RETURN_IF_ERROR(done_.Record(stream_));
    std::future<Result<double>> ended = std::async(std::launch::async, [&]() -> Result<double> {
      TERRACE_RETURN_IF_ERROR(done_.Await());
      return Seconds(began);
    });
    Status status;
    while (beside && status.ok() &&
           ended.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      status = beside();
    }
    Result<double> seconds = ended.get();
    return status.ok() ? std::move(seconds) : status;
  }

 private:
  Victim(DeviceBuffer from, DeviceBuffer to, Stream stream, Event done)
      : from_(std::move(from)),
        to_(std::move(to)),
        stream_(std::move(stream)),
        done_(std::move(done)) {}

  DeviceBuffer from_;
  DeviceBuffer to_;
  Stream stream_;
  Event done_;
  uint32_t copy_count_ = 8;
};

Status MeasureOneVictim(Victim& victim, PathTrial& trial, uint32_t round_count, VictimRow* row) {
  for (uint32_t round = 0; round <= round_count; ++round) {
    const Result<double> alone = victim.SecondsBeside(nullptr);
    if (!alone.ok()) return alone.status();
    const Result<double> beside =
        victim.SecondsBeside([&] { return trial.Copy(row->direction).status(); });
    if (!beside.ok()) return beside.status();
    if (round > 0) row->slowdown.push_back(*beside / *alone - 1);
  }
  return Status::Ok();
}

}  // namespace

Status MeasureVictim(const Device& device, const DeviceSweepOptions& options,
                     std::vector<VictimRow>* rows, std::string* why) {
  *why = "scratch memory for a copy within the device";
  Result<std::unique_ptr<Victim>> victim = Victim::Create(device);
  if (!victim.ok()) return victim.status();
  TERRACE_RETURN_IF_ERROR((*victim)->Calibrate());
  for (const uint64_t piece_bytes : {options.piece_bytes.front(), options.piece_bytes.back()}) {
    for (const TransferPath path : kPaths) {
      // Short calls: one that goes on after the victim has ended says nothing of it.
      Result<std::unique_ptr<PathTrial>> trial =
          MakeTrial(device, piece_bytes, options.call_bytes / 4, path, why);
      if (!trial.ok()) return trial.status();
      for (const PagedDirection direction : kDirections) {
        rows->push_back({piece_bytes, direction, path});
        TERRACE_RETURN_IF_ERROR(
            MeasureOneVictim(**victim, **trial, options.round_count, &rows->back()));
      }
    }
    if (options.piece_bytes.size() == 1) break;
  }
  return Status::Ok();
}

Status MeasureRegistration(const Device& device, const DeviceSweepOptions& options,
                           std::vector<RegistrationRow>* rows, std::string* why) {
  for (const uint64_t byte_count : {16 * kMiB, 64 * kMiB, 256 * kMiB}) {
    void* memory = mmap(nullptr, byte_count, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      *why = "host memory to register";
      return Status(StatusCode::kNoSpace, "host memory to register", errno);
    }
    RegistrationRow row{.byte_count = byte_count};
    Status status;
    for (uint32_t round = 0; round < options.round_count && status.ok(); ++round) {
      void* device_address = nullptr;
      const Clock::time_point began = Clock::now();
      status = FromDeviceStatus(
          device.ops().register_host(device.handle(), memory, byte_count, &device_address));
      row.register_ms.push_back(Seconds(began) * 1e3);
      if (!status.ok()) break;
      const Clock::time_point registered = Clock::now();
      status = FromDeviceStatus(device.ops().unregister_host(device.handle(), memory));
      row.unregister_ms.push_back(Seconds(registered) * 1e3);
    }
    munmap(memory, byte_count);
    if (!status.ok()) {
      *why = "registering host memory";
      return status;
    }
    rows->push_back(std::move(row));
  }
  return Status::Ok();
}

}  // namespace terrace::tools
