/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mirrors: one sparse file per source file, byte X of the source at byte X, and beside it the sidecar of checksums.
 *
 * A mirror is read with O_DIRECT where the file system can, so that the bytes live in one page cache, the mount's.
 * The sidecar goes through the page cache: 8 bytes per 4 KiB, read again and again.
 *
 * Threads: reads from anywhere.  Writes and punches of all mirrors come from one thread (the cache's writer), so that
 * a range is never punched behind its own rewrite.  A mirror is counted: whoever holds one can go on reading it after
 * it was retired.
 */
#pragma once

#include "io/io.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct store;
struct mirror;

/* Opens the mirror of file `id`; `create`: makes it.  -ENOENT, -errno. */
int mirror_open(struct store *s, uint64_t id, uint64_t size, bool create, struct mirror **ret);
struct mirror *mirror_ref(struct mirror *m);
struct mirror *mirror_unref(struct mirror *m); /* returns NULL; NULL is ignored */

/* `off` is a multiple of 4 KiB, `buf` aligned to it and as long as `len` rounded up to it; `len` ends on a block or
 * at the file's end.  0, or -errno; -ENODATA where the mirror is shorter than it should be. */
int mirror_read(struct mirror *m, void *buf, size_t len, uint64_t off);
/* The same, for an engine: the caller sets done and submits it, and holds the mirror until then. */
void mirror_prepare_read(struct mirror *m, struct io_op *op, void *buf, size_t len, uint64_t off);
/* Do these bytes, just read from [off, off+len), match the sidecar?  0, -EBADMSG or -errno; then `ret_bad` is the
 * stretch from the first block that does not to the last. */
struct bad_stretch {
        uint64_t off, len;
};
int mirror_verify(struct mirror *m, const void *buf, size_t len, uint64_t off, uint64_t nonce, struct bad_stretch *ret_bad);
/* Data, then checksums.  Zeros stay a hole, as they may be in the source; only their checksums are written.  `buf` has
 * room up to the end of the last block.  On an error nothing of the range may be believed. */
int mirror_write(struct mirror *m, void *buf, size_t len, uint64_t off, uint64_t nonce);
/* Frees the range.  `len` rounded up to a block. */
int mirror_punch(struct mirror *m, uint64_t off, uint64_t len);
/* Frees the checksums of the 2 MiB of mirror that share one sidecar block with `off`. */
int mirror_punch_sums(struct mirror *m, uint64_t off);
#define MIRROR_SUMS_SPAN (2ull * 1024 * 1024) /* bytes of mirror whose checksums fill one 4 KiB block */

/* After a crash: frees whatever `next` does not claim.  next(ctx, off): the first claimed stretch that ends behind
 * `off`, false if there is none. */
typedef bool (*mirror_claim)(void *ctx, uint64_t off, uint64_t *ret_off, uint64_t *ret_end);
int mirror_reconcile(struct mirror *m, mirror_claim next, void *ctx);

void mirror_unlink(struct store *s, uint64_t id);
