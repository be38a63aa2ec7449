// Descriptors of every kind, for targets of what passes them between processes, and whether any of
// them was left open.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace terrace::fuzz {

// Of this process, as far as there may be any.
uint32_t OpenFdCount();

enum class FdKind : uint8_t { kMemory, kSealedMemory, kEvent, kSocket, kDevice };
inline constexpr uint8_t kFdKinds = 5;
// New, and the caller's. Of memory `byte_count` bytes; of a socket the other end is closed.
int MakeFd(FdKind kind, uint64_t byte_count = 4096);

// The path of a socket that lies in no folder: it begins with a zero, as Linux has it.
std::string PathInNoFolder(std::string_view name);
sockaddr_un AddressOf(std::string_view path);
int ListenAt(std::string_view path, int socket_type);
// -1: nobody listens.
int ConnectTo(std::string_view path, int socket_type);

// A message with descriptors, which stay the caller's. False: it was not sent.
bool SendWithFds(int socket_fd, std::span<const std::byte> bytes, std::span<const int> fds);
// What there is to read until the other end says that there is no more.
void ReadToEnd(int socket_fd);

}  // namespace terrace::fuzz
