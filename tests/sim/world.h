// A whole host under simulation: two domains on one Store behind real sessions, lower tiers that
// fail, and a handful of processes that store, load, stop, die and lie. One seed decides
// everything, first of all what its world has at all and how strongly (swarm.h); the trace hash
// covers every event and every byte the daemon sent. Each step has streams of its own: what is
// taken out of one shifts no other's draws.
//
// With drives the tier below is an NvmeTier, and the daemon ends now and then: killed, or with the
// power. Another restores what the drives hold (world_restart.cc).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/session.h"
#include "daemon/session/transport.h"
#include "daemon/store/store.h"
#include "sim/drive.h"
#include "sim/fault_tier.h"
#include "sim/memory_shared_tier.h"
#include "sim/memory_tier.h"
#include "sim/oracle.h"
#include "sim/router.h"
#include "sim/sim_process.h"
#include "sim/sim_seams.h"
#include "sim/survival.h"
#include "sim/swarm.h"
#include "tiers/hbm/hbm_tier.h"

namespace terrace::sim {

struct WorldOptions {
  uint64_t seed = 0;
  Swarm swarm;  // of the seed, less what is taken out
  StepSet acts;
  uint32_t events = 2000;
  enum class Below : uint8_t { kNothing, kMemory, kDrives };
  Below below = Below::kMemory;
  bool resizes_drives = false;  // their capacity goes down and up
  bool has_encrypted_drives = false;
  // DRAM outlives a killed daemon. Its clients go on as ghosts of their sessions, which may still
  // touch what it gave them, and as clients of the next one.
  bool keeps_dram = false;
  // A server below, through which the two domains are two hosts of one: what one has committed the
  // other may read.
  bool has_server = false;
  // Memory of a device above DRAM, whose copies half the processes make.
  bool has_device = false;
  std::atomic<uint32_t>* step = nullptr;  // where it is, for whoever watches
};

// What a run reached: a simulation that never evicts, promotes or revokes proves nothing.
struct Coverage {
  uint64_t blocks_sealed = 0;
  uint64_t blocks_evicted = 0;
  uint64_t acquire_blocks_hit = 0;
  uint64_t promotions = 0;
  uint64_t leases_revoked = 0;
  uint64_t commits_gone = 0;
  uint64_t parts_judged = 0;
  uint64_t parts_told = 0;
  uint64_t parts_claimed_wrongly = 0;
  uint64_t blocks_refuted = 0;
  uint64_t scrub_members = 0;
  uint64_t restarts = 0;
  uint64_t blocks_restored = 0;
  uint64_t blocks_adopted = 0;
  uint64_t survivors_checked = 0;
  uint64_t erased_checked = 0;
  uint64_t slots_on_device = 0;  // that clients were given
  uint64_t orders_issued = 0;
  uint64_t orders_reissued = 0;
  uint64_t orders_wrong = 0;
  uint64_t orders_expired = 0;
  uint64_t events_told = 0;
  uint64_t router_checks = 0;
  uint64_t slabs_given = 0;     // of drives: to the other domain, or for want of capacity
  uint64_t shrinks = 0;         // of drives that held more then than they may
  uint64_t relocated = 0;       // blocks that were moved for that
  uint64_t blocks_fetched = 0;  // from the server
  uint64_t blocks_given = 0;    // to it
  uint64_t forgotten_checked = 0;
  uint64_t messages_garbled = 0;
  uint64_t garblers_refused = 0;  // whom the daemon hung up on for it
  uint64_t reloads = 0;
  uint64_t stalls = 0;      // of the monotonic clock
  uint64_t wall_jumps = 0;  // of the other one
};

class World final : public SimHost, public Transport {
 public:
  explicit World(const WorldOptions& options);
  ~World() override;

  // Runs every event, then lets everybody go and checks that nothing is left. Empty if all was
  // well, else the first thing that was not.
  std::string Run();
  uint64_t trace_hash() const { return trace_hash_; }
  Coverage coverage() const;

  // SimHost
  void SendToDaemon(uint32_t process, std::vector<std::byte> frame) override;
  std::byte* SlotMemory(uint32_t domain_index, const SlotAddress& address) override;
  bool IsInThatUse(uint32_t domain_index, const SlotRef& slot) override;
  void Fail(const std::string& what) override;
  Oracle& oracle() override { return oracle_; }
  Random& random() override { return random_; }
  Dice& dice() override { return dice_; }
  std::vector<Token>& token_board() override { return token_board_; }
  std::map<LeaseToken, SharedWrite>& shared_writes() override { return shared_writes_; }
  const std::vector<BlockKey>& Chain(uint32_t chain) const override { return chains_[chain]; }
  const SpaceGroupSpec& GroupSpec(uint32_t group_number) const override {
    return groups_[group_number];
  }
  SpaceId MemberSpace(uint32_t group_number, uint32_t member) const override {
    return spaces_[group_number][member];
  }
  uint32_t TrustOf(uint32_t domain_index) const override {
    return options_.has_server ? 0 : domain_index;
  }
  uint64_t now_us() const override { return world_us_; }
  std::set<CommitId> KnownCommits(uint32_t group_number) override;
  void Forgotten(uint32_t domain_index, const std::set<CommitId>& commits) override;
  bool WasForgotten(uint32_t domain_index, CommitId commit_id, uint64_t asked_us) const override;
  const DomainSecret& Secret(uint32_t domain_index) const override {
    return secrets_[domain_index];
  }

 private:
  static constexpr uint64_t kDriveSlabs = 12;
  enum class Deliver : uint8_t { kToClient, kToDaemon, kHangUp, kDeath };
  struct Envelope {
    Deliver deliver = Deliver::kToClient;
    uint32_t process = 0;
    SessionId session = 0;
    std::vector<std::byte> bytes;
  };
  struct Domain {
    std::unique_ptr<SimArenaMemory> arena;
    std::vector<std::byte> slot_table;
    std::unique_ptr<MemoryTier> memory_tier;
    std::unique_ptr<FaultTier> fault_tier;
    std::unique_ptr<Drive> drive;
    std::unique_ptr<MemorySharedTier> shared;
    std::unique_ptr<HbmTier> device;
    std::vector<std::byte> slabs;
    SessionId operator_session = 0;  // who looks at everything
    std::vector<uint32_t> operator_groups;
  };
  // Group specs outlive the daemon, too.
  struct KeptGroups final : GroupFiles {
    void Keep(uint32_t domain_index, const SpaceGroupSpec& spec) override;
    void Drop(uint32_t domain_index, const GroupId& id) override;
    State StateOf(uint32_t domain_index, const GroupId& id) const override;
    std::map<std::pair<uint32_t, std::string>, SpaceGroupSpec> kept;
  };
  // What is erased while a slab file cannot be read has to be remembered over daemons. Written at
  // once.
  struct MissedByDrives final : AbsentPlaces {
    explicit MissedByDrives(World* the_world) : world(the_world) {}
    void NoteErasure(uint32_t domain_index) override;
    bool HasNoted(uint32_t /*domain_index*/) const override { return true; }
    World* const world;
  };

  // What drives tell the store, and when they had a block.
  struct DriveReports final : TierListener {
    explicit DriveReports(World* the_world) : world(the_world) {}
    void OnTransferDone(TransferId transfer_id, Status status) override;
    void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                     uint32_t member) override;
    void OnRecordInDoubt(uint32_t domain_index, uint32_t owner) override;
    void OnRoom(uint32_t domain_index) override;
    World* const world;
  };

  // Transport
  uint64_t Send(SessionId session, std::span<const std::byte> bytes, Attach attach) override;
  uint64_t unsent_bytes() const override { return 0; }
  uint64_t unsent_bytes_of(SessionId) const override { return 0; }
  void ResumeInput(SessionId session) override;
  void Close(SessionId session, CloseReason reason) override;
  void Forget(SessionId /*session*/) override {}

  void MakeUniverse();
  void MakeDomains();
  void MakeArena(Domain* domain);
  void ShareDrives();
  std::vector<TierShares::Share> SharesOfDrives() const;
  void ResizeDrives();
  std::array<uint32_t, kDiskFaultCount> DriveFaultRates() const;
  bool drives_fail() const { return options_.swarm.value(Kind::kDriveFaultPpm) > 0; }
  Ending ending() const {
    const bool is_power = options_.swarm.value(Kind::kPowerLoss) > 0 && !options_.keeps_dram;
    return is_power ? Ending::kPowerLoss : Ending::kKill;
  }
  uint64_t AboveCapacity() const;
  uint64_t BeyondLimits() const;
  bool AreDrivesDown() const;
  std::string DescribeShares() const;
  void CheckShares();
  void MakeDevice(uint32_t domain_index);
  void MakeMemoryTier(uint32_t domain_index);
  StoreOptions MakeStoreOptions();
  DomainOptions MakeDomainOptions(uint32_t domain_index);
  void MakeStore();
  void EvictEverything();
  void Step();
  void BeginStep(bool is_live);
  uint64_t DrawStepUs();
  void ActOnce();
  void RunBackground();
  void Advance(uint64_t us);
  void CheckPopulated();
  void LetEverybodyGo();
  void CheckRest();
  void Trace(uint64_t word);
  void TraceBytes(std::span<const std::byte> bytes);
  void AddCounters(Coverage* sum) const;

  // world_clients.cc
  void DeliverBytes(SessionId session, const std::vector<std::byte>& bytes);
  void Post(uint64_t delay_us, Envelope envelope);
  void Connect(uint32_t process);
  void Kill(SimProcess& process);
  bool MaybeGarble(SimProcess& process, uint32_t plain_ppm);
  void Garble(SimProcess& process, Kind how);
  void DeliverDue();
  void EndClients();
  void LeaveGhosts();
  void AdoptDram();
  void HauntOnce();
  void EndSession(uint32_t process, SessionId session);

  // world_reloads.cc
  void TakeConfiguration();
  void MaybeReload();
  void MaybeSetClocks();

  // world_router.cc
  Router::View ServedBlocks();
  Router::View WithoutTiersOff(const Router::View& view) const;
  void CheckRouter();
  void MaybeLoseEvents(uint64_t steps_since_check);
  void LetRouterCatchUp();

  // world_restart.cc
  bool has_drives() const { return options_.below == WorldOptions::Below::kDrives; }
  bool has_successors() const { return has_drives() || options_.keeps_dram; }
  void OpenOperators();
  void CloseOperators();
  // Every block of every chain that is known in some way, as Query tells an operator.
  void ForEachBlock(const std::function<void(uint32_t domain, uint32_t group, BlockKey key,
                                             const protocol::QueriedBlock& block)>& visit);
  Survival::Snapshot TakeSnapshot();
  void DeliverRequest(SessionId session, const std::vector<std::byte>& bytes);
  void NoteReply(SessionId session, std::span<const std::byte> frame);
  void RunDrives();
  void MaybeCrash();
  void Crash();
  void Succeed();
  void CheckNothingComesBack();
  void Restore();

  // world_server.cc
  void RunServer(Domain& domain);

  WorldOptions options_;
  Dice dice_;
  // Of this step: what processes do, when what they wait for comes, how much time passes.
  SimRandom random_{0};
  SimRandom background_random_{0};
  SimRandom time_random_{0};
  SimRandom daemon_random_;
  SimClock clock_;
  uint64_t world_us_ = 1'000'000;    // goes on while clocks stand still
  uint64_t stalled_until_step_ = 0;  // the monotonic clock
  bool router_check_due_ = false;
  // As the configuration says now.
  struct Tuned {
    uint32_t segments_total = 0;
    uint64_t segments_lent_halves = 0;
    uint64_t fenced_bytes = 0;
    uint64_t session_leases = 0;
    uint64_t session_pending = 0;
    uint64_t read_ahead = 0;
    uint64_t admission = 0;
    uint64_t ttl_default_s = 0;
    uint64_t scrub_bytes = 0;
    uint64_t device_hits = 0;
  } tuned_;
  uint32_t segments_held_max_ = 0;  // at most so many are populated, or will be
  uint64_t reloads_ = 0;
  uint64_t stalls_ = 0;
  uint64_t wall_jumps_ = 0;
  SimOffload offload_{16};
  Oracle oracle_;
  std::vector<SpaceGroupSpec> groups_;
  std::vector<std::vector<SpaceId>> spaces_;
  std::vector<std::vector<BlockKey>> chains_;
  std::vector<DomainSecret> secrets_;
  std::unique_ptr<TierShares> shares_;  // of the drives; a daemon's
  uint64_t waits_since_us_ = 0;         // for its guarantee, while another borrows; 0: nobody does
  uint64_t leaving_bytes_ = 0;          // of all drives, at the last step
  uint64_t drive_slabs_ = kDriveSlabs;  // their capacity, of both domains
  uint64_t above_bytes_max_ = 0;        // of what they hold: above the capacity
  uint64_t beyond_bytes_max_ = 0;       // beyond the domains' limits
  uint64_t slabs_given_ = 0;
  uint64_t shrinks_ = 0;
  std::vector<Domain> domains_;
  std::vector<Token> token_board_;
  std::map<LeaseToken, SharedWrite> shared_writes_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::map<SessionId, uint32_t> process_of_session_;
  std::multimap<uint64_t, Envelope> mail_;
  std::map<SessionId, std::deque<std::vector<std::byte>>> held_back_;  // until ResumeInput
  std::vector<SessionId> resumed_;
  std::set<SessionId> garbled_;
  std::set<SessionId> closed_;  // by the daemon
  uint64_t messages_garbled_ = 0;
  uint64_t garblers_refused_ = 0;
  std::map<SessionId, uint32_t> open_sessions_;              // not proven dead, and their domains
  std::map<SessionId, std::unique_ptr<SimProcess>> ghosts_;  // of daemons that are dead
  bool is_haunting_ = false;                                 // a ghost acts: nobody hears it
  Router router_;
  uint64_t router_checks_ = 0;
  uint64_t steps_deaf_ = 0;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<Store> store_;
  SessionId next_session_id_ = 1;
  uint64_t trace_hash_ = 0x9E3779B97F4A7C15;
  uint64_t steps_ = 0;
  SharedServer server_;
  std::map<std::pair<uint32_t, CommitId>, uint64_t> forgotten_us_;  // by domain, since when
  KeptGroups kept_groups_;
  MissedByDrives missed_by_drives_{this};
  DriveReports drive_reports_{this};
  Survival survival_;
  struct Answer {
    SessionId session = 0;
    uint64_t request_id = 0;
    StatusCode status = StatusCode::kOk;
  };
  std::optional<std::vector<Answer>> early_answers_;  // given before the question was noted
  Coverage lived_;                                    // of daemons that have ended
  uint64_t restarts_ = 0;
  uint64_t blocks_restored_ = 0;
  std::vector<std::byte> nowhere_;  // where addresses of no memory lead
  std::string failure_;
};

}  // namespace terrace::sim
