// The simulated device as a plugin, for programs that know devices only through the C ABI: it says
// that it is `cuda`, and its streams run when a seed says so. An engine on it makes its streams and
// kernels with the functions below.
//
// THREADING: any; one call at a time.
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/abi/device_status.h"
#include "cuda/kernels/codec_device.h"
#include "sim/sim_device.h"

namespace terrace {
namespace {

std::mutex g_lock;
// The last one is in use; what was made on the others may still be about.
std::vector<std::unique_ptr<SimDevice>> g_devices;

SimDevice& CurrentDevice() {
  if (g_devices.empty()) g_devices.push_back(std::make_unique<SimDevice>(SimDeviceOptions{}));
  return *g_devices.back();
}

template <auto kFunction>
struct Locked;

template <typename Answer, typename... Arguments, Answer (*DeviceOps::*kFunction)(Arguments...)>
struct Locked<kFunction> {
  static Answer Call(Arguments... arguments) {
    const std::lock_guard guard(g_lock);
    return (SimDeviceOps().*kFunction)(arguments...);
  }
};

DeviceStatus OpenCurrent(const DeviceOpenOptions*, DeviceHandle** device) {
  const std::lock_guard guard(g_lock);
  *device = CurrentDevice().handle();
  return {};
}

template <auto kFunction>
DeviceStatus LockedCode(StreamHandle* stream, const CodecLaunch* launch) {
  const std::lock_guard guard(g_lock);
  return (SimDeviceOps().codecs->*kFunction)(stream, launch);
}

constexpr CodecOps kCodecOps = {sizeof(CodecOps), 0, LockedCode<&CodecOps::encode>,
                                LockedCode<&CodecOps::decode>};

using Ops = DeviceOps;
constexpr DeviceOps kOps = {
    sizeof(DeviceOps),
    kDeviceAbiVersion,
    "cuda",
    Locked<&Ops::count_devices>::Call,
    OpenCurrent,
    Locked<&Ops::close_device>::Call,
    Locked<&Ops::describe_device>::Call,
    Locked<&Ops::allocate>::Call,
    Locked<&Ops::deallocate>::Call,
    Locked<&Ops::register_host>::Call,
    Locked<&Ops::unregister_host>::Call,
    Locked<&Ops::create_slab>::Call,
    Locked<&Ops::map_slab>::Call,
    Locked<&Ops::unmap_slab>::Call,
    Locked<&Ops::create_stream>::Call,
    Locked<&Ops::adopt_stream>::Call,
    Locked<&Ops::destroy_stream>::Call,
    Locked<&Ops::create_event>::Call,
    Locked<&Ops::destroy_event>::Call,
    Locked<&Ops::record_event>::Call,
    Locked<&Ops::wait_event>::Call,
    Locked<&Ops::query_event>::Call,
    Locked<&Ops::await_event>::Call,
    Locked<&Ops::copy_batch>::Call,
    Locked<&Ops::copy_paged>::Call,
    &kCodecOps,
};

}  // namespace
}  // namespace terrace

using namespace terrace;

extern "C" {

const DeviceOps* terrace_device_plugin(uint32_t abi_version) {
  return abi_version == kDeviceAbiVersion ? &kOps : nullptr;
}

// A new device for all that is opened from here on. dropped_edge: a StreamEdge, or -1.
void sim_configure(uint64_t seed, uint32_t steps_per_call_max, uint32_t copy_failures_per_million,
                   uint32_t store_slowness, uint32_t registration_failures_per_million,
                   int32_t dropped_edge) {
  SimDeviceOptions options{.seed = seed,
                           .steps_per_call_max = steps_per_call_max,
                           .copy_failures_per_million = copy_failures_per_million,
                           .store_slowness = store_slowness,
                           .dropped_edge = {},
                           .registration_failures_per_million = registration_failures_per_million,
                           .needs_registration = true};
  if (dropped_edge >= 0) options.dropped_edge = static_cast<StreamEdge>(dropped_edge);
  const std::lock_guard guard(g_lock);
  g_devices.push_back(std::make_unique<SimDevice>(options));
}

// Copies that touched host memory which the device does not reach.
uint64_t sim_stray_count() {
  const std::lock_guard guard(g_lock);
  return CurrentDevice().stray_count();
}

StreamHandle* sim_stream_create() {
  const std::lock_guard guard(g_lock);
  StreamHandle* stream = nullptr;
  const DeviceStatus made =
      SimDeviceOps().create_stream(CurrentDevice().handle(), StreamPriority::kLoad, &stream);
  return made.code == 0 ? stream : nullptr;
}

// A kernel of the engine's that moves bytes and never fails; what it reads must stay until it has
// run.
void sim_stream_copy(StreamHandle* stream, void* to, const void* from, uint64_t byte_count) {
  const std::lock_guard guard(g_lock);
  CurrentDevice().Launch(stream, 1, [=](uint32_t) { std::memcpy(to, from, byte_count); });
}

// What is queued on the stream by now.
EventHandle* sim_mark_create(StreamHandle* stream) {
  const std::lock_guard guard(g_lock);
  EventHandle* mark = nullptr;
  if (SimDeviceOps().create_event(CurrentDevice().handle(), &mark).code != 0) return nullptr;
  if (SimDeviceOps().record_event(mark, stream).code == 0) return mark;
  SimDeviceOps().destroy_event(mark);
  return nullptr;
}

int32_t sim_mark_await(EventHandle* mark) {
  const std::lock_guard guard(g_lock);
  return SimDeviceOps().await_event(mark).code;
}

void sim_mark_destroy(EventHandle* mark) {
  const std::lock_guard guard(g_lock);
  SimDeviceOps().destroy_event(mark);
}

}  // extern "C"
