// What a device reaches of the arena: who registers it, and when.
#include <cstring>
#include <system_error>

#include "client/core/core.h"

namespace terrace::client {

Result<std::shared_ptr<HostPins>> Core::PinArena(std::shared_ptr<const Device> device,
                                                 std::string_view why) {
  const std::string_view backend = device->ops().backend;
  const auto pins = std::make_shared<HostPins>(std::move(device), options_.pinned_bytes_max);
  const auto pinner = std::make_shared<SegmentPinner>(
      pins,
      SegmentPinner::Hooks{
          .ask_turn = [this] { return AskPinTurn(); },
          .end_turn = [this] { EndPinTurn(); },
          .is_present =
              [this](const Attachment& attachment) {
                return this->attachment().get() == &attachment;
              },
          .unmapped = [this](const Attachment& attachment,
                             uint32_t segment) { TellUnmapped(attachment, segment); },
          .report = [this](const std::string& sentence) { SetError(sentence); },
          .tell_counts = [this, counted = pins.get()] { TellPinCounts(*counted); }},
      options_.pin_turn_wait_ms * uint64_t{1'000});
  std::shared_ptr<Attachment> attachment;
  {
    LockGuard guard(state_lock_);
    if (pinner_ != nullptr) {
      return Status(StatusCode::kExists, "the arena is registered with a device already");
    }
    told_ = {};
    backend.copy(told_.backend, sizeof(told_.backend) - 1);
    why.copy(told_.why, sizeof(told_.why) - 1);
    try {
      const SignalsBlocked blocked;
      pinner->Start();
    } catch (const std::system_error&) {
      return Status(StatusCode::kNoSpace, "no thread to register the arena with a device");
    }
    pinner_ = pinner;
    attachment = attachment_;
  }
  if (attachment != nullptr) attachment->SetPinner(pinner);
  return pins;
}

std::shared_ptr<SegmentPinner> Core::pinner() const {
  LockGuard guard(state_lock_);
  return pinner_;
}

bool Core::AskPinTurn() {
  const uint32_t connection = this->connection();
  if (connection == 0 || boot_id() == turnless_boot_id_.load()) return false;
  ListenForTurn(true);
  const protocol::PinTurnRequest ask{.action = protocol::PinTurnAction::kAsk};
  SendUnawaited(connection, protocol::kVerbPinTurn, {BytesOf(ask)});
  return true;
}

void Core::TellPinCounts(const HostPins& pins) {
  const uint32_t connection = this->connection();
  if (connection == 0 || boot_id() == turnless_boot_id_.load()) return;
  const HostPins::Counts counts = pins.counts();
  protocol::DeviceReport report = told_;
  report.pinned_bytes = counts.pinned_bytes;
  report.pinned_bytes_max = counts.pinned_bytes_max;
  report.straight_bytes = counts.straight_bytes;
  report.bounced_bytes = counts.bounced_bytes;
  report.failed_count = counts.failed_count;
  const bool is_known =
      connection == told_connection_ && std::memcmp(&report, &told_, sizeof(report)) == 0;
  if (is_known) return;
  told_ = report;
  told_connection_ = connection;
  SendUnawaited(connection, protocol::kVerbDeviceReport, {BytesOf(report)});
}

void Core::EndPinTurn() {
  ListenForTurn(false);
  const protocol::PinTurnRequest end{.action = protocol::PinTurnAction::kEnd};
  SendUnawaited(connection(), protocol::kVerbPinTurn, {BytesOf(end)});
}

// Somebody must read what comes unasked, as long as it is waited for.
void Core::ListenForTurn(bool is_listening) {
  if (is_turn_awaited_.exchange(is_listening) == is_listening) return;
  CountComing(is_listening ? 1 : -1);
  if (is_listening && !reader_.is_locked()) link_.ListenInBackground();
}

void Core::TellUnmapped(const Attachment& attachment, uint32_t segment) {
  // The connection first: once there is another, the attachment is not the present one any more.
  const uint32_t connection = this->connection();
  if (this->attachment().get() != &attachment) return;
  const protocol::UnmappedRequest unmapped{.segment = segment};
  SendUnawaited(connection, protocol::Verb::kUnmapped, {BytesOf(unmapped)});
}

}  // namespace terrace::client
