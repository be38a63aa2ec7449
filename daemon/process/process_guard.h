// What a process that holds every tenant's bytes and secrets, a daemon or a keeper, does for itself
// before anything else, whoever starts it.
#pragma once

namespace terrace {

// SIGTERM and SIGINT end the process at once with status 0, as a clean stop would: until somebody
// else handles them there is nothing to leave in order that a kill -9 would not leave as well. Even
// if whoever started it blocked them.
void EndAtOnceOnSignals();

// A SIGHUP waits until it is no longer held, rather than end the process: what it asks for, a
// reload, is possible then. Of the calling thread and those that it starts meanwhile; the handler's
// thread lets go.
void HoldHangUps(bool is_held);

// No core dump of it is written, and no other process of its user may attach or read its memory:
// a limit of 0, and not dumpable (prctl(2)). For the life of the process.
void ForbidCoreDumps();

}  // namespace terrace
