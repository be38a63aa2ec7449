// One inference request against the cache, as an engine makes it: acquire the prompt's resident
// head and load it, store what was missing. `bench mixed` and `bench replay` run many of them.
#pragma once

#include <memory>
#include <span>

#include "tools/terrace/bench/bench_client.h"
#include "tools/terrace/bench/worker_pool.h"
#include "tools/terrace/trace/trace.h"

namespace terrace::tools {

enum class PromptBytes {
  kUntouched,  // hits are acquired and released; stores write some bytes
  kCopied,     // hits are copied out
  kVerified,   // hits are copied out and compared with their keys' patterns
};

struct PromptWorkload {
  BenchShape shape;
  BenchConnection connection;
  uint32_t client_count = 1;
  PromptBytes bytes = PromptBytes::kCopied;
};

// `bench mixed`: every client asks for random prompts of one pool. Groups of four prompts share
// their first half, so that the tree branches.
std::unique_ptr<Worker> MakeMixedWorker(const PromptWorkload& workload, uint64_t salt,
                                        uint32_t index, std::string* why);

struct ReplayWorkload : PromptWorkload {
  const Trace* trace = nullptr;  // outlives the worker
  double speed = 0;              // trace time over real time; 0: as fast as possible
};
// `bench replay`: requests in the trace's order; with several clients a session stays with one.
std::unique_ptr<Worker> MakeReplayWorker(const ReplayWorkload& workload, uint32_t index,
                                         std::string* why);

}  // namespace terrace::tools
