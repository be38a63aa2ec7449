#include "tiers/crypto/aead.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "terrace/check.h"
#include "terrace/checksum.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr std::array<unsigned char, 12> kNonce{};
// EVP counts in int.
constexpr size_t kStepBytes = 256 * kMiB;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

// Looked up once: a lookup takes as long as 10 KiB of encryption.
const EVP_CIPHER* Gcm() {
  static const EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  TERRACE_CHECK(cipher != nullptr, "libcrypto has AES-256-GCM");
  return cipher;
}

const unsigned char* In(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Out(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// A pass over some bytes, one way or the other. The context holds the key: it goes with it, wiped.
class Pass {
 public:
  Pass(const CipherKey& key, std::span<const std::byte> associated, bool is_encrypting)
      : context_(EVP_CIPHER_CTX_new()) {
    TERRACE_CHECK(context_ != nullptr, "a cipher has memory for its state");
    Expect(EVP_CipherInit_ex2(context_.get(), Gcm(), In(key.bytes().data()), kNonce.data(),
                              is_encrypting ? 1 : 0, nullptr));
    int unused = 0;
    Expect(EVP_CipherUpdate(context_.get(), nullptr, &unused, In(associated.data()),
                            static_cast<int>(associated.size())));
  }
  void Update(std::span<const std::byte> from, std::span<std::byte> into) {
    for (size_t at = 0; at < from.size(); at += kStepBytes) {
      const int length = static_cast<int>(std::min(kStepBytes, from.size() - at));
      int done = 0;
      Expect(EVP_CipherUpdate(context_.get(), Out(into.data() + at), &done, In(from.data() + at),
                              length));
      TERRACE_CHECK(done == length, "a stream cipher keeps nothing back");
    }
  }
  bool Finish() {
    std::array<unsigned char, 16> none;
    int unused = 0;
    return EVP_CipherFinal_ex(context_.get(), none.data(), &unused) == 1;
  }
  void GetTag(CipherTag* tag) {
    Expect(
        EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kCipherTagBytes, tag->data()));
  }
  void SetTag(CipherTag tag) {
    Expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kCipherTagBytes, tag.data()));
  }

 private:
  static void Expect(int result) {
    TERRACE_CHECK(result == 1, "libcrypto encrypts what it is given");
  }

  Context context_;
};

}  // namespace

CipherKey::CipherKey(std::span<const std::byte, kCipherKeyBytes> bytes) {
  std::ranges::copy(bytes, bytes_.begin());
}

void CipherKey::Wipe() { WipeMemory(bytes_.data(), bytes_.size()); }

CipherKey DeriveKey(const CipherKey& key, std::string_view label, std::span<const std::byte> salt,
                    std::span<const std::byte> context) {
  std::array<std::byte, kHkdfInfoBytesMax + 1> info;
  size_t length = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    TERRACE_CHECK(bytes.size() <= kHkdfInfoBytesMax - length, "what a key is for is short");
    std::ranges::copy(bytes, info.begin() + static_cast<ptrdiff_t>(length));
    length += bytes.size();
  };
  add(std::as_bytes(std::span(label)));
  add(salt);
  add(context);
  info[length++] = std::byte{1};
  CipherKey derived;
  unsigned derived_bytes = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(kCipherKeyBytes), In(info.data()),
           length, Out(derived.bytes().data()), &derived_bytes);
  TERRACE_CHECK(made != nullptr && derived_bytes == kCipherKeyBytes, "libcrypto has HMAC-SHA256");
  return derived;
}

void Encrypt(const CipherKey& key, std::span<const std::byte> associated,
             std::span<const std::byte> from, std::span<std::byte> into, CipherTag* tag) {
  TERRACE_CHECK(from.size() == into.size(), "what is encrypted keeps its length");
  Pass pass(key, associated, /*is_encrypting=*/true);
  pass.Update(from, into);
  TERRACE_CHECK(pass.Finish(), "libcrypto ends an encryption");
  pass.GetTag(tag);
}

Status Decrypt(const CipherKey& key, std::span<const std::byte> associated,
               std::span<std::byte> bytes, const CipherTag& tag) {
  Pass pass(key, associated, /*is_encrypting=*/false);
  pass.SetTag(tag);
  pass.Update(bytes, bytes);
  if (pass.Finish()) return Status::Ok();
  std::ranges::fill(bytes, std::byte{0});
  return Status(StatusCode::kCorrupt, "the tag does not hold");
}

Status KernelRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Status(StatusCode::kIo, "the kernel has no random bytes", errno);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return Status::Ok();
}

}  // namespace terrace
