// ExtentCatalog: who keeps a copy of the header tables' entries, for a start that need not read
// them all.
//
// THREADING: the store thread. OWNERSHIP: outlives the tier.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// Told which slots' entries changed; whoever keeps a catalog reads the entries back from the table.
class ExtentCatalog {
 public:
  virtual ~ExtentCatalog() = default;
  // The entry of the slot has been written. NvmeTier::OnCataloged follows once the catalog says
  // what the entry has said since the last of these calls; several may be answered at once, and an
  // answer that another call has overtaken is not given. A free entry needs no record; a
  // quarantined one does, lest the slot be taken for free.
  virtual void OnEntryWritten(uint32_t slab, uint32_t slot) = 0;
  // What its caches and buffers take now, of what they may.
  virtual uint64_t memory_bytes() const { return 0; }
  // Why there is none for now, for a person: a start has to read all tables. Empty: there is one.
  virtual std::string trouble() const { return {}; }
};

}  // namespace terrace
