// What every verb of `terrace` is made of: a Verb declares its arguments on the command line and
// runs once they are parsed. main.cc knows the list of verbs and nothing else about them.
//
// Errors go to stderr and name the thing, the value, the limit and the remedy; stdout carries the
// answer only: aligned text, or with --json exactly one JSON document.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/client.h"
#include "tools/terrace/cli/arguments.h"

namespace terrace::tools {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,  // the request was understood and could not be done; fsck: found problems
  kExitUsage = 2,   // the command line is wrong; fsck: could not look
};

class Verb {
 public:
  virtual ~Verb() = default;
  // Adds the verb and its arguments under `parent`. Called once, before the command line is parsed.
  virtual Arguments Declare(Arguments& parent) = 0;
  // REQUIRES: the command line was parsed and names this verb.
  virtual ExitCode Run() = 0;
};

// One a file, in the order in which --help lists them.
std::unique_ptr<Verb> MakeStatusVerb();
std::unique_ptr<Verb> MakeTopVerb();
std::unique_ptr<Verb> MakeDoctorVerb();
std::unique_ptr<Verb> MakeListVerb();
std::unique_ptr<Verb> MakeTreeVerb();
std::unique_ptr<Verb> MakeEvictVerb();
std::unique_ptr<Verb> MakeReplayVerb();
std::unique_ptr<Verb> MakeFsckVerb();
std::unique_ptr<Verb> MakeAuditVerb();
std::unique_ptr<Verb> MakeCompletionsVerb();

std::unique_ptr<Verb> MakeBenchStoreVerb();
std::unique_ptr<Verb> MakeBenchLoadVerb();
std::unique_ptr<Verb> MakeBenchMixedVerb();
std::unique_ptr<Verb> MakeBenchReplayVerb();
std::unique_ptr<Verb> MakeBenchRttVerb();
std::unique_ptr<Verb> MakeBenchDeviceVerb();

// Verbs under a common word, such as `terrace domain new`.
struct VerbFamily {
  std::string name;
  std::string description;
  std::vector<std::unique_ptr<Verb>> verbs;
};
VerbFamily MakeDomainVerbs();
VerbFamily MakeBenchVerbs();

// ---- arguments and answers all verbs share ----

// Where the daemon is and how long to wait for it.
struct DaemonAddress {
  std::string socket_path;     // empty: DefaultSocketPath()
  uint32_t timeout_ms = 5000;  // of each request

  uint64_t deadline_us() const { return uint64_t{timeout_ms} * 1000; }
  std::string path() const;
};
// $TERRACE_SOCKET, else $XDG_RUNTIME_DIR/terrace/default.sock if that exists or /run/terrace does
// not, else /run/terrace/default.sock.
std::string DefaultSocketPath();

void DeclareAddress(Arguments& verb, DaemonAddress* address);
void DeclareJson(Arguments& verb, bool* is_json);

// Why a client cannot reach a daemon at this socket, and what to do; empty if somebody listens
// there. (The client itself keeps trying while a daemon is away; a person wants to know at once.)
std::string WhyNobodyListens(const std::string& socket_path);
// A client whose handshake is done; nullptr after telling the person why not.
std::unique_ptr<Client> ConnectOrExplain(const DaemonAddress& address);

// "terrace: <message>" on stderr, with '?' for what would steer a terminal; returns kExitFailed.
ExitCode Fail(std::string_view message);
// The same for a request that the daemon or the connection refused: adds the status in words and
// the client's last sentence.
ExitCode FailRequest(const Client& client, std::string_view what, Status status);
std::string DescribeStatus(Status status);

// Text for people: as Fail, on stdout, and line feeds stay.
void PrintText(std::string_view text);
void PrintJson(const nlohmann::json& document);

// Closed descriptors below 3 become ones that nobody can write to: otherwise the next socket or
// file would have that number, and answers would be printed into it.
void HoldStandardStreams();
// The last deed of the program. `exit_code`, or kExitFailed after a sentence if not all that was
// printed to `out` has arrived.
ExitCode FinishOutput(std::FILE* out, ExitCode exit_code);

}  // namespace terrace::tools
