#include "client/core/core.h"

#include <system_error>
#include <utility>

#include "client/core/background.h"
#include "client/link/cancel_deferred.h"
#include "client/link/signals_blocked.h"
#include "cuda/host/device_name.h"

namespace terrace::client {

Core::Core(const ClientOptions& options, std::string device_name)
    : options_(options), device_name_(std::move(device_name)) {}

Result<std::shared_ptr<Core>> Core::Start(const ClientOptions& options, std::string* why) {
  std::string device_name;
  if (options.device != nullptr) {
    Result<std::string> name = DeviceName(*options.device);
    if (!name.ok()) {
      *why = std::string("device cannot say which it is: ") + name.status().what() +
             "; open it anew, or leave it out";
      return name.status();
    }
    device_name = std::move(name).value();
  }
  std::shared_ptr<Core> core(new Core(options, std::move(device_name)));
  Status status = core->connection_.Open();
  if (status.ok()) status = core->completions().Open();
  if (!status.ok()) {
    *why = "no descriptors left for a Client: raise this process's descriptor limit";
    return status;
  }
  if (status = core->notices_.Open(); !status.ok()) {
    *why = "no memory for a page that a Client maps: raise this process's memory limit";
    return status;
  }
  try {
    const SignalsBlocked blocked;
    core->background_ = std::thread([core] {
      Background({.options = core->options_,
                  .device_name = core->device_name_,
                  .notices = core->notices_,
                  .connection = core->connection_,
                  .groups = core->groups_,
                  .leases = core->leases_,
                  .requests = core->requests_,
                  .orders = core->orders_,
                  .role = core->role_,
                  .reader = core->reader_})
          .Run();
    });
  } catch (const std::system_error&) {
    *why = "no thread for a Client: raise this process's thread limit";
    return Status(StatusCode::kNoSpace, "no thread for a Client");
  }
  return core;
}

void Core::Stop() {
  const CancelDeferred deferred;
  connection_.Stop();
  completions().Clear();  // their leases keep this Core, and the session, alive
  // So that a callback's own call does not wait for its answer.
  connection_.link().Shutdown();
  // A user may destroy the Client from a callback: then the thread ends by itself.
  if (background_.get_id() == std::this_thread::get_id()) {
    background_.detach();
    // What is pending ends here: no callback but the running one is called after this returns.
    reader_.End();
    requests_.RunCallbacks();
    completions().Clear();
  } else if (background_.joinable()) {
    background_.join();
  }
  pins_.Stop();
}

std::shared_ptr<LeaseState> Core::NewLease() {
  return leases_.New(std::shared_ptr<Leases>(shared_from_this(), &leases_));
}

}  // namespace terrace::client
