#include "tools/terrace/top/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace terrace::tools {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kLineEnd = "\x1b[K\r\n";  // what was there behind it goes
constexpr std::string_view kBelow = "\x1b[J";        // and below

void Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody looks any more: the next Await says so
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

sigset_t SignalsAwaited() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT}) {
    sigaddset(&signals, signal);
  }
  return signals;
}

}  // namespace

bool Screen::IsUsable() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && kind != nullptr && *kind != '\0' &&
         std::string_view(kind) != "dumb";
}

std::unique_ptr<Screen> Screen::Open(std::string* why) {
  std::unique_ptr<Screen> screen(new Screen());
  const sigset_t signals = SignalsAwaited();
  if (tcgetattr(STDIN_FILENO, &screen->before_) != 0 ||
      pthread_sigmask(SIG_BLOCK, &signals, nullptr) != 0) {
    *why = std::strerror(errno);
    return nullptr;
  }
  screen->signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (screen->signal_fd_ < 0) {
    *why = std::strerror(errno);
    return nullptr;
  }
  screen->Enter();
  return screen;
}

Screen::~Screen() {
  if (signal_fd_ < 0) return;
  Leave();
  close(signal_fd_);
}

void Screen::Enter() const {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;  // TakeKey reads what there is
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  Write(kEnter);
}

void Screen::Leave() const {
  Write(kLeave);
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

FrameLimits Screen::size() const {
  winsize window{};
  FrameLimits limits;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0) {
    limits = {.columns = window.ws_col, .rows = window.ws_row};
  }
  return limits;
}

void Screen::Draw(std::span<const std::string> lines) const {
  std::string picture(kHome);
  for (size_t i = 0; i < lines.size(); ++i) {
    picture += lines[i];
    // A line feed in the last row would move all up.
    picture += i + 1 < lines.size() ? kLineEnd : kLineEnd.substr(0, kLineEnd.find('\r'));
  }
  Write(picture + std::string(kBelow));
}

Screen::Event Screen::Await(uint64_t timeout_ms) {
  pollfd waited[2] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                      {.fd = signal_fd_, .events = POLLIN, .revents = 0}};
  const int ready = poll(waited, 2, static_cast<int>(timeout_ms));
  if (ready <= 0) return Event::kTimeout;
  if (waited[1].revents != 0) return TakeSignal();
  return TakeKey();
}

Screen::Event Screen::TakeSignal() {
  signalfd_siginfo info{};
  if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) return Event::kRedraw;
  const auto signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGWINCH || signal == SIGCONT) return Event::kRedraw;
  if (signal != SIGTSTP) return Event::kQuit;
  Leave();
  kill(getpid(), SIGSTOP);  // returns when the shell has it go on
  if (tcgetattr(STDIN_FILENO, &before_) != 0) return Event::kQuit;
  Enter();
  return Event::kRedraw;
}

Screen::Event Screen::TakeKey() const {
  char key = 0;
  const ssize_t got = read(STDIN_FILENO, &key, 1);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Event::kRedraw;
  if (got <= 0) return Event::kQuit;
  return key == 'q' || key == 'Q' || key == '\x04' ? Event::kQuit : Event::kRedraw;
}

}  // namespace terrace::tools
