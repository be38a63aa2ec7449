#include "daemon/telemetry/turn_meter.h"

#include <utility>

#include "terrace/check.h"

namespace terrace {

TurnMeter::TurnMeter(std::function<uint64_t()> processor_us, uint64_t slow_us)
    : processor_us_(std::move(processor_us)), slow_us_(slow_us) {}

void TurnMeter::Begin(uint64_t now_us) {
  if (!is_sampled_ || now_us >= sampled_us_ + kSampleUs) Sample(now_us, processor_us_());
}

TurnCost TurnMeter::End(uint64_t began_us, uint64_t now_us) {
  TERRACE_CHECK(is_sampled_ && began_us <= now_us, "a turn has begun before it ends");
  TurnCost cost{.took_us = now_us - began_us};
  if (cost.took_us <= slow_us_) return cost;
  const uint64_t processor_us = processor_us_();
  const uint64_t ran_us = processor_us - sampled_processor_us_;
  if (ran_us < cost.took_us) cost.waited_us = cost.took_us - ran_us;
  Sample(now_us, processor_us);
  return cost;
}

void TurnMeter::Sample(uint64_t now_us, uint64_t processor_us) {
  sampled_us_ = now_us;
  sampled_processor_us_ = processor_us;
  is_sampled_ = true;
}

}  // namespace terrace
