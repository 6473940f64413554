/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flights: reads of the source, each shared by everybody who wants its bytes while it is under way.
 *
 * A flight is joinable from its creation until its bytes are in the mirror (or it was decided that they will not be),
 * so that a crowd of readers costs one read of the source although they do not arrive at once.  References: its
 * maker's, one for each waiter, the engine's while it reads, the admission queue's.
 */
#include "base/fault.h"
#include "base/util.h"
#include "cache/internal.h"

#include <errno.h>

static struct flight *flight_make(struct cache_handle *h, uint64_t off, size_t len) {
        struct flight *fl = calloc(1, sizeof *fl);

        if (!fl)
                return NULL;
        fl->span = (struct span){ .off = off, .len = len };
        fl->handle = h;
        h->refs++;
        fl->refs = 1;
        LIST_INIT(&fl->waiters);
        return fl;
}

static void make_admissible(struct flight *fl) {
        fl->admissible = fl->handle->file->settled;
        fl->generation = fl->handle->file->generation;
}

struct flight *flight_new(struct cache_handle *h, uint64_t off, size_t len) {
        struct flight *fl = flight_make(h, off, len);

        if (!fl)
                return NULL;
        fl->shared = true;
        make_admissible(fl);
        span_insert(&h->file->flights, &fl->span);
        return fl;
}

struct flight *flight_new_private(struct cache_handle *h, uint64_t off, size_t len, bool admit) {
        struct flight *fl = flight_make(h, off, len);

        if (!fl || !admit)
                return fl;
        pthread_mutex_lock(&h->cache->lock);
        make_admissible(fl);
        /* Aligned outward, it must end where the source does. */
        fl->span.len = min_u64(len, h->file->identity.version.size - min_u64(off, h->file->identity.version.size));
        pthread_mutex_unlock(&h->cache->lock);
        return fl;
}

void flight_leave_tree(struct flight *fl) {
        if (!fl->shared)
                return;
        fl->shared = false;
        span_remove(&fl->handle->file->flights, &fl->span);
}

void flights_detach(struct cache_file *f) {
        struct span *s;

        while ((s = RB_ROOT(&f->flights)))
                flight_leave_tree(container_of(s, struct flight, span));
}

bool flight_join(struct flight *fl, struct waiter *w) {
        fl->refs++;
        w->flight = fl;
        if (fl->landed)
                return false;
        LIST_INSERT_HEAD(&fl->waiters, w, link);
        return true;
}

void flight_abandon(struct waiter *w, bool made) {
        struct flight *fl = w->flight;

        if (!fl->landed)
                LIST_REMOVE(w, link);
        if (made) {
                flight_leave_tree(fl);
                fl->refs--; /* its maker's: not the last, the waiter still has one */
        }
}

void flight_unref(struct flight *fl) {
        if (--fl->refs > 0)
                return;
        struct cache *c = fl->handle->cache;
        bool had_buffer = fl->buf;

        buffer_put(c->buffers, fl->buf, fl->span.len);
        handle_unref(fl->handle);
        free(fl);
        if (had_buffer)
                buffers_kick(c);
}

static void note_source_error(struct flight *fl, int error) {
        struct cache_file *f = fl->handle->file;

        if (!f)
                return;
        f->error = error;
        f->error_off = fl->span.off;
        f->error_end = fl->span.off + fl->span.len;
        f->error_until_ns = monotonic_ns() + 1000000000;
}

static bool worth_admitting(const struct flight *fl) {
        struct cache_file *f = fl->handle->file;

        return fl->admissible && fl->result == (ssize_t)fl->span.len && fl->generation == f->generation &&
               f->writers == 0 && f->changing == 0 && f->cache->mode == MODE_PROD;
}

/* Under the lock.  Waiters are handed over; the flight stays joinable only while the queue holds it. */
static void land(struct flight *fl, ssize_t result) {
        struct cache *c = fl->handle->cache;

        fl->result = result;
        fl->landed = true;
        if (result < 0) {
                count(c, COUNT_source_errors, 1);
                note_source_error(fl, (int)-result);
        } else {
                count(c, COUNT_source_read_bytes, (uint64_t)result);
        }
        cache_note_source(c, result < 0 ? (int)result : 0);
        if (worth_admitting(fl) && admission_offer(fl))
                return;
        flight_leave_tree(fl);
}

static void flight_done(struct io_op *op, ssize_t result) {
        struct flight *fl = container_of(op, struct flight, io);
        struct cache *c = fl->handle->cache;
        LIST_HEAD(, waiter) waiters = LIST_HEAD_INITIALIZER(waiters);
        struct waiter *w;

        source_note_result(c->source, op);
        pthread_mutex_lock(&c->lock);
        land(fl, result);
        /* From here on nobody else touches the waiters: who joins a landed flight does not wait. */
        while ((w = LIST_FIRST(&fl->waiters))) {
                LIST_REMOVE(w, link);
                LIST_INSERT_HEAD(&waiters, w, link);
        }
        pthread_mutex_unlock(&c->lock);
        while ((w = LIST_FIRST(&waiters))) {
                LIST_REMOVE(w, link);
                w->landed(w);
        }
        flight_unref(fl);
}

static void read_source(struct flight *fl) {
        struct cache_handle *h = fl->handle;
        int r = fault_check(FAULT_SOURCE_READ);

        source_prepare_read(h->cache->source, &fl->io, h->fd, fl->buf, fl->span.len, fl->span.off);
        fl->io.done = flight_done;
        if (r < 0)
                flight_done(&fl->io, r);
        else
                io_submit(h->cache->io, &fl->io);
}

void flight_start(struct flight *fl) {
        struct cache *c = fl->handle->cache;

        fl->refs++; /* the engine's, until flight_done */
        if ((fl->buf = buffer_get(c->buffers, fl->span.len))) {
                read_source(fl);
                return;
        }
        pthread_mutex_lock(&c->lock);
        TAILQ_INSERT_TAIL(&c->starved, fl, link);
        pthread_mutex_unlock(&c->lock);
        buffers_kick(c); /* the last buffer may have come back just before we queued */
}

/* First come, first served: a flight that has to wait must not wait for ever behind smaller ones. */
void buffers_kick(struct cache *c) {
        for (;;) {
                pthread_mutex_lock(&c->lock);
                struct flight *fl = TAILQ_FIRST(&c->starved);
                if (fl && (fl->buf = buffer_get(c->buffers, fl->span.len)))
                        TAILQ_REMOVE(&c->starved, fl, link);
                else
                        fl = NULL;
                pthread_mutex_unlock(&c->lock);
                if (!fl)
                        return;
                read_source(fl);
        }
}
