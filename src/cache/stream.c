/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the mirror ahead.
 *
 * The kernel asks for one readahead window at a time, so a drive that could do two would wait for us in between, and we
 * for it.  Once a reader has gone from front to back for a while, the next two mebibytes that are present are read
 * before they are asked for.  Nothing but the drive's time is at stake: a buffer is used only if its range is present
 * when it is asked for and its bytes verify then (with verify=off: if nothing left the mirror meanwhile); otherwise
 * the mirror is read as if there had been no buffer.
 */
#include "base/util.h"
#include "cache/internal.h"

#define STREAM_AFTER (2 * MIB)  /* expert slices are shorter: reading behind their ends would only cost */
#define STREAM_SLACK (512 * KIB) /* requests of one reader may arrive in another order */
#define AHEAD_BYTES BUFFER_MAX

/* Under the lock.  Its buffer wakes no read that waits for one: these hold a quarter of the pool at most, so whoever
 * waits does so for buffers of reads and admissions, which wake when they come back. */
static void drop(struct ahead *a) {
        if (--a->refs > 0)
                return;
        a->cache->mixed_bytes -= buffer_room(a->len);
        mirror_unref(a->mirror);
        buffer_put(a->cache->buffers, a->buf, a->len);
        free(a);
}

void ahead_unref(struct ahead *a) {
        if (!a)
                return;
        struct cache *c = a->cache;
        pthread_mutex_lock(&c->lock);
        drop(a);
        pthread_mutex_unlock(&c->lock);
}

static void ahead_done(struct io_op *op, ssize_t result) {
        struct ahead *a = container_of(op, struct ahead, io);

        pthread_mutex_lock(&a->cache->lock);
        a->landed = true;
        a->good = result >= (ssize_t)a->len;
        pthread_cond_broadcast(&a->cache->ahead_landed);
        pthread_mutex_unlock(&a->cache->lock);
        ahead_unref(a);
}

void ahead_start(struct ahead *a) {
        if (!a)
                return;
        count(a->cache, COUNT_mirror_read_bytes, a->len);
        mirror_prepare_read(a->mirror, &a->io, a->buf, a->len, a->off);
        a->io.done = ahead_done;
        io_submit(a->cache->mirror_io, &a->io);
}

const char *ahead_wait(struct ahead *a) {
        pthread_mutex_lock(&a->cache->lock);
        while (!a->landed)
                pthread_cond_wait(&a->cache->ahead_landed, &a->cache->lock);
        bool good = a->good;
        pthread_mutex_unlock(&a->cache->lock);
        return good ? a->buf : NULL;
}

/* References: the stream's and the engine's. */
static struct ahead *ahead_new(struct cache_handle *h, uint64_t off) {
        struct cache_file *f = h->file;
        struct cache *c = h->cache;
        uint64_t to = range_map_good_to(&f->map, off, off + AHEAD_BYTES);

        if (!f->mirror || to == off)
                return NULL;
        size_t len = to - off;
        if (c->mixed_bytes + buffer_room(len) > MIXED_BYTES)
                return NULL;
        struct ahead *a = calloc(1, sizeof *a);
        if (!a || !(a->buf = buffer_get(c->buffers, len))) {
                free(a);
                return NULL;
        }
        c->mixed_bytes += buffer_room(len);
        a->cache = c;
        a->mirror = mirror_ref(f->mirror);
        a->off = off;
        a->len = len;
        a->removals = f->removals;
        a->refs = 2;
        return a;
}

/* Drops what ends before `before`. */
static void leave_behind(struct stream *s, uint64_t before) {
        for (size_t i = 0; i < AHEADS; i++) {
                struct ahead *a = s->aheads[i];
                if (!a || a->off + a->len > before)
                        continue;
                s->aheads[i] = NULL;
                drop(a);
        }
        if (!s->aheads[0]) {
                s->aheads[0] = s->aheads[1];
                s->aheads[1] = NULL;
        }
}

void stream_end(struct cache_handle *h) {
        leave_behind(&h->stream, UINT64_MAX);
        h->stream.bytes = 0;
}

struct ahead *stream_find(struct cache_handle *h, uint64_t off, uint64_t end) {
        for (size_t i = 0; i < AHEADS; i++) {
                struct ahead *a = h->stream.aheads[i];
                if (a && a->off <= off && end <= a->off + a->len) {
                        a->refs++;
                        return a;
                }
        }
        return NULL;
}

struct ahead *stream_note(struct cache_handle *h, uint64_t off, uint64_t end) {
        struct stream *s = &h->stream;

        if (off > s->end + STREAM_SLACK || off + STREAM_SLACK < s->end)
                stream_end(h); /* elsewhere */
        if (s->bytes == 0)
                s->end = off;
        s->bytes += end - off;
        s->end = max_u64(s->end, end);
        if (s->bytes < STREAM_AFTER)
                return NULL;
        leave_behind(s, s->end > STREAM_SLACK ? s->end - STREAM_SLACK : 0);
        size_t n = s->aheads[0] ? (s->aheads[1] ? 2 : 1) : 0;
        uint64_t next = n > 0 ? s->aheads[n - 1]->off + s->aheads[n - 1]->len : block_up(s->end);
        if (n == AHEADS || next < s->end)
                return NULL;
        return s->aheads[n] = ahead_new(h, next);
}
