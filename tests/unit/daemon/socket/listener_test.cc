// A socket that a unit made, and what the configuration says of it.
#include "daemon/socket/listener.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <string>

namespace terrace {
namespace {

class AdoptedSocket : public testing::Test {
 protected:
  AdoptedSocket() {
    directory_ = (std::filesystem::temp_directory_path() / "terrace-listen-XXXXXX").string();
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    config_ = {.name = "chat", .socket_path = directory_ + "/chat.sock"};
  }
  ~AdoptedSocket() override { std::filesystem::remove_all(directory_); }

  // What is told of a socket with that name and mode.
  std::string Told(const std::string& name, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    std::string otherwise = "of before";
    const Listener listener = Listener::Adopt(fd, config_, &otherwise);
    EXPECT_EQ(listener.fd(), fd);
    return otherwise;
  }

  std::string directory_;
  DomainConfig config_;
};

TEST_F(AdoptedSocket, AsConfiguredIsNothingToTell) {
  config_.socket_mode = 0600;
  EXPECT_EQ(Told("chat.sock", 0600), "");
}

TEST_F(AdoptedSocket, AnotherModeIsTold) {
  config_.socket_mode = 0600;
  EXPECT_EQ(Told("chat.sock", 0666), "the socket unit gave " + config_.socket_path +
                                         " mode 0666, and the domain's socket_mode is 0600");
}

TEST_F(AdoptedSocket, AnotherPathIsTold) {
  config_.socket_mode = 0660;
  EXPECT_EQ(Told("other.sock", 0660), "the socket unit made " + directory_ +
                                          "/other.sock, and the domain's socket is " +
                                          config_.socket_path + ", which nobody listens on");
  EXPECT_TRUE(Told("third.sock", 0666)
                  .ends_with("; it has mode 0666, and the domain's socket_mode is 0660"));
}

}  // namespace
}  // namespace terrace
