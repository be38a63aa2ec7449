#include "tools/terrace/plan/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const std::string& path) {
  nlohmann::json config;
  const Error error = ReadModelFile(path, &config);
  EXPECT_FALSE(error.ok());
  return error.sentence();
}

class ModelFile : public ::testing::Test {
 protected:
  ModelFile() {
    directory_ = ::testing::TempDir() + "terrace-model-XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/config.json";
  }
  ~ModelFile() override { std::filesystem::remove_all(directory_); }

  std::string directory_, path_;
};

TEST_F(ModelFile, IsReadByItsOwnNameAndByItsDirectorys) {
  std::ofstream(path_) << R"({"model_type": "llama"})";
  for (const std::string& path : {path_, directory_}) {
    nlohmann::json config;
    EXPECT_TRUE(ReadModelFile(path, &config).ok());
    EXPECT_EQ(config["model_type"], "llama");
  }
}

TEST_F(ModelFile, WhatCannotBeReadIsNamedWithTheReason) {
  EXPECT_THAT(Refusal(directory_), AllOf(HasSubstr("'" + path_ + "'"), HasSubstr("No such file")));
  EXPECT_THAT(Refusal("/proc/self/mem"),
              AllOf(HasSubstr("'/proc/self/mem'"), HasSubstr("cannot be read: ")));
  EXPECT_THAT(Refusal("/dev/zero"), AllOf(HasSubstr("'/dev/zero'"), HasSubstr("16 MiB")));
}

TEST_F(ModelFile, WhatIsNoJsonIsNamedWithThePlace) {
  std::ofstream(path_) << "{oops}";
  EXPECT_THAT(Refusal(path_), AllOf(HasSubstr(path_), HasSubstr("no JSON from byte 2 of 6")));
  std::ofstream(path_) << std::string(100'000, '[');
  EXPECT_THAT(Refusal(path_), AllOf(HasSubstr(path_), HasSubstr("the limit is 64")));
}

}  // namespace
}  // namespace terrace::tools
