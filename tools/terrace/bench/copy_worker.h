// `terrace bench store` and `terrace bench load`: how close a block's way through the daemon comes
// to a plain memcpy into, or out of, memory of the same kind. Floor and measurement alternate round
// by round in the same processes, so that both see the same machine.
#pragma once

#include <memory>

#include "tools/terrace/bench/bench_client.h"
#include "tools/terrace/bench/floor_memory.h"
#include "tools/terrace/bench/worker_pool.h"

namespace terrace::tools {

enum class CopyDirection { kStore, kLoad };

struct CopyWorkload {
  CopyDirection direction = CopyDirection::kLoad;
  BenchShape shape;
  BenchConnection connection;
  uint32_t client_count = 1;
  uint64_t salt = 0;  // keeps the keys of runs apart
  enum class Verify { kNo, kYes } verify = Verify::kNo;
  const FloorMemory* floor = nullptr;  // prompt_count × prompt_bytes; outlives the workers
};

// One client process. Storing, worker w owns the prompts w, w + client_count, …; loading, it reads
// all prompts, beginning with another one than its neighbours.
std::unique_ptr<Worker> MakeCopyWorker(const CopyWorkload& workload, uint32_t index,
                                       std::string* why);

}  // namespace terrace::tools
