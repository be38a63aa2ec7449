#include "daemon/persist/kept_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>

#include "terrace/block_key.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

constexpr std::string_view kSeal = "seal ";
static_assert(kSeal.size() + 16 + 1 == kKeptSealBytes);

bool WriteWhole(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t done = write(fd, content.data(), content.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    content.remove_prefix(static_cast<size_t>(done));
  }
  return fsync(fd) == 0;
}

}  // namespace

std::string Hex16(uint64_t number) { return ToHex(0, number).substr(16); }

std::string KeptSealOf(std::string_view content, const DomainSecret& secret) {
  return std::string(kSeal) + Hex16(KeyedHash64(secret, std::as_bytes(std::span(content)))) + '\n';
}

bool UnsealKept(std::string_view content, std::string_view title, const DomainSecret& secret,
                std::string_view* inside) {
  if (content.size() < title.size() + kKeptSealBytes || !content.starts_with(title)) return false;
  const std::string_view sealed = content.substr(0, content.size() - kKeptSealBytes);
  *inside = sealed.substr(title.size());
  return content.substr(sealed.size()) == KeptSealOf(sealed, secret);
}

Status SyncDirectory(const std::string& directory, const char* failure) {
  const OpenFile file(directory, O_RDONLY | O_DIRECTORY, 0);
  if (file.fd() >= 0 && fsync(file.fd()) == 0) return Status::Ok();
  return Status(StatusCode::kIo, failure, errno);
}

// Beside its place, then into it: there is always a whole one.
Status WriteKeptFile(const std::string& path_text, const std::string& content) {
  const auto failed = [](const char* what) { return Status(StatusCode::kIo, what, errno); };
  const std::filesystem::path path(path_text);
  const std::string draft = path_text + ".new";
  std::error_code error_of_directory;  // what it comes to shows below
  std::filesystem::create_directories(path.parent_path(), error_of_directory);
  unlink(draft.c_str());  // of a death in between, or whatever somebody has put there
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed("it cannot be made");
  const bool is_written = WriteWhole(fd, content);
  const int error = errno;
  close(fd);
  if (!is_written) return Status(StatusCode::kIo, "it cannot be written", error);
  if (rename(draft.c_str(), path_text.c_str()) != 0) return failed("it cannot be placed");
  return SyncDirectory(path.parent_path(), "its directory cannot be synced");
}

Result<std::string> ReadKeptFile(const std::string& path, size_t bytes_max) {
  // What is no file may never be there to be opened, or read.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return Status(StatusCode::kNotFound, "there is no file");
  if (fd < 0) return Status(StatusCode::kIo, "it cannot be opened", errno);
  struct stat about {};
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    close(fd);
    return Status(StatusCode::kIo, "it is no regular file", EINVAL);
  }
  std::string content(bytes_max + 1, '\0');
  size_t done_bytes = 0;
  ssize_t got = 0;
  do {
    got = read(fd, content.data() + done_bytes, content.size() - done_bytes);
    if (got > 0) done_bytes += static_cast<size_t>(got);
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error = errno;
  close(fd);
  if (got < 0) return Status(StatusCode::kIo, "it cannot be read", error);
  content.resize(done_bytes);
  return content;
}

}  // namespace terrace
