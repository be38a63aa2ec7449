/* terrace.h: the C ABI of libterrace, for any language that can call C. What the verbs mean is told
 * once, in client.h and docs/PROTOCOL.md; this page says how they look from C. Programs include it
 * alone: terrace_cache.h has clients, Spaces, requests and leases, terrace_pages.h what copies an
 * engine's paged cache.
 *
 * Every call answers by its deadline with one of ten status codes, and never throws, aborts, raises
 * a signal or prints. The engine can always recompute: TERRACE_BUSY (time is up, a queue is full),
 * TERRACE_GONE (the daemon went away) and TERRACE_NOT_FOUND are everyday answers.
 *
 * ERRORS: beside what a function names: TERRACE_INVALID for an argument that cannot be (a null
 * pointer, an unknown group, a mask of members that are not there), TERRACE_GONE while there is no
 * connection, and in a child of fork(), TERRACE_BUSY at the deadline, TERRACE_NO_SPACE where memory
 * is short. terrace_client_last_error has the sentence.
 *
 * UNITS: deadlines are microseconds from the call on (0: default_deadline_us; functions that wait
 * for something look once), sizes bytes; keys, blocks, members and parts are counted from 0.
 *
 * MEMORY: the caller's, throughout: keys, leases, sentences and bytes are read from and written to
 * what the caller passes. Only clients, devices, pages and copies are made and destroyed here.
 *
 * VERSIONS: a struct that may grow begins with struct_bytes, its size as the caller knows it;
 * fields beyond it take their defaults. Fill structs from the TERRACE_..._INIT macros. A library
 * serves every caller that was compiled with the same TERRACE_ABI_VERSION or an older one.
 *
 * THREADING: any thread may call anything; one lease object is used by one thread at a time, but
 * that several may wait for blocks of a read lease, and copy them, while nobody ends or fills it.
 * CANCELLATION: a thread that pthread_cancel meets within a call is cancelled after it, not in it
 * (PTHREAD_CANCEL_DEFERRED, the default).
 * FORK: a child of fork() gets TERRACE_GONE from every call and makes a client of its own.
 */
#pragma once

#include "terrace/terrace_cache.h"
#include "terrace/terrace_pages.h"
