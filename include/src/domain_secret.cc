#include "terrace/domain_secret.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "terrace/open_file.h"
#include "terrace/secret_mode.h"

namespace terrace {
namespace {

constexpr std::string_view kFilePrefix = "terrace-secret-1 ";
constexpr std::string_view kFingerprintPrefix = "terrace domain fingerprint";
constexpr size_t kHexBytes = 2 * kDomainSecretBytes;
constexpr size_t kFileBytes = kFilePrefix.size() + kHexBytes + 1;
constexpr size_t kFileBytesMax = 4096;  // read no further: it is another kind of file
constexpr char kHexDigits[] = "0123456789abcdef";
constexpr std::string_view kRemedy = "write one with: terrace domain new FILE";

Status Refuse(std::string* why, StatusCode code, std::string reason, int error = 0) {
  *why = std::move(reason);
  return Status(code, "the domain secret cannot be used", error);
}

const char* RemedyFor(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return kUnreadableRemedy;
    case ELOOP:
      return "; it must be the file itself, no symbolic link";
    default:
      return "";
  }
}

Status RefuseErrno(std::string* why, const std::string& path, const char* action) {
  const int error = errno;
  return Refuse(
      why, StatusCode::kIo,
      "secret file " + path + ": cannot " + action + ": " + strerror(error) + RemedyFor(error),
      error);
}

Status CheckOwnership(const std::string& path, const struct stat& file, std::string* why) {
  if (!S_ISREG(file.st_mode)) {
    return Refuse(why, StatusCode::kInvalid, "secret file " + path + " is no regular file");
  }
  if (file.st_uid != 0 && file.st_uid != geteuid()) {
    return Refuse(why, StatusCode::kInvalid,
                  "secret file " + path + " belongs to uid " + std::to_string(file.st_uid) +
                      "; it must belong to the user that reads it, here uid " +
                      std::to_string(geteuid()) + ": chown it, or read it as its owner");
  }
  if ((file.st_mode & ForbiddenModeBits(path)) != 0) {
    return Refuse(why, StatusCode::kInvalid,
                  "secret file " + path + " has mode " + ModeText(file.st_mode & 07777) +
                      ", so others than its owner can read or write it; the limit is 0600: chmod "
                      "600 " +
                      path + ", and draw a new secret if it has been read");
  }
  return Status::Ok();
}

}  // namespace

std::string FormatDomainSecret(const DomainSecret& secret) {
  std::string text;
  text.reserve(kFileBytes);  // it never moves
  text += kFilePrefix;
  for (const std::byte byte : secret) {
    const auto value = std::to_integer<unsigned>(byte);
    text += {kHexDigits[value >> 4], kHexDigits[value & 15]};
  }
  text += '\n';
  return text;
}

Status ParseDomainSecret(std::string_view text, DomainSecret* secret, std::string* why) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (!text.starts_with(kFilePrefix)) {
    return Refuse(why, StatusCode::kInvalid,
                  "does not begin with '" + std::string(kFilePrefix) + "': " + kRemedy.data());
  }
  text.remove_prefix(kFilePrefix.size());
  if (text.size() != kHexBytes) {
    return Refuse(why, StatusCode::kInvalid,
                  "holds " + std::to_string(text.size()) + " hex digits, exactly " +
                      std::to_string(kHexBytes) + " are needed: copy the whole file");
  }
  DomainSecret bytes;
  const std::string_view digits(kHexDigits, 16);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = digits.find(text[2 * i]);
    const size_t low = digits.find(text[2 * i + 1]);
    if (high == digits.npos || low == digits.npos) {
      return Refuse(why, StatusCode::kInvalid,
                    "has something else than 0-9 and a-f at digit " + std::to_string(2 * i) +
                        ": copy the whole file");
    }
    bytes[i] = static_cast<std::byte>(high * 16 + low);
  }
  if (std::all_of(bytes.begin(), bytes.end(), [&bytes](std::byte b) { return b == bytes[0]; })) {
    return Refuse(why, StatusCode::kInvalid,
                  "is one byte repeated, which is no secret: " + std::string(kRemedy));
  }
  *secret = bytes;
  return Status::Ok();
}

std::string DomainSecretFingerprint(const DomainSecret& secret) {
  std::string message;
  message.reserve(kFingerprintPrefix.size() + secret.size());  // it never moves
  message.append(kFingerprintPrefix);
  message.append(reinterpret_cast<const char*>(secret.data()), secret.size());
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data());
  WipeMemory(message.data(), message.size());
  std::string text;
  for (size_t i = 0; i < 8; ++i) text += {kHexDigits[digest[i] >> 4], kHexDigits[digest[i] & 15]};
  return text;
}

Status ReadDomainSecretFile(const std::string& path, DomainSecret* secret, std::string* why) {
  // Non-blocking: a FIFO in the way must not hang the start.
  const OpenFile file(path, O_RDONLY | O_NONBLOCK, 0);
  if (file.fd() < 0 && errno == ENOENT) {
    return Refuse(why, StatusCode::kNotFound,
                  "secret file " + path +
                      " does not exist; copy it from another host of this "
                      "domain, or " +
                      "write one with: terrace domain new " + path);
  }
  if (file.fd() < 0) return RefuseErrno(why, path, "open it");
  struct stat about;
  if (fstat(file.fd(), &about) != 0) return RefuseErrno(why, path, "look at it");
  TERRACE_RETURN_IF_ERROR(CheckOwnership(path, about, why));
  struct Buffer : std::array<char, kFileBytesMax> {
    ~Buffer() { WipeMemory(data(), size()); }
  } buffer;
  size_t size_bytes = 0;
  while (size_bytes < buffer.size()) {
    const ssize_t got = read(file.fd(), buffer.data() + size_bytes, buffer.size() - size_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return RefuseErrno(why, path, "read it");
    if (got == 0) break;
    size_bytes += static_cast<size_t>(got);
  }
  std::string reason;
  const Status parsed =
      ParseDomainSecret(std::string_view(buffer.data(), size_bytes), secret, &reason);
  if (!parsed.ok()) *why = "secret file " + path + " " + reason;
  return parsed;
}

Status CreateDomainSecretFile(const std::string& path, std::string* why) {
  DomainSecret secret;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), secret.size()) != 1) {
    return Refuse(why, StatusCode::kIo, "secret file " + path + ": no random bytes to be had");
  }
  // Written beside its place and linked into it: link() refuses to replace, and nobody reads half.
  const std::string draft = path + ".new-" + std::to_string(getpid());
  {
    const OpenFile file(draft, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file.fd() < 0) return RefuseErrno(why, draft, "create it");
    std::string text = FormatDomainSecret(secret);
    const ssize_t written = write(file.fd(), text.data(), text.size());
    WipeMemory(text.data(), text.size());
    if (written != static_cast<ssize_t>(kFileBytes) || fsync(file.fd()) != 0) {
      const Status failed = RefuseErrno(why, draft, "write it");
      unlink(draft.c_str());
      return failed;
    }
  }
  const int linked = link(draft.c_str(), path.c_str());
  const int error = errno;
  unlink(draft.c_str());
  if (linked == 0) return Status::Ok();
  if (error == EEXIST) {
    return Refuse(why, StatusCode::kExists,
                  "secret file " + path +
                      " exists already; a secret is never replaced: remove it "
                      "first, knowing that every block stored under it becomes unreadable");
  }
  errno = error;
  return RefuseErrno(why, path, "create it");
}

}  // namespace terrace
