/* SPDX-License-Identifier: Apache-2.0 */
/*
 * THE READ PATH.
 *
 *   cache_read     plan under the lock: which pieces are present, under way, missing
 *    |- all present   the calling thread reads the mirror, verifies, replies (no allocation, no other thread)
 *    '- otherwise     missing pieces take off as flights, present ones are read meanwhile; whoever ends the last piece
 *                     replies, straight from the flights' buffers; admission comes behind the reply (flight.c, admit.c)
 *
 * A present piece that does not verify is dropped and planned again: it is missing then.  After a few such rounds, or
 * where memory is short, the read goes to the source as one private flight.
 */
#include "base/fault.h"
#include "base/util.h"
#include "cache/internal.h"

#include <errno.h>
#include <string.h>

enum { HIT_ROUNDS = 3 };

/* A read as planned: [off, end) is what was asked for, [start, stop) the same aligned outward to blocks. */
struct plan {
        uint64_t off, end, start, stop;
        struct piece pieces[MAX_PIECES];
        size_t count;
        struct mirror *mirror; /* referenced, where a piece is present */
        struct ahead *ahead, *start_ahead; /* READ_HIT: bytes that were read ahead, and the next to read */
        uint64_t removals;
        int error; /* READ_ERROR: positive */
};

/* One that needs the source: lives until it has replied. */
struct part {
        struct waiter waiter; /* waiter.flight: NULL for a piece from the mirror */
        struct piece piece;
        struct read_op *op;
};
struct read_op {
        struct cache_handle *handle;
        struct read_sink *sink;
        uint64_t off, end, start;
        _Atomic unsigned pending;
        bool bypass; /* counted as such */
        bool mirror_failed;
        char *mixed; /* pieces from the mirror, at their place in [start, stop) */
        size_t mixed_size;
        size_t count;
        struct part parts[];
};

static uint64_t clip(uint64_t off, uint64_t end, uint64_t a, uint64_t b) {
        uint64_t lo = max_u64(off, a), hi = min_u64(end, b);
        return hi > lo ? hi - lo : 0;
}

/* ---- counting and replying ---- */

static void count_read(struct cache *c, uint64_t hit, uint64_t joined, uint64_t miss) {
        uint64_t all = hit + joined + miss;

        if (all == 0) {
                count(c, COUNT_empty_reads, 1);
                return;
        }
        count(c, COUNT_reads, 1);
        count(c, COUNT_read_bytes, all);
        count(c, hit == all ? COUNT_hits : hit ? COUNT_partials : COUNT_misses, 1);
        count(c, COUNT_hit_bytes, hit);
        count(c, COUNT_joined_bytes, joined);
        count(c, COUNT_miss_bytes, miss);
}

static void fail(struct cache *c, struct read_sink *sink, int error) {
        count(c, COUNT_failed_reads, 1);
        sink->fail(sink, error);
}

/* ---- the fast way: everything is present ---- */

/* Pages of the calling thread, kept for its life: a hit allocates nothing. */
static pthread_key_t thread_buffer_key;
static pthread_once_t thread_buffer_once = PTHREAD_ONCE_INIT;
static void make_key(void) { pthread_key_create(&thread_buffer_key, free); }

static void *thread_buffer(void) {
        pthread_once(&thread_buffer_once, make_key);
        void *buf = pthread_getspecific(thread_buffer_key);
        if (!buf && posix_memalign(&buf, BLOCK, CACHE_READ_MAX + 2 * BLOCK) == 0)
                pthread_setspecific(thread_buffer_key, buf);
        return buf;
}

static bool must_verify(const struct cache_file *f) {
        return f->cache->options->verify != VERIFY_OFF || f->from_index;
}

/* What failed to verify, or to be read at all, is no longer present.  Unless it was evicted while we read: then the
 * plan is old and nothing is wrong. */
static void drop_bad(struct cache_file *f, const struct bad_stretch *bad, uint64_t removals, int error) {
        struct cache *c = f->cache;

        pthread_mutex_lock(&c->lock);
        if (f->removals == removals) {
                bool corrupt = error == -EBADMSG || error == -ENODATA;
                count(c, corrupt ? COUNT_corrupt_bytes : COUNT_cache_errors, corrupt ? bad->len : 1);
                policy_drop(c->policy, &f->map, bad->off, bad->len, sink_cut, NULL);
        }
        pthread_mutex_unlock(&c->lock);
}

/* Without checksums only this tells that no hole was punched under a read. */
static bool raced(struct cache_file *f, uint64_t removals) {
        pthread_mutex_lock(&f->cache->lock);
        bool removed = f->removals != removals;
        pthread_mutex_unlock(&f->cache->lock);
        return removed;
}

/* Reads and verifies present pieces that lie in one stretch; `base` is the offset that `buf` begins with.  0, or the
 * error for which something was dropped. */
static int read_pieces(struct cache_file *f, struct mirror *m, char *buf, uint64_t base, const struct piece *p, size_t n,
                       uint64_t removals) {
        struct cache *c = f->cache;
        struct bad_stretch bad = { p[0].off, p[n - 1].off + p[n - 1].len - p[0].off };
        bool checked = must_verify(f);
        int r = mirror_read(m, buf + (bad.off - base), bad.len, bad.off);

        count(c, COUNT_mirror_read_bytes, bad.len);
        for (size_t i = 0; r == 0 && checked && i < n; i++)
                r = mirror_verify(m, buf + (p[i].off - base), p[i].len, p[i].off, p[i].nonce, &bad);
        if (r < 0)
                drop_bad(f, &bad, removals, r);
        else if (!checked && raced(f, removals))
                r = -EAGAIN;
        return r;
}

static void reply_bytes(struct cache_handle *h, const struct plan *pl, const char *bytes, struct read_sink *sink) {
        struct iovec iov = { (char *)bytes + (pl->off - pl->start), pl->end - pl->off };

        count_read(h->cache, iov.iov_len, 0, 0);
        sink->reply(sink, &iov, 1);
}

/* From a buffer that was read ahead.  False: it is not good (any more), which says nothing about the mirror. */
static bool reply_ahead(struct cache_handle *h, const struct plan *pl, struct read_sink *sink) {
        const char *buf = pl->ahead ? ahead_wait(pl->ahead) : NULL;
        bool checked = must_verify(h->file);
        struct bad_stretch bad;

        if (!buf || pl->ahead->mirror != pl->mirror || (!checked && pl->ahead->removals != pl->removals))
                return false;
        buf += pl->start - pl->ahead->off;
        for (size_t i = 0; checked && i < pl->count; i++) {
                const struct piece *p = &pl->pieces[i];
                if (mirror_verify(pl->mirror, buf + (p->off - pl->start), p->len, p->off, p->nonce, &bad) < 0)
                        return false;
        }
        reply_bytes(h, pl, buf, sink);
        return true;
}

static bool reply_hit(struct cache_handle *h, struct plan *pl, struct read_sink *sink) {
        if (reply_ahead(h, pl, sink))
                return true;

        char *buf = thread_buffer();
        if (!buf || read_pieces(h->file, pl->mirror, buf, pl->start, pl->pieces, pl->count, pl->removals) < 0)
                return false;
        reply_bytes(h, pl, buf, sink);
        return true;
}

/* ---- the way over the source ---- */

/* A read of the source that nobody joins. */
enum private_kind {
        PRIVATE_BYPASS, /* of a file that is not cached at present; counted as such */
        PRIVATE_ONLY,   /* counted as a miss */
        PRIVATE_ADMIT,  /* aligned outward, and admitted where it is not present: a range in shreds heals */
};

static void op_free(struct read_op *op) {
        struct cache *c = op->handle->cache;

        for (size_t i = 0; i < op->count; i++)
                if (op->parts[i].waiter.flight)
                        flight_unref(op->parts[i].waiter.flight);
        if (op->mixed) {
                buffer_put(c->buffers, op->mixed, op->mixed_size);
                pthread_mutex_lock(&c->lock);
                c->mixed_bytes -= buffer_room(op->mixed_size);
                pthread_mutex_unlock(&c->lock);
                buffers_kick(c);
        }
        handle_unref(op->handle);
        free(op);
}

/* The bytes of one part that are there: less than it is long only where the source has ended. */
static int part_bytes(const struct read_op *op, const struct part *p, struct iovec *ret) {
        const struct flight *fl = p->waiter.flight;
        uint64_t from = max_u64(op->off, p->piece.off), to = min_u64(op->end, p->piece.off + p->piece.len);

        *ret = (struct iovec){ 0 };
        if (fl && fl->result < 0)
                return (int)fl->result;
        if (fl)
                to = min_u64(to, fl->span.off + (uint64_t)fl->result);
        if (to > from) {
                ret->iov_base = fl ? (char *)fl->buf + (from - fl->span.off) : op->mixed + (from - op->start);
                ret->iov_len = to - from;
        }
        return 0;
}

static void count_op(const struct read_op *op, const struct iovec *iov) {
        uint64_t bytes[] = { [PIECE_HIT] = 0, [PIECE_MISS] = 0, [PIECE_JOIN] = 0 };
        struct cache *c = op->handle->cache;

        for (size_t i = 0; i < op->count; i++)
                bytes[op->parts[i].piece.kind] += iov[i].iov_len;
        uint64_t all = bytes[PIECE_HIT] + bytes[PIECE_MISS] + bytes[PIECE_JOIN];
        if (op->bypass && all > 0) {
                count(c, COUNT_bypass_reads, 1);
                count(c, COUNT_bypass_bytes, all);
        } else {
                count_read(c, bytes[PIECE_HIT], bytes[PIECE_JOIN], bytes[PIECE_MISS]);
        }
}

static void read_private(struct cache_handle *h, uint64_t off, uint64_t end, enum private_kind kind,
                         struct read_sink *sink, bool waiting);

/* The bytes of all parts in order, up to where the source ended before it should.  -errno, or how many vectors. */
static int op_gather(const struct read_op *op, struct iovec *iov) {
        int n = 0;

        for (size_t i = 0; i < op->count; i++) {
                const struct piece *p = &op->parts[i].piece;
                int r = part_bytes(op, &op->parts[i], &iov[n]);
                if (r < 0)
                        return r;
                if (iov[n++].iov_len < clip(op->off, op->end, p->off, p->off + p->len))
                        break;
        }
        return n;
}

/* Every piece is there: reply.  The only place where a read that needed the source ends. */
static void op_finish(struct read_op *op) {
        struct iovec iov[MAX_PIECES] = { { 0 } };
        int n = op->mirror_failed ? 0 : op_gather(op, iov);

        if (op->mirror_failed) {
                read_private(op->handle, op->off, op->end, PRIVATE_ONLY, op->sink, true);
        } else if (n < 0) {
                fail(op->handle->cache, op->sink, -n);
        } else {
                count_op(op, iov);
                op->sink->reply(op->sink, iov, n);
        }
        op_free(op);
}

static void op_part_done(struct read_op *op) {
        if (--op->pending == 0)
                op_finish(op);
}

static void part_landed(struct waiter *w) { op_part_done(container_of(w, struct part, waiter)->op); }

static struct read_op *op_new(struct cache_handle *h, struct read_sink *sink, uint64_t off, uint64_t end, size_t count) {
        struct read_op *op = calloc(1, sizeof *op + count * sizeof op->parts[0]);

        if (!op)
                return NULL;
        *op = (struct read_op){ .handle = h, .sink = sink, .off = off, .end = end, .start = off, .pending = 1, .count = count };
        h->refs++;
        for (size_t i = 0; i < count; i++)
                op->parts[i].op = op;
        return op;
}

/* `waiting`: the sink was told to wait already. */
static void read_private(struct cache_handle *h, uint64_t off, uint64_t end, enum private_kind kind,
                         struct read_sink *sink, bool waiting) {
        uint64_t start = off, stop = end;
        struct read_op *op = op_new(h, sink, off, end, 1);

        if (kind == PRIVATE_ADMIT && block_up(end) - block_down(off) <= BUFFER_MAX) {
                start = block_down(off);
                stop = block_up(end);
        }
        struct flight *fl = op ? flight_new_private(h, start, stop - start, kind == PRIVATE_ADMIT) : NULL;
        if (!fl) {
                if (op)
                        op_free(op);
                fail(h->cache, sink, ENOMEM);
                return;
        }
        op->bypass = kind == PRIVATE_BYPASS;
        op->parts[0].piece = (struct piece){ .kind = PIECE_MISS, .off = off, .len = end - off };
        op->parts[0].waiter.landed = part_landed;
        flight_join(fl, &op->parts[0].waiter); /* nobody else knows it: it cannot have landed */
        if (!waiting)
                op->sink = sink->wait(sink);
        flight_start(fl);
        flight_unref(fl);
}

/* Under the lock: a flight for what is missing, a seat in one that is under way.  False: no memory. */
static bool take_part(struct read_op *op, struct part *part) {
        struct flight *fl = NULL;

        part->waiter.landed = part_landed;
        if (part->piece.kind == PIECE_HIT)
                return true;
        if (part->piece.kind == PIECE_JOIN)
                fl = container_of(part->piece.span, struct flight, span);
        else if (!(fl = flight_new(op->handle, part->piece.off, part->piece.len)))
                return false;
        if (!flight_join(fl, &part->waiter))
                return true; /* its bytes are there, waiting for the writer */
        op->pending++;
        return true;
}

/* Under the lock.  Where memory ends half way, what was begun is taken back before anybody saw it. */
static bool op_take_parts(struct read_op *op, const struct plan *pl) {
        for (size_t i = 0; i < pl->count; i++) {
                op->parts[i].piece = pl->pieces[i];
                if (take_part(op, &op->parts[i]))
                        continue;
                while (i-- > 0)
                        if (op->parts[i].waiter.flight)
                                flight_abandon(&op->parts[i].waiter, op->parts[i].piece.kind == PIECE_MISS);
                return false;
        }
        return true;
}

static bool op_take_mixed(struct read_op *op, const struct plan *pl) {
        struct cache *c = op->handle->cache;
        size_t size = pl->stop - pl->start;

        op->start = pl->start;
        if (!pl->mirror)
                return true;
        if (size > BUFFER_LARGEST || c->mixed_bytes + buffer_room(size) > MIXED_BYTES || !(op->mixed = buffer_get(c->buffers, size)))
                return false;
        op->mixed_size = size;
        c->mixed_bytes += buffer_room(size);
        return true;
}

static void op_start(struct read_op *op, const struct plan *pl) {
        struct cache_file *f = op->handle->file;

        op->sink = op->sink->wait(op->sink);
        for (size_t i = 0; i < op->count; i++)
                if (op->parts[i].piece.kind == PIECE_MISS) {
                        flight_start(op->parts[i].waiter.flight);
                        flight_unref(op->parts[i].waiter.flight); /* its maker's reference */
                }
        for (size_t i = 0; i < op->count && !op->mirror_failed; i++)
                if (op->parts[i].piece.kind == PIECE_HIT)
                        op->mirror_failed = read_pieces(f, pl->mirror, op->mixed, op->start, &op->parts[i].piece, 1,
                                                        pl->removals) < 0;
        op_part_done(op); /* the reference that kept it from ending under us */
}

/* ---- planning ---- */

enum verdict {
        READ_HIT,       /* all of it is present */
        READ_OP,        /* some of it has to come from the source */
        READ_PRIVATE,   /* in shreds, or memory is short: from the source, as one */
        READ_BYPASS,    /* not cached at present */
        READ_ERROR,     /* the source has just failed there */
        READ_NO_MIRROR, /* present, but the mirror is not open */
};

static bool remembered_error(const struct cache_file *f, uint64_t off, uint64_t end) {
        return f->error_until_ns && overlaps(off, end, f->error_off, f->error_end) && monotonic_ns() < f->error_until_ns;
}

/* Under the lock.  `first`: this read was not counted with the policy yet. */
static enum verdict plan(struct cache_handle *h, struct plan *pl, struct read_sink *sink, bool first, struct read_op **ret_op) {
        struct cache_file *f = h->file;
        struct cache *c = h->cache;
        uint64_t size = f->identity.version.size;
        bool all_hit = true, any_hit = false;

        if (c->mode == MODE_OFF || f->nameless || f->writers > 0 || f->changing > 0 || pl->off >= size)
                return READ_BYPASS;
        /* Where the end moves, only the source knows it: what we were told may be older than what the kernel was. */
        if (pl->end > size && !f->settled)
                return READ_BYPASS;
        pl->end = min_u64(pl->end, size);
        if (remembered_error(f, pl->off, pl->end)) {
                pl->error = f->error;
                return READ_ERROR;
        }
        pl->start = block_down(pl->off);
        pl->stop = min_u64(block_up(pl->end), size);
        pl->removals = f->removals;
        pl->count = plan_read(&f->map, &f->flights, pl->start, pl->stop - pl->start, BUFFER_MAX, pl->pieces, MAX_PIECES);
        if (first)
                policy_access(c->policy, &f->map, pl->off, pl->end - pl->off);
        if (pl->count == 0)
                return READ_PRIVATE;
        for (size_t i = 0; i < pl->count; i++) {
                all_hit &= pl->pieces[i].kind == PIECE_HIT;
                any_hit |= pl->pieces[i].kind == PIECE_HIT;
        }
        if (any_hit && !f->mirror)
                return READ_NO_MIRROR;
        pl->mirror = any_hit ? mirror_ref(f->mirror) : NULL;
        if (all_hit) {
                pl->start_ahead = stream_note(h, pl->off, pl->end);
                pl->ahead = stream_find(h, pl->start, pl->stop);
                return READ_HIT;
        }
        *ret_op = op_new(h, sink, pl->off, pl->end, pl->count);
        return *ret_op && op_take_mixed(*ret_op, pl) && op_take_parts(*ret_op, pl) ? READ_OP : READ_PRIVATE;
}

/* One round; false: what was present was not good, plan again. */
static bool read_round(struct cache_handle *h, uint64_t off, uint64_t end, struct read_sink *sink, bool first) {
        struct cache *c = h->cache;
        struct plan pl = { .off = off, .end = end };
        struct read_op *op = NULL;
        bool done = true;

        pthread_mutex_lock(&c->lock);
        enum verdict v = plan(h, &pl, sink, first, &op);
        pthread_mutex_unlock(&c->lock);
        switch (v) {
        case READ_HIT:
                ahead_start(pl.start_ahead);
                done = reply_hit(h, &pl, sink);
                ahead_unref(pl.ahead);
                break;
        case READ_OP: op_start(op, &pl); break;
        case READ_ERROR: fail(c, sink, pl.error); break;
        case READ_BYPASS: read_private(h, off, end, PRIVATE_BYPASS, sink, false); break;
        case READ_PRIVATE:
                if (op)
                        op_free(op);
                read_private(h, pl.off, pl.end, PRIVATE_ADMIT, sink, false);
                break;
        case READ_NO_MIRROR:
                file_open_mirror(h->file);
                done = false;
                break;
        }
        mirror_unref(pl.mirror);
        return done;
}

void cache_read(struct cache_handle *h, uint64_t off, size_t len, struct read_sink *sink) {
        uint64_t end = end_of(off, min_u64(len, CACHE_READ_MAX));

        if (!h->file) {
                read_private(h, off, end, PRIVATE_BYPASS, sink, false);
                return;
        }
        if (!h->file->settled)
                file_settle(h);
        for (int round = 0; round < HIT_ROUNDS; round++)
                if (read_round(h, off, end, sink, round == 0))
                        return;
        read_private(h, off, end, PRIVATE_ONLY, sink, false);
}
