// ChaosProxy: stands between a tier and its server and spoils what the server answers: late, in
// part, changed, in another order, or not at all. It knows where replies end, so that it can swap
// two of them. Commands pass untouched, unless ReplaceInCommands says otherwise.
//
// THREADING: its own thread; every method from any other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tiers/redis/wire/redis_endpoint.h"

namespace terrace::testing {

class ChaosProxy {
 public:
  // Out of a thousand replies so many meet each fault.
  struct Faults {
    uint32_t delayed = 0;       // by delay_ms_min to delay_ms_max, with all that follow
    uint32_t reset = 0;         // RST instead of it
    uint32_t cut = 0;           // its first part, then the end of the connection
    uint32_t shortened = 0;     // some bytes inside are missing, what follows goes on
    uint32_t wrong_length = 0;  // says another length than it has
    uint32_t garbled = 0;       // bytes changed
    uint32_t swapped = 0;       // with the one behind it
    uint32_t swallowed = 0;     // nothing comes any more, and the connection stays
    uint32_t delay_ms_min = 1, delay_ms_max = 20;
  };

  ChaosProxy(const RedisEndpoint& upstream, uint64_t seed);
  ~ChaosProxy();

  // Where the tier connects to.
  RedisEndpoint endpoint() const;

  // Wherever `text` comes whole in what one read gives, `other`, of its length, goes on.
  void ReplaceInCommands(std::string text, std::string other);
  void SetFaults(const Faults& faults);
  // Commands go on to the server; so many replies come back, then none, on any connection.
  void HoldReplies(uint64_t after);
  // What was held comes back.
  void ReleaseReplies();
  // All connections are reset, new ones are accepted and reset until Accept().
  void Refuse();
  void Accept();

  uint64_t faults_count() const;
  uint64_t replaced_count() const;
  uint64_t replies_count() const;
  uint64_t connections_count() const;
  uint64_t held_replies_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::testing
