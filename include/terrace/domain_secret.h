// The secret of a domain and the file it lives in. Every host that serves the domain holds the same
// file; keys and checksums of one secret mean nothing under another.
//
// The file is one line of text, so that it travels through configuration management unharmed:
//   terrace-secret-1 <384 lower-case hex digits>\n
// It is readable by its owner alone (0600 or 0400), who is root or the user that reads it; a
// systemd credential may be readable by its group, too (secret_mode.h).
#pragma once

#include <string>
#include <string_view>

#include "terrace/checksum.h"
#include "terrace/status.h"

namespace terrace {

// The file's content for `secret`, and its reading. kInvalid with `*why` for anything that
// FormatDomainSecret does not write (a missing last newline is forgiven), and for a secret whose
// bytes are all equal.
std::string FormatDomainSecret(const DomainSecret& secret);
Status ParseDomainSecret(std::string_view text, DomainSecret* secret, std::string* why);

// 16 hex digits that two operators may compare aloud: equal secrets have equal fingerprints, and a
// fingerprint says nothing about its secret.
std::string DomainSecretFingerprint(const DomainSecret& secret);

// kNotFound (no such file), kInvalid (owner, mode, kind or content), kIo. `*why` names the file,
// what is wrong and the remedy.
Status ReadDomainSecretFile(const std::string& path, DomainSecret* secret, std::string* why);

// Draws a secret and writes it to a new file of mode 0600, whole or not at all. kExists if `path`
// exists already; it is never replaced. kIo otherwise.
Status CreateDomainSecretFile(const std::string& path, std::string* why);

}  // namespace terrace
