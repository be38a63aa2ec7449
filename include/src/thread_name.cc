#include "src/thread_name.h"

#include <pthread.h>

namespace terrace {

BornAs::BornAs(const char* name) {
  (void)pthread_getname_np(pthread_self(), own_.data(), own_.size());
  (void)pthread_setname_np(pthread_self(), name);
}

BornAs::~BornAs() { (void)pthread_setname_np(pthread_self(), own_.data()); }

}  // namespace terrace
