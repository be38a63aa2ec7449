// `terrace bench device`.
#include <nlohmann/json.hpp>

#include "cuda/host/device_loader.h"
#include "cuda/host/host_device.h"
#include "tools/terrace/bench/codec_sweep.h"
#include "tools/terrace/bench/device_sweep.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kPieceBytesMax = 16 * kMiB;
constexpr uint64_t kCallBytesMax = kGiB;

class BenchDeviceVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb(
        "device", "Paths between pages and slots by piece size, on whatever device there is");
    verb.AddOption("--backend", backend_, "auto, host or cuda")
        .Type("NAME")
        .ShowDefault()
        .OneOf({"auto", "host", "cuda"});
    verb.AddOption("--plugin", plugin_path_, "The CUDA plugin").Type("PATH").ShowDefault();
    verb.AddOption("--device", open_.device_index, "Index of the device").Type("N").ShowDefault();
    verb.AddOption("--workers", open_.worker_count, "Threads that copy, on the host")
        .Type("N")
        .ShowDefault()
        .Between(1u, kHostWorkersMax);
    verb.AddOption("--pieces", pieces_text_, "Piece sizes, ascending")
        .Type("SIZE,...")
        .SplitAt(',');
    verb.AddOption("--bytes", call_bytes_text_, "Moved by one call").Type("SIZE").ShowDefault();
    verb.AddOption("--rounds", options_.round_count, "Timed rounds; the paths take turns in each")
        .Type("N")
        .ShowDefault()
        .Between(1u, 1000u);
    verb.AddFlag("--json", is_json_, "Print one JSON document");
    return verb;
  }

  ExitCode Run() override {
    if (!ReadSizes()) return kExitUsage;
    std::string why;
    const Result<ChosenBackend> chosen =
        ChooseBackend(ParseDeviceBackend(backend_).value(), plugin_path_, &why);
    if (!chosen.ok()) return Fail(fmt::format("bench device --backend {}: {}", backend_, why));
    const Result<Device> device = Device::Open(*chosen->ops, open_);
    if (!device.ok()) {
      return Fail(fmt::format("bench device: device {} of {}: {}", open_.device_index,
                              chosen->ops->backend, device.status().what()));
    }
    const Result<DeviceTraits> traits = device->Describe();
    if (!traits.ok()) {
      return Fail(fmt::format("bench device: {}: {}", chosen->why, traits.status().what()));
    }
    const bool is_host = chosen->ops == &HostDeviceOps();
    const CodecOps* codecs = is_host ? nullptr : chosen->ops->codecs;
    const std::vector<std::string> failures = MeasureAll(device.value(), codecs);
    Report(chosen.value(), traits.value());  // what there is: a device may be lent for minutes
    for (const std::string& failure : failures) {
      Fail(fmt::format("bench device: {}: {}", chosen->why, failure));
    }
    return failures.empty() ? kExitOk : kExitFailed;
  }

 private:
  bool ReadSizes() {
    if (!ParseBytes(call_bytes_text_, &options_.call_bytes) || options_.call_bytes < kMiB ||
        options_.call_bytes > kCallBytesMax) {
      Fail(fmt::format("--bytes is '{}': say a size from 1M to 1G", call_bytes_text_));
      return false;
    }
    for (const std::string& text : pieces_text_) {
      uint64_t piece_bytes = 0;
      if (!ParseBytes(text, &piece_bytes) || piece_bytes == 0 || piece_bytes > kPieceBytesMax ||
          piece_bytes > options_.call_bytes) {
        Fail(fmt::format("--pieces has '{}': say sizes from 1 to 16M, and no more than --bytes",
                         text));
        return false;
      }
      if (!PathTrial::CanBeRun(piece_bytes)) {
        Fail(
            fmt::format("--pieces has '{}': above 1 MiB a size is some number of tokens of the "
                        "same size, of 1 MiB at most; say 2M",
                        text));
        return false;
      }
      options_.piece_bytes.push_back(piece_bytes);
    }
    return true;
  }

  // What failed; the rest is measured all the same.
  std::vector<std::string> MeasureAll(const Device& device, const CodecOps* codecs) {
    std::vector<std::string> failures;
    std::string why;
    const auto note = [&](std::string_view what, const Status& status) {
      if (status.ok()) return;
      failures.push_back(fmt::format("{}: {}: {}", what, why, status.what()));
    };
    note("paths", MeasurePaths(device, options_, &paths_, &why));
    note("a copy beside paths", MeasureVictim(device, options_, &victims_, &why));
    note("registering", MeasureRegistration(device, options_, &registrations_, &why));
    note("codecs",
         MeasureCodecs(device, codecs, options_.call_bytes, options_.round_count, &codecs_, &why));
    const auto is_unmeasured = [](const auto& row) { return row.gigabytes_per_second.empty(); };
    std::erase_if(paths_, is_unmeasured);
    std::erase_if(codecs_.rows, is_unmeasured);
    std::erase_if(victims_, [](const VictimRow& row) { return row.slowdown.empty(); });
    return failures;
  }

  void Report(const ChosenBackend& chosen, const DeviceTraits& traits) const {
    if (is_json_) return PrintJson(ToDocument(chosen, traits));
    PrintText(fmt::format("bench device: {} ({}), {} units; median (range) of {} rounds of {}\n",
                          traits.name, chosen.why, traits.compute_units, options_.round_count,
                          FormatBytes(options_.call_bytes)));
    PrintText(RenderPaths());
    PrintText("\nA copy within the device beside paged copies:\n");
    PrintText(RenderVictims());
    PrintText("\nRegistering host memory:\n");
    PrintText(RenderRegistrations());
    PrintText(fmt::format("\nCodecs, by {}, {} bytes other than the host's:\n",
                          codecs_.where == "host" ? "one thread of the host" : "kernels",
                          codecs_.wrong_bytes));
    PrintText(RenderCodecs());
  }

  std::string RenderPaths() const {
    using enum TextTable::Align;
    TextTable table({{"PIECE", kRight},
                     {"DIRECTION", kLeft},
                     {"PATH", kLeft},
                     {"GB/s", kRight},
                     {"OF ONE COPY", kRight}});
    for (const PathRow& row : paths_) {
      table.AddRow({FormatBytes(row.piece_bytes), DirectionName(row.direction),
                    std::string(TransferPathName(row.path)),
                    FormatSummary(Summarize(row.gigabytes_per_second), 2),
                    FormatSummary(Summarize(row.share_of_peak), 2)});
    }
    return table.Render();
  }

  std::string RenderVictims() const {
    using enum TextTable::Align;
    TextTable table(
        {{"PIECE", kRight}, {"DIRECTION", kLeft}, {"PATH", kLeft}, {"SLOWER BY", kRight}});
    for (const VictimRow& row : victims_) {
      table.AddRow({FormatBytes(row.piece_bytes), DirectionName(row.direction),
                    std::string(TransferPathName(row.path)),
                    FormatSummary(Summarize(row.slowdown), 3)});
    }
    return table.Render();
  }

  std::string RenderRegistrations() const {
    using enum TextTable::Align;
    TextTable table({{"SIZE", kRight}, {"REGISTER ms", kRight}, {"UNREGISTER ms", kRight}});
    for (const RegistrationRow& row : registrations_) {
      table.AddRow({FormatBytes(row.byte_count), FormatSummary(Summarize(row.register_ms), 3),
                    FormatSummary(Summarize(row.unregister_ms), 3)});
    }
    return table.Render();
  }

  std::string RenderCodecs() const {
    using enum TextTable::Align;
    TextTable table({{"CODEC", kLeft},
                     {"OF", kLeft},
                     {"DIRECTION", kLeft},
                     {"GB/s", kRight},
                     {"OF A COPY'S BANDWIDTH", kRight}});
    for (const CodecRow& row : codecs_.rows) {
      table.AddRow({std::string(CodecName(row.codec)), RoleName(row), DirectionName(row),
                    FormatSummary(Summarize(row.gigabytes_per_second), 2),
                    FormatSummary(Summarize(row.share_of_copy), 2)});
    }
    return table.Render();
  }

  static std::string RoleName(const CodecRow& row) {
    return row.role == PieceRole::kKeys ? "keys" : "values";
  }
  static std::string DirectionName(const CodecRow& row) {
    return row.is_encode ? "encode" : "decode";
  }
  static std::string DirectionName(PagedDirection direction) {
    return direction == PagedDirection::kGather ? "store" : "load";
  }

  nlohmann::json ToDocument(const ChosenBackend& chosen, const DeviceTraits& traits) const {
    nlohmann::json paths = nlohmann::json::array();
    for (const PathRow& row : paths_) {
      paths.push_back({{"piece_bytes", row.piece_bytes},
                       {"direction", DirectionName(row.direction)},
                       {"path", TransferPathName(row.path)},
                       {"gigabytes_per_second", ToJson(Summarize(row.gigabytes_per_second))},
                       {"share_of_one_copy", ToJson(Summarize(row.share_of_peak))}});
    }
    nlohmann::json victims = nlohmann::json::array();
    for (const VictimRow& row : victims_) {
      victims.push_back({{"piece_bytes", row.piece_bytes},
                         {"direction", DirectionName(row.direction)},
                         {"path", TransferPathName(row.path)},
                         {"slowdown", ToJson(Summarize(row.slowdown))}});
    }
    nlohmann::json registrations = nlohmann::json::array();
    for (const RegistrationRow& row : registrations_) {
      registrations.push_back({{"byte_count", row.byte_count},
                               {"register_ms", ToJson(Summarize(row.register_ms))},
                               {"unregister_ms", ToJson(Summarize(row.unregister_ms))}});
    }
    nlohmann::json codecs = nlohmann::json::array();
    for (const CodecRow& row : codecs_.rows) {
      codecs.push_back({{"codec", CodecName(row.codec)},
                        {"of", RoleName(row)},
                        {"direction", DirectionName(row)},
                        {"gigabytes_per_second", ToJson(Summarize(row.gigabytes_per_second))},
                        {"share_of_copy", ToJson(Summarize(row.share_of_copy))}});
    }
    return {{"bench", "device"},
            {"backend", chosen.ops->backend},
            {"why", chosen.why},
            {"device", traits.name},
            {"compute_units", traits.compute_units},
            {"call_bytes", options_.call_bytes},
            {"round_count", options_.round_count},
            {"paths", paths},
            {"victims", victims},
            {"registrations", registrations},
            {"codecs", codecs},
            {"codecs_by", codecs_.where},
            {"codecs_wrong_bytes", codecs_.wrong_bytes}};
  }

  std::string backend_ = "auto";
  std::string plugin_path_ = InstalledPluginPath();
  DeviceOpenOptions open_;
  std::vector<std::string> pieces_text_ = {"4K", "16K", "64K", "256K", "2M"};
  std::string call_bytes_text_ = "32M";
  DeviceSweepOptions options_;
  bool is_json_ = false;
  std::vector<PathRow> paths_;
  std::vector<VictimRow> victims_;
  std::vector<RegistrationRow> registrations_;
  CodecSweep codecs_;
};

}  // namespace

std::unique_ptr<Verb> MakeBenchDeviceVerb() { return std::make_unique<BenchDeviceVerb>(); }

}  // namespace terrace::tools
