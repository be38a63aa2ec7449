#include "src/thread_name.h"

#include <pthread.h>

namespace terrace {
namespace {

// Of the calling thread, and of those that it makes.
bool SetPolicy(int policy) {
  const sched_param none{};
  return sched_setscheduler(0, policy, &none) == 0;
}

}  // namespace

BornAs::BornAs(const char* name, Waking waking) {
  (void)pthread_getname_np(pthread_self(), own_.data(), own_.size());
  (void)pthread_setname_np(pthread_self(), name);
  // Another policy than the usual one is an operator's choice, for all threads.
  is_patient_ =
      waking == Waking::kPatient && sched_getscheduler(0) == SCHED_OTHER && SetPolicy(SCHED_BATCH);
}

BornAs::~BornAs() {
  (void)pthread_setname_np(pthread_self(), own_.data());
  if (is_patient_) (void)SetPolicy(SCHED_OTHER);
}

}  // namespace terrace
