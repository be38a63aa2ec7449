// Connections that fail, end, or talk nonsense.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "cuda/host/host_device.h"
#include "cuda/host/stream.h"
#include "gmock/gmock.h"
#include "terrace/protocol_device.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class Connections : public ClientFixture {};

TEST_F(Connections, AnotherDaemonMeansNewLeasesAndTheSameGroups) {
  ReadLease lease = Acquire(2);
  daemon_.arena()[0] = std::byte{4};
  daemon_.set_boot_id(2);
  Reconnect();
  EXPECT_EQ(client_->boot_id(), 2u);
  EXPECT_EQ(daemon_.Received(Verb::kOpen).size(), 2u);
  EXPECT_FALSE(lease.is_valid());
  EXPECT_EQ(lease.slot(0, 0)[0], std::byte{4});
  EXPECT_TRUE(client_->Match(group_, TestKeys(2)).ok());
  // The old life ends with the old lease, and not with a Release to the new daemon.
  EXPECT_FALSE(daemon_.IsLifeOver(0));
  lease = ReadLease();
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
  EXPECT_FALSE(daemon_.IsLifeOver(1));
  EXPECT_TRUE(daemon_.Received(Verb::kRelease).empty());
}

TEST_F(Connections, PendingCallsAreGoneWithTheConnection) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kMatch) return false;
    daemon.Disconnect();
    return true;
  });
  EXPECT_EQ(client_->Match(group_, TestKeys(2)).code(), StatusCode::kGone);
  EXPECT_THAT(client_->last_error(), HasSubstr("closed the connection"));
}

// PROMISE: T24 a successor is always told from its predecessor
TEST_F(Connections, AnotherBootIdOnTheSameConnectionEndsIt) {
  const ReadLease lease = Acquire(2);
  daemon_.set_boot_id(3);
  EXPECT_EQ(client_->Match(group_, TestKeys(2)).code(), StatusCode::kGone);
  EXPECT_FALSE(lease.is_valid());
  EXPECT_TRUE(Eventually([&] { return client_->boot_id() == 3; }));
}

TEST_F(Connections, AGroupThatIsNotOpenedAgainIsGoneAndOthersAreNot) {
  SpaceGroupSpec other = TestGroup(3);
  other.name = "other";
  const Result<GroupRef> second = client_->Open(other, 1);
  ASSERT_TRUE(second.ok());
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kOpen) return false;
    if (message.Head<protocol::OpenRequest>().name_bytes != 4) return false;
    BodyBuilder text;
    text.AddText("field salt: a is not b");
    daemon.Answer(message, StatusCode::kInvalid, text.bytes());
    return true;
  });
  Reconnect();
  EXPECT_EQ(client_->Match(group_, TestKeys(1)).code(), StatusCode::kGone);
  EXPECT_TRUE(client_->Match(*second, TestKeys(1)).ok());
  const size_t opens = daemon_.Received(Verb::kOpen).size();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kOpen, opens + 2)) << "it is asked for again";
  EXPECT_EQ(client_->Match(group_, TestKeys(1)).code(), StatusCode::kGone);
  EXPECT_THAT(client_->last_error(), HasSubstr("field salt: a is not b"));
  daemon_.set_handler(nullptr);
  EXPECT_TRUE(Eventually([&] { return client_->Match(group_, TestKeys(1)).ok(); }));
  EXPECT_EQ(daemon_.connection_count(), 2u);
}

TEST_F(Connections, ARefusedOpenSaysTheDaemonsWords) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kOpen) return false;
    BodyBuilder text;
    text.AddText("field salt: a is not b");
    daemon.Answer(message, StatusCode::kInvalid, text.bytes());
    return true;
  });
  EXPECT_EQ(client_->Open(TestGroup(4), 1).code(), StatusCode::kInvalid);
  EXPECT_THAT(client_->last_error(), StartsWith("field salt: a is not b (request "));
}

TEST_F(Connections, ASegmentRevokedDuringTheHandshakeIsGivenUpAndNothingIsAskedTwice) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kOpen) return false;
    BodyBuilder revoke;
    revoke.Add(protocol::SegmentRevoke{.segment = 1});
    daemon.Tell(Verb::kSegmentRevoke, 0, StatusCode::kOk, revoke.bytes());
    return false;
  });
  const size_t opens_before = daemon_.Received(Verb::kOpen).size();
  Reconnect();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kUnmapped, 1));
  EXPECT_EQ(daemon_.Received(Verb::kUnmapped)[0].Head<protocol::UnmappedRequest>().segment, 1u);
  EXPECT_TRUE(client_->Match(group_, TestKeys(1)).ok());
  EXPECT_EQ(daemon_.Received(Verb::kOpen).size(), opens_before + 1);
}

// A daemon that grants slabs and sends no descriptors, as they arrive where there is no room.
class UnmappableDevice : public ClientFixture {
 protected:
  void SetUp() override {
    daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
      if (message.verb != protocol::kVerbDeviceAttach) return false;
      BodyBuilder reply;
      reply.Add(protocol::DeviceAttachReply{.slab_bytes = kSegmentBytesMin, .slab_count = 2});
      daemon.Answer(message, StatusCode::kOk, reply.bytes());
      return true;
    });
    ClientOptions options = TestOptions(daemon_);
    options.device = std::make_shared<Device>(std::move(Device::Open(HostDeviceOps())).value());
    Connect(options);
  }
};

TEST_F(UnmappableDevice, IsGoneWithoutAndAskedForAgainOfTheNextDaemon) {
  EXPECT_TRUE(client_->Match(group_, TestKeys(1)).ok());
  EXPECT_EQ(daemon_.Received(protocol::kVerbDeviceAttach).size(), 1u);
  Reconnect();
  EXPECT_TRUE(client_->Match(group_, TestKeys(1)).ok());
  EXPECT_EQ(daemon_.Received(protocol::kVerbDeviceAttach).size(), 1u);
  daemon_.set_boot_id(2);
  daemon_.Disconnect();
  EXPECT_TRUE(daemon_.WaitFor(protocol::kVerbDeviceAttach, 2));
  EXPECT_TRUE(Eventually([&] { return client_->Match(group_, TestKeys(1)).ok(); }));
  EXPECT_EQ(daemon_.Received(protocol::kVerbDeviceAttach).size(), 2u);
}

TEST_F(Connections, OpeningTheSameGroupTwiceIsTheSameGroup) {
  EXPECT_EQ(client_->Open(TestGroup(), 1)->index, group_.index);
  EXPECT_NE(client_->Open(TestGroup(), 0)->index, group_.index);
  EXPECT_EQ(client_->Open(TestGroup(), 2).code(), StatusCode::kInvalid);
}

TEST_F(Connections, AnAnswerNobodyAskedForEndsTheConnection) {
  daemon_.Tell(Verb::kMatch, 77, StatusCode::kOk, {});
  EXPECT_TRUE(Eventually([&] { return daemon_.connection_count() == 2; }));
  EXPECT_THAT(client_->last_error(), HasSubstr("no such request is pending"));
}

// Answers of every kind with bytes changed, cut, or added: the call ends, the process lives.
// PROMISE: T29 answers at the client
TEST_F(Connections, GarbledAnswersNeverHurtTheProcess) {
  std::mt19937_64 random(20261121);
  daemon_.set_handler([&](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb == Verb::kHello || message.verb == Verb::kOpen) return false;
    std::vector<std::byte> frames =
        daemon.Frames(message.verb, message.request_id, StatusCode::kOk, daemon.UsualBody(message));
    switch (random() % 4) {
      case 0:
        for (uint64_t i = random() % 4; i-- > 0;) frames[random() % 16] = std::byte(random());
        break;
      case 1:
        for (uint64_t i = 1 + random() % 8; i-- > 0;) {
          frames[random() % frames.size()] = std::byte(random() % 3 == 0 ? 255 : random());
        }
        break;
      case 2:
        frames.resize(16 + random() % (frames.size() - 16));
        frames[0] = std::byte(frames.size() & 255);
        frames[1] = std::byte(frames.size() >> 8);
        frames[2] = frames[3] = std::byte{0};
        break;
      default:
        frames.resize(frames.size() + random() % 100);
        frames[0] = std::byte(frames.size() & 255);
        frames[1] = std::byte(frames.size() >> 8);
    }
    daemon.SendBytes(frames);
    return true;
  });
  const std::vector<BlockKey> keys = TestKeys(3);
  const RequestOptions options{.deadline_us = 2'000};
  for (int round = 0; round < 1'000; ++round) {
    static_cast<void>(client_->WaitConnected(kLongUs));
    static_cast<void>(client_->Match(group_, keys, options));
    const Result<ReadLease> read = client_->Acquire(group_, keys, options);
    if (read.ok() && read->block_count() > 0) {
      static_cast<void>(read->CopyPart(0, 0, 0, buffer_));
    }
    Result<WriteLease> write = client_->Reserve(group_, keys, options);
    if (write.ok()) {
      static_cast<void>(write->WritePart(0, 0, 0, part_));
      static_cast<void>(client_->Commit(*write, options));
    }
    std::vector<protocol::QueriedBlock> blocks;
    static_cast<void>(client_->Query(group_, keys, &blocks, options));
  }
  daemon_.set_handler(nullptr);
  daemon_.Disconnect();
  EXPECT_TRUE(Eventually([&] { return client_->Match(group_, keys).ok(); }));
}

TEST_F(Connections, AStoppedClientLeavesNothingPending) {
  daemon_.set_handler([](ScriptedDaemon&, const PeerMessage&) { return true; });
  std::atomic<int> completions{0};
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client_
                    ->PrefetchAsync(group_, TestKeys(1), {.deadline_us = kLongUs}, 0,
                                    [&](ClientCompletion&& completion) {
                                      EXPECT_EQ(completion.status.code(), StatusCode::kGone);
                                      ++completions;
                                    })
                    .ok());
  }
  client_.reset();
  EXPECT_EQ(completions, 5);
}

// ---- before there is a connection
// -----------------------------------------------------------------

class NoConnection : public testing::Test {
 protected:
  NoConnection() {
    directory_ = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    options_.socket_path = directory_ + "/absent.sock";
    options_.reconnect_backoff_ms_max = 1;
  }
  ~NoConnection() override { std::filesystem::remove_all(directory_); }

  // Connects and returns the status and sentence.
  Status Try(uint64_t deadline_us, std::string* sentence) {
    Result<std::unique_ptr<Client>> client = Client::Create(options_);
    if (!client.ok()) return client.status();
    EXPECT_TRUE(Eventually([&] { return !(*client)->last_error().empty(); }));
    const Status status = (*client)->WaitConnected(deadline_us);
    *sentence = (*client)->last_error();
    return status;
  }

  std::string directory_;
  ClientOptions options_;
};

TEST_F(NoConnection, AMissingSocketIsNamedAndWaitedFor) {
  std::string sentence;
  EXPECT_EQ(Try(1'000, &sentence).code(), StatusCode::kBusy);
  EXPECT_THAT(sentence, HasSubstr(options_.socket_path));
  EXPECT_THAT(sentence, HasSubstr("is terraced running"));
}

TEST_F(NoConnection, ASocketNobodyListensOnIsNamed) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, options_.socket_path.data(), options_.socket_path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  std::string sentence;
  EXPECT_EQ(Try(1'000, &sentence).code(), StatusCode::kBusy);
  EXPECT_THAT(sentence, HasSubstr("nobody listens there"));
}

TEST_F(NoConnection, WhatIsNoSocketIsRefusedAtOnce) {
  options_.socket_path = directory_;
  std::string sentence;
  const Status status = Try(kLongUs, &sentence);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.detail(), ENOTSOCK);
  EXPECT_THAT(sentence, AllOf(HasSubstr(directory_), HasSubstr("name its domain's socket")));
}

TEST_F(NoConnection, AForbiddenSocketIsRefusedAtOnce) {
  // Root may open every socket, so root is somebody else meanwhile.
  const uid_t user = geteuid();
  ASSERT_EQ(user == 0 ? seteuid(65534) : chmod(directory_.c_str(), 0), 0);
  std::string sentence;
  const Status status = Try(kLongUs, &sentence);
  ASSERT_EQ(user == 0 ? seteuid(0) : chmod(directory_.c_str(), 0700), 0);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.detail(), EACCES);
  const std::string uid = std::to_string(user == 0 ? 65534 : user);
  EXPECT_THAT(sentence, AllOf(HasSubstr("uid " + uid + " may not: directory " + directory_ +
                                        " is of uid " + std::to_string(user)),
                              HasSubstr("chmod g+x")));
}

TEST_F(NoConnection, TheGroupThatMayOpenAForbiddenSocketIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "root only: it takes another user";
  constexpr gid_t kGroup = 985;
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, options_.socket_path.data(), options_.socket_path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(options_.socket_path.c_str(), 0660), 0);
  ASSERT_EQ(chown(options_.socket_path.c_str(), 0, kGroup), 0);
  ASSERT_EQ(seteuid(65534), 0);
  std::string sentence;
  const Status status = Try(kLongUs, &sentence);
  ASSERT_EQ(seteuid(0), 0);
  close(fd);
  EXPECT_EQ(status.detail(), EACCES);
  EXPECT_THAT(sentence,
              HasSubstr("uid 65534 may not: socket " + options_.socket_path +
                        " is of uid 0 and gid 985, mode 0660; add the user to group 985"));
}

TEST_F(NoConnection, APathThatCannotBeASocketIsRefusedAtOnce) {
  std::ofstream(options_.socket_path) << "a file";
  options_.socket_path += "/socket";
  std::string sentence;
  const Status status = Try(kLongUs, &sentence);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.detail(), ENOTDIR);
  EXPECT_THAT(sentence, HasSubstr("check socket_path"));
}

TEST_F(NoConnection, ARefusedDomainSaysTheDaemonsWords) {
  ScriptedDaemon daemon;
  daemon.set_handler([](ScriptedDaemon& peer, const PeerMessage& message) {
    BodyBuilder text;
    text.AddText("uid 1000 is not of domain a; add it to uids");
    peer.Answer(message, StatusCode::kNotFound, text.bytes());
    return true;
  });
  options_.socket_path = daemon.socket_path();
  std::string sentence;
  EXPECT_EQ(Try(kLongUs, &sentence).code(), StatusCode::kNotFound);
  EXPECT_THAT(sentence, HasSubstr("add it to uids"));
  EXPECT_THAT(sentence, HasSubstr(daemon.socket_path()));
}

TEST_F(NoConnection, WhyThereWasNoneIsNoSentenceForWhatFailsLater) {
  ScriptedDaemon daemon;
  daemon.set_handler([](ScriptedDaemon& peer, const PeerMessage& message) {
    peer.Answer(message, StatusCode::kBusy, {});
    return true;
  });
  options_.socket_path = daemon.socket_path();
  Result<std::unique_ptr<Client>> client = Client::Create(options_);
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(Eventually([&] { return !(*client)->last_error().empty(); }));
  daemon.set_handler(nullptr);
  ASSERT_TRUE((*client)->WaitConnected(kLongUs).ok());
  EXPECT_EQ((*client)->last_error(), "");
}

// Before it had asked anything: under request id 0.
TEST_F(NoConnection, WhoIsTurnedAwayAtOnceSaysTheDaemonsWords) {
  ScriptedDaemon daemon;
  daemon.set_handler([](ScriptedDaemon& peer, const PeerMessage& message) {
    BodyBuilder text;
    text.AddText("uid 1000 connects faster than it may: keep connections open");
    PeerMessage unasked = message;
    unasked.request_id = 0;
    peer.Answer(unasked, StatusCode::kBusy, text.bytes());
    return true;
  });
  options_.socket_path = daemon.socket_path();
  std::string sentence;
  EXPECT_EQ(Try(1'000, &sentence).code(), StatusCode::kBusy);
  EXPECT_THAT(sentence, HasSubstr("keep connections open"));
}

TEST_F(NoConnection, AHelloReplyWithoutDescriptorsIsRefused) {
  ScriptedDaemon daemon;
  protocol::HelloReply reply;
  reply.version = protocol::kVersion;
  reply.node_count = 1;
  reply.segment_bytes = kSegmentBytesMin;
  reply.segments_max = reply.segments_per_node = 1;
  const auto try_reply = [&] {
    daemon.set_handler([reply](ScriptedDaemon& peer, const PeerMessage& message) {
      BodyBuilder body;
      body.Add(reply);
      peer.Answer(message, StatusCode::kOk, body.bytes());
      return true;
    });
    options_.socket_path = daemon.socket_path();
    std::string sentence;
    EXPECT_FALSE(Try(kLongUs, &sentence).ok());
    return sentence;
  };
  EXPECT_THAT(try_reply(), HasSubstr("0 descriptors; 2 are needed"));
  reply.segment_bytes = 4096;
  EXPECT_THAT(try_reply(), HasSubstr("segment_bytes 4096"));
  reply.segment_bytes = kSegmentBytesMin;
  reply.segments_max = 0xFFFFFFFF;
  EXPECT_THAT(try_reply(), HasSubstr("4294967295 segments"));
  reply.segments_max = 1;
  reply.frame_bytes_max = 16;
  EXPECT_THAT(try_reply(), HasSubstr("frame_bytes_max 16"));
  reply.frame_bytes_max = protocol::kFrameBytesMax;
  reply.key_hash = 2;
  EXPECT_THAT(try_reply(), HasSubstr("key_hash 2"));
  reply.key_hash = 0;
  reply.version = 9;
  EXPECT_THAT(try_reply(), HasSubstr("frame version 9"));
}

TEST_F(NoConnection, AnArenaThatCouldShrinkIsRefused) {
  ScriptedDaemon daemon({.is_sealed = false});
  options_.socket_path = daemon.socket_path();
  std::string sentence;
  EXPECT_EQ(Try(kLongUs, &sentence).code(), StatusCode::kInvalid);
  EXPECT_THAT(sentence, HasSubstr("not sealed against shrinking"));
}

TEST_F(NoConnection, OptionsOutOfRangeAreRefusedByName) {
  std::string why;
  ClientOptions options = options_;
  options.socket_path = std::string(200, 'a');
  EXPECT_EQ(Client::Create(options, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("socket_path has 200 bytes"));
  options = options_;
  options.client_name = std::string(40, 'a');
  EXPECT_EQ(Client::Create(options, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("client_name has 40 bytes"));
  options = options_;
  options.pending_requests_max = 0;
  EXPECT_EQ(Client::Create(options, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("pending_requests_max is 0"));
}

TEST_F(NoConnection, CallsAreGoneAndOpenWaits) {
  Result<std::unique_ptr<Client>> client = Client::Create(options_);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->Open(TestGroup(), 1, 1'000).code(), StatusCode::kBusy);
  EXPECT_EQ((*client)->Stats().code(), StatusCode::kGone);
  EXPECT_EQ((*client)->boot_id(), 0u);
}

}  // namespace
}  // namespace terrace
