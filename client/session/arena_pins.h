// ArenaPins: what a device reaches of the arena. It starts the SegmentPinner when the engine names
// its device, speaks for it with the daemon (turns to register, figures for `terrace status`), and
// shows it each connection's attachment.
//
// THREADING: any thread, but what REQUIRES the reader role, and the hooks, which are the pinner's
// thread's. `lock_` guards the pinner, which is set once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "client/arena/attachment.h"
#include "client/arena/segment_pinner.h"
#include "client/link/reader_role.h"
#include "client/link/timed_lock.h"
#include "client/session/connection.h"
#include "cuda/host/host_pins.h"
#include "terrace/client.h"
#include "terrace/protocol_device.h"

namespace terrace::client {

class ArenaPins {
 public:
  ArenaPins(const ClientOptions& options, Connection& connection, const ReaderRole& role)
      : options_(options), connection_(connection), role_(role) {}
  ArenaPins(const ArenaPins&) = delete;
  ArenaPins& operator=(const ArenaPins&) = delete;

  // See Client::PinArena. kExists: there is a device already; kNoSpace: no thread.
  Result<std::shared_ptr<HostPins>> Start(std::shared_ptr<const Device> device,
                                          std::string_view why);
  // What is registered stays so, nothing more is.
  void Stop();
  // Null before Start.
  std::shared_ptr<SegmentPinner> pinner() const;

  // A connection begins: between its SetAttachment and its Attach, and behind it.
  // REQUIRES: the reader role, for Adopt.
  void Adopt(Attachment& attachment);
  void OnConnected();
  // What the connection says. REQUIRES: the reader role.
  void OnTurnBegins();
  void OnTurnUnknown(uint64_t boot_id) { turnless_boot_id_ = boot_id; }
  void OnDisconnected();
  // Somebody must read, for the daemon is to say when it is this process's turn.
  bool is_turn_awaited() const { return is_turn_awaited_.load(); }

 private:
  SegmentPinner::Hooks Hooks(const HostPins& pins);
  Attachment::Pinning PinningBy(std::shared_ptr<SegmentPinner> pinner);
  bool AskTurn();
  void EndTurn();
  void ListenForTurn(bool is_listening);
  void TellCounts(const HostPins& pins);
  void TellUnmapped(const Attachment& attachment, uint32_t segment);

  const ClientOptions& options_;
  Connection& connection_;
  const ReaderRole& role_;

  mutable TimedLock lock_;
  std::shared_ptr<SegmentPinner> pinner_;

  std::atomic<uint64_t> turnless_boot_id_{0};  // of a daemon that gives out no turns
  std::atomic<bool> is_turn_awaited_{false};
  // The pinner's thread's; but for the texts, which are there before it.
  protocol::DeviceReport told_;
  uint32_t told_connection_ = 0;
};

}  // namespace terrace::client
