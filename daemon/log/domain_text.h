// How a line of the log calls a domain that its event knows by its index.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace terrace {

// By its name; where that is not known, by the index.
inline std::string DomainText(std::span<const std::string> names, uint32_t domain_index) {
  return domain_index < names.size() ? names[domain_index] : std::to_string(domain_index);
}

}  // namespace terrace
