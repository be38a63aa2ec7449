// A configuration from its text: read, resolved, or why not.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"

namespace terrace {

inline DaemonConfig Parsed(const std::string& text) {
  DaemonConfig config;
  std::string why;
  EXPECT_TRUE(ParseConfig(text, "test.toml", &config, &why).ok()) << why;
  return config;
}

inline std::string Refusal(const std::string& text) {
  DaemonConfig config;
  std::string why;
  EXPECT_EQ(ParseConfig(text, "test.toml", &config, &why).code(), StatusCode::kInvalid) << text;
  return why;
}

inline const ConfigEnvironment kUser = {
    .uid = 1000, .runtime_dir = "/run/user/1000", .home = "/home/u"};

inline DaemonConfig Resolved(const std::string& text, const ConfigOverrides& overrides = {},
                             const ConfigEnvironment& environment = kUser) {
  DaemonConfig config = Parsed(text);
  std::string why;
  EXPECT_TRUE(ResolveConfig(overrides, environment, &config, &why).ok()) << why;
  return config;
}

inline std::string Unresolvable(const std::string& text, const ConfigOverrides& overrides = {},
                                const ConfigEnvironment& environment = kUser) {
  DaemonConfig config = Parsed(text);
  std::string why;
  EXPECT_EQ(ResolveConfig(overrides, environment, &config, &why).code(), StatusCode::kInvalid);
  return why;
}

}  // namespace terrace
