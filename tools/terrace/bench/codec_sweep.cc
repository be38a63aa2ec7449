#include "tools/terrace/bench/codec_sweep.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <utility>

#include "cuda/abi/device_status.h"
#include "cuda/kernels/codec.h"
#include "terrace/units.h"

namespace terrace::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::byte>;

constexpr Codec kCodecs[] = {Codec::kInt8, Codec::kFp8, Codec::kInt4};
constexpr PieceRole kRoles[] = {PieceRole::kKeys, PieceRole::kValues};
constexpr std::chrono::seconds kWarmUp{1};   // a GPU's clocks rise while it works
constexpr uint32_t kLaunchesPerTiming = 16;  // a launch alone is over before it has begun

PieceShape ShapeOf(PieceRole role) {
  return {.element = ElementType::kBf16, .role = role, .tokens = 16, .heads = 8, .head_dim = 128};
}

uint64_t SlotBytes(Codec codec, PieceRole role) {
  return RoundUp(LayoutOf(codec, ShapeOf(role)).encoded_bytes, kCodecPlaneAlignmentBytes);
}

// Finite numbers of ordinary size.
void FillWithKv(Bytes bytes) {
  std::mt19937 random(1);
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    const auto bits = static_cast<uint16_t>((random() & 0x80FFu) | 0x3F00u);
    std::memcpy(&bytes[i], &bits, sizeof(bits));
  }
}

// Who encodes and decodes, from and to memory of its own.
class Codecs {
 public:
  explicit Codecs(uint32_t piece_count) : piece_count_(piece_count) {}
  virtual ~Codecs() = default;
  virtual Status Encode(Codec codec, PieceRole role) = 0;
  virtual Status Decode(Codec codec, PieceRole role) = 0;  // what was encoded last
  virtual Status Copy() = 0;                               // of all engine bytes
  // How many bytes of what was encoded last are others than the host's.
  virtual Result<uint64_t> WrongBytes(Codec codec, PieceRole role) = 0;
  virtual uint32_t repeats() const = 0;  // of one call

  uint32_t piece_count() const { return piece_count_; }
  uint64_t raw_bytes() const { return piece_count_ * ShapeOf(PieceRole::kKeys).raw_bytes(); }

 private:
  const uint32_t piece_count_;
};

class HostCodecs final : public Codecs {
 public:
  explicit HostCodecs(uint32_t piece_count)
      : Codecs(piece_count), engine_(raw_bytes()), slots_(raw_bytes()) {
    FillWithKv(engine_);
  }
  Status Encode(Codec codec, PieceRole role) override {
    const PieceShape shape = ShapeOf(role);
    const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
    for (uint32_t i = 0; i < piece_count(); ++i) {
      TERRACE_RETURN_IF_ERROR(
          EncodePiece(codec, shape, Engine(i), Slot(i, codec, role).first(encoded_bytes)));
    }
    return Status::Ok();
  }
  Status Decode(Codec codec, PieceRole role) override {
    const PieceShape shape = ShapeOf(role);
    const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
    for (uint32_t i = 0; i < piece_count(); ++i) {
      DecodePiece(codec, shape, Slot(i, codec, role).first(encoded_bytes), Engine(i));
    }
    return Status::Ok();
  }
  Status Copy() override {
    std::memcpy(slots_.data(), engine_.data(), engine_.size());
    return Status::Ok();
  }
  Result<uint64_t> WrongBytes(Codec, PieceRole) override { return uint64_t{0}; }
  uint32_t repeats() const override { return 1; }

 private:
  Bytes Engine(uint32_t piece) {
    const uint64_t bytes = ShapeOf(PieceRole::kKeys).raw_bytes();
    return Bytes(engine_).subspan(piece * bytes, bytes);
  }
  Bytes Slot(uint32_t piece, Codec codec, PieceRole role) {
    const uint64_t bytes = SlotBytes(codec, role);
    return Bytes(slots_).subspan(piece * bytes, bytes);
  }

  std::vector<std::byte> engine_;
  std::vector<std::byte> slots_;
};

class DeviceCodecs final : public Codecs {
 public:
  static Result<std::unique_ptr<Codecs>> Create(const Device& device, const CodecOps& codecs,
                                                uint32_t piece_count) {
    std::unique_ptr<DeviceCodecs> made(new DeviceCodecs(codecs, piece_count));
    TERRACE_RETURN_IF_ERROR(made->Allocate(device));
    return std::unique_ptr<Codecs>(std::move(made));
  }
  Status Encode(Codec codec, PieceRole role) override {
    return Launch(codec, role, codecs_.encode);
  }
  Status Decode(Codec codec, PieceRole role) override {
    return Launch(codec, role, codecs_.decode);
  }
  Status Copy() override {
    const CopyPiece piece{slots().address(), engine().address(), raw_bytes()};
    for (uint32_t i = 0; i < kLaunchesPerTiming; ++i) {
      TERRACE_RETURN_IF_ERROR(stream_->Copy(CopyDirection::kWithinDevice, {&piece, 1}));
    }
    return Await();
  }
  Result<uint64_t> WrongBytes(Codec codec, PieceRole role) override {
    // Encoded anew from the bytes that the host knows: decoding has changed the engine's.
    const CopyPiece in{engine().address(), host().address(), raw_bytes()};
    TERRACE_RETURN_IF_ERROR(stream_->Copy(CopyDirection::kToDevice, {&in, 1}));
    TERRACE_RETURN_IF_ERROR(Encode(codec, role));
    const uint64_t slot_bytes = SlotBytes(codec, role);
    const CopyPiece out{encoded().address(), slots().address(), piece_count() * slot_bytes};
    TERRACE_RETURN_IF_ERROR(stream_->Copy(CopyDirection::kToHost, {&out, 1}));
    TERRACE_RETURN_IF_ERROR(Await());
    const PieceShape shape = ShapeOf(role);
    std::vector<std::byte> right(LayoutOf(codec, shape).encoded_bytes);
    uint64_t wrong_bytes = 0;
    for (uint32_t i = 0; i < piece_count(); ++i) {
      const Bytes raw(host().address() + i * shape.raw_bytes(), shape.raw_bytes());
      TERRACE_RETURN_IF_ERROR(EncodePiece(codec, shape, raw, right));
      const std::byte* const found = encoded().address() + i * slot_bytes;
      for (size_t at = 0; at < right.size(); ++at) wrong_bytes += found[at] != right[at] ? 1 : 0;
    }
    return wrong_bytes;
  }
  uint32_t repeats() const override { return kLaunchesPerTiming; }

 private:
  DeviceCodecs(const CodecOps& codecs, uint32_t piece_count)
      : Codecs(piece_count), codecs_(codecs) {}
  DeviceBuffer& engine() { return *buffers_[0]; }
  DeviceBuffer& slots() { return *buffers_[1]; }
  DeviceBuffer& host() { return *buffers_[2]; }
  DeviceBuffer& encoded() { return *buffers_[3]; }
  CodecPiece* pieces() { return reinterpret_cast<CodecPiece*>(buffers_[4]->address()); }
  uint32_t* refused() { return reinterpret_cast<uint32_t*>(buffers_[5]->address()); }

  Status Allocate(const Device& device) {
    const std::pair<DeviceMemory, uint64_t> wanted[] = {
        {DeviceMemory::kDevice, raw_bytes()},
        {DeviceMemory::kDevice, raw_bytes()},
        {DeviceMemory::kPinned, raw_bytes()},
        {DeviceMemory::kPinned, raw_bytes()},
        {DeviceMemory::kPinned, piece_count() * sizeof(CodecPiece)},
        {DeviceMemory::kPinned, piece_count() * sizeof(uint32_t)}};
    for (const auto& [kind, byte_count] : wanted) {
      Result<DeviceBuffer> buffer = DeviceBuffer::Allocate(device, kind, byte_count);
      if (!buffer.ok()) return buffer.status();
      buffers_.push_back(std::make_unique<DeviceBuffer>(std::move(buffer).value()));
    }
    Result<Stream> stream = Stream::Create(device, StreamPriority::kStore);
    if (!stream.ok()) return stream.status();
    stream_ = std::make_unique<Stream>(std::move(stream).value());
    Result<Event> done = Event::Create(device);
    if (!done.ok()) return done.status();
    done_ = std::make_unique<Event>(std::move(done).value());
    FillWithKv({host().address(), raw_bytes()});
    const CopyPiece in{engine().address(), host().address(), raw_bytes()};
    TERRACE_RETURN_IF_ERROR(stream_->Copy(CopyDirection::kToDevice, {&in, 1}));
    return Await();
  }

  Status Launch(Codec codec, PieceRole role,
                DeviceStatus (*queue)(StreamHandle*, const CodecLaunch*)) {
    const PieceShape shape = ShapeOf(role);
    for (uint32_t i = 0; i < piece_count(); ++i) {
      pieces()[i] = {reinterpret_cast<uint64_t>(engine().address()) + i * shape.raw_bytes(),
                     reinterpret_cast<uint64_t>(slots().address()) + i * SlotBytes(codec, role)};
      refused()[i] = 0;
    }
    CodecLaunch launch;
    launch.codec = static_cast<uint32_t>(codec);
    launch.element = static_cast<uint32_t>(shape.element);
    launch.role = static_cast<uint32_t>(role);
    launch.tokens = shape.tokens;
    launch.heads = shape.heads;
    launch.head_dim = shape.head_dim;
    launch.piece_count = piece_count();
    launch.engine_token_stride_bytes = shape.raw_bytes() / shape.tokens;
    launch.pieces = pieces();
    launch.refused = refused();
    for (uint32_t i = 0; i < kLaunchesPerTiming; ++i) {
      TERRACE_RETURN_IF_ERROR(FromDeviceStatus(queue(stream_->handle(), &launch)));
    }
    return Await();
  }

  Status Await() {
    TERRACE_RETURN_IF_ERROR(done_->Record(*stream_));
    return done_->Await();
  }

  const CodecOps& codecs_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
};

template <typename Call>
Result<double> SecondsOf(Call call) {
  const Clock::time_point began = Clock::now();
  TERRACE_RETURN_IF_ERROR(call());
  return std::chrono::duration<double>(Clock::now() - began).count();
}

Status MeasureRound(Codecs& codecs, bool is_kept, std::vector<CodecRow>* rows) {
  const Result<double> copying = SecondsOf([&] { return codecs.Copy(); });
  if (!copying.ok()) return copying.status();
  const auto raw_bytes = static_cast<double>(codecs.raw_bytes()) * codecs.repeats();
  for (CodecRow& row : *rows) {
    const Result<double> seconds = SecondsOf([&] {
      return row.is_encode ? codecs.Encode(row.codec, row.role)
                           : codecs.Decode(row.codec, row.role);
    });
    if (!seconds.ok()) return seconds.status();
    if (!is_kept) continue;
    const PieceLayout layout = LayoutOf(row.codec, ShapeOf(row.role));
    const double touched_bytes =
        raw_bytes * (1 + static_cast<double>(layout.encoded_bytes) /
                             static_cast<double>(ShapeOf(row.role).raw_bytes()));
    row.gigabytes_per_second.push_back(raw_bytes / *seconds / 1e9);
    row.share_of_copy.push_back(touched_bytes / *seconds / (2 * raw_bytes / *copying));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Codecs>> MakeCodecs(const Device& device, const CodecOps* codecs,
                                           uint64_t call_bytes) {
  const auto piece_count = static_cast<uint32_t>(
      std::clamp<uint64_t>(call_bytes / ShapeOf(PieceRole::kKeys).raw_bytes(), 1, kCodecPiecesMax));
  if (codecs != nullptr) return DeviceCodecs::Create(device, *codecs, piece_count);
  return std::unique_ptr<Codecs>(std::make_unique<HostCodecs>(piece_count));
}

}  // namespace

Status MeasureCodecs(const Device& device, const CodecOps* codecs, uint64_t call_bytes,
                     uint32_t round_count, CodecSweep* sweep, std::string* why) {
  *why = "codecs";
  sweep->where = codecs == nullptr ? "host" : "cuda";
  Result<std::unique_ptr<Codecs>> made = MakeCodecs(device, codecs, call_bytes);
  if (!made.ok()) return made.status();
  for (const Codec codec : kCodecs) {
    for (const PieceRole role : kRoles) {
      const Result<uint64_t> wrong_bytes = (*made)->WrongBytes(codec, role);
      if (!wrong_bytes.ok()) return wrong_bytes.status();
      sweep->wrong_bytes += *wrong_bytes;
      for (const bool is_encode : {true, false}) {
        sweep->rows.push_back({.codec = codec, .role = role, .is_encode = is_encode});
      }
    }
  }
  const Clock::time_point began = Clock::now();
  do {
    TERRACE_RETURN_IF_ERROR(MeasureRound(**made, /*is_kept=*/false, &sweep->rows));
  } while (Clock::now() - began < kWarmUp);
  for (uint32_t round = 0; round < round_count; ++round) {
    TERRACE_RETURN_IF_ERROR(MeasureRound(**made, /*is_kept=*/true, &sweep->rows));
  }
  return Status::Ok();
}

}  // namespace terrace::tools
