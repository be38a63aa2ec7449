#include "daemon/persist/catalog_db.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "daemon/persist/kept_file.h"
#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// The first byte of a key says what the record is.
constexpr char kKindMeta = 'M';
constexpr char kKindAudit = 'a';
constexpr char kKindExtent = 'e';
constexpr char kKindGroup = 'g';
constexpr char kKindPrior = 'p';
constexpr std::string_view kVersionKey = "Mversion";
constexpr std::string_view kCleanKey = "Mclean";
constexpr std::string_view kCleanFile = "clean";
constexpr std::string_view kUnprovenFile = "unproven";
constexpr std::string_view kUnprovenNew = "new\n";  // in it: nothing has been put into this one
constexpr const char* kSetAside = ".old";           // the latest, and the one before
constexpr const char* kSetAsideBefore = ".older";
constexpr std::string_view kWordFile = "catalog.word";  // in each directory of slabs
constexpr const char* kOtherSlabs =
    "the slabs are not those of its last clean stop: a path was exchanged, or is an older copy";
constexpr std::string_view kWordUnreadable = "-";  // no word of a clean stop
constexpr const char* kOtherFiles = "its files are not those of the last clean stop";
constexpr const char* kMarkUnsynced = "cannot sync the directory of a mark of the catalog";
constexpr const char* kUnreadableMark = "what its last clean stop left cannot be read now";
constexpr size_t kMarkBytesMax = 1 * kMiB, kWordBytesMax = 4 * kKiB;
constexpr size_t kExtentKeyBytes = 9;

// Half of the memory is for write buffers, which the cache counts as its own; four of them, so that
// one fills while others are flushed.
constexpr uint64_t kWriteBufferShare = 2;
constexpr uint64_t kWriteBuffers = 4;
constexpr int kOpenFilesMax = 64;
constexpr size_t kProtectionBytesPerKey = 8;
constexpr size_t kReadaheadBytes = 2 * kMiB;
constexpr size_t kFileBufferBytes = 64 * kKiB;
constexpr size_t kDigestReadBytes = 1 * kMiB;

void PutBigEndian(uint64_t value, size_t count_bytes, char* to) {
  for (size_t i = 0; i < count_bytes; ++i) {
    to[i] = static_cast<char>(value >> (8 * (count_bytes - 1 - i)));
  }
}

uint64_t GetBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

std::array<char, kExtentKeyBytes> ExtentKey(SlotName name) {
  std::array<char, kExtentKeyBytes> key;
  key[0] = kKindExtent;
  PutBigEndian(name.slab, 4, key.data() + 1);
  PutBigEndian(name.slot, 4, key.data() + 5);
  return key;
}

std::string AuditKey(uint64_t number) {
  std::string key(9, kKindAudit);
  PutBigEndian(number, 8, key.data() + 1);
  return key;
}

rocksdb::Slice AsSlice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view AsView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

Status FromRocks(const rocksdb::Status& status) {
  if (status.ok()) return Status::Ok();
  if (status.IsNotFound()) return Status(StatusCode::kNotFound, "no such record");
  if (status.IsCorruption()) return Status(StatusCode::kCorrupt, "the catalog is damaged");
  if (status.IsIncomplete() || status.IsBusy() || status.IsTryAgain() || status.IsTimedOut()) {
    return Status(StatusCode::kBusy, "the catalog cannot keep up");
  }
  if (status.IsNoSpace()) {
    return Status(StatusCode::kIo, "the catalog's file system is full", ENOSPC);
  }
  return Status(StatusCode::kIo, "the catalog cannot be read or written", EIO);
}

// What is on the drive is wrong, whenever it is read. All else may pass: a full drive, an error of
// reading, no descriptors, a lock that somebody else holds. RocksDB reports some of it as a
// corruption or as options that do not fit; what it says then tells.
bool IsDamage(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  if (text.find("No such file") != std::string::npos) return true;  // of those that it names itself
  if (text.find("IO error") != std::string::npos) return false;
  return status.IsCorruption() || status.IsInvalidArgument() || status.IsNotSupported() ||
         status.IsNotFound();
}

Status OpenFailure(const rocksdb::Status& status, std::string* why) {
  *why = status.ToString();
  if (IsDamage(status)) return Status(StatusCode::kCorrupt, "the catalog is damaged");
  return Status(StatusCode::kIo, "the catalog cannot be opened now",
                status.IsNoSpace() ? ENOSPC : EIO);
}

// Of a file's content; "unreadable" of what is no file. kIo: it cannot be read now.
Result<std::string> DigestOf(const fs::path& path) {
  const auto failed = [](int error) -> Result<std::string> {
    const bool is_no_file = error == ENOENT || error == ELOOP || error == EISDIR || error == ENXIO;
    if (is_no_file) return std::string("unreadable");
    return Status(StatusCode::kIo, "a file of the catalog cannot be read", error);
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return failed(errno);
  std::vector<std::byte> buffer(kDigestReadBytes);
  ChecksumStream digest(0);
  ssize_t got = 0;
  while ((got = read(fd, buffer.data(), buffer.size())) > 0) {
    digest.Append(std::span(buffer).first(static_cast<size_t>(got)));
  }
  const int error = errno;
  close(fd);
  if (got < 0) return failed(error);
  return ToHex(digest.Finish());
}

// The files a closed database consists of, with what is in them. RocksDB alone would not notice
// all that can happen to them: it takes a manifest that ends early for an older state, and reads a
// table whose properties are damaged as if nothing were in it. kIo: they cannot be read now.
Result<std::string> ListFiles(const std::string& directory) {
  std::vector<std::string> lines;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (!name.ends_with(".sst") && !name.ends_with(".log") && !name.starts_with("MANIFEST") &&
        name != "CURRENT") {
      continue;
    }
    const Result<std::string> digest = DigestOf(at->path());
    if (!digest.ok()) return digest.status();
    lines.push_back(name + ' ' + *digest + '\n');
  }
  if (error) {
    return Status(StatusCode::kIo, "the catalog's directory cannot be listed", error.value());
  }
  std::sort(lines.begin(), lines.end());
  std::string listing;
  for (const std::string& line : lines) listing += line;
  return listing;
}

// The word that all directories of slabs have; empty if they disagree, or one has none. kIo: one
// cannot be read now.
Result<std::string> ReadSlabWord(const std::vector<std::string>& directories) {
  std::string word;
  for (const std::string& directory : directories) {
    const Result<std::string> text = ReadKeptFile(fs::path(directory) / kWordFile, kWordBytesMax);
    if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
    const std::string found = text.ok() ? text->substr(0, text->find('\n')) : "";
    if (found.empty() || (!word.empty() && found != word)) return std::string();
    word = found;
  }
  return word;
}

// What the last clean stop left beside the database.
struct CleanMark {
  std::string word;  // the random one; empty: there is no mark
  bool is_of_these_files = false;
  bool is_of_slabs = false;  // the stop left them as they are
  // Nobody can say just now; nothing is believed, and nothing is wrong.
  bool is_unreadable = false;

  const char* trouble() const {
    return word.empty() || is_unreadable || is_of_these_files ? nullptr : kOtherFiles;
  }
};

CleanMark ReadCleanMark(const CatalogDb::Options& options) {
  CleanMark mark;
  const Result<std::string> content =
      ReadKeptFile(fs::path(options.directory) / kCleanFile, kMarkBytesMax);
  if (content.status().code() == StatusCode::kNotFound) return mark;
  const Result<std::string> files = ListFiles(options.directory);
  const Result<std::string> slab_word = ReadSlabWord(options.slab_directories);
  mark.is_unreadable = !content.ok() || !files.ok() || !slab_word.ok();
  if (mark.is_unreadable) return mark;
  const size_t end = content->find('\n');
  mark.word = content->substr(0, end);
  if (mark.word.empty()) mark.word = kWordUnreadable;
  mark.is_of_these_files = end != std::string::npos && content->substr(end + 1) == *files;
  mark.is_of_slabs = options.slab_directories.empty() || mark.word == *slab_word;
  return mark;
}

Status RemoveFile(const std::string& directory, std::string_view name) {
  const std::string path = fs::path(directory) / name;
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Status(StatusCode::kIo, "cannot remove a mark of the catalog", errno);
  }
  return SyncDirectory(directory, kMarkUnsynced);
}

Status WriteFile(const std::string& directory, std::string_view name, const std::string& text) {
  const std::string path = fs::path(directory) / name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return Status(StatusCode::kIo, "cannot write a mark of the catalog", errno);
  const bool is_written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (!is_written) return Status(StatusCode::kIo, "cannot write a mark of the catalog", error);
  return SyncDirectory(directory, kMarkUnsynced);
}

std::string DrawWord() {
  std::random_device random;
  return ToHex(uint64_t{random()} << 32 | random(), uint64_t{random()} << 32 | random());
}

// In place, which a full drive allows.
Status WriteSlabWord(const std::vector<std::string>& directories, const std::string& word) {
  const std::string text = word + '\n';
  for (const std::string& directory : directories) {
    const std::string path = fs::path(directory) / kWordFile;
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return Status(StatusCode::kIo, "cannot open a path's catalog.word", errno);
    const auto length = static_cast<ssize_t>(text.size());
    const bool is_written = pwrite(fd, text.data(), text.size(), 0) == length &&
                            ftruncate(fd, length) == 0 && fsync(fd) == 0;
    const int error = errno;
    close(fd);
    if (!is_written) return Status(StatusCode::kIo, "cannot write a path's catalog.word", error);
    TERRACE_RETURN_IF_ERROR(SyncDirectory(directory, kMarkUnsynced));
  }
  return Status::Ok();
}

// Who began to open it and did not get to its end.
enum class Unproven : uint8_t {
  kNobody,
  kSomebody,
  kSomebodyNew,  // before anything was put into it
};

Unproven ReadUnproven(const std::string& directory) {
  const fs::path path = fs::path(directory) / kUnprovenFile;
  std::error_code error;
  if (!fs::exists(path, error)) return Unproven::kNobody;
  const Result<std::string> content = ReadKeptFile(path, kWordBytesMax);
  return content.ok() && *content == kUnprovenNew ? Unproven::kSomebodyNew : Unproven::kSomebody;
}

class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::WriteOptions WriteNow() {
  rocksdb::WriteOptions options;
  options.no_slowdown = true;  // a stall is an answer: the caller decides how long it waits
  return options;
}

}  // namespace

void CatalogChanges::Clear() {
  is_anew = false;
  extents.clear();
  entry_bytes.clear();
  groups.clear();
  priors.clear();
  audit.clear();
}

struct CatalogDb::State {
  Options options;
  std::shared_ptr<rocksdb::Cache> cache;
  std::shared_ptr<rocksdb::WriteBufferManager> write_buffers;
  std::unique_ptr<rocksdb::DB> db;
  uint64_t audit_begin = 0;  // numbers of the oldest record and of the next
  uint64_t audit_end = 0;
  bool is_writable = false;

  rocksdb::Options RocksOptions();
  rocksdb::Status FindAuditEnds();
};

rocksdb::Options CatalogDb::State::RocksOptions() {
  const uint64_t memory_bytes = std::max(options.memory_bytes, kCatalogMemoryBytesMin);
  cache = rocksdb::NewLRUCache(memory_bytes, /*num_shard_bits=*/0);
  write_buffers = std::make_shared<rocksdb::WriteBufferManager>(memory_bytes / kWriteBufferShare,
                                                                cache, /*allow_stall=*/true);
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.cache_index_and_filter_blocks = true;
  table.block_size = 16 * kKiB;
  table.checksum = rocksdb::kXXH3;
  rocksdb::Options rocks;
  if (options.env != nullptr) rocks.env = options.env;
  rocks.create_if_missing = true;
  rocks.paranoid_checks = true;
  rocks.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  rocks.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocks.write_buffer_manager = write_buffers;
  rocks.write_buffer_size = memory_bytes / kWriteBufferShare / kWriteBuffers;
  rocks.max_write_buffer_number = kWriteBuffers;
  rocks.max_total_wal_size = memory_bytes;
  rocks.target_file_size_base = 16 * kMiB;
  rocks.level_compaction_dynamic_level_bytes = true;
  rocks.compression = rocksdb::kNoCompression;  // most of an entry is random
  // After a failed write the database is opened anew, never resumed: its writers may not be touched
  // again, and builds with assertions (Debian's is one) end the process that tries.
  rocks.max_bgerror_resume_count = 0;
  rocks.avoid_flush_during_shutdown = true;
  rocks.max_open_files = kOpenFilesMax;
  rocks.max_background_jobs = 2;
  // A file's buffer doubles on its way there: six sizes a file, and a hole in the heap of each.
  rocks.writable_file_max_buffer_size = kFileBufferBytes;
  // Its files are few; and where there is no thread for others to open them, it ends the process.
  rocks.max_file_opening_threads = 1;
  // A log that cannot be written on a full drive would end the process, too.
  rocks.info_log = std::make_shared<NoLog>();
  rocks.max_manifest_file_size = 4 * kMiB;
  rocks.stats_dump_period_sec = 0;
  rocks.stats_persist_period_sec = 0;
  return rocks;
}

rocksdb::Status CatalogDb::State::FindAuditEnds() {
  const std::string begin(1, kKindAudit), end(1, kKindAudit + 1);
  const rocksdb::Slice begin_slice(begin), end_slice(end);
  rocksdb::ReadOptions read;
  read.iterate_lower_bound = &begin_slice;
  read.iterate_upper_bound = &end_slice;
  const std::unique_ptr<rocksdb::Iterator> each(db->NewIterator(read));
  each->SeekToLast();
  if (!each->Valid()) return each->status();
  audit_end = GetBigEndian(AsView(each->key()).substr(1)) + 1;
  each->SeekToFirst();
  if (each->Valid()) audit_begin = GetBigEndian(AsView(each->key()).substr(1));
  return each->status();
}

CatalogDb::CatalogDb(std::unique_ptr<State> state) : state_(std::move(state)) {}
CatalogDb::~CatalogDb() = default;

// kCorrupt: what is there is damaged; kIo: it cannot be opened now. RocksDB throws nothing by
// design; damaged lengths may still ask for absurd allocations.
Status CatalogDb::TryOpen(const Options& options, std::unique_ptr<CatalogDb>* db,
                          std::string* why) {
  auto state = std::make_unique<State>();
  state->options = options;
  try {
    rocksdb::DB* opened = nullptr;
    const BornAs born("rocksdb", Waking::kPatient);
    const rocksdb::Status status =
        rocksdb::DB::Open(state->RocksOptions(), options.directory, &opened);
    state->db.reset(opened);
    if (!status.ok()) return OpenFailure(status, why);
    std::string version;
    const std::string expected = std::to_string(kCatalogFormatVersion);
    const rocksdb::Status found =
        opened->Get(rocksdb::ReadOptions(), AsSlice(kVersionKey), &version);
    if (found.IsNotFound()) {
      const rocksdb::Status written =
          opened->Put(rocksdb::WriteOptions(), AsSlice(kVersionKey), expected);
      if (!written.ok()) return OpenFailure(written, why);
    } else if (!found.ok()) {
      return OpenFailure(found, why);
    } else if (version != expected) {
      *why = "it has format version " + version + ", this daemon has " + expected;
      return Status(StatusCode::kCorrupt, "not a catalog of this version");
    }
    const rocksdb::Status audited = state->FindAuditEnds();
    if (!audited.ok()) return OpenFailure(audited, why);
  } catch (const std::system_error& error) {  // no thread, say
    *why = error.what();
    return Status(StatusCode::kIo, "the catalog cannot be opened", error.code().value());
  } catch (const std::exception& error) {
    *why = error.what();
    return Status(StatusCode::kCorrupt, "the catalog is damaged");
  }
  state->is_writable = true;
  db->reset(new CatalogDb(std::move(state)));
  return Status::Ok();
}

Status CatalogDb::MoveAside(const std::string& directory) {
  std::error_code error;
  if (fs::exists(directory + kSetAside, error)) {
    fs::remove_all(directory + kSetAsideBefore, error);
    fs::rename(directory + kSetAside, directory + kSetAsideBefore, error);
  }
  if (!error) fs::rename(directory, directory + kSetAside, error);
  if (error) return Status(StatusCode::kIo, "cannot rename the catalog", error.value());
  return Status::Ok();
}

// An empty one in place of what cannot be used. Where that cannot be had nothing is left of it: the
// next Open finds nothing that it would have to set aside.
void CatalogDb::TakeItsPlace(const Options& options, Opened* opened) {
  const std::string& directory = options.directory;
  Status status = MoveAside(directory);
  if (status.ok()) {
    opened->set_aside = directory + kSetAside;
    opened->why += "; it is now " + opened->set_aside;
    std::error_code error;
    fs::create_directories(directory, error);
    status = WriteFile(directory, kUnprovenFile, std::string(kUnprovenNew));
  }
  std::string why;
  if (status.ok()) status = TryOpen(options, &opened->db, &why);
  if (status.ok()) return;
  opened->why += "; nor can there be a new one: " + std::string(status.what()) + ' ' + why;
  if (opened->set_aside.empty()) return;
  std::error_code error;
  fs::remove_all(directory, error);
}

CatalogDb::Opened CatalogDb::Open(const Options& options) {
  Opened opened;
  const std::string& directory = options.directory;
  std::error_code error;
  fs::create_directories(directory, error);
  const Unproven unproven = ReadUnproven(directory);
  if (unproven == Unproven::kSomebodyNew) {
    fs::remove_all(directory, error);
    fs::create_directories(directory, error);
  }
  const bool is_new = fs::is_empty(directory, error);
  const CleanMark mark = ReadCleanMark(options);
  // Before anything changes: what cannot go might be believed at a later start. A new word in the
  // slabs' directories does as much for marks that are elsewhere now and may come back.
  Status status = RemoveFile(directory, kCleanFile);
  const Status parted = WriteSlabWord(options.slab_directories, DrawWord());
  if (status.ok()) {
    status = WriteFile(directory, kUnprovenFile, is_new ? std::string(kUnprovenNew) : "");
  }
  if (!status.ok()) {
    opened.why = status.what();
  } else if (unproven == Unproven::kSomebody) {
    opened.why = "the last start did not get past opening it";
    status = Status(StatusCode::kCorrupt, "not opened");
  } else if (mark.trouble() != nullptr) {
    opened.why = mark.trouble();
    status = Status(StatusCode::kCorrupt, "not opened");
  } else {
    status = TryOpen(options, &opened.db, &opened.why);
  }
  if (status.code() == StatusCode::kCorrupt) TakeItsPlace(options, &opened);
  if (!status.ok() && status.code() != StatusCode::kCorrupt && unproven != Unproven::kSomebody) {
    (void)RemoveFile(directory, kUnprovenFile);  // it is as it was, and another time will do
    if (fs::exists(fs::path(directory) / kUnprovenFile, error)) opened.why += "; its mark stays";
  }
  if (!status.ok()) return opened;
  std::string last;
  const rocksdb::Status found =
      opened.db->state_->db->Get(rocksdb::ReadOptions(), AsSlice(kCleanKey), &last);
  const bool is_whole = found.ok() && !mark.word.empty() && mark.word == last;
  opened.is_believed = is_whole && mark.is_of_slabs;
  if (!opened.is_believed) {
    opened.why = is_new               ? "there was none"
                 : mark.is_unreadable ? kUnreadableMark
                 : mark.word.empty()  ? "it was not closed by a clean stop"
                 : is_whole           ? kOtherSlabs
                                      : kOtherFiles;
  } else if (!parted.ok()) {
    opened.is_believed = false;
    opened.why = parted.what();
  }
  return opened;
}

Status CatalogDb::MarkProven() { return RemoveFile(state_->options.directory, kUnprovenFile); }

CatalogDb::Opened CatalogDb::OpenToLook(const Options& options) {
  Opened opened;
  auto state = std::make_unique<State>();
  state->options = options;
  std::error_code error;
  if (!fs::exists(fs::path(options.directory) / "CURRENT", error)) {
    opened.why = "there is none";
    return opened;
  }
  const CleanMark mark = ReadCleanMark(options);
  if (mark.is_unreadable || (!mark.word.empty() && !mark.is_of_these_files)) {
    opened.is_damaged = true;
    opened.why = mark.is_unreadable ? kUnreadableMark : kOtherFiles;
    return opened;
  }
  try {
    rocksdb::Options rocks = state->RocksOptions();
    rocks.create_if_missing = false;
    rocksdb::DB* raw = nullptr;
    const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(rocks, options.directory, &raw);
    state->db.reset(raw);
    std::string version;
    const rocksdb::Status found =
        status.ok() ? raw->Get(rocksdb::ReadOptions(), AsSlice(kVersionKey), &version) : status;
    if (!found.ok() || version != std::to_string(kCatalogFormatVersion)) {
      opened.is_damaged = true;
      opened.why = found.ok() ? "it has format version " + version : found.ToString();
      return opened;
    }
    std::string last;
    const bool is_marked = raw->Get(rocksdb::ReadOptions(), AsSlice(kCleanKey), &last).ok();
    opened.is_believed = is_marked && !mark.word.empty() && mark.word == last && mark.is_of_slabs;
  } catch (const std::exception& thrown) {
    opened.is_damaged = true;
    opened.why = thrown.what();
    return opened;
  }
  if (!opened.is_believed) opened.why = "it was not closed by a clean stop";
  opened.db.reset(new CatalogDb(std::move(state)));
  return opened;
}

Status CatalogDb::Apply(const CatalogChanges& changes) {
  TERRACE_CHECK(state_->is_writable, "a catalog opened to look at takes no changes");
  rocksdb::WriteBatch batch(changes.entry_bytes.size() + changes.extents.size() * 32, 0,
                            kProtectionBytesPerKey, 0);
  rocksdb::Status added;
  const auto add = [&added](const rocksdb::Status& status) {
    if (added.ok()) added = status;
  };
  if (changes.is_anew) {
    add(batch.DeleteRange(std::string(1, kKindExtent), std::string(1, kKindExtent + 1)));
  }
  for (const CatalogChanges::Extent& extent : changes.extents) {
    const std::array<char, kExtentKeyBytes> key = ExtentKey(extent.name);
    const rocksdb::Slice key_slice(key.data(), key.size());
    if (extent.length_bytes == 0) {
      add(batch.Delete(key_slice));
    } else {
      TERRACE_CHECK(extent.offset_bytes + extent.length_bytes <= changes.entry_bytes.size(),
                    "an extent's entry is among the batch's bytes");
      const auto* bytes =
          reinterpret_cast<const char*>(changes.entry_bytes.data() + extent.offset_bytes);
      add(batch.Put(key_slice, rocksdb::Slice(bytes, extent.length_bytes)));
    }
  }
  for (const CatalogChanges::Record& group : changes.groups) {
    const std::string key = kKindGroup + group.key;
    add(group.value.empty() ? batch.Delete(key) : batch.Put(key, group.value));
  }
  for (const CatalogChanges::Record& prior : changes.priors) {
    add(batch.Put(kKindPrior + prior.key, prior.value));
  }
  uint64_t audit_begin = state_->audit_begin, audit_end = state_->audit_end;
  for (const std::string& line : changes.audit) {
    add(batch.Put(AuditKey(audit_end++),
                  AsSlice(std::string_view(line).substr(0, kAuditRecordBytesMax))));
    for (; audit_end - audit_begin > kAuditRecordsMax; ++audit_begin) {
      add(batch.Delete(AuditKey(audit_begin)));
    }
  }
  TERRACE_RETURN_IF_ERROR(FromRocks(added));
  const rocksdb::Status written = state_->db->Write(WriteNow(), &batch);
  if (written.ok()) {
    TERRACE_CHECK(audit_end - audit_begin <= kAuditRecordsMax, "audit records are bounded");
    state_->audit_begin = audit_begin;
    state_->audit_end = audit_end;
  }
  return FromRocks(written);
}

Status CatalogDb::Sync() { return FromRocks(state_->db->SyncWAL()); }

Status CatalogDb::CloseClean() {
  const std::string word = DrawWord();
  // With the rest in tables, the next start has no log to replay but this word.
  TERRACE_RETURN_IF_ERROR(FromRocks(state_->db->Flush(rocksdb::FlushOptions())));
  rocksdb::WriteOptions synced;
  synced.sync = true;
  TERRACE_RETURN_IF_ERROR(FromRocks(state_->db->Put(synced, AsSlice(kCleanKey), word)));
  TERRACE_RETURN_IF_ERROR(FromRocks(state_->db->Close()));
  TERRACE_RETURN_IF_ERROR(WriteSlabWord(state_->options.slab_directories, word));
  const Result<std::string> files = ListFiles(state_->options.directory);
  if (!files.ok()) return files.status();
  return WriteFile(state_->options.directory, kCleanFile, word + '\n' + *files);
}

Status CatalogDb::ForEachExtent(const ExtentVisitor& visit) const {
  const std::string begin(1, kKindExtent), end(1, kKindExtent + 1);
  const rocksdb::Slice begin_slice(begin), end_slice(end);
  rocksdb::ReadOptions read;
  read.iterate_lower_bound = &begin_slice;
  read.iterate_upper_bound = &end_slice;
  read.readahead_size = kReadaheadBytes;
  read.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> each(state_->db->NewIterator(read));
  for (each->SeekToFirst(); each->Valid(); each->Next()) {
    const std::string_view key = AsView(each->key());
    if (key.size() != kExtentKeyBytes) {
      return Status(StatusCode::kCorrupt, "a record of the catalog has no slot");
    }
    const SlotName name{.slab = static_cast<uint32_t>(GetBigEndian(key.substr(1, 4))),
                        .slot = static_cast<uint32_t>(GetBigEndian(key.substr(5, 4)))};
    const std::string_view value = AsView(each->value());
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    if (!visit(name, std::span(bytes, value.size()))) return Status::Ok();
  }
  return FromRocks(each->status());
}

Status CatalogDb::GetExtent(SlotName name, std::string* entry) const {
  const std::array<char, kExtentKeyBytes> key = ExtentKey(name);
  rocksdb::ReadOptions read;
  read.fill_cache = false;
  return FromRocks(state_->db->Get(read, rocksdb::Slice(key.data(), key.size()), entry));
}

Status CatalogDb::ForEachRecord(char kind, const RecordVisitor& visit) const {
  const std::string begin(1, kind), end(1, static_cast<char>(kind + 1));
  const rocksdb::Slice begin_slice(begin), end_slice(end);
  rocksdb::ReadOptions read;
  read.iterate_lower_bound = &begin_slice;
  read.iterate_upper_bound = &end_slice;
  const std::unique_ptr<rocksdb::Iterator> each(state_->db->NewIterator(read));
  for (each->SeekToFirst(); each->Valid(); each->Next()) {
    visit(AsView(each->key()).substr(1), AsView(each->value()));
  }
  return FromRocks(each->status());
}

Status CatalogDb::ForEachGroup(const RecordVisitor& visit) const {
  return ForEachRecord(kKindGroup, visit);
}

Status CatalogDb::ForEachAudit(const RecordVisitor& visit) const {
  return ForEachRecord(kKindAudit, [&visit](std::string_view key, std::string_view value) {
    visit(std::to_string(GetBigEndian(key)), value);
  });
}

Result<std::string> CatalogDb::GetPrior(std::string_view key) const {
  std::string value;
  const rocksdb::Status found =
      state_->db->Get(rocksdb::ReadOptions(), kKindPrior + std::string(key), &value);
  if (!found.ok()) return FromRocks(found);
  return value;
}

uint64_t CatalogDb::memory_bytes_used() const { return state_->cache->GetUsage(); }

}  // namespace terrace
