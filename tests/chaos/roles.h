// The parts a chaos process can play; main.cc picks one by its first argument. Each returns the
// exit status: 0 as told, 2 it could not start, 3 it saw wrong bytes, 4 it lost what it was
// promised.
#pragma once

#include "chaos/arguments.h"
#include "chaos/progress.h"

namespace terrace::chaos {

inline constexpr int kExitCannotStart = 2;
inline constexpr int kExitWrongBytes = 3;
inline constexpr int kExitLost = 4;
// A machine that others keep busy is slow to answer, which is nobody's fault.
inline constexpr uint64_t kConnectUs = 60'000'000;

// Set by SIGTERM: finish the step at hand and end.
bool IsTold();

// Prints one line for the script that drives this process.
void Say(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Reads the next line of standard input into `*line`. False at its end.
bool Listen(std::string* line);

// Acquires, checks and stores prompts at random until --seconds are over; each --erase-nth time it
// erases one, each --peek-nth time it reads from the middle of one. The greater --skew, the more
// often the first prompts; 0: each as often.
int RunWorker(const Arguments& arguments, Progress* progress);
// Stores its prompts, holds leases on all of them, and checks every byte again and again.
int RunBystander(const Arguments& arguments, Progress* progress);
// Loses its control socket while it copies, and goes on writing for --linger-ms before it ends.
int RunHangUp(const Arguments& arguments, Progress* progress);
// Copies until told to finish, whatever became of its leases; then answers what Commit said.
int RunFrozen(const Arguments& arguments, Progress* progress);
// Measures calls against a daemon that does not answer, and a bare timer beside each.
int RunDeadlines(const Arguments& arguments, Progress* progress);
// Compares how long two daemons, of --socket and of --beside, take for the same leased prompt.
int RunProbe(const Arguments& arguments, Progress* progress);
// Remembers what is in DRAM, and says what is left of it.
int RunWitness(const Arguments& arguments, Progress* progress);
// Answers stats, ledger, audit, evict and reset, a line each.
int RunConsole(const Arguments& arguments, Progress* progress);
// Stores prompts of its own, knows which blocks were reported persisted or erased, and says after a
// restart of the daemon what became of them: store, remember, survivors, erase, erased and forget,
// a line each.
int RunArchivist(const Arguments& arguments, Progress* progress);
// Says whether the histories in --directory can have been; see history_check.h.
int RunJudge(const Arguments& arguments, Progress* progress);

}  // namespace terrace::chaos
