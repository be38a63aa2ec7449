// Which CUDA plugin tests load.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace terrace {

// The one that TERRACE_CUDA_PLUGIN of the environment names, for builds that are tried on another
// machine; else the one that was built; empty where none was.
inline std::filesystem::path CudaPluginPath() {
  if (const char* named = std::getenv("TERRACE_CUDA_PLUGIN")) return named;
#if defined(TERRACE_CUDA_PLUGIN_PATH)
  return TERRACE_CUDA_PLUGIN_PATH;
#else
  return {};
#endif
}

}  // namespace terrace
