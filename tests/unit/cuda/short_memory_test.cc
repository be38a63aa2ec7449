// The host's device where there is no memory.
#include <gtest/gtest.h>

// Sanitizers bring their own operator new.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

#include <optional>
#include <vector>

#include "counted_allocations.h"
#include "cuda/host/edges.h"
#include "cuda/host/host_device.h"
#include "cuda/host/stream.h"
#include "cuda/host/stream_queues.h"
#include "cuda/kernels/codec.h"
#include "cuda/kernels/rope.h"

namespace terrace {
namespace {

thread_local bool t_has_memory = false;
thread_local int t_left = 0;  // allocations until there is none

Device OpenHost(uint32_t worker_count) {
  return std::move(Device::Open(HostDeviceOps(), {.worker_count = worker_count}).value());
}

// PROMISE: T26 a device whose threads are the process's own
TEST(ShortMemory, ADevicesThreadsTakeNone) {
  constexpr size_t kStreams = 12;
  const Device device = OpenHost(2);
  Event gate = std::move(Event::Create(device).value());
  Event done = std::move(Event::Create(device).value());
  std::vector<Stream> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(std::move(Stream::Create(device, StreamPriority::kStore).value()));
  }
  const std::vector<std::byte> from(8 << 20, std::byte{7});
  std::vector<std::byte> to(from.size());
  std::vector<std::byte> small(kStreams);
  t_has_memory = true;
  const test::ShortMemory memory([](size_t) { return !t_has_memory; });
  // Where the first one's copy ends when all are queued, all the others are ready at once.
  const CopyPiece large{to.data(), from.data(), from.size()};
  ASSERT_TRUE(streams[0].Copy(CopyDirection::kToHost, {&large, 1}).ok());
  ASSERT_TRUE(gate.Record(streams[0]).ok());
  for (size_t i = 1; i < kStreams; ++i) {
    const CopyPiece piece{small.data() + i, from.data(), 1};
    ASSERT_TRUE(streams[i].Wait(gate, StreamEdge::kStaging).ok());
    ASSERT_TRUE(streams[i].Copy(CopyDirection::kToHost, {&piece, 1}).ok());
  }
  for (Stream& stream : streams) EXPECT_TRUE(done.AwaitAll(stream).ok());
  EXPECT_EQ(to, from);
  for (size_t i = 1; i < kStreams; ++i) EXPECT_EQ(small[i], std::byte{7});
}

TEST(ShortMemory, WhatADevicesThreadHasNoneForFails) {
  const Device device = OpenHost(1);
  Event done = std::move(Event::Create(device).value());
  Stream stream = std::move(Stream::Create(device, StreamPriority::kLoad).value());
  const PieceShape shape = {.element = ElementType::kBf16,
                            .role = PieceRole::kKeys,
                            .tokens = 16,
                            .heads = 1,
                            .head_dim = 64};
  const std::vector<std::byte> encoded(LayoutOf(Codec::kInt8, shape).encoded_bytes);
  std::vector<std::byte> engines(shape.raw_bytes());
  const RopeSpec spec = {.rot_dim = 2, .inv_freq = {0.5}};
  const RopeTable table(spec, 3);
  const CodecPiece piece = {.engine_address = reinterpret_cast<uint64_t>(engines.data()),
                            .slot_address = reinterpret_cast<uint64_t>(encoded.data())};
  const CodecLaunch launch = {.codec = static_cast<uint32_t>(Codec::kInt8),
                              .element = static_cast<uint32_t>(shape.element),
                              .role = static_cast<uint32_t>(shape.role),
                              .tokens = shape.tokens,
                              .heads = shape.heads,
                              .head_dim = shape.head_dim,
                              .piece_count = 1,
                              .engine_token_stride_bytes = 128,
                              .pieces = &piece,
                              .turns = table.turns().data(),
                              .rot_dim = spec.rot_dim};
  t_has_memory = true;
  {
    // Keys that turn pass through memory of the thread's own.
    const test::ShortMemory memory([](size_t) { return !t_has_memory; });
    ASSERT_TRUE(stream.Decode(launch).ok());
    ASSERT_TRUE(done.Record(stream).ok());
    EXPECT_EQ(done.Await().code(), StatusCode::kNoSpace);
  }
  Stream next = std::move(Stream::Create(device, StreamPriority::kLoad).value());
  ASSERT_TRUE(next.Decode(launch).ok());
  ASSERT_TRUE(done.Record(next).ok());
  EXPECT_TRUE(done.Await().ok());
}

TEST(ShortMemory, WhatFinishesInAQueueTakesNone) {
  constexpr size_t kStreams = 12;
  const StreamWork work{[](uint32_t) { return Status::Ok(); }, 1};
  StreamQueues queues;
  QueuedEvent* const gate = queues.CreateEvent();
  std::vector<StreamQueues::Stream*> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(queues.CreateStream(StreamPriority::kStore));
    if (i > 0) queues.Wait(streams[i], gate);
    queues.Push(streams[i], work);
    if (i == 0) queues.Record(gate, streams[i]);
  }
  size_t ready_count = 0;
  {
    const test::ShortMemory memory([](size_t) { return true; });
    queues.Begin(streams[0]);
    queues.Finish(streams[0], Status::Ok());  // now all the others are ready
    ready_count = queues.ready().size();
    while (!queues.ready().empty()) {
      StreamQueues::Stream* const stream = queues.ready().front();
      queues.Begin(stream);
      queues.DestroyStream(stream);
      queues.Finish(stream, Status::Ok());
    }
  }
  EXPECT_EQ(ready_count, kStreams - 1);
  EXPECT_TRUE(queues.is_idle());
}

TEST(ShortMemory, AnEventIsGivenBackWithoutAny) {
  const Device device = OpenHost(1);
  EventPool pool(device, 4);
  Stream stream = std::move(Stream::Create(device, StreamPriority::kStore).value());
  std::optional<PooledEvent> event(std::move(PooledEvent::After(pool, stream).value()));
  t_has_memory = false;
  {
    const test::ShortMemory memory([](size_t) { return !t_has_memory; });
    event.reset();
  }
  EXPECT_EQ(pool.taken_count(), 0u);
}

TEST(ShortMemory, AnEventThatCouldNotBeRecordedIsReached) {
  StreamQueues queues;
  StreamQueues::Stream* const stream = queues.CreateStream(StreamPriority::kStore);
  QueuedEvent* const event = queues.CreateEvent();
  int failed_count = 0;
  for (int round = 0; round < 200; ++round) {  // more than the queue has room for at once
    t_left = 1;
    {
      const test::ShortMemory memory([](size_t) { return t_left-- <= 0; });
      try {
        queues.Push(stream, {[](uint32_t) { return Status::Ok(); }, 1});
      } catch (const std::bad_alloc&) {
      }
    }
    t_left = 1;  // for the record, and not for its place in the queue
    bool has_failed = false;
    {
      const test::ShortMemory memory([](size_t) { return t_left-- <= 0; });
      try {
        queues.Record(event, stream);
      } catch (const std::bad_alloc&) {
        has_failed = true;
      }
    }
    while (!queues.ready().empty()) {
      queues.Begin(stream);
      queues.Finish(stream, Status::Ok());
    }
    failed_count += has_failed ? 1 : 0;
    ASSERT_TRUE(event->is_reached()) << "round " << round;
  }
  EXPECT_GT(failed_count, 0);
}

}  // namespace
}  // namespace terrace

#endif
