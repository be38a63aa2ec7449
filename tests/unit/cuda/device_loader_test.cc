#include "cuda/host/device_loader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cuda/abi/device_status.h"
#include "cuda/host/device_name.h"
#include "cuda/host/host_device.h"
#include "unit/cuda/plugin_path.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class DeviceLoader : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "terrace-loader-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Write(const std::string& name, mode_t mode) {
    const fs::path path = directory_ / name;
    std::ofstream(path) << "no shared object";
    chmod(path.c_str(), mode);
    return path;
  }

  // The plugin that was built, where only this user can change it: a build directory need not be
  // so. Empty where none was built.
  std::string InstalledPlugin() const {
    const fs::path built = CudaPluginPath();
    if (built.empty()) return "";
    const fs::path installed = directory_ / built.filename();
    fs::copy_file(built, installed);
    chmod(installed.c_str(), 0755);
    return installed;
  }

  fs::path directory_;
  std::string why_;
};

TEST_F(DeviceLoader, OnlyAbsolutePathsAreLoaded) {
  EXPECT_EQ(LoadDevicePlugin("libterrace_cuda.so", &why_).code(), StatusCode::kInvalid);
  EXPECT_NE(why_.find("absolute"), std::string::npos) << why_;
}

TEST_F(DeviceLoader, WhereNoPluginIsNamedTheRemedyIs) {
  EXPECT_EQ(ChooseBackend(DeviceBackend::kCuda, "", &why_).code(), StatusCode::kInvalid);
  for (const char* word : {"plugin_path", "libterrace_cuda.so", "absolute path", "\"host\""}) {
    EXPECT_NE(why_.find(word), std::string::npos) << why_;
  }
  const Result<ChosenBackend> chosen = ChooseBackend(DeviceBackend::kAuto, "", &why_);
  ASSERT_TRUE(chosen.ok());
  EXPECT_NE(chosen.value().why.find("plugin_path"), std::string::npos) << chosen.value().why;
}

TEST_F(DeviceLoader, AFileThatOthersCanWriteIsNotLoaded) {
  for (const mode_t mode : {0664, 0646}) {
    EXPECT_EQ(LoadDevicePlugin(Write("plugin.so", mode), &why_).code(), StatusCode::kInvalid);
    EXPECT_NE(why_.find("chmod go-w"), std::string::npos) << why_;
  }
}

TEST_F(DeviceLoader, AFileInADirectoryThatOthersCanWriteIsNotLoaded) {
  const std::string path = Write("plugin.so", 0644);
  chmod(directory_.c_str(), 0777);
  EXPECT_EQ(LoadDevicePlugin(path, &why_).code(), StatusCode::kInvalid);
  EXPECT_NE(why_.find("chmod go-w"), std::string::npos) << why_;
}

TEST_F(DeviceLoader, WhatIsNoPluginSaysSo) {
  EXPECT_EQ(LoadDevicePlugin(directory_ / "absent.so", &why_).code(), StatusCode::kNotFound);
  EXPECT_NE(why_.find("absent.so"), std::string::npos) << why_;
  EXPECT_EQ(LoadDevicePlugin(Write("text.so", 0644), &why_).code(), StatusCode::kUnsupported);
  EXPECT_EQ(LoadDevicePlugin(directory_, &why_).code(), StatusCode::kInvalid);
}

TEST_F(DeviceLoader, CudaFailsLoudlyAndAutoFallsBackSayingWhy) {
  const std::string absent = directory_ / "absent.so";
  EXPECT_EQ(ChooseBackend(DeviceBackend::kCuda, absent, &why_).code(), StatusCode::kNotFound);
  const Result<ChosenBackend> chosen = ChooseBackend(DeviceBackend::kAuto, absent, &why_);
  ASSERT_TRUE(chosen.ok());
  EXPECT_STREQ(chosen.value().ops->backend, "host");
  EXPECT_NE(chosen.value().why.find("absent.so"), std::string::npos) << chosen.value().why;
  EXPECT_TRUE(ChooseBackend(DeviceBackend::kHost, "", &why_).ok());
}

TEST_F(DeviceLoader, BackendsAreNamedExactly) {
  EXPECT_EQ(ParseDeviceBackend("auto").value(), DeviceBackend::kAuto);
  EXPECT_EQ(ParseDeviceBackend("host").value(), DeviceBackend::kHost);
  EXPECT_EQ(ParseDeviceBackend("cuda").value(), DeviceBackend::kCuda);
  EXPECT_EQ(ParseDeviceBackend("CUDA").code(), StatusCode::kInvalid);
}

constexpr const char* kUuidText = "GPU-0123abcd-4567-89ef-0000-5e5e5e5e5e01";

TEST(DeviceNames, AreTheHostAnIndexOrAUuid) {
  EXPECT_TRUE(ParseDeviceChoice("host")->is_host);
  EXPECT_EQ(ParseDeviceChoice("cuda:12")->index, 12u);
  EXPECT_FALSE(ParseDeviceChoice("cuda:12")->uuid.has_value());
  for (const std::string prefix : {"cuda:GPU-", "cuda:MIG-"}) {
    const auto choice = ParseDeviceChoice(prefix + std::string(kUuidText).substr(4));
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(FormatDeviceUuid(choice->uuid.value()), kUuidText);
  }
  for (const char* wrong : {"", "cuda", "cuda:", "cuda:-1", "cuda:1x", "cuda:GPU-", "HOST", "GPU-0",
                            "cuda:GPU-0123abcd-4567-89ef-0000-5e5e5e5e5e0",
                            "cuda:GPU-0123abcd-4567-89ef-0000-5e5e5e5e5eg1",
                            "cuda:GPU-0123abcd+4567-89ef-0000-5e5e5e5e5e01"}) {
    EXPECT_EQ(ParseDeviceChoice(wrong).code(), StatusCode::kInvalid) << wrong;
  }
}

TEST(DeviceNames, TheHostsMemoryIsHost) {
  std::string why;
  const Result<Device> device = OpenDevice(HostDeviceOps(), *ParseDeviceChoice("host"), &why);
  ASSERT_TRUE(device.ok()) << why;
  EXPECT_EQ(DeviceName(*device).value(), "host");
}

// The plugin itself, where it was built.
TEST_F(DeviceLoader, TheCudaPluginLoadsWithoutADriverAndSaysNoDevice) {
  const std::string path = InstalledPlugin();
  if (path.empty()) GTEST_SKIP() << "built without nvcc: there is no CUDA plugin to load";
  const Result<const DeviceOps*> plugin = LoadDevicePlugin(path, &why_);
  ASSERT_TRUE(plugin.ok()) << why_;
  EXPECT_STREQ(plugin.value()->backend, "cuda");
  uint32_t device_count = 77;
  const Status status = FromDeviceStatus(plugin.value()->count_devices(&device_count));
  if (status.ok() && device_count > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(device_count, 0u);
  const Result<ChosenBackend> chosen = ChooseBackend(DeviceBackend::kCuda, path, &why_);
  EXPECT_EQ(chosen.code(), StatusCode::kUnsupported);
  EXPECT_NE(why_.find("no device"), std::string::npos) << why_;
  DeviceHandle* handle = nullptr;
  const DeviceOpenOptions options;
  EXPECT_NE(plugin.value()->open_device(&options, &handle).code, 0);
  EXPECT_EQ(handle, nullptr);
}

TEST_F(DeviceLoader, ThePluginSpeaksOneVersionOnly) {
  const std::string path = InstalledPlugin();
  if (path.empty()) GTEST_SKIP() << "built without nvcc: there is no CUDA plugin to load";
  ASSERT_TRUE(LoadDevicePlugin(path, &why_).ok()) << why_;
  const Result<const DeviceOps*> again = LoadDevicePlugin(path, &why_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value()->abi_version, kDeviceAbiVersion);
  EXPECT_EQ(again.value()->struct_bytes, sizeof(DeviceOps));
}

}  // namespace
}  // namespace terrace
