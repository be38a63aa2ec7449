// `terrace domain new|show`: the file that holds a domain's secret. Needs no daemon.
#include <nlohmann/json.hpp>

#include "terrace/domain_secret.h"
#include "tools/terrace/cli/verb.h"

namespace terrace::tools {
namespace {

// Prints what two operators compare to know that their hosts share a domain; never the secret.
ExitCode ShowSecret(const std::string& path, std::string_view title, bool is_json) {
  DomainSecret secret;
  std::string why;
  if (!ReadDomainSecretFile(path, &secret, &why).ok()) return Fail(why);
  const std::string fingerprint = DomainSecretFingerprint(secret);
  if (is_json) {
    PrintJson({{"file", path}, {"fingerprint", fingerprint}});
  } else {
    PrintText(fmt::format("{}{}: fingerprint {}\n", title, path, fingerprint));
  }
  return kExitOk;
}

class DomainNewVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("new", "Draw a secret and write it to a new 0600 file");
    verb.AddOption("FILE", path_, "The secret's file; it must not exist").Required();
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override {
    std::string why;
    if (!CreateDomainSecretFile(path_, &why).ok()) return Fail(why);
    return ShowSecret(path_, "new domain secret in ", is_json_);
  }

 private:
  std::string path_;
  bool is_json_ = false;
};

class DomainShowVerb : public Verb {
 public:
  Arguments Declare(Arguments& parent) override {
    Arguments verb = parent.AddVerb("show", "Print the fingerprint of a secret, to compare hosts");
    verb.AddOption("FILE", path_, "The secret's file").Required();
    DeclareJson(verb, &is_json_);
    return verb;
  }

  ExitCode Run() override { return ShowSecret(path_, "", is_json_); }

 private:
  std::string path_;
  bool is_json_ = false;
};

}  // namespace

VerbFamily MakeDomainVerbs() {
  VerbFamily family{"domain", "Make and compare domain secrets", {}};
  family.verbs.push_back(std::make_unique<DomainNewVerb>());
  family.verbs.push_back(std::make_unique<DomainShowVerb>());
  return family;
}

}  // namespace terrace::tools
