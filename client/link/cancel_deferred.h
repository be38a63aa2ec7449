// A thread may be cancelled between calls, not within one: the locks, roles and requests that it
// holds would be lost to all others, and a destructor through which it unwinds ends the process.
#pragma once

#include <pthread.h>

namespace terrace::client {

// pthread_cancel waits until this is gone: around what POSIX calls a cancellation point, wherever
// the engine's own threads come by.
class CancelDeferred {
 public:
  CancelDeferred() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancelDeferred() { pthread_setcancelstate(before_, nullptr); }
  CancelDeferred(const CancelDeferred&) = delete;
  CancelDeferred& operator=(const CancelDeferred&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace terrace::client
