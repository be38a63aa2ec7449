#include "src/thread_name.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace terrace {
namespace {

int PolicyOfAThread(Waking waking) {
  int policy = -1;
  StartThread(
      "patient", [&] { policy = sched_getscheduler(0); }, waking)
      .join();
  return policy;
}

TEST(ThreadName, APatientThreadIsOfTheBatchClassAndItsMakerIsNot) {
  if (sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "run by another policy";
  EXPECT_EQ(PolicyOfAThread(Waking::kPatient), SCHED_BATCH);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  EXPECT_EQ(PolicyOfAThread(Waking::kAsUsual), SCHED_OTHER);
}

// What an operator has chosen for the whole process stays so.
TEST(ThreadName, AnotherPolicyOfTheMakersIsItsThreadsToo) {
  std::thread([] {
    const sched_param none{};
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0) GTEST_SKIP() << "no SCHED_IDLE here";
    EXPECT_EQ(PolicyOfAThread(Waking::kPatient), SCHED_IDLE);
    EXPECT_EQ(sched_getscheduler(0), SCHED_IDLE);
  }).join();
}

}  // namespace
}  // namespace terrace
