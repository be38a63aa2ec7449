// Who asked for what, without a store.
#include "daemon/lease/pending_register.h"

#include "unit/daemon/lease/lease_fixture.h"

namespace terrace {
namespace {

TEST(PendingRegister, ATicketIsOfOneUseOfAnId) {
  LeaseWorld w;
  const PendingId first = w.pending.Open({.session = 1, .request_id = 7, .lease = 3});
  const PendingTicket ticket = w.pending.TicketOf(first);
  EXPECT_TRUE(w.pending.IsCurrent(ticket));
  EXPECT_EQ(w.pending.OfLease(3), std::vector<PendingId>{first});
  w.pending.End(first);
  EXPECT_FALSE(w.pending.IsCurrent(ticket));
  EXPECT_TRUE(w.pending.OfLease(3).empty());
  EXPECT_NE(w.pending.Open({.session = 1, .request_id = 8}), first) << "it is not free yet";
  w.pending.Free(first);
  EXPECT_FALSE(w.pending.IsCurrent(ticket));
  EXPECT_EQ(w.pending.Open({.session = 1, .request_id = 9}), first);
  EXPECT_FALSE(w.pending.IsCurrent(ticket)) << "another request has the id";
}

}  // namespace
}  // namespace terrace
