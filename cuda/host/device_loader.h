// Which backend copies: `host`, which is always there, or a plugin loaded from a file. What a
// plugin is allowed to be is checked first, since loading one runs its code in the engine or the
// daemon.
//
// A plugin is never unloaded: the driver's threads and the process's exit still run its code.
#pragma once

#include <string>
#include <string_view>

#include "cuda/abi/device.h"
#include "terrace/status.h"

namespace terrace {

enum class DeviceBackend { kAuto, kHost, kCuda };

// kInvalid for a word that is none of auto, host, cuda.
Result<DeviceBackend> ParseDeviceBackend(std::string_view word);

// A backend that can work here: it has at least one device.
struct ChosenBackend {
  const DeviceOps* ops = nullptr;
  std::string why;  // why it is this one, for logs and status
};

// kAuto takes the plugin where it works, else `host`, saying why; kCuda fails where the plugin does
// not work. `*why` names the file, what is wrong with it and the remedy. A driver that is still
// starting answers "no device" at first: callers of kAuto ask again later. May take seconds.
Result<ChosenBackend> ChooseBackend(DeviceBackend backend, const std::string& plugin_path,
                                    std::string* why);

// The plugin's table, of this ABI version. REQUIRES of the file: an absolute path, a regular file
// that root or the caller's own user owns, in a directory likewise, neither writable for others.
Result<const DeviceOps*> LoadDevicePlugin(const std::string& path, std::string* why);

// Where an installed program of ours finds the plugin: from its own place on, so that a tree that
// was installed elsewhere or moved finds its own.
std::string InstalledPluginPath();

}  // namespace terrace
