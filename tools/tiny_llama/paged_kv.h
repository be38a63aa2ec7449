// The KV of one sequence, page by page; page i holds block i of the prompt (shape.h has the
// layout).
//
// THREADING: one thread at a time.
// LIMITS: `pages_max` pages; a page takes memory when it is first asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/check.h"
#include "tiny_llama/float_buffer.h"

namespace terrace::tiny_llama {

class PagedKv {
 public:
  struct Options {
    uint64_t page_bytes = 0;  // a multiple of sizeof(float)
    uint32_t pages_max = 0;
  };
  explicit PagedKv(const Options& options) : options_(options), pages_(options.pages_max) {}

  // Page `index`, zero when it is new. REQUIRES: index < pages_max.
  std::span<float> Page(uint32_t index) {
    TERRACE_CHECK(index < pages_.size(), "a page beyond the context");
    if (pages_[index].count() == 0) pages_[index] = FloatBuffer(page_bytes() / sizeof(float));
    return pages_[index].span();
  }

  // The same page as the bytes of one block.
  std::span<std::byte> PageBytes(uint32_t index) { return std::as_writable_bytes(Page(index)); }

  uint64_t page_bytes() const { return options_.page_bytes; }
  uint32_t pages_max() const { return options_.pages_max; }

 private:
  Options options_;
  std::vector<FloatBuffer> pages_;
};

}  // namespace terrace::tiny_llama
