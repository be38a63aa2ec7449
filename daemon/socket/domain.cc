#include "daemon/socket/domain.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "terrace/domain_secret.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// A link on the way that leads nowhere, with the remedy; "" if there is none.
std::string DanglingLinkOf(const fs::path& directory) {
  fs::path at;
  for (const fs::path& name : directory) {
    at /= name;
    std::error_code ignored;
    if (!fs::is_symlink(at, ignored) || fs::exists(at, ignored)) continue;
    const std::string target = fs::read_symlink(at, ignored).string();
    return at.string() + " is a symbolic link to " + target +
           ", where nothing is: make that directory, or mount what belongs there";
  }
  return "";
}

Status DrawSecret(const DomainConfig& config, std::string* why) {
  const fs::path directory = fs::path(config.secret_file).parent_path();
  std::error_code error;
  if (!fs::exists(directory, error)) {
    fs::create_directories(directory, error);
    if (!error) fs::permissions(directory, fs::perms::owner_all, error);
  }
  if (error) {
    const std::string link = DanglingLinkOf(directory);
    *why = "domain " + config.name + ": daemon.state_dir is " + directory.string() +
           ", where its secret is kept, and that directory cannot be made: " +
           (link.empty() ? error.message() + ": make it" : link) +
           ", or set daemon.state_dir or the domain's secret_file to another place";
    return Status(StatusCode::kIo, "no directory for the secret", error.value());
  }
  const Status created = CreateDomainSecretFile(config.secret_file, why);
  // Another daemon was faster: its secret is as good.
  return created.code() == StatusCode::kExists ? Status::Ok() : created;
}

bool Contains(const std::optional<std::vector<uint32_t>>& ids, uint32_t id) {
  return ids.has_value() && std::find(ids->begin(), ids->end(), id) != ids->end();
}

}  // namespace

Status LoadDomainSecret(const DomainConfig& config, DomainSecret* secret, std::string* why) {
  Status read = ReadDomainSecretFile(config.secret_file, secret, why);
  if (read.code() == StatusCode::kNotFound && config.is_secret_file_default) {
    TERRACE_RETURN_IF_ERROR(DrawSecret(config, why));
    read = ReadDomainSecretFile(config.secret_file, secret, why);
  }
  if (!read.ok()) *why = "domain " + config.name + ": " + *why;
  return read;
}

Status LoadKeyRing(const DomainConfig& config, std::shared_ptr<const KeyRing>* ring,
                   std::string* why) {
  ring->reset();
  if (config.encryption_keys_file.empty()) return Status::Ok();
  Result<std::shared_ptr<const KeyRing>> read = ReadKeyRingFile(config.encryption_keys_file, why);
  if (!read.ok()) {
    *why = "domain " + config.name + ": " + *why;
    return read.status();
  }
  *ring = std::move(*read);
  return Status::Ok();
}

Status AuthorisePeer(const DomainConfig& config, const PeerCredentials& peer, std::string* why) {
  const Status refused(StatusCode::kInvalid, "the peer may not use this domain");
  if (peer.uid == kOverflowUid) {
    *why = "domain " + config.name +
           ": the peer's uid reads 65534, as a user namespace shows whom it hides; run it where "
           "the daemon can see its uid, and not as that user";
    return refused;
  }
  if (config.admits_everybody() || Contains(config.allow_uids, peer.uid) ||
      Contains(config.allow_gids, peer.gid)) {
    return Status::Ok();
  }
  *why = "domain " + config.name + ": uid " + std::to_string(peer.uid) + " with gid " +
         std::to_string(peer.gid) +
         " may not connect; add one to allow_uids or allow_gids of the domain";
  return refused;
}

}  // namespace terrace
