// The chaos checks of tests/long in their short form: seconds each, and no claim about time.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "test_paths.h"

namespace terrace {
namespace {

// The build directory this test runs from: …/tests/<this program>.
std::string BuildDirectory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().string();
}

constexpr int kExitSkipped = 77;

// Runs tests/long/<name>.py --short; the test fails with all it printed.
void ExpectHolds(const std::string& name, const std::string& options = "") {
  const std::string command = "PYTHONDONTWRITEBYTECODE=1 python3 " TERRACE_SOURCE_DIR
                              "/tests/long/" +
                              name + ".py --short --build " + BuildDirectory() + options + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string printed;
  std::array<char, 4096> piece;
  while (const size_t count = fread(piece.data(), 1, piece.size(), pipe)) {
    printed.append(piece.data(), count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitSkipped) GTEST_SKIP() << printed;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << printed;
}

TEST(Chaos, KilledClientsLeakNothing) { ExpectHolds("kill_clients"); }
TEST(Chaos, StoppedDaemonIsAnsweredFor) { ExpectHolds("stop_daemon"); }
TEST(Chaos, StoppedClientWakesUpAndOverwritesNothing) { ExpectHolds("stop_client"); }
TEST(Chaos, MemoryStaysUnderTheCap) { ExpectHolds("cap"); }
TEST(Chaos, ClientsComeBackAfterTheDaemonWasKilled) { ExpectHolds("restart"); }
TEST(Chaos, DramIsWarmAfterTheDaemonWasKilled) { ExpectHolds("keeper_kills"); }
TEST(Chaos, KilledDaemonsKeepWhatTheyPersisted) { ExpectHolds("nvme_kills"); }
TEST(Chaos, ADaemonMayDieAtAnyStepOfItsDisks) { ExpectHolds("nvme_kill_points"); }
TEST(Chaos, AFullDiskCostsNeitherDaemonNorDram) { ExpectHolds("disk_full"); }
TEST(Chaos, HostilePeersDisturbNobody) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps what the daemon frees: its memory says nothing";
#endif
  ExpectHolds("hostile_peers");
}
TEST(Chaos, CallsThatFailCostNoByte) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "calls of ThreadSanitizer's own would fail, too";
#endif
  ExpectHolds("faults");
}
TEST(Chaos, ChurnIsAnsweredTrulyAndLeavesAnExactLedger) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  ExpectHolds("churn_soak", " --judge-memory 0");  // much of it is the sanitizer's
#else
  ExpectHolds("churn_soak");
#endif
}
TEST(Chaos, AllTroublesAtOnceAreAnsweredTruly) { ExpectHolds("troubles"); }

}  // namespace
}  // namespace terrace
