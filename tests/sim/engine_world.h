// An engine with one compute stream on the simulated device, and a copier beside it: pages are
// written, stored, read, filled and used again while copies run late, interleaved and half done.
//
// The oracle is an image of every block: what a kernel writes to a page, what a slot must hold once
// it is said to be written, and what a kernel that reads the page must see.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/copy/paged_copier.h"
#include "sim/sim_device.h"
#include "tests/sim/paged_world.h"

namespace terrace {

struct EngineWorldOptions {
  uint64_t seed = 1;
  std::optional<StreamEdge> dropped_edge;
  uint32_t copy_failures_per_million = 0;
  uint32_t operation_count = 40;
  // Slots lie in segments that are registered and unmapped at any moment no copy holds them.
  bool has_pins = false;
  uint32_t registration_failures_per_million = 0;
  uint32_t failing_registration = 0;  // see SimDeviceOptions
  bool unmaps_under_copies = false;   // a mutation: whoever unmaps does not look for leases
};

class EngineWorld {
 public:
  explicit EngineWorld(const EngineWorldOptions& options);
  ~EngineWorld();

  // Runs to the end; returns how many blocks were seen with wrong bytes.
  uint64_t Run();
  const std::string& first_mismatch() const { return first_mismatch_; }
  uint64_t store_count() const { return stored_count_; }
  uint64_t load_count() const { return loaded_count_; }
  uint64_t failed_count() const { return failed_count_; }
  uint32_t registrations_tried() const { return sim_.registrations_tried(); }
  uint64_t stray_count() const { return sim_.stray_count(); }
  HostPins::Counts pin_counts() const { return pins_ ? pins_->counts() : HostPins::Counts(); }
  uint32_t events_taken() const { return copier_ ? copier_->events().taken_count() : 0; }

 private:
  using Image = std::shared_ptr<const std::vector<std::byte>>;

  struct Page {
    Image image;  // what kernels queued from now on see; none: nobody has written it
  };
  struct Slot {
    std::span<std::byte> bytes;
    Image image;  // what it holds, once sealed
    bool is_sealed = false;
    uint32_t use_count = 0;  // copies under way
  };
  struct Segment {
    std::vector<std::byte> memory;
    bool is_tried = false;  // to register, with what came of it
  };
  struct Storing {
    SlotsDone done;
    std::vector<size_t> slots;
    std::vector<Image> images;
  };
  struct Loading {
    SlotsDone done;
    std::vector<size_t> slots;
  };

  uint64_t Random(uint64_t bound) { return random_() % bound; }
  bool Chance(uint32_t percent) { return Random(100) < percent; }
  void MakeCopier();
  void MakeSegments();
  void Pin();
  void Unmap();
  std::vector<size_t> ChooseSlots(bool is_sealed, size_t count);
  std::vector<uint64_t> ChoosePages(size_t count);
  Image MakeImage();
  void LaunchWrite(uint64_t page, Image image);
  void LaunchRead(uint64_t page, uint32_t layer_first, uint32_t layer_count);
  void Store();
  void Load();
  void ReadSomePage();
  void Poll();
  void FinishStore(Storing& storing, Status status);
  bool IsEqual(const std::byte* bytes, const std::vector<std::byte>& image) const;
  void Mismatch(const char* where);

  const EngineWorldOptions options_;
  std::mt19937_64 random_;
  TestCache cache_;
  SlotOrder order_ = SlotOrder::kAsEngine;
  SimDevice sim_;
  Device device_;
  std::optional<Stream> compute_;
  std::shared_ptr<HostPins> pins_;
  std::unique_ptr<PagedCopier> copier_;
  std::vector<Segment> segments_;
  std::vector<Page> pages_;
  std::vector<Slot> slots_;
  std::list<Storing> storing_;
  std::list<Loading> loading_;
  bool is_dead_ = false;  // a copy has failed: a real device's context would be lost
  uint64_t mismatch_count_ = 0;
  uint64_t stored_count_ = 0;
  uint64_t loaded_count_ = 0;
  uint64_t failed_count_ = 0;
  std::string first_mismatch_;
};

}  // namespace terrace
