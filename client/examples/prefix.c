/* A whole conversation with terraced in C99: one process stores the blocks of a prompt, anybody who
 * runs the same program again is served from the cache.
 *
 *   terrace-prefix-example SOCKET
 *
 * Prints "stored 4 blocks" the first time and "loaded 4 blocks, all bytes right" afterwards. A real
 * engine would fill its attention pages where this one computes bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrace/terrace.h"

enum { kBlocks = 4, kBlockTokens = 16, kPartBytes = 65536, kParts = 2 };
static const uint64_t kDeadlineUs = 5000000;

static int fail(const char* what, terrace_status status, const char* why) {
  fprintf(stderr, "%s: %s. %s\n", what, terrace_status_name(status), why);
  return 1;
}

/* Stands for the attention's keys and values of part `part` of block `block`. */
static void compute(unsigned char* bytes, unsigned block, unsigned part) {
  for (unsigned i = 0; i < kPartBytes; ++i) {
    bytes[i] = (unsigned char)(i * 31 + block * 7 + part * 3);
  }
}

static terrace_status open_group(terrace_client* client, terrace_group* group, char* why,
                                 size_t why_bytes) {
  const uint64_t part_bytes[kParts] = {kPartBytes, kPartBytes};
  terrace_space space = TERRACE_SPACE_INIT;
  space.model = "prefix-example";
  space.revision = "1";
  space.dtype = "bf16";
  space.layout = "nhd";
  space.part_bytes = part_bytes;
  space.part_count = kParts;
  space.layers = 2;
  space.kv_heads = 8;
  space.head_size = 128;
  space.block_tokens = kBlockTokens;
  const terrace_space* const members[] = {&space};
  terrace_group_spec spec = TERRACE_GROUP_SPEC_INIT;
  spec.name = "prefix-example";
  spec.member_count = 1;
  spec.members = members;
  return terrace_open(client, &spec, 1, kDeadlineUs, group, why, why_bytes);
}

static int load(terrace_client* client, const terrace_read_lease* lease) {
  static unsigned char loaded[kPartBytes], expected[kPartBytes];
  const uint32_t block_count = terrace_read_lease_block_count(lease);
  terrace_status status = terrace_wait_ready(client, lease, block_count, kDeadlineUs);
  for (uint32_t block = 0; status == TERRACE_OK && block < block_count; ++block) {
    for (uint32_t part = 0; status == TERRACE_OK && part < kParts; ++part) {
      status = terrace_read_lease_copy_part(lease, block, 0, part, loaded, kPartBytes);
      compute(expected, block, part);
      if (status == TERRACE_OK && memcmp(loaded, expected, kPartBytes) != 0) {
        return fail("load", TERRACE_CORRUPT, "wrong bytes");
      }
    }
  }
  if (status != TERRACE_OK) return fail("load", status, "the rest has to be recomputed");
  printf("loaded %u blocks, all bytes right\n", block_count);
  return 0;
}

static int store(terrace_client* client, terrace_group group, const terrace_id* keys) {
  static unsigned char computed[kPartBytes];
  terrace_write_lease lease = {{0}};
  terrace_request request = TERRACE_REQUEST_INIT;
  request.deadline_us = kDeadlineUs;
  terrace_status status = terrace_reserve(client, group, keys, kBlocks, &request, &lease);
  for (uint32_t block = 0; status == TERRACE_OK && block < kBlocks; ++block) {
    terrace_reserved_key key;
    status = terrace_write_lease_key(&lease, block, &key);
    if (status != TERRACE_OK || key.status != TERRACE_OK) continue; /* somebody else has it */
    for (uint32_t part = 0; status == TERRACE_OK && part < kParts; ++part) {
      compute(computed, block, part);
      status = terrace_write_lease_write_part(&lease, block, 0, part, computed, kPartBytes);
    }
  }
  uint32_t sealed_count = 0;
  request.flags = TERRACE_COMMIT_RELEASE;
  if (status == TERRACE_OK) status = terrace_commit(client, &lease, &request, &sealed_count);
  terrace_write_lease_abort(&lease);
  if (status != TERRACE_OK) return fail("store", status, "the blocks are not cached");
  printf("stored %u blocks\n", sealed_count);
  return 0;
}

int main(int argc, char** argv) {
  char why[512] = "";
  if (argc != 2) {
    fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
    return 2;
  }
  terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
  options.socket_path = argv[1];
  options.client_name = "prefix-example";
  terrace_client* client = NULL;
  terrace_status status = terrace_client_create(&options, &client, why, sizeof(why));
  if (status != TERRACE_OK) return fail("client", status, why);
  status = terrace_client_wait_connected(client, kDeadlineUs);
  if (status != TERRACE_OK) {
    terrace_client_last_error(client, why, sizeof(why));
    terrace_client_destroy(client);
    return fail("connect", status, why);
  }
  terrace_group group = TERRACE_GROUP_NONE;
  status = open_group(client, &group, why, sizeof(why));
  uint32_t tokens[kBlocks * kBlockTokens];
  for (uint32_t i = 0; i < kBlocks * kBlockTokens; ++i) tokens[i] = i * i;
  terrace_id keys[kBlocks];
  size_t key_count = 0;
  if (status == TERRACE_OK) {
    status = terrace_hash_tokens(client, group, NULL, tokens, kBlocks * kBlockTokens, keys, kBlocks,
                                 &key_count);
  }
  terrace_read_lease lease = {{0}};
  terrace_request request = TERRACE_REQUEST_INIT;
  request.deadline_us = kDeadlineUs;
  if (status == TERRACE_OK) {
    status = terrace_acquire(client, group, keys, key_count, &request, &lease);
  }
  int exit_status = 0;
  if (status != TERRACE_OK) {
    if (group != TERRACE_GROUP_NONE) terrace_client_last_error(client, why, sizeof(why));
    exit_status = fail(group == TERRACE_GROUP_NONE ? "open" : "acquire", status, why);
  } else if (terrace_read_lease_block_count(&lease) == kBlocks) {
    exit_status = load(client, &lease);
  } else {
    exit_status = store(client, group, keys);
  }
  terrace_read_lease_release(&lease, TERRACE_END_OF_TURN);
  terrace_client_destroy(client);
  return exit_status;
}
