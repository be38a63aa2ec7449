// `terrace export` and `terrace import`: the hottest blocks of one node, for another.
#include "tools/terrace/content/hot_set.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/printable_text.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/block_listing.h"
#include "tools/terrace/cli/json_text.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/content/hot_export.h"
#include "tools/terrace/content/hot_file.h"
#include "tools/terrace/content/hot_import.h"
#include "tools/terrace/content/interrupt.h"
#include "tools/terrace/verbs/content_verbs.h"

namespace terrace::tools {
namespace {

constexpr char kExportDescription[] =
    "Write the hottest blocks to a file, for `terrace import` on another node\n\n"
    "Hot is what was used often and of late, each block with all before it in its prompt. FILE "
    "must\n"
    "not exist yet; - is standard output. It has the blocks' bytes, so it is as private as they "
    "are\n"
    "(mode 0600), and only a domain with the same secret takes it. Reading is an Acquire: it "
    "counts\n"
    "as a hit and as a use, the hottest blocks last. What was pinned is not pinned there.";
constexpr char kImportDescription[] =
    "Store the blocks of a file that `terrace export` wrote\n\n"
    "FILE, or - for standard input. Each block is compared with its checksum before it is stored. "
    "The\n"
    "hottest come last, so that they are what stays if not all have room. What is here already "
    "stays\n"
    "as it is. A file that is damaged or cut off is refused there; what came before it is stored.";

constexpr uint32_t kRedisBit = 1u << static_cast<uint32_t>(protocol::TierKind::kRedis);

// A descriptor that is closed on the way out.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ > STDERR_FILENO) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// False with errno; EEXIST: something is there by now, and stays.
bool RenameToNothing(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;  // else the file system does not know it
  return link(from.c_str(), to.c_str()) == 0 && unlink(from.c_str()) == 0;
}

// Fewer at the end, or where reading fails: then `*error` is set.
size_t ReadAll(int fd, std::span<std::byte> bytes, int* error) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = read(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) *error = errno;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

void TellProgress(std::string_view done, uint64_t block_count, uint64_t byte_count) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\rterrace: {} {}, {}", done, FormatCount(block_count, "block"),
             FormatBytes(byte_count));
  std::fflush(stderr);
}
void EndProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);
}

class ExportVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("export", kExportDescription);
    verb.AddOption("FILE", path_, "Where to; - is standard output").Required();
    verb.AddOption("--hot", hot_text_, "At most so many bytes of blocks, such as 64GiB")
        .Type("BYTES")
        .Required();
    verb.AddOption("--group,--space", group_, "Only blocks of this group").Type("NAME");
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    uint64_t bytes_max = 0;
    if (!ParseBytes(hot_text_, &bytes_max) || bytes_max == 0) {
      Fail(fmt::format("export: --hot is '{}'; {}", hot_text_, WantedBytes("64GiB")));
      return kExitUsage;
    }
    if (path_ == "-" && isatty(STDOUT_FILENO) != 0) {
      Fail(
          "export: - writes blocks to standard output, which is a terminal: name a file, or a "
          "pipe");
      return kExitUsage;
    }
    opener_ = GroupOpener::Connect(address_);
    if (opener_ == nullptr) return kExitFailed;
    std::vector<HotBlock> listed;
    if (!List(&listed)) return kExitFailed;
    const HotChoice choice =
        ChooseHot(std::move(listed), bytes_max, [this](const GroupId& id) { return BytesOf(id); });
    if (choice.tips.empty()) {
      return Fail("export: no block here fits: the domain is empty, or --hot is below one block");
    }
    return Write(choice, bytes_max);
  }

 private:
  bool List(std::vector<HotBlock>* blocks) {
    std::optional<GroupId> only;
    if (!group_.empty()) {
      only = FindGroup(opener_->stats(), group_);
      if (!only) return false;
    }
    return ListBlocks(opener_->link(), {}, [&](std::span<const protocol::ListEntry> page) {
      for (const protocol::ListEntry& entry : page) {
        const bool is_here =
            entry.state == protocol::BlockState::kSealed && (entry.tier_mask & ~kRedisBit) != 0;
        if (is_here && (!only || entry.group == *only)) blocks->push_back(HotBlock::Of(entry));
      }
      return blocks->size() < kListedBlocksMax;
    });
  }

  // 0: the group cannot be opened, which is told once.
  uint64_t BytesOf(const GroupId& id) {
    const auto [place, is_new] = block_bytes_.emplace(id, 0);
    if (is_new) {
      const OpenedGroup* const group = opener_->Open(id);
      if (group != nullptr) {
        place->second = PayloadBytes(group->spec, group->spec.local_member_mask());
      }
    }
    return place->second;
  }

  ExitCode Write(const HotChoice& choice, uint64_t bytes_max) {
    const bool is_file = path_ != "-";
    const std::string partial = path_ + ".partial";
    struct stat about {};
    if (is_file && lstat(path_.c_str(), &about) == 0) return FailAsThere();
    const Descriptor out(is_file
                             ? open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                             : STDOUT_FILENO);
    if (out.fd() < 0) {
      return Fail(fmt::format("export: cannot make {}: {}{}", partial, std::strerror(errno),
                              errno != EEXIST ? ""
                                              : ": another export writes it, or one was killed and "
                                                "left it: remove it"));
    }
    HotFileWriter writer(opener_->link().secret(), [&out](std::span<const std::byte> bytes) {
      return WriteAll(out.fd(), bytes);
    });
    HotExport exporting(*opener_, writer, choice, [&writer] {
      TellProgress("exported", writer.written().block_count, writer.written().payload_bytes);
    });
    HotFileHeader header{.created_unix_s = static_cast<uint64_t>(std::time(nullptr)),
                         .bytes_asked = bytes_max,
                         .key_hash = static_cast<uint8_t>(opener_->link().key_hash())};
    opener_->link().domain_name().copy(header.domain_name, sizeof(header.domain_name) - 1);
    using Outcome = HotExport::Outcome;
    Outcome outcome = writer.Begin(header) ? exporting.Run(IsInterrupted()) : Outcome::kNotWritten;
    const bool is_empty = writer.written().block_count == 0;
    const bool is_flushed = outcome == Outcome::kDone && !is_empty && writer.End() &&
                            (!is_file || (fsync(out.fd()) == 0 && RenameToNothing(partial, path_)));
    if (outcome == Outcome::kDone && !is_flushed && !is_empty) outcome = Outcome::kNotWritten;
    const int error = errno;
    EndProgress();
    if (outcome == Outcome::kDone && is_empty) {
      if (is_file) unlink(partial.c_str());
      return Fail(fmt::format(
          "export: none of {} could be read, and no file was made: they have left the cache, or "
          "the daemon has stopped serving them (`terrace status`)",
          FormatCount(choice.block_count, "block")));
    }
    if (outcome == Outcome::kDone) {
      Report(writer.written(), exporting.lost_count());
      return kExitOk;
    }
    if (is_file) unlink(partial.c_str());
    if (outcome == Outcome::kNotWritten && error == EEXIST) return FailAsThere();
    if (outcome == Outcome::kNotWritten) {
      return Fail(fmt::format("export: cannot write {}: {}", path_, std::strerror(error)));
    }
    return outcome == Outcome::kCancelled ? Fail("export: cancelled, and no file was made")
                                          : kExitFailed;
  }

  ExitCode FailAsThere() const {
    return Fail(fmt::format("export: {} exists: name another file, or remove it", path_));
  }

  // Standard output may be the file.
  void Report(const HotEnd& written, uint64_t lost_count) const {
    const nlohmann::json document = {{"file", path_},
                                     {"block_count", written.block_count},
                                     {"byte_count", written.payload_bytes},
                                     {"lost_count", lost_count}};
    std::string text =
        fmt::format("exported {}, {}, to {}\n", FormatCount(written.block_count, "block"),
                    FormatBytes(written.payload_bytes), path_);
    if (lost_count > 0) {
      text += fmt::format("{} left the cache before {} turn\n", FormatCount(lost_count, "block"),
                          lost_count == 1 ? "its" : "their");
    }
    if (is_json_) text = JsonText(document, 2) + "\n";
    std::fputs(PrintableText(text, LineFeeds::kKept).c_str(), path_ == "-" ? stderr : stdout);
  }

  DaemonAddress address_;
  std::string path_;
  std::string hot_text_;
  std::string group_;
  bool is_json_ = false;
  std::unique_ptr<GroupOpener> opener_;
  std::map<GroupId, uint64_t> block_bytes_;
};

class ImportVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("import", kImportDescription);
    verb.AddOption("FILE", path_, "Where from; - is standard input").Required();
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    const Descriptor in(path_ == "-" ? STDIN_FILENO : open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (in.fd() < 0) return Refuse(errno);
    const auto opener = GroupOpener::Connect(address_);
    if (opener == nullptr) return kExitFailed;
    HotFileReader reader(opener->link().secret(), [&](std::span<std::byte> bytes) {
      return ReadAll(in.fd(), bytes, &read_error_);
    });
    HotFileHeader header;
    if (!reader.Begin(&header).ok()) {
      if (read_error_ != 0) return Refuse(read_error_);
      return Fail(fmt::format("import: {} {}", path_, reader.why()));
    }
    HotImport* running = nullptr;
    HotImport importing(*opener, reader, static_cast<uint64_t>(std::time(nullptr)), [&running] {
      TellProgress("imported", running->counts().stored, running->counts().stored_bytes);
    });
    running = &importing;
    using Outcome = HotImport::Outcome;
    const Outcome outcome = importing.Run(header, IsInterrupted());
    EndProgress();
    const ImportCounts& counts = importing.counts();
    if (outcome != Outcome::kRefused) Report(counts, outcome == Outcome::kDone);
    if (outcome == Outcome::kNotBelieved && read_error_ != 0) return Refuse(read_error_);
    if (outcome == Outcome::kNotBelieved) {
      return Fail(fmt::format("import: {} {}. {} before it {} stored", path_, reader.why(),
                              FormatCount(counts.stored, "block"),
                              counts.stored == 1 ? "was" : "were"));
    }
    if (outcome == Outcome::kCancelled) return Fail("import: cancelled");
    return outcome == Outcome::kDone && counts.no_room + counts.busy == 0 ? kExitOk : kExitFailed;
  }

 private:
  ExitCode Refuse(int error) const {
    return Fail(fmt::format("import: cannot read {}: {}", path_, std::strerror(error)));
  }

  void Report(const ImportCounts& counts, bool is_whole) const {
    if (is_json_) {
      return PrintJson({{"file", path_},
                        {"is_whole", is_whole},
                        {"stored_count", counts.stored},
                        {"stored_bytes", counts.stored_bytes},
                        {"existed_count", counts.existed},
                        {"expired_count", counts.expired},
                        {"busy_count", counts.busy},
                        {"no_room_count", counts.no_room}});
    }
    std::string text =
        fmt::format("imported {}, {}, from {}\n", FormatCount(counts.stored, "block"),
                    FormatBytes(counts.stored_bytes), path_);
    if (counts.existed > 0) text += fmt::format("{} were here\n", FormatCount(counts.existed));
    if (counts.expired > 0) {
      text += fmt::format("{} are past their time to live\n", FormatCount(counts.expired));
    }
    if (counts.busy > 0) {
      text += fmt::format("{} are being written by others, who may give up: import once more\n",
                          FormatCount(counts.busy));
    }
    if (counts.no_room > 0) {
      text +=
          fmt::format("{} found no room: what is here is leased or pinned, or memory is short\n",
                      FormatCount(counts.no_room));
    }
    PrintText(text);
  }

  DaemonAddress address_;
  std::string path_;
  int read_error_ = 0;  // errno of FILE
  bool is_json_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeExportVerb() { return std::make_unique<ExportVerb>(); }
std::unique_ptr<Verb> MakeImportVerb() { return std::make_unique<ImportVerb>(); }

}  // namespace terrace::tools
