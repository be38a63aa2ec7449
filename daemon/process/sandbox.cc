#include "daemon/process/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>

#include "daemon/log/log.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

Status Sanitized(std::string* why) {
  *why = "this build has a sanitizer, which needs what the sandbox gives up";
  return Status(StatusCode::kUnsupported, "a sanitizer");
}

constexpr const char* kThreadsPath = "/proc/self/task";

// ---- files --------------------------------------------------------------------------------------

// Sanitizers look into their process from another, and run a program that names its functions.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// Since Landlock's third version (Linux 6.2): Debian 12's headers do not have it.
constexpr uint64_t kTruncateRight = 1ULL << 14;
constexpr uint64_t kRightsOfFiles = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE;
constexpr uint64_t kRightsOfDirectories =
    LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
    LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
    LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
constexpr int kVersionOfRefer = 2;
constexpr int kVersionOfTruncate = 3;

// Of what a kernel of that version of Landlock can refuse, what is refused outside.
uint64_t RightsIn(int version) {
  return kRightsOfFiles | kRightsOfDirectories |
         (version >= kVersionOfRefer ? LANDLOCK_ACCESS_FS_REFER : 0) |
         (version >= kVersionOfTruncate ? kTruncateRight : 0);
}

Status Unsupported(const char* what, std::string* why) {
  const int error = errno;
  *why = std::string(what) + ": " + std::strerror(error);
  if (error == ENOSYS || error == EOPNOTSUPP) {
    *why += ", as this kernel has none of it, or it is off (lsm= of its command line)";
  } else if (error == EPERM) {
    *why += ", as a seccomp filter around this process refuses it";
  }
  return Status(StatusCode::kUnsupported, "the sandbox is not to be had", error);
}

// A path that is not there yet is made below the directory that is.
fs::path Existing(const std::string& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error).lexically_normal();
  while (!fs::exists(at, error) && at != at.parent_path()) at = at.parent_path();
  return at;
}

bool AllowBelow(int ruleset, const fs::path& path, uint64_t rights) {
  const OpenFile file(path, O_PATH | O_CLOEXEC, 0);
  struct stat about {};
  if (file.fd() < 0 || fstat(file.fd(), &about) != 0) return false;
  constexpr uint64_t kOfFiles = kRightsOfFiles | kTruncateRight;
  const landlock_path_beneath_attr beneath{
      .allowed_access = S_ISDIR(about.st_mode) ? rights : rights & kOfFiles,
      .parent_fd = file.fd()};
  return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) == 0;
}

// ---- calls --------------------------------------------------------------------------------------

// Refused with EPERM whatever their arguments.
constexpr std::array kNeverCalled = {
    // other programs and processes
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(pidfd_getfd), SCMP_SYS(kcmp),
    SCMP_SYS(process_madvise),
    // users, namespaces, roots, mounts
    SCMP_SYS(setuid), SCMP_SYS(setgid), SCMP_SYS(setreuid), SCMP_SYS(setregid), SCMP_SYS(setresuid),
    SCMP_SYS(setresgid), SCMP_SYS(setgroups), SCMP_SYS(setfsuid), SCMP_SYS(setfsgid),
    SCMP_SYS(capset), SCMP_SYS(setns), SCMP_SYS(unshare), SCMP_SYS(chroot), SCMP_SYS(pivot_root),
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(move_mount), SCMP_SYS(open_tree), SCMP_SYS(fsopen),
    SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick), SCMP_SYS(mount_setattr),
    SCMP_SYS(open_by_handle_at), SCMP_SYS(name_to_handle_at), SCMP_SYS(mknod), SCMP_SYS(mknodat),
    SCMP_SYS(quotactl), SCMP_SYS(quotactl_fd),
    // the kernel and the host
    SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(init_module),
    SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(swapon), SCMP_SYS(swapoff),
    SCMP_SYS(acct), SCMP_SYS(syslog), SCMP_SYS(sethostname), SCMP_SYS(setdomainname),
    SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime), SCMP_SYS(adjtimex),
    SCMP_SYS(iopl), SCMP_SYS(ioperm), SCMP_SYS(modify_ldt), SCMP_SYS(personality),
    SCMP_SYS(vhangup), SCMP_SYS(fanotify_init),
    // what is kept elsewhere
    SCMP_SYS(add_key), SCMP_SYS(request_key), SCMP_SYS(keyctl), SCMP_SYS(shmget), SCMP_SYS(shmat),
    SCMP_SYS(msgget), SCMP_SYS(semget), SCMP_SYS(mq_open),
    // Drives have their rings: what another would do no filter sees.
    SCMP_SYS(io_uring_setup)};

class Filter {
 public:
  Filter() : context_(seccomp_init(SCMP_ACT_ALLOW)) {}
  ~Filter() {
    if (context_ != nullptr) seccomp_release(context_);
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;

  // A call that this processor or the library does not know is not there to be refused.
  void Refuse(int call, int error, std::initializer_list<scmp_arg_cmp> arguments = {}) {
    if (context_ == nullptr) return;
    (void)seccomp_rule_add_array(context_, SCMP_ACT_ERRNO(static_cast<uint32_t>(error)), call,
                                 static_cast<unsigned>(arguments.size()), arguments.begin());
  }
  // 0, or why it is not on.
  int Load() {
    if (context_ == nullptr) return ENOMEM;
    // Kernels before 5.16 else switch a filtered process's speculation off, which costs it dear.
    (void)seccomp_attr_set(context_, SCMP_FLTATR_CTL_SSB, 1);
    const int on_all = seccomp_attr_set(context_, SCMP_FLTATR_CTL_TSYNC, 1);
    return -(on_all != 0 ? on_all : seccomp_load(context_));
  }

 private:
  scmp_filter_ctx context_;
};

scmp_arg_cmp HasAll(unsigned argument, uint64_t bits) {
  return {argument, SCMP_CMP_MASKED_EQ, bits, bits};
}
scmp_arg_cmp HasNone(unsigned argument, uint64_t bits) {
  return {argument, SCMP_CMP_MASKED_EQ, bits, 0};
}
scmp_arg_cmp Is(unsigned argument, uint64_t value) { return {argument, SCMP_CMP_EQ, value, 0}; }
scmp_arg_cmp IsAbove(unsigned argument, uint64_t value) {
  return {argument, SCMP_CMP_GT, value, 0};
}

// Unix sockets, the internet's, and netlink's, by which the resolver looks at addresses.
void RefuseOtherSockets(Filter* filter) {
  for (uint64_t family = 0; family <= AF_NETLINK; ++family) {
    const bool is_used =
        family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK;
    if (!is_used) filter->Refuse(SCMP_SYS(socket), EAFNOSUPPORT, {Is(0, family)});
  }
  filter->Refuse(SCMP_SYS(socket), EAFNOSUPPORT, {IsAbove(0, AF_NETLINK)});
}

}  // namespace

static Status IsWanted(const std::string& unconfined, std::string* why) {
  *why = "daemon.sandbox is on: " + unconfined + "; write sandbox = \"auto\" to do without";
  return Status(StatusCode::kUnsupported, "the sandbox is not to be had");
}

bool UsesGpu(const DaemonConfig& config) {
  return config.hbm.capacity_bytes > 0 && config.hbm.device != "host";
}

std::vector<std::string> WrittenPaths(const DaemonConfig& config) {
  const auto directory_of = [](const std::string& file) {
    return fs::path(file).parent_path().string();
  };
  std::vector<std::string> written = {config.state_dir};
  if (!config.trace_dir.empty()) written.push_back(config.trace_dir);
  for (const DomainConfig& domain : config.domains) {
    written.push_back(directory_of(domain.socket_path));
    if (domain.is_secret_file_default) written.push_back(directory_of(domain.secret_file));
  }
  // A domain's directory that somebody removes is made again below these; they themselves are not,
  // as a drive may not be mounted there.
  written.insert(written.end(), config.nvme.paths.begin(), config.nvme.paths.end());
  constexpr std::string_view kIpc = "ipc://";
  for (const std::string* endpoint :
       {&config.kv_events.endpoint, &config.kv_events.replay_endpoint}) {
    if (endpoint->starts_with(kIpc)) written.push_back(directory_of(endpoint->substr(kIpc.size())));
  }
  if (UsesGpu(config)) {
    written.push_back("/dev");        // the driver's nodes
    written.push_back(kThreadsPath);  // it names its threads there, or has no GPU
  }
  return written;
}

Status ConfineFilesOf(const DaemonConfig& config, std::string* unconfined, std::string* why) {
  if (config.sandbox == Sandbox::kOff) return Status::Ok();
  std::vector<std::string> written = WrittenPaths(config);
  // A drive that is not there is not opened, and allows nothing above it.
  std::erase_if(written, [&config](const std::string& path) {
    std::error_code error;
    return std::ranges::find(config.nvme.paths, path) != config.nvme.paths.end() &&
           !fs::exists(fs::path(path).parent_path(), error);
  });
  // Stays open: once the kernel was short of memory, a directory of /proc that nobody has open is
  // another one, which no rule names.
  if (UsesGpu(config)) static const OpenFile threads(kThreadsPath, O_PATH | O_CLOEXEC, 0);
  const Status status = ConfineFiles(written, unconfined);
  return status.ok() || config.sandbox == Sandbox::kAuto ? Status::Ok()
                                                         : IsWanted(*unconfined, why);
}

Status ConfineCallsOf(const DaemonConfig& config, std::string* why) {
  if (config.sandbox == Sandbox::kOff) return Status::Ok();
  std::string unconfined;
  const Status status = ConfineCalls({.executable_memory = UsesGpu(config)}, &unconfined);
  if (status.ok()) return status;
  if (config.sandbox == Sandbox::kOn) return IsWanted(unconfined, why);
  Log(LogLevel::kInfo, "sandbox", {{"calls", "not confined"}, {"why", unconfined}});
  return Status::Ok();
}

Status ConfineFiles(std::span<const std::string> written, std::string* why) {
  if (kIsSanitized) return Sanitized(why);
  const auto version = static_cast<int>(
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
  if (version <= 0) return Unsupported("Landlock", why);
  const landlock_ruleset_attr refused{.handled_access_fs = RightsIn(version)};
  const OpenFile ruleset(
      static_cast<int>(syscall(SYS_landlock_create_ruleset, &refused, sizeof(refused), 0)));
  if (ruleset.fd() < 0) return Unsupported("Landlock", why);
  const uint64_t allowed = RightsIn(version) & ~uint64_t{LANDLOCK_ACCESS_FS_EXECUTE};
  for (const std::string& path : written) {
    if (!AllowBelow(ruleset.fd(), Existing(path), allowed)) return Unsupported(path.c_str(), why);
  }
  (void)AllowBelow(ruleset.fd(), "/dev/null", allowed);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_landlock_restrict_self, ruleset.fd(), 0) != 0) {
    return Unsupported("Landlock", why);
  }
  return Status::Ok();
}

Status ConfineCalls(const CallsNeeded& needed, std::string* why) {
  if (kIsSanitized) return Sanitized(why);
  Filter filter;
  for (const int call : kNeverCalled) filter.Refuse(call, EPERM);
  // Threads, and no processes; the C library tries clone where there is no clone3.
  filter.Refuse(SCMP_SYS(clone3), ENOSYS);
  filter.Refuse(SCMP_SYS(clone), EPERM, {HasNone(0, CLONE_THREAD)});
  RefuseOtherSockets(&filter);
  if (!needed.executable_memory) {
    filter.Refuse(SCMP_SYS(mmap), EPERM, {HasAll(2, PROT_WRITE | PROT_EXEC)});
    filter.Refuse(SCMP_SYS(mprotect), EPERM, {HasAll(2, PROT_EXEC)});
    filter.Refuse(SCMP_SYS(pkey_mprotect), EPERM, {HasAll(2, PROT_EXEC)});
  }
  errno = filter.Load();
  return errno == 0 ? Status::Ok() : Unsupported("seccomp", why);
}

}  // namespace terrace
