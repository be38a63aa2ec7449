// What moves blocks, over the blocks of one domain without a Store.
#pragma once

#include "daemon/transfer/mover.h"
#include "unit/daemon/residency/block_world.h"

namespace terrace {

class MoverWorld : public BlockWorld {
 public:
  explicit MoverWorld(const Options& options = {.tier_count = 1})
      : BlockWorld(options),
        evictor(d(), r()),
        verifier(d(), r()),
        mover(d(), r(), evictor, verifier) {
    verifier.SetListener(&mover);
    evictor.SetWriter(&mover);
  }

  // The oldest transfer under way ends.
  void EndTransfer(StatusCode code = StatusCode::kOk) {
    constexpr uint64_t kNumberMask = (uint64_t{1} << 48) - 1;
    mover.OnTransferDone(tier().Take().id & kNumberMask, Status(code));
  }
  // The oldest checksum job ends: with the roots that are known, or others.
  void EndCheck(bool is_good = true) {
    const ChecksumJob job = std::move(offload.jobs.front());
    offload.jobs.erase(offload.jobs.begin());
    const Checksum root{is_good ? checked_number : ~checked_number, 1};
    verifier.OnChecksumsDone(job.id & 0xFFFFFFFF, std::vector<Checksum>(job.parts.size(), root));
  }
  BlockId PutVerified(uint64_t number, BlockId parent = kBlockNone) {
    const BlockId id = Put(number, parent);
    r().dram.Verified(id);
    Told();
    return id;
  }

  uint64_t checked_number = 1;  // of the block whose check ends next
  Evictor evictor;
  Verifier verifier;
  Mover mover;
};

}  // namespace terrace
