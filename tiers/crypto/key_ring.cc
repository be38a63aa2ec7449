#include "tiers/crypto/key_ring.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "terrace/block_key.h"
#include "terrace/check.h"
#include "terrace/checksum.h"
#include "terrace/open_file.h"
#include "terrace/secret_mode.h"
#include "tiers/record_fields.h"

namespace terrace {
namespace {

constexpr std::string_view kLinePrefix = "terrace-key-1 ";
constexpr std::string_view kIdLabel = "terrace key id 1";
constexpr size_t kFileBytesMax = 4096;  // read no further: it is another kind of file
constexpr std::string_view kRemedy =
    "write one with: (umask 077; echo terrace-key-1 $(openssl rand -hex 32) > FILE)";

Status Refuse(std::string* why, StatusCode code, std::string reason, int error = 0) {
  *why = std::move(reason);
  return Status(code, "the encryption keys cannot be used", error);
}

Status CheckOwnership(const std::string& path, const struct stat& file, std::string* why) {
  const std::string name = "encryption keys file " + path;
  if (!S_ISREG(file.st_mode)) {
    return Refuse(why, StatusCode::kInvalid, name + " is no regular file");
  }
  if (file.st_uid != 0 && file.st_uid != geteuid()) {
    return Refuse(why, StatusCode::kInvalid,
                  name + " belongs to uid " + std::to_string(file.st_uid) +
                      "; it must belong to the user that reads it, here uid " +
                      std::to_string(geteuid()) + ": chown it");
  }
  if ((file.st_mode & ForbiddenModeBits(path)) != 0) {
    return Refuse(why, StatusCode::kInvalid,
                  name +
                      " can be read or written by others than its owner; the limit is mode "
                      "0600: chmod 600 " +
                      path + ", and put a new key first if it has been read");
  }
  return Status::Ok();
}

bool ParseHex(std::string_view text, CipherKey* key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 2 * kCipherKeyBytes) return false;
  for (size_t i = 0; i < kCipherKeyBytes; ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return false;
    key->bytes()[i] = static_cast<std::byte>(high * 16 + low);
  }
  return true;
}

bool IsOneByteRepeated(const CipherKey& key) {
  return std::ranges::all_of(key.bytes(), [&](std::byte b) { return b == key.bytes()[0]; });
}

}  // namespace

std::string KeyIdText(KeyId id) { return ToHex(0, id).substr(16); }

KeyId IdOf(const CipherKey& key) {
  const CipherKey derived = DeriveKey(key, kIdLabel, {}, {});
  return Get<uint64_t>(derived.bytes(), 0);
}

KeyRing::KeyRing(std::vector<CipherKey> keys) {
  TERRACE_CHECK(!keys.empty() && keys.size() <= kRingKeysMax, "a ring has keys, and not too many");
  keys_.reserve(keys.size());  // they never move: what is left behind would not be wiped
  for (const CipherKey& key : keys) keys_.push_back({.id = IdOf(key), .key = key});
}

const CipherKey* KeyRing::Find(KeyId id) const {
  const auto found = std::ranges::find(keys_, id, &Entry::id);
  return found == keys_.end() ? nullptr : &found->key;
}

std::string KeyRing::Describe() const {
  std::string text;
  for (const Entry& entry : keys_) text += (text.empty() ? "" : ", ") + KeyIdText(entry.id);
  return text;
}

Result<std::shared_ptr<const KeyRing>> ParseKeyRing(std::string_view text, std::string* why) {
  std::vector<CipherKey> keys;
  keys.reserve(kRingKeysMax);
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.empty() || line.starts_with('#')) continue;
    const std::string at = "line " + std::to_string(line_number);
    CipherKey key;
    if (!line.starts_with(kLinePrefix) || !ParseHex(line.substr(kLinePrefix.size()), &key)) {
      return Refuse(why, StatusCode::kInvalid,
                    at + " is not '" + std::string(kLinePrefix) +
                        "' and 64 digits of 0-9 and a-f: " + std::string(kRemedy));
    }
    if (IsOneByteRepeated(key)) {
      return Refuse(why, StatusCode::kInvalid,
                    at + " is one byte repeated, which is no key: " + std::string(kRemedy));
    }
    if (std::ranges::any_of(keys, [&](const CipherKey& k) { return IdOf(k) == IdOf(key); })) {
      return Refuse(why, StatusCode::kInvalid, at + " repeats an earlier key: remove it");
    }
    if (keys.size() == kRingKeysMax) {
      return Refuse(why, StatusCode::kInvalid,
                    "holds more than " + std::to_string(kRingKeysMax) +
                        " keys: remove those that nothing is under any more");
    }
    keys.push_back(key);
  }
  if (keys.empty()) {
    return Refuse(why, StatusCode::kInvalid, "holds no key: " + std::string(kRemedy));
  }
  return std::make_shared<const KeyRing>(std::move(keys));
}

Result<std::shared_ptr<const KeyRing>> ReadKeyRingFile(const std::string& path, std::string* why) {
  const std::string name = "encryption keys file " + path;
  const OpenFile file(path, O_RDONLY | O_NONBLOCK, 0);
  if (file.fd() < 0 && errno == ENOENT) {
    return Refuse(why, StatusCode::kNotFound,
                  name + " does not exist; copy it from another host of this domain, or " +
                      std::string(kRemedy));
  }
  const auto refuse_errno = [&](const char* action) {
    const int error = errno;
    return Refuse(why, StatusCode::kIo,
                  name + ": cannot " + action + ": " + strerror(error) + kUnreadableRemedy, error);
  };
  if (file.fd() < 0) return refuse_errno("open it");
  struct stat about;
  if (fstat(file.fd(), &about) != 0) return refuse_errno("look at it");
  TERRACE_RETURN_IF_ERROR(CheckOwnership(path, about, why));
  struct Buffer : std::array<char, kFileBytesMax> {
    ~Buffer() { WipeMemory(data(), size()); }
  } buffer;
  size_t size_bytes = 0;
  while (size_bytes < buffer.size()) {
    const ssize_t got = read(file.fd(), buffer.data() + size_bytes, buffer.size() - size_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse_errno("read it");
    if (got == 0) break;
    size_bytes += static_cast<size_t>(got);
  }
  std::string reason;
  auto parsed = size_bytes == buffer.size()
                    ? Result<std::shared_ptr<const KeyRing>>(
                          Refuse(&reason, StatusCode::kInvalid, "is longer than any such file"))
                    : ParseKeyRing(std::string_view(buffer.data(), size_bytes), &reason);
  if (!parsed.ok()) *why = name + ": " + reason;
  return parsed;
}

}  // namespace terrace
