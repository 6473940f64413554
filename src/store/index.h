/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: which ranges of which file versions are present, in an SQLite database.
 *
 * Written behind: a row says what was true when it was written, and a block that does not verify is a miss, so no
 * order between rows and bytes is needed.  Rows carry a checksum of their own: a flipped bit that SQLite cannot see
 * drops a row.  A file that SQLite refuses is deleted: a lost index is an empty cache, no more.
 *
 * The unit of writing is a segment (64 MiB of one file): its rows are replaced by what memory holds now.  Rows never
 * cross a segment, so a segment is always whole in itself.
 *
 * Threads: one at a time (the opener, then the flusher).
 */
#pragma once

#include "source/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_SEGMENT (64ull * 1024 * 1024)
/* What one extent may take beside its bytes and checksums: its row (measured: 75-95 bytes with its share of inner
 * pages), and, where a file has only one, the file's row and its names in a folder. */
#define INDEX_ROW_BYTES 288u

struct index;

struct index_file {
        uint64_t id; /* names the mirror; never 0 */
        struct identity identity;
};
struct index_extent {
        uint64_t off, len, nonce;
        double heat;  /* as policy.h: relative to the clock */
        uint64_t age; /* bytes */
        bool suspect; /* to be compared with the source before it is served */
};

/* `ret_fresh`: it is a new one, or a damaged one was replaced: nothing in the directory is known. */
int index_open(int dir, struct index **ret, bool *ret_fresh);
struct index *index_close(struct index *ix);

/* Everything in it, all files before all extents.  A row that does not verify is only counted.  -EBADMSG: the database
 * is damaged; index_reset makes it an empty one. */
struct index_reader {
        void (*file)(void *ctx, const struct index_file *f);
        void (*extent)(void *ctx, uint64_t id, const struct index_extent *e);
        void *ctx;
};
int index_load(struct index *ix, const struct index_reader *reader, uint64_t *ret_bad_rows);
int index_reset(struct index *ix, int dir);
void index_delete(int dir); /* its files */

/* A batch: begin, any of the others, commit.  An error rolls back, and the caller tries again later. */
int index_begin(struct index *ix);
int index_put_file(struct index *ix, const struct index_file *f);
int index_delete_file(struct index *ix, uint64_t id);
int index_put_segment(struct index *ix, uint64_t id, uint64_t segment, const struct index_extent *rows, size_t count);
int index_commit(struct index *ix);
void index_rollback(struct index *ix);
