#include "client/session/arena_pins.h"

#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "client/link/signals_blocked.h"

namespace terrace::client {

Result<std::shared_ptr<HostPins>> ArenaPins::Start(std::shared_ptr<const Device> device,
                                                   std::string_view why) {
  const std::string_view backend = device->ops().backend;
  const auto pins = std::make_shared<HostPins>(std::move(device), options_.pinned_bytes_max);
  const auto pinner = std::make_shared<SegmentPinner>(pins, Hooks(*pins),
                                                      options_.pin_turn_wait_ms * uint64_t{1'000});
  {
    LockGuard guard(lock_);
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
  }
  // An attachment that comes from here on is adopted.
  const std::shared_ptr<Attachment> attachment = connection_.attachment();
  if (attachment != nullptr) attachment->SetPinning(PinningBy(pinner));
  return pins;
}

void ArenaPins::Stop() {
  if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->Stop();
}

std::shared_ptr<SegmentPinner> ArenaPins::pinner() const {
  LockGuard guard(lock_);
  return pinner_;
}

SegmentPinner::Hooks ArenaPins::Hooks(const HostPins& pins) {
  return {.ask_turn = [this] { return AskTurn(); },
          .end_turn = [this] { EndTurn(); },
          .report = [this](const std::string& sentence) { connection_.SetError(sentence); },
          .tell_counts = [this, &pins] { TellCounts(pins); }};
}

Attachment::Pinning ArenaPins::PinningBy(std::shared_ptr<SegmentPinner> pinner) {
  return {.pinner = std::move(pinner),
          .is_present =
              [this](const Attachment& attachment) {
                return connection_.attachment().get() == &attachment;
              },
          .unmapped = [this](const Attachment& attachment,
                             uint32_t segment) { TellUnmapped(attachment, segment); }};
}

void ArenaPins::Adopt(Attachment& attachment) {
  if (std::shared_ptr<SegmentPinner> pinner = this->pinner()) {
    attachment.SetPinning(PinningBy(std::move(pinner)));
  }
}

void ArenaPins::OnConnected() {
  if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->OnConnect();
}

void ArenaPins::OnTurnBegins() {
  ListenForTurn(false);
  if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->OnTurn();
}

void ArenaPins::OnDisconnected() {
  if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->OnDisconnect();
  ListenForTurn(false);
}

bool ArenaPins::AskTurn() {
  const uint32_t connection = connection_.number();
  if (connection == 0 || connection_.boot_id() == turnless_boot_id_.load()) return false;
  ListenForTurn(true);
  const protocol::PinTurnRequest ask{.action = protocol::PinTurnAction::kAsk};
  connection_.SendUnawaited(connection, protocol::kVerbPinTurn, {BytesOf(ask)});
  return true;
}

void ArenaPins::EndTurn() {
  ListenForTurn(false);
  const protocol::PinTurnRequest end{.action = protocol::PinTurnAction::kEnd};
  connection_.SendUnawaited(connection_.number(), protocol::kVerbPinTurn, {BytesOf(end)});
}

// Somebody must read what comes unasked, as long as it is waited for.
void ArenaPins::ListenForTurn(bool is_listening) {
  if (is_turn_awaited_.exchange(is_listening) == is_listening) return;
  if (is_listening && !role_.is_taken()) connection_.link().ListenInBackground();
}

void ArenaPins::TellCounts(const HostPins& pins) {
  const uint32_t connection = connection_.number();
  if (connection == 0 || connection_.boot_id() == turnless_boot_id_.load()) return;
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
  connection_.SendUnawaited(connection, protocol::kVerbDeviceReport, {BytesOf(report)});
}

void ArenaPins::TellUnmapped(const Attachment& attachment, uint32_t segment) {
  // The connection first: once there is another, the attachment is not the present one any more.
  const uint32_t connection = connection_.number();
  if (connection_.attachment().get() == &attachment) connection_.SendUnmapped(connection, segment);
}

}  // namespace terrace::client
