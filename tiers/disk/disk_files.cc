#include "tiers/disk/disk_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "terrace/check.h"
#include "terrace/open_file.h"
#include "terrace/units.h"
#include "tiers/disk/disk_lock.h"

namespace terrace {
namespace {

Status IoStatus(const char* what) { return Status(StatusCode::kIo, what, errno); }

// What errno says of it.
std::string Sentence(const std::string& what, const std::string& name, const std::string& remedy) {
  return what + " " + name + ": " + std::strerror(errno) + ". " + remedy;
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kDiskLockName &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// The first sector of a new file, at an address that O_DIRECT takes.
struct FreeAligned {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
std::unique_ptr<std::byte, FreeAligned> AlignedSector(std::span<const std::byte> from) {
  std::unique_ptr<std::byte, FreeAligned> sector(
      static_cast<std::byte*>(std::aligned_alloc(kDiskAlignmentBytes, kDiskAlignmentBytes)));
  TERRACE_CHECK(sector != nullptr, "a page of memory is always to be had");
  std::memset(sector.get(), 0, kDiskAlignmentBytes);
  std::memcpy(sector.get(), from.data(), from.size());
  return sector;
}

int64_t Attempt(const DiskTransfer& transfer, uint64_t done_bytes) {
  std::byte* const at = transfer.memory + done_bytes;
  const size_t left_bytes = transfer.length_bytes - done_bytes;
  const auto offset = static_cast<off_t>(transfer.offset_bytes + done_bytes);
  const ssize_t result = transfer.op == DiskOp::kRead
                             ? ::pread(transfer.fd, at, left_bytes, offset)
                             : ::pwrite(transfer.fd, at, left_bytes, offset);
  return result < 0 ? -errno : result;
}

}  // namespace

Status TransferNow(const DiskTransfer& transfer, TransferProgress* progress,
                   const DiskResultFilter& filter, const std::atomic<bool>& is_stopping) {
  for (;;) {
    int64_t result = Attempt(transfer, progress->done_bytes());
    if (filter) result = filter(transfer.op, result);
    switch (progress->Apply(result)) {
      case TransferProgress::Next::kDone:
      case TransferProgress::Next::kFailed:
        return progress->status();
      case TransferProgress::Next::kAgainLater:
        std::this_thread::sleep_for(std::chrono::microseconds(progress->backoff_us()));
        break;
      case TransferProgress::Next::kAgain:
        break;
    }
    // The descriptor may be closed, and its number another file's, once the disk has ended.
    if (is_stopping) return Status(StatusCode::kIo, "the disk is being closed", ECANCELED);
  }
}

Result<std::unique_ptr<DiskFiles>> DiskFiles::Open(Options options, std::string* why) {
  std::unique_ptr<DiskFiles> files(new DiskFiles(std::move(options)));
  TERRACE_RETURN_IF_ERROR(files->OpenDirectory(why));
  TERRACE_RETURN_IF_ERROR(files->Lock(why));
  files->ChoosePayloadFlags();
  files->RefreshSpace();
  return files;
}

DiskFiles::~DiskFiles() {
  for (const File& file : files_) {
    if (file.descriptors.payload >= 0) ::close(file.descriptors.payload);
    if (file.descriptors.table >= 0) ::close(file.descriptors.table);
    if (file.is_reserved) GiveBack();
  }
  if (lock_fd_ >= 0) ::close(lock_fd_);
  if (directory_fd_ >= 0) ::close(directory_fd_);
}

Status DiskFiles::OpenDirectory(std::string* why) {
  const std::string& path = options_.directory;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const Status status = IoStatus("making the disk's directory");
    *why = Sentence("cannot make the directory", path,
                    "Its parent must exist and be writable by uid " + std::to_string(geteuid()));
    return status;
  }
  directory_fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd_ < 0) {
    const Status status = IoStatus("opening the disk's directory");
    *why = Sentence("cannot open the directory", path,
                    "It must be readable by uid " + std::to_string(geteuid()));
    return status;
  }
  return Status::Ok();
}

// The lock of a killed process lasts until the kernel has ended what it had begun for it: until
// then its requests may still write, here and in memory that it shared with others.
Status DiskFiles::Lock(std::string* why) {
  const std::string path = options_.directory + "/" + kDiskLockName;
  lock_fd_ =
      ::openat(directory_fd_, kDiskLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) {
    const Status status = IoStatus("opening the disk's lock");
    *why = Sentence("cannot open", path, "It must be writable by uid " + std::to_string(geteuid()));
    return status;
  }
  const LockRefusal refusal = TakeLock(lock_fd_, options_.lock_wait_us);
  if (refusal.error == EWOULDBLOCK) {
    *why = options_.directory + " is in use by " + refusal.holder.Text() +
           (refusal.is_alive ? ". Stop it, or give this one another path"
                             : ", which is not seen here. If it has ended, the drive has not "
                               "answered its requests yet: see dmesg, and start again. If it "
                               "runs in another container, stop it, or give this one another "
                               "path");
    return Status(StatusCode::kBusy, "another process uses the directory");
  }
  if (refusal.error != 0) {
    errno = refusal.error;
    const Status status = IoStatus("locking the disk's directory");
    *why = Sentence("cannot lock", path, "The file system must support flock");
    return status;
  }
  LockHolder::NameMyself(lock_fd_);
  return Status::Ok();
}

// Somebody removed the directory: another is made in its place, and locked. `errno` says why not.
Status DiskFiles::OpenDirectoryAgain() {
  const int directory_fd = std::exchange(directory_fd_, -1);
  const int lock_fd = std::exchange(lock_fd_, -1);
  std::string why;
  Status status = OpenDirectory(&why);
  if (status.ok()) status = Lock(&why);
  if (!status.ok()) {
    if (lock_fd_ >= 0) ::close(lock_fd_);
    if (directory_fd_ >= 0) ::close(directory_fd_);
    directory_fd_ = directory_fd;
    lock_fd_ = lock_fd;
    errno = ENOENT;
    return status;
  }
  ::close(lock_fd);
  ::close(directory_fd);
  return status;
}

void DiskFiles::ChoosePayloadFlags() {
  if (options_.direct == DirectIoChoice::kNever) {
    payload_description_ = "through the page cache, as configured";
    return;
  }
  const int probe = ::openat(directory_fd_, kDiskLockName, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (probe < 0) {
    payload_description_ =
        std::string("through the page cache: the file system refuses O_DIRECT (") +
        std::strerror(errno) + ")";
    return;
  }
  ::close(probe);
  payload_flags_ = O_DIRECT;
  payload_description_ = "O_DIRECT";
}

DiskFile DiskFiles::Reserve() {
  std::lock_guard lock(mutex_);
  if (reserved_count_ >= options_.files_max) return kDiskFileNone;
  if (options_.budget != nullptr && !options_.budget->Take()) return kDiskFileNone;
  ++reserved_count_;
  for (DiskFile file = 0; file < files_.size(); ++file) {
    if (files_[file].is_reserved) continue;
    files_[file].is_reserved = true;
    return file;
  }
  files_.push_back(File{.is_reserved = true});
  return static_cast<DiskFile>(files_.size() - 1);
}

FileRoom DiskFiles::room() const {
  const FileRoom own{.open_count = reserved_count_, .files_max = options_.files_max};
  if (options_.budget == nullptr || own.is_full()) return own;
  const FileBudget& budget = *options_.budget;
  return {.open_count = budget.open_count(),
          .files_max = budget.files_max(),
          .fds_max = budget.fds_max(),
          .fds_wanted = budget.fds_wanted()};
}

DiskFiles::Descriptors DiskFiles::descriptors(DiskFile file) const {
  std::lock_guard lock(mutex_);
  return file < files_.size() ? files_[file].descriptors : Descriptors{};
}

Status DiskFiles::OpenBoth(const std::string& name, Descriptors* descriptors) const {
  descriptors->table =
      ::openat(directory_fd_, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptors->table < 0) {
    return errno == ENOENT ? Status(StatusCode::kNotFound, "no such file on the disk")
                           : IoStatus("opening a file of the disk");
  }
  descriptors->payload =
      ::openat(directory_fd_, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | payload_flags_);
  if (descriptors->payload < 0) {
    const Status status = IoStatus("opening a file of the disk for payload");
    ::close(std::exchange(descriptors->table, -1));
    return status;
  }
  return Status::Ok();
}

Status DiskFiles::Create(DiskFile file, const std::string& name, uint64_t length_bytes,
                         std::span<const std::byte> from) {
  if (!IsPlainName(name) || from.size() > kDiskAlignmentBytes ||
      length_bytes < kDiskAlignmentBytes) {
    Forget(file);
    return Status(StatusCode::kInvalid, "a file of the disk needs a plain name and a sector");
  }
  const auto make = [&] {
    return ::openat(directory_fd_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  };
  int made = make();
  if (made < 0 && errno == ENOENT) made = OpenDirectoryAgain().ok() ? make() : -1;
  if (made < 0) {
    const Status status = IoStatus("making a file of the disk");
    Forget(file);
    return status;
  }
  ::close(made);
  Descriptors descriptors;
  Status status = OpenBoth(name, &descriptors);
  if (status.ok()) status = Fill(descriptors, length_bytes, from);
  if (status.ok() && ::fsync(directory_fd_) != 0) status = IoStatus("syncing the directory");
  if (!status.ok()) {
    if (descriptors.payload >= 0) ::close(descriptors.payload);
    if (descriptors.table >= 0) ::close(descriptors.table);
    ::unlinkat(directory_fd_, name.c_str(), 0);
    Forget(file);
    return status;
  }
  std::lock_guard lock(mutex_);
  TERRACE_CHECK(file < files_.size() && files_[file].descriptors.table < 0,
                "a file is made under a number that no other has");
  files_[file].descriptors = descriptors;
  files_[file].name = name;
  files_[file].length_bytes = length_bytes;
  return Status::Ok();
}

Status DiskFiles::Fill(const Descriptors& descriptors, uint64_t length_bytes,
                       std::span<const std::byte> from) {
  const auto length = static_cast<off_t>(length_bytes);
  int64_t reserved = 0;
  do {
    reserved = ::fallocate(descriptors.table, 0, 0, length) == 0 ? 0 : -errno;
    if (options_.result_filter) reserved = options_.result_filter(DiskOp::kCreate, reserved);
  } while (reserved == -EINTR);
  if (reserved == -EOPNOTSUPP) reserved = ::ftruncate(descriptors.table, length) == 0 ? 0 : -errno;
  if (reserved < 0) {
    return Status(StatusCode::kIo, "reserving space for a file", static_cast<int32_t>(-reserved));
  }
  const auto sector = AlignedSector(from);
  const DiskTransfer transfer{.op = DiskOp::kWrite,
                              .fd = descriptors.payload,
                              .memory = sector.get(),
                              .length_bytes = kDiskAlignmentBytes};
  TransferProgress progress(TransferProgress::Kind::kPayload, DiskOp::kWrite, kDiskAlignmentBytes);
  const std::atomic<bool> is_stopping = false;
  TERRACE_RETURN_IF_ERROR(TransferNow(transfer, &progress, {}, is_stopping));
  return ::fdatasync(descriptors.table) == 0 ? Status::Ok() : IoStatus("syncing a new file");
}

void DiskFiles::Forget(DiskFile file) {
  std::lock_guard lock(mutex_);
  if (file >= files_.size() || !files_[file].is_reserved) return;
  files_[file] = File{};
  GiveBack();
}

void DiskFiles::GiveBack() {
  --reserved_count_;
  if (options_.budget != nullptr) options_.budget->Give();
}

Status DiskFiles::Sync(DiskFile file) {
  int fd = -1;
  uint64_t length_bytes = 0;
  {
    std::lock_guard lock(mutex_);
    TERRACE_CHECK(file < files_.size() && files_[file].descriptors.table >= 0,
                  "what is synced is an open file");
    fd = files_[file].descriptors.table;
    length_bytes = files_[file].length_bytes;
  }
  int64_t result = 0;
  do {
    result = ::fdatasync(fd) == 0 ? 0 : -errno;
    if (options_.result_filter) result = options_.result_filter(DiskOp::kSync, result);
  } while (result == -EINTR);
  if (result < 0) {
    return Status(StatusCode::kIo, "syncing a file", static_cast<int32_t>(-result));
  }
  struct stat about {};
  const bool is_known = ::fstat(fd, &about) == 0;
  if (is_known && (about.st_nlink == 0 || static_cast<uint64_t>(about.st_size) < length_bytes)) {
    return Status(StatusCode::kNotFound, "somebody removed or shortened a file of the disk");
  }
  return Status::Ok();
}

Status DiskFiles::Remove(DiskFile file) {
  File removed;
  {
    std::lock_guard lock(mutex_);
    if (file >= files_.size() || files_[file].descriptors.table < 0) {
      return Status(StatusCode::kInvalid, "no such open file");
    }
    removed = files_[file];
    files_[file].descriptors = {};  // the number stays taken until the name is gone
  }
  struct stat about {};
  const bool is_there = ::fstat(removed.descriptors.table, &about) != 0 || about.st_nlink > 0;
  bool is_gone = !is_there || ::unlinkat(directory_fd_, removed.name.c_str(), 0) == 0;
  if (is_gone) {  // also of one that was unlinked before, in vain: its name is not gone for good
    int64_t synced = ::fsync(directory_fd_) == 0 ? 0 : -errno;
    if (options_.result_filter) synced = options_.result_filter(DiskOp::kRemove, synced);
    errno = static_cast<int>(-synced);
    is_gone = synced == 0;
  }
  if (!is_gone) {
    const Status status = IoStatus("removing a file of the disk");
    std::lock_guard lock(mutex_);
    files_[file] = removed;  // to be asked again; no other file may have the number before
    return status;
  }
  ::close(removed.descriptors.payload);
  ::close(removed.descriptors.table);
  Forget(file);
  return Status::Ok();
}

Status DiskFiles::List(std::vector<std::string>* names) const {
  names->clear();
  const int fd = ::openat(directory_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = fd >= 0 ? ::fdopendir(fd) : nullptr;
  if (listing == nullptr) {
    const Status status = IoStatus("listing the disk's directory");
    if (fd >= 0) ::close(fd);
    return status;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(listing)) {
    struct stat about {};
    if (IsPlainName(entry->d_name) &&
        ::fstatat(directory_fd_, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(about.st_mode)) {
      names->push_back(entry->d_name);
    }
    errno = 0;
  }
  const Status status = errno == 0 ? Status::Ok() : IoStatus("listing the disk's directory");
  ::closedir(listing);
  return status;
}

Status DiskFiles::OpenExisting(const std::string& name, DiskFile* file, uint64_t* length_bytes) {
  if (!IsPlainName(name)) return Status(StatusCode::kInvalid, "not the name of a disk's file");
  Descriptors descriptors;
  TERRACE_RETURN_IF_ERROR(OpenBoth(name, &descriptors));
  struct stat about {};
  Status status;
  if (::fstat(descriptors.table, &about) != 0) {
    status = IoStatus("looking at a file of the disk");
  } else if (!S_ISREG(about.st_mode)) {
    status = Status(StatusCode::kIo, "not a regular file", EINVAL);
  } else {
    *length_bytes = static_cast<uint64_t>(about.st_size);
    *file = Reserve();
    if (*file == kDiskFileNone) {
      status = Status(StatusCode::kNoSpace, "as many files are open as there may be");
    }
  }
  if (!status.ok()) {
    ::close(descriptors.payload);
    ::close(descriptors.table);
    return status;
  }
  std::lock_guard lock(mutex_);
  files_[*file].descriptors = descriptors;
  files_[*file].name = name;
  files_[*file].length_bytes = *length_bytes;
  return Status::Ok();
}

void DiskFiles::LookForRemoved() {
  std::vector<int> fds;
  {
    std::lock_guard lock(mutex_);
    for (const File& file : files_) fds.push_back(file.descriptors.table);
  }
  removed_count_ = static_cast<uint64_t>(std::ranges::count_if(fds, [](int fd) {
    struct stat about {};
    return fd >= 0 && ::fstat(fd, &about) == 0 && about.st_nlink == 0;
  }));
}

void DiskFiles::RefreshSpace() {
  struct statvfs about {};
  if (::fstatvfs(directory_fd_, &about) != 0) return;
  filesystem_bytes_ = uint64_t{about.f_blocks} * about.f_frsize;
  filesystem_free_bytes_ = uint64_t{about.f_bavail} * about.f_frsize;
}

}  // namespace terrace
