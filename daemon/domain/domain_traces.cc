#include "daemon/domain/domain_traces.h"

#include "terrace/check.h"

namespace terrace {

DomainTraces::DomainTraces(const DaemonConfig& config, const Clock& clock) : clock_(clock) {
  if (config.trace_dir.empty()) return;
  for (const DomainConfig& domain : config.domains) {
    recorders_.push_back(std::make_unique<TraceRecorder>(
        TraceRecorderOptions{.directory = config.trace_dir,
                             .domain_name = domain.name,
                             .file_bytes_max = config.trace_bytes_max}));
    if (config.trace == TraceAtStart::kOn) recorders_.back()->Start();
  }
}

SessionTable::TraceHooks DomainTraces::Hooks() {
  if (recorders_.empty()) return {};
  return {.is_recording = [this](uint32_t domain) { return recorders_[domain]->is_recording(); },
          .record =
              [this](uint32_t domain, TracedRequest request) {
                TERRACE_CHECK(domain < recorders_.size(), "requests are written to their own file");
                request.now_us = clock_.NowUs();
                recorders_[domain]->Record(std::move(request));
              },
          .control =
              [this](uint32_t domain, protocol::TraceAction action) {
                if (action == protocol::TraceAction::kStart) recorders_[domain]->Start();
                if (action == protocol::TraceAction::kStop) recorders_[domain]->Stop();
                return recorders_[domain]->Status();
              }};
}

}  // namespace terrace
