/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache directory: lock, mirrors/, index.db; what it takes and what its file system has left.
 *
 *   CACHE/lock                  held by the owner; names it for others
 *   CACHE/index.db              which ranges of which file versions are present (store/index.h)
 *   CACHE/mirrors/XX/ID[.sum]   the bytes and their checksums (store/mirror.h)
 *
 * Nothing here is synced for safety: whatever a crash leaves behind either verifies or is a miss.  Recovery only has
 * to give back space that nobody knows of any more.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define STORE_ERROR_MAX 512

struct store;
struct index;

/* Takes the directory (made if its parent exists), waiting up to `wait_seconds` for a previous owner to leave.
 * `owner` is what the lock says to others: the mount point.  On failure -errno and a sentence in `error`. */
int store_open(const char *path, const char *owner, unsigned wait_seconds, struct store **ret, char *error);
/* `clean`: everything known was written to the index. */
struct store *store_close(struct store *s, bool clean);

/* Calls `found` for every mirror in the directory.  -errno. */
int store_each_mirror(struct store *s, void (*found)(void *ctx, uint64_t id), void *ctx);
bool store_was_clean(const struct store *s);
uint32_t store_block_size(const struct store *s);
struct index *store_index(struct store *s);
int store_reset_index(struct store *s); /* after -EBADMSG from it: an empty one */

/* The physical size of everything in the directory, in bytes.  Walks it. */
uint64_t store_used(struct store *s);
/* What is not mirrors: index, lock, folders. */
uint64_t store_metadata_used(struct store *s);
struct store_space {
        uint64_t total, available; /* of the file system, for us */
};
int store_space(struct store *s, struct store_space *ret);

/* Sentences for `warnings`: network, tmpfs, rotating, the source's own device.  Calls `warn` for each. */
void store_warnings(struct store *s, int source_root, void (*warn)(void *ctx, const char *text), void *ctx);
