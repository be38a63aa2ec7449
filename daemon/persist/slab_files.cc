#include "daemon/persist/slab_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "terrace/check.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "slab-";
constexpr std::string_view kSuffix = ".terrace";
constexpr uint64_t kTableReadBytes = 4 * kMiB;

Status ReadFully(int fd, uint64_t offset_bytes, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = pread(fd, into.data(), into.size(), static_cast<off_t>(offset_bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status(StatusCode::kIo, "a slab cannot be read", errno);
    if (got == 0) return Status(StatusCode::kIo, "a slab ends early", ENODATA);
    into = into.subspan(static_cast<size_t>(got));
    offset_bytes += static_cast<uint64_t>(got);
  }
  return Status::Ok();
}

void ReadSuperblock(const DomainSecret& secret, SlabFile* file) {
  const int fd = open(file->path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    file->status = Status(StatusCode::kIo, "it cannot be opened", errno);
    return;
  }
  struct stat about {};
  std::vector<std::byte> sector(kSlabSectorBytes);
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    file->status = Status(StatusCode::kCorrupt, "it is no regular file");
  } else if (file->file_bytes = static_cast<uint64_t>(about.st_size);
             file->file_bytes < kSlabSectorBytes) {
    file->status = Status(StatusCode::kNotFound, "it was never finished");
  } else {
    file->status = ReadFully(fd, 0, sector);
  }
  close(fd);
  if (!file->status.ok()) return;
  if (std::ranges::all_of(sector, [](std::byte byte) { return byte == std::byte{0}; })) {
    file->status = Status(StatusCode::kNotFound, "it was never finished");
    return;
  }
  const Result<SlabSuperblock> superblock = DecodeSuperblock(sector, secret);
  file->status = superblock.status();
  if (!superblock.ok()) return;
  file->superblock = *superblock;
  if (superblock->slab_index != file->index) {
    file->status = Status(StatusCode::kCorrupt, "it is another slab, renamed");
  } else if (superblock->slab_bytes > file->file_bytes) {
    file->status = Status(StatusCode::kCorrupt, "it is shorter than it says");
  } else {
    file->geometry = SlabGeometry::Of(superblock->shape, superblock->slab_bytes).value();
  }
}

}  // namespace

Result<uint32_t> SlabIndexOf(const std::string& file_name) {
  std::string_view digits = file_name;
  const Status refused(StatusCode::kInvalid, "not the name of a slab file");
  if (!digits.starts_with(kPrefix) || !digits.ends_with(kSuffix)) return refused;
  if (digits.size() <= kPrefix.size() + kSuffix.size()) return refused;
  digits.remove_prefix(kPrefix.size());
  digits.remove_suffix(kSuffix.size());
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc() || end != digits.data() + digits.size()) return refused;
  if (std::to_string(index) != digits) return refused;
  return index;
}

std::vector<SlabFile> ListSlabFiles(const std::string& directory, const DomainSecret& secret,
                                    Status* status) {
  std::vector<SlabFile> files;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const Result<uint32_t> index = SlabIndexOf(at->path().filename());
    if (!index.ok()) continue;
    SlabFile file;
    file.path = at->path();
    file.index = *index;
    ReadSuperblock(secret, &file);
    files.push_back(std::move(file));
  }
  if (status != nullptr && error && error != std::errc::no_such_file_or_directory) {
    *status = Status(StatusCode::kIo, "the directory cannot be listed", error.value());
  }
  std::ranges::sort(files, {}, &SlabFile::index);
  return files;
}

SlabReader::SlabReader(const SlabFile& file, const DomainSecret& secret, Access access)
    : file_(file), secret_(secret) {
  TERRACE_CHECK(file.status.ok(), "only whole slabs are read");
  const int flags = access == Access::kRead ? O_RDONLY : O_RDWR;
  fd_ = open(file.path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
}

SlabReader::~SlabReader() {
  if (fd_ >= 0) close(fd_);
}

Status SlabReader::ReadAt(uint64_t offset_bytes, std::span<std::byte> into) const {
  if (fd_ < 0) return Status(StatusCode::kIo, "a slab cannot be opened", EBADF);
  return ReadFully(fd_, offset_bytes, into);
}

Status SlabReader::VisitTable(const EntryVisitor& visit) const {
  const SlabGeometry& geometry = file_.geometry;
  const uint64_t per_chunk = kTableReadBytes / kSlabSectorBytes * geometry.entries_per_sector;
  TERRACE_CHECK(per_chunk > 0 && geometry.entry_bytes > 0, "a slab that is read has a shape");
  std::vector<std::byte> chunk;
  SlabEntry entry;
  Status outcome;
  for (uint64_t first = 0; first < geometry.slot_count; first += per_chunk) {
    const uint64_t end = std::min<uint64_t>(first + per_chunk, geometry.slot_count);
    const uint64_t begin_bytes = geometry.EntryOffsetBytes(static_cast<uint32_t>(first));
    chunk.resize(geometry.EntryOffsetBytes(static_cast<uint32_t>(end - 1)) + geometry.entry_bytes -
                 begin_bytes);
    const Status read = ReadAt(begin_bytes, chunk);
    if (!read.ok()) outcome = read;
    for (uint64_t at = first; at < end; ++at) {
      const auto slot = static_cast<uint32_t>(at);
      if (!read.ok()) {
        visit(slot, read, entry, {});
        continue;
      }
      const std::span<const std::byte> bytes = std::span(chunk).subspan(
          geometry.EntryOffsetBytes(slot) - begin_bytes, geometry.entry_bytes);
      const Status status =
          DecodeEntry(geometry, file_.superblock.uuid, slot, bytes, secret_, &entry);
      visit(slot, status, entry, bytes);
    }
  }
  return outcome;
}

Status SlabReader::ReadPayload(uint32_t slot, std::span<std::byte> into) const {
  TERRACE_CHECK(slot < file_.geometry.slot_count && into.size() <= file_.geometry.shape.slot_bytes,
                "payload lies in its slot");
  const uint64_t offset_bytes = file_.geometry.PayloadOffsetBytes(slot);
  if (fd_ >= 0) {
    posix_fadvise(fd_, static_cast<off_t>(offset_bytes), static_cast<off_t>(into.size()),
                  POSIX_FADV_DONTNEED);
  }
  return ReadAt(offset_bytes, into);
}

Status SlabReader::WriteEntry(const SlabEntry& entry) const {
  TERRACE_CHECK(entry.slot < file_.geometry.slot_count, "an entry lies in its table");
  std::vector<std::byte> bytes(file_.geometry.entry_bytes);
  EncodeEntry(file_.geometry, file_.superblock.uuid, entry, secret_, bytes);
  const auto offset = static_cast<off_t>(file_.geometry.EntryOffsetBytes(entry.slot));
  if (pwrite(fd_, bytes.data(), bytes.size(), offset) == static_cast<ssize_t>(bytes.size())) {
    return Status::Ok();
  }
  return Status(StatusCode::kIo, "an entry cannot be written", errno);
}

Status SlabReader::Sync() const {
  if (fdatasync(fd_) == 0) return Status::Ok();
  return Status(StatusCode::kIo, "a slab cannot be synced", errno);
}

}  // namespace terrace
