// `terrace config`: the configuration of a running daemon: what is in effect and where it comes
// from, a reload of its file, and single keys set until then.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/protocol_admin.h"
#include "tools/terrace/cli/admin_requests.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/verbs/admin_verbs.h"

namespace terrace::tools {
namespace {

using nlohmann::json;
using protocol::ConfigAction;

std::string Shown(const json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  return text.empty() ? "(not set)" : text;
}

std::string ShowChanges(const json& rows, const char* from, const char* to) {
  std::string text;
  for (const json& row : rows) {
    text += fmt::format("  {}: {} -> {}\n", Shown(row["key"]), Shown(row[from]), Shown(row[to]));
  }
  return text;
}

std::string ShowKeys(const json& rows) {
  std::string text;
  for (const json& row : rows) {
    text += fmt::format(
        "encryption keys of domain {} are read from {}: {} -> {}; {} encrypts from now on\n",
        Shown(row["domain"]), Shown(row["file"]), Shown(row["from"]), Shown(row["to"]),
        Shown(row["encrypts"]));
  }
  return text;
}

std::string ShowTlsFiles(const json& rows) {
  std::string text;
  for (const json& row : rows) {
    text += fmt::format("{} was read again: new connections to Redis use {}\n", Shown(row["key"]),
                        Shown(row["file"]));
  }
  return text;
}

// A daemon of before gives none.
std::string ShowNotes(const json& document) {
  std::string text;
  for (const json& note : document.value("notes", json::array())) {
    text += fmt::format("note: {}\n", Shown(note));
  }
  return text;
}

// How a value is changed: in a table's word, and as a sentence.
struct Way {
  std::string_view word, sentence;
};

Way WayToChange(const json& row, bool has_file) {
  const bool is_live = row["is_live"] == true;
  if (row["from"] == "command line") {
    return {"restart", "needs a restart with another command line, which outranks the file"};
  }
  if (row["from"] == "kept") {
    return is_live ? Way{"set, restart",
                         "the file says otherwise, which needs a restart; changes by terrace "
                         "config set"}
                   : Way{"restart", "the file says otherwise, which needs a restart"};
  }
  if (!is_live) return {"restart", "needs a restart"};
  return has_file ? Way{"reload, set", "changes by a reload, or by terrace config set"}
                  : Way{"set", "changes by terrace config set"};
}

class ConfigVerb : public Verb {
 protected:
  Arguments Add(Arguments& parent, const std::string& name, const std::string& description) {
    Arguments verb = parent.AddVerb(name, description);
    DeclareAddress(verb, &address_);
    DeclareJson(verb, &is_json_);
    return verb;
  }
  // The document in its human form, or as it is.
  template <typename Render>
  ExitCode Tell(const std::optional<json>& document, const Render& render) {
    if (!document) return kExitFailed;
    if (is_json_) {
      PrintJson(*document);
    } else {
      PrintText(render(*document));
    }
    return kExitOk;
  }

  DaemonAddress address_;

 private:
  bool is_json_ = false;
};

class ConfigGetVerb : public ConfigVerb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = Add(parent, "get", "Values in effect, and where each comes from");
    verb.AddOption("KEY", key_, "Such as nvme.admission; without one, all");
    return verb;
  }

  ExitCode Run() override {
    return Tell(AskConfig(address_, ConfigAction::kGet, key_),
                [this](const json& document) { return Render(document); });
  }

 private:
  std::string Render(const json& document) const {
    const json& rows = document["keys"];
    const bool has_file = document["file"] != "";
    if (!key_.empty() && rows.size() == 1) {
      const json& row = rows[0];
      return fmt::format("# {}\n{} = {}\n# from: {}; {}\n", Shown(row["meaning"]), key_,
                         Shown(row["value"]), Shown(row["from"]),
                         WayToChange(row, has_file).sentence);
    }
    using enum TextTable::Align;
    TextTable table({{"KEY", kLeft}, {"VALUE", kLeft}, {"FROM", kLeft}, {"CHANGES BY", kLeft}});
    for (const json& row : rows) {
      table.AddRow({Shown(row["key"]), Shown(row["value"]), Shown(row["from"]),
                    std::string(WayToChange(row, has_file).word)});
    }
    return table.Render();
  }

  std::string key_;
};

class ConfigSetVerb : public ConfigVerb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb =
        Add(parent, "set", "Change live keys, all or none, until the next reload or restart");
    verb.AddOption("KEY=VALUE", changes_, "Such as daemon.log_level=debug").Required();
    return verb;
  }

  ExitCode Run() override {
    return Tell(AskConfigSet(address_, changes_), [](const json& document) {
      const json& rows = document["changed"];
      return (rows.empty() ? "it was so already\n"
                           : "changed, until the next reload or restart:\n" +
                                 ShowChanges(rows, "from", "to")) +
             ShowNotes(document);
    });
  }

 private:
  std::vector<std::string> changes_;
};

class ConfigReloadVerb : public ConfigVerb {
 public:
  Arguments Declare(Arguments& parent) override {
    return Add(parent, "reload", "Read the file anew; with an error in it nothing changes");
  }

  ExitCode Run() override {
    return Tell(AskConfig(address_, ConfigAction::kReload, ""), [](const json& document) {
      const json& changed = document["changed"];
      const json& waiting = document["needs_restart"];
      const json keys = document.value("keys_taken", json::array());
      const json tls_files = document.value("tls_files_taken", json::array());
      const bool is_same = changed.empty() && keys.empty() && tls_files.empty();
      std::string text = fmt::format("{} is in effect{}\n", Shown(document["file"]),
                                     !changed.empty() ? "; changed:"
                                     : is_same        ? ": nothing that is live has changed"
                                                      : "");
      text += ShowChanges(changed, "from", "to") + ShowKeys(keys) + ShowTlsFiles(tls_files);
      if (!waiting.empty()) {
        text += "needs a restart (systemctl restart terraced):\n" +
                ShowChanges(waiting, "running", "file");
      }
      return text + ShowNotes(document);
    });
  }
};

}  // namespace

VerbFamily MakeConfigVerbs() {
  VerbFamily family{
      .name = "config", .description = "A running daemon's configuration", .verbs = {}};
  family.verbs.push_back(std::make_unique<ConfigGetVerb>());
  family.verbs.push_back(std::make_unique<ConfigSetVerb>());
  family.verbs.push_back(std::make_unique<ConfigReloadVerb>());
  return family;
}

}  // namespace terrace::tools
