// `terrace bench rtt`: what one Acquire costs over the bare exchange of as many bytes between two
// processes. The echo is the floor: the same sizes, blocking send and recv on a Unix stream socket,
// pinned as client and daemon are.
#pragma once

#include <memory>

#include "tools/terrace/bench/bench_client.h"
#include "tools/terrace/bench/worker_pool.h"

namespace terrace::tools {

struct RttWorkload {
  BenchShape shape;  // one prompt: the Acquire's keys
  BenchConnection connection;
  int echo_cpu = 0;  // where the echoing process runs: the daemon's CPU
};

// Phases: kPrepare stores the prompt and fills request_bytes and reply_bytes; kFloor and kTerrace
// fill latencies. REQUIRES: the calling process has one thread.
std::unique_ptr<Worker> MakeRttWorker(const RttWorkload& workload, std::string* why);

}  // namespace terrace::tools
