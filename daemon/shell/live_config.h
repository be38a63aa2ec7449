// LiveConfig: the configuration while the daemon runs: what is in effect and where each value comes
// from, a reload of the file (SIGHUP, `terrace config reload`), and keys set by an admin, which
// the next reload takes back. dram_bytes goes down, and up again to what it was at the start. Only
// keys that say so change without a restart (config_keys.h, KeyChange); of a configuration with an
// error nothing is taken. A reload asked for during another is done after it.
//
// THREADING: store thread; a file is read on a thread of its own. LIMITS: kReloadsAwaitingMax wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/config/config_resolve.h"
#include "daemon/config/config_text.h"
#include "daemon/domain/domain_redis.h"
#include "terrace/error.h"
#include "terrace/protocol_admin.h"
#include "tiers/crypto/key_ring.h"

namespace terrace {

// By domain; null: it encrypts nothing.
using KeyRings = std::vector<std::shared_ptr<const KeyRing>>;

// What the daemon was started with.
struct ConfigSource {
  std::string path;  // empty: no file
  std::string text;  // the file's
  ConfigOverrides overrides;
  ConfigEnvironment environment;
  KeyRings rings;  // of the keys files that the configuration names
};

Error LoadKeyRings(const DaemonConfig& config, KeyRings* rings);

// Reads the source's text; `*config` is resolved. The sentence names line, key and remedy.
Error LoadConfig(const ConfigSource& source, DaemonConfig* config);

class LiveConfig {
 public:
  struct Hooks {
    // The live keys of the configuration in effect have changed.
    std::function<void()> apply;
    // The file was reloaded, and so were the keys that it names; by domain, null: none. What other
    // files hold may have changed, too. May be empty.
    std::function<void(const KeyRings& rings)> take_rings;
    // Runs its argument as a turn of the store thread, later. Any thread.
    std::function<void(std::function<void()> work)> post;
  };
  // kOk and a JSON document, or a sentence.
  using Done = std::function<void(const Error& error, const std::string& document)>;

  // `config` is what LoadConfig made of `source`, and outlives this, which alone changes it.
  LiveConfig(ConfigSource source, DaemonConfig& config, Hooks hooks);
  ~LiveConfig();
  LiveConfig(const LiveConfig&) = delete;
  LiveConfig& operator=(const LiveConfig&) = delete;

  // `done` is called now, or in a later turn.
  void Ask(protocol::ConfigAction action, const std::string& text, const Done& done);
  // No turn is to come. Waits for a reload that reads, so long at most. False: its thread is left,
  // which hangs as a file system does, and this cannot be destroyed.
  bool EndReading(std::chrono::milliseconds wait_at_most);

 private:
  Error Get(const std::string& key, std::string* document) const;
  // "KEY=VALUE" lines: all of them, or none.
  Error Set(const std::string& text, std::string* document);
  // One of them into `*wanted`.
  Error SetOne(const ConfigChange& change, DaemonConfig* wanted) const;
  void BeginReload(const Done& done);
  void ReadForAll();
  Error Reload(const ConfigSource& source, const DaemonConfig& next, std::string* document);
  // As if the file had these live values. Nothing is taken if that cannot be.
  Error Take(DaemonConfig wanted, uint64_t file_slab_bytes);
  void TakeRings(KeyRings rings, std::string* document);
  void TellTlsFiles(std::vector<RedisTlsFile> files, std::string* document);
  void TakeLines(const DaemonConfig& file);
  std::string Origin(const std::string& key, const std::string& value) const;
  uint64_t DramBytesOf(const DaemonConfig& file) const;

  ConfigSource source_;
  DaemonConfig& config_;
  KeyRings rings_;                       // in effect
  std::vector<RedisTlsFile> tls_files_;  // as the last reload, or the start, found them
  DaemonConfig wanted_;  // the same before it was resolved, of its domains at least the names
  DaemonConfig filed_;   // likewise, without what was set since
  const Hooks hooks_;
  bool is_domain_unnamed_ = false;           // the start's file named none
  std::map<std::string, uint32_t> lines_;    // of the file that is in effect
  std::map<std::string, std::string> said_;  // its values, before anything is worked out of them
  std::set<std::string> told_keys_;          // that any file has named
  std::map<std::string, std::string> defaults_;
  uint64_t file_slab_bytes_ = 0;     // of nvme, as the next start would read it; 0: works it out
  const uint64_t dram_bytes_max_;    // clients map memory of so much, once
  std::set<std::string> set_keys_;   // by Set, since the last reload
  std::set<std::string> kept_keys_;  // the file says otherwise, which a restart takes
  std::thread reader_;
  std::future<void> reader_end_;
  bool is_reading_ = false;
  std::vector<Done> awaiting_;  // a reload that begins when the one under way has ended
};

}  // namespace terrace
