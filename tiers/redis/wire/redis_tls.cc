#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <utility>

#include "terrace/check.h"
#include "tiers/redis/wire/file_stamp.h"
#include "tiers/redis/wire/redis_stream.h"

namespace terrace {
namespace {

using Outcome = RedisStreamResult::Outcome;

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Context = std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>>;

// OpenSSL's own socket BIO writes with write(2), and a server that goes away would raise SIGPIPE.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int SendFrom(BIO* bio, const char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      send(FdOf(bio), bytes, static_cast<size_t>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReceiveInto(BIO* bio, char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(FdOf(bio), bytes, static_cast<size_t>(count), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long Control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* MakeMethod() {
  BIO_METHOD* const method =
      BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "socket, no signals");
  TERRACE_CHECK(method != nullptr, "no memory for a TLS method");
  BIO_meth_set_write(method, SendFrom);
  BIO_meth_set_read(method, ReceiveInto);
  BIO_meth_set_ctrl(method, Control);
  return method;
}

// Once, as there are few numbers for methods; never destroyed, as a thread may be left behind.
const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = MakeMethod();
  return method;
}

constexpr char kOursRefused[] = "a Redis server refuses this host's TLS certificate";

// Whether what failed last is an alert of the other side, about a certificate.
bool IsOurCertificateRefused() {
  const unsigned long error = ERR_peek_error();
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return false;
  switch (ERR_GET_REASON(error) - SSL_AD_REASON_OFFSET) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_CERTIFICATE_REQUIRED:
    case SSL_AD_DECRYPT_ERROR:  // of another authority of the same name
      return true;
    default:
      return false;
  }
}

bool IsAddress(const std::string& host) {
  in6_addr unused;
  return inet_pton(AF_INET, host.c_str(), &unused) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

class TlsStream : public RedisStream {
 public:
  TlsStream(SSL_CTX* context, int fd, const std::string& host) : ssl_(SSL_new(context)) {
    BIO* const bio = BIO_new(SocketMethod());
    TERRACE_CHECK(ssl_ != nullptr && bio != nullptr, "no memory for a TLS connection");
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_connect_state(ssl_.get());
    X509_VERIFY_PARAM* const verify = SSL_get0_param(ssl_.get());
    if (IsAddress(host)) {
      has_name_ = X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) == 1;
    } else {
      has_name_ = SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
                  SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1;
    }
  }

  RedisStreamResult Handshake() override {
    // Without a name to compare any certificate of the authority would do.
    if (!has_name_) return Refused("no name to compare with a server's certificate");
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return {.outcome = Outcome::kMoved};
    if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_SSL) {
      if (IsOurCertificateRefused()) return Refused(kOursRefused);
      return Refused(SSL_get_verify_result(ssl_.get()) == X509_V_OK
                         ? "the TLS handshake with a Redis server failed"
                         : "a Redis server's certificate does not verify");
    }
    return ResultOf(result, 0);
  }

  RedisStreamResult Read(std::span<const iovec> places) override {
    ERR_clear_error();
    size_t count_bytes = 0;
    const int result =
        SSL_read_ex(ssl_.get(), places.front().iov_base, places.front().iov_len, &count_bytes);
    return ResultOf(result, count_bytes);
  }

  bool IsDrainedByShortReads() const override { return false; }

  RedisStreamResult Write(std::span<const iovec> pieces) override {
    ERR_clear_error();
    size_t count_bytes = 0;
    const int result =
        SSL_write_ex(ssl_.get(), pieces.front().iov_base, pieces.front().iov_len, &count_bytes);
    return ResultOf(result, count_bytes);
  }

 private:
  // Asking again soon will not help.
  static RedisStreamResult Refused(const char* what) {
    return {.outcome = Outcome::kFailed, .status = Status(StatusCode::kUnsupported, what)};
  }

  RedisStreamResult ResultOf(int result, size_t count_bytes) {
    const int saved_errno = errno;
    if (result == 1) return {.outcome = Outcome::kMoved, .count_bytes = count_bytes};
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return {.outcome = Outcome::kWantsRead};
      case SSL_ERROR_WANT_WRITE:
        return {.outcome = Outcome::kWantsWrite};
      case SSL_ERROR_ZERO_RETURN:
        return {.outcome = Outcome::kEnded};
      case SSL_ERROR_SSL:  // with TLS 1.3 a server says so only when we think that all is well
        if (IsOurCertificateRefused()) return Refused(kOursRefused);
        [[fallthrough]];
      default:
        return {.outcome = Outcome::kFailed,
                .status = Status(StatusCode::kIo, "a TLS connection failed", saved_errno)};
    }
  }

  std::unique_ptr<SSL, FreeWith<SSL_free>> ssl_;
  bool has_name_ = false;
};

// A pipe would be waited for. What is not there is for others to name.
bool IsPipeOrTheLike(const std::string& path) {
  struct stat about;
  return stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode);
}

// None, with the reason.
Context ReadContext(const RedisTlsOptions& options, std::string* why) {
  Context made(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = made.get();
  TERRACE_CHECK(context != nullptr, "no memory for a TLS context");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const auto refuse = [why](const std::string& sentence) {
    *why = sentence;
    ERR_clear_error();
    return Context();
  };
  for (const auto& [key, path] : RedisTlsFilesOf(options)) {
    if (IsPipeOrTheLike(path)) {
      return refuse(key + " " + path + " is no regular file: name a file that holds PEM");
    }
  }
  const bool has_authority =
      options.ca_file.empty()
          ? SSL_CTX_set_default_verify_paths(context) == 1
          : SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr) == 1;
  if (!has_authority) {
    return refuse(
        "tls_ca_file " + options.ca_file +
        ": no certificates of authorities in PEM that this user can read: put those there "
        "that the servers' certificates come from");
  }
  if (options.certificate_file.empty()) return made;
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) != 1) {
    return refuse("tls_certificate_file " + options.certificate_file +
                  ": no certificate in PEM that this user can read: put this host's there");
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return refuse("tls_key_file " + options.key_file +
                  ": no private key in PEM that this user can read, or not that of " +
                  options.certificate_file + ": put the key of that certificate there");
  }
  return made;
}

}  // namespace

struct RedisTls::State {
  RedisTlsOptions options;
  Context context;
  std::vector<FileStamp> stamps;  // of the files as they were tried last
  bool is_settled = false;        // these say whether they have changed since
  std::string trouble;

  std::vector<FileStamp> Stamps() const {
    std::vector<FileStamp> now;
    for (const auto& [key, path] : RedisTlsFilesOf(options)) now.push_back(StampOf(path));
    if (options.ca_file.empty()) now.push_back(StampOf(X509_get_default_cert_file()));
    return now;
  }
};

std::vector<std::pair<std::string, std::string>> RedisTlsFilesOf(const RedisTlsOptions& options) {
  std::vector<std::pair<std::string, std::string>> files;
  if (!options.ca_file.empty()) files.emplace_back("tls_ca_file", options.ca_file);
  if (!options.certificate_file.empty()) {
    files.emplace_back("tls_certificate_file", options.certificate_file);
    files.emplace_back("tls_key_file", options.key_file);
  }
  return files;
}

RedisTls::RedisTls(std::unique_ptr<State> state) : state_(std::move(state)) {}
RedisTls::~RedisTls() = default;

Result<std::unique_ptr<RedisTls>> RedisTls::Open(const RedisTlsOptions& options, std::string* why) {
  std::unique_ptr<RedisTls> tls(new RedisTls(std::make_unique<State>()));
  tls->state_->options = options;
  tls->Refresh();
  if (tls->state_->context != nullptr) return tls;
  *why = tls->trouble();
  return Status(StatusCode::kInvalid, "a TLS file cannot be used");
}

// The stamps come first: what is replaced while it is read is read again.
void RedisTls::Refresh() {
  std::vector<FileStamp> stamps = state_->Stamps();
  if (state_->is_settled && stamps == state_->stamps) return;
  state_->stamps = std::move(stamps);
  state_->is_settled = std::ranges::all_of(state_->stamps, IsSettled);
  std::string why;
  Context context = ReadContext(state_->options, &why);
  state_->trouble = std::move(why);
  if (context != nullptr) state_->context = std::move(context);
}

const std::string& RedisTls::trouble() const { return state_->trouble; }

// A connection keeps the context that it began with.
std::unique_ptr<RedisStream> RedisTls::MakeStream(int fd, const std::string& host) {
  Refresh();
  const std::string& name = state_->options.server_name;
  return std::make_unique<TlsStream>(state_->context.get(), fd, name.empty() ? host : name);
}

}  // namespace terrace
