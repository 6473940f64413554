/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission, behind the reply: a bounded queue of landed flights, and one thread that changes mirrors.
 *
 * There is one writer so that the order is plain: what was removed from a map is punched before anything is written,
 * so a punch never meets the range's next content, and the directory never holds more than was charged.  Whatever goes
 * wrong here (no room in the queue, no space, an error) costs a future miss and is counted.
 */
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "cache/internal.h"

#include <errno.h>
#include <string.h>

enum { MAX_PARTS = BUFFER_MAX / BLOCK / 2 }; /* every other block of a flight */

bool admission_offer(struct flight *fl) {
        struct cache *c = fl->handle->cache;

        size_t room = buffer_room(fl->span.len);

        if (c->stopping || c->queue_bytes + room > QUEUE_BYTES) {
                count(c, COUNT_dropped_bytes, fl->span.len);
                return false;
        }
        fl->refs++;
        c->queue_bytes += room;
        TAILQ_INSERT_TAIL(&c->queue, fl, link);
        pthread_cond_signal(&c->work);
        return true;
}

/* ---- removals ---- */

static bool extends_last(struct cache *c, const struct cache_file *f, uint64_t off, uint64_t len) {
        struct removal *last = TAILQ_LAST(&c->removals, removal_queue);

        if (!last || last->file != f || last->id != f->id || off != last->off + last->len)
                return false;
        last->len += len;
        return true;
}

void removal_push(struct cache_file *f, uint64_t off, uint64_t len) {
        struct cache *c = f->cache;

        f->removals++;
        file_mark_dirty(f, off, len);
        if (extends_last(c, f, off, len))
                return;
        struct removal *r = malloc(sizeof *r);
        if (!r) {
                /* The space is lost until the next start finds it; the bytes are not served. */
                count(c, COUNT_cache_errors, 1);
                return;
        }
        *r = (struct removal){ .file = file_ref(f), .id = f->id, .off = off, .len = len };
        TAILQ_INSERT_TAIL(&c->removals, r, link);
        pthread_cond_signal(&c->work);
}

static void remember_deleted(struct cache *c, uint64_t id) {
        if (c->deleted_count == c->deleted_room) {
                size_t room = c->deleted_room ? 2 * c->deleted_room : 64;
                uint64_t *grown = realloc(c->deleted, room * sizeof *grown);
                if (!grown)
                        return; /* its rows name a mirror that is gone: dropped when they are read */
                c->deleted = grown;
                c->deleted_room = room;
        }
        c->deleted[c->deleted_count++] = id;
}

void removal_push_unlink(struct cache *c, uint64_t id) {
        struct removal *r = malloc(sizeof *r);

        remember_deleted(c, id);
        if (!r) {
                count(c, COUNT_cache_errors, 1);
                return;
        }
        *r = (struct removal){ .id = id };
        TAILQ_INSERT_TAIL(&c->removals, r, link);
        pthread_cond_signal(&c->work);
}

void sink_evicted(void *ctx, struct range_map *map, uint64_t off, uint64_t len) {
        struct cache_file *f = map->owner;

        (void)ctx;
        count(f->cache, COUNT_evicted_bytes, len);
        removal_push(f, off, len);
}

void sink_cut(void *ctx, struct range_map *map, uint64_t off, uint64_t len) {
        (void)ctx;
        removal_push(map->owner, off, len);
}

/* The file's mirror, referenced, opened where nobody holds it open.  -ESTALE: it is not the file's any more. */
static int writer_mirror(struct cache_file *f, uint64_t id, bool create, struct mirror **ret) {
        struct cache *c = f->cache;
        struct mirror *m = NULL;

        pthread_mutex_lock(&c->lock);
        bool current = f->id == id;
        uint64_t size = f->identity.version.size;
        if (current && f->mirror)
                m = mirror_ref(f->mirror);
        pthread_mutex_unlock(&c->lock);
        *ret = m;
        if (m || !current)
                return m ? 0 : -ESTALE;
        int r = mirror_open(c->store, id, size, create, &m);
        pthread_mutex_lock(&c->lock);
        if (r == 0 && f->id == id && create && !f->mirror_made) {
                f->mirror_made = true;
                f->row_dirty = true;
        }
        if (r == 0 && f->id == id && f->opens > 0 && !f->mirror && f->identity.version.size == size)
                f->mirror = mirror_ref(m);
        pthread_mutex_unlock(&c->lock);
        *ret = m;
        return r;
}

static bool sums_wanted(struct cache_file *f, uint64_t span) {
        bool wanted = false;

        pthread_mutex_lock(&f->cache->lock);
        for (struct range *r = range_map_find(&f->map, span); r && r->off < span + MIRROR_SUMS_SPAN && !wanted;
             r = range_map_next(r))
                wanted = r->state != RANGE_GHOST;
        pthread_mutex_unlock(&f->cache->lock);
        return wanted;
}

static int punch(struct cache_file *f, struct mirror *m, const struct removal *r) {
        uint64_t span = r->off - r->off % MIRROR_SUMS_SPAN;
        int bad = mirror_punch(m, r->off, r->len);

        for (; bad == 0 && span < r->off + r->len; span += MIRROR_SUMS_SPAN)
                if (!sums_wanted(f, span))
                        bad = mirror_punch_sums(m, span);
        return bad;
}

static void give_up_mirror(struct cache_file *f, const struct removal *r, int bad) {
        /* What cannot be punched would be space that nobody accounts for: give up this mirror as a whole. */
        log_warn("cannot free a range of mirror %016llx: %s; the whole mirror is dropped", (unsigned long long)r->id,
                 strerror(-bad));
        pthread_mutex_lock(&f->cache->lock);
        count(f->cache, COUNT_cache_errors, 1);
        if (f->id == r->id)
                file_forget_content(f);
        pthread_mutex_unlock(&f->cache->lock);
}

static void remove_range(struct cache *c, struct removal *r) {
        if (!r->file) {
                mirror_unlink(c->store, r->id);
                return;
        }
        struct mirror *m = NULL;
        int bad = writer_mirror(r->file, r->id, false, &m);
        if (bad == 0)
                bad = punch(r->file, m, r);
        if (bad < 0 && bad != -ESTALE && bad != -ENOENT)
                give_up_mirror(r->file, r, bad);
        mirror_unref(m);
        cache_file_unref(r->file);
}

/* Called and returns with the lock; gives it up meanwhile. */
static void drain_removals(struct cache *c) {
        struct removal *r;

        while ((r = TAILQ_FIRST(&c->removals))) {
                TAILQ_REMOVE(&c->removals, r, link);
                pthread_mutex_unlock(&c->lock);
                remove_range(c, r);
                free(r);
                pthread_mutex_lock(&c->lock);
        }
}

/* ---- admissions ---- */

struct part_list {
        size_t count;
        struct {
                uint64_t off, len, nonce;
                bool good; /* written; the source's bytes are the mirror's */
        } parts[MAX_PARTS];
};
struct admission {
        struct flight *flight;
        struct cache_file *file;
        uint64_t id, nonce, generation;
        struct part_list list;
};

static uint64_t end_of_flight(const struct admission *a) { return a->flight->span.off + a->flight->span.len; }

/* A change through the mount since the flight began: its bytes may be old. */
static bool is_outdated(const struct admission *a) {
        return a->file->generation != a->generation || a->file->id != a->id;
}

static bool add_part(struct part_list *l, uint64_t off, uint64_t len, uint64_t nonce) {
        size_t n = l->count;

        if (n > 0 && l->parts[n - 1].off + l->parts[n - 1].len == off && l->parts[n - 1].nonce == nonce) {
                l->parts[n - 1].len += len;
                return true;
        }
        if (n == MAX_PARTS)
                return false;
        l->parts[n].off = off;
        l->parts[n].len = len;
        l->parts[n].nonce = nonce;
        l->parts[n].good = false;
        l->count++;
        return true;
}

/* What policy_admit has marked, as stretches; more of them than fit are given back. */
static void collect_marked(struct admission *a) {
        uint64_t end = end_of_flight(a);
        struct range *r = range_map_find(&a->file->map, a->flight->span.off), *next;

        for (; r && r->off < end; r = next) {
                next = range_map_next(r);
                if (r->state == RANGE_PENDING && !add_part(&a->list, r->off, r->len, 0)) {
                        policy_abort(a->file->cache->policy, &a->file->map, r->off, end - r->off);
                        return;
                }
        }
}

/* ---- suspects: the flight has the source's bytes, so what is present under it can be judged ---- */

static void collect_suspects(struct admission *a) {
        uint64_t off = a->flight->span.off, end = end_of_flight(a);

        for (struct range *r = range_map_find(&a->file->map, off); r && r->off < end; r = range_map_next(r)) {
                uint64_t from = max_u64(r->off, off), to = min_u64(r->off + r->len, end);
                if (r->state == RANGE_PRESENT && r->suspect && !add_part(&a->list, from, to - from, r->nonce))
                        return;
        }
}

static void compare_suspects(struct admission *a) {
        struct part_list *l = &a->list;
        struct bad_stretch bad;
        struct mirror *m = NULL;

        if (writer_mirror(a->file, a->id, false, &m) < 0)
                return;
        for (size_t i = 0; i < l->count; i++) {
                const char *buf = (char *)a->flight->buf + (l->parts[i].off - a->flight->span.off);
                l->parts[i].good = mirror_verify(m, buf, l->parts[i].len, l->parts[i].off, l->parts[i].nonce, &bad) == 0;
        }
        mirror_unref(m);
}

/* Called and returns with the lock; gives it up meanwhile.  Returns the bytes that are trusted again. */
static uint64_t judge_suspects(struct admission *a) {
        struct policy *p = a->file->cache->policy;
        struct range_map *map = &a->file->map;
        uint64_t trusted = 0;

        collect_suspects(a);
        if (a->list.count == 0)
                return 0;
        pthread_mutex_unlock(&a->file->cache->lock);
        compare_suspects(a);
        pthread_mutex_lock(&a->file->cache->lock);
        for (size_t i = 0; i < a->list.count && !is_outdated(a); i++) {
                uint64_t off = a->list.parts[i].off, len = a->list.parts[i].len;
                if (a->list.parts[i].good) {
                        policy_trust(p, map, off, len);
                        file_mark_dirty(a->file, off, len);
                        trusted += len;
                } else {
                        policy_drop(p, map, off, len, sink_cut, NULL);
                }
        }
        a->list.count = 0;
        return trusted;
}

/* ---- writing ---- */

static void throttle(struct cache *c, uint64_t len) {
        uint64_t rate = c->options->write_rate;
        int64_t now = monotonic_ns();

        if (rate == 0)
                return;
        pthread_mutex_lock(&c->lock);
        while (drain_removals(c), !c->stopping && (now = monotonic_ns()) < c->write_allowed_ns)
                cond_wait_ns(&c->work, &c->lock, c->write_allowed_ns - now);
        c->write_allowed_ns = now + (int64_t)((double)len / (double)rate * 1e9);
        pthread_mutex_unlock(&c->lock);
}

static uint64_t reserved_bytes(const struct cache *c, const struct store_space *sp) {
        const struct reserve *r = &c->options->reserve;
        return r->percent > 0 ? (uint64_t)((double)sp->total * r->percent / 100) : r->bytes;
}

int64_t space_left(struct cache *c) {
        struct store_space sp;

        if (store_space(c->store, &sp) < 0)
                return 0;
        return (int64_t)sp.available - (int64_t)reserved_bytes(c, &sp);
}

static void write_parts(struct admission *a) {
        struct cache *c = a->file->cache;
        struct part_list *l = &a->list;
        uint64_t len = a->flight->span.len;

        throttle(c, len);
        if (space_left(c) < (int64_t)(len + BLOCK)) {
                for (size_t i = 0; i < l->count; i++)
                        count(c, COUNT_declined_bytes, l->parts[i].len);
                return;
        }
        struct mirror *m = NULL;
        int opened = writer_mirror(a->file, a->id, true, &m);
        if (opened < 0 && opened != -ESTALE)
                count(c, COUNT_cache_errors, 1);
        for (size_t i = 0; m && i < l->count; i++) {
                char *buf = (char *)a->flight->buf + (l->parts[i].off - a->flight->span.off);
                int r = mirror_write(m, buf, l->parts[i].len, l->parts[i].off, a->nonce);
                if (r < 0)
                        count(c, COUNT_cache_errors, 1);
                else
                        count(c, COUNT_mirror_write_bytes, l->parts[i].len);
                l->parts[i].good = r == 0;
        }
        mirror_unref(m);
}

/* Under the lock.  A change through the mount while we wrote has cut the marks, so there is nothing to commit then. */
static void conclude(struct admission *a) {
        struct cache_file *f = a->file;
        bool outdated = is_outdated(a);

        for (size_t i = 0; i < a->list.count; i++) {
                uint64_t off = a->list.parts[i].off, len = a->list.parts[i].len;
                if (a->list.parts[i].good && !outdated) {
                        policy_commit(f->cache->policy, &f->map, off, len, a->nonce);
                        file_mark_dirty(f, off, len);
                        count(f->cache, COUNT_admitted_bytes, len);
                } else {
                        policy_abort(f->cache->policy, &f->map, off, len);
                        if (f->id == a->id)
                                removal_push(f, off, len); /* whatever part of it was written */
                }
        }
}

static bool may_admit(const struct admission *a) {
        return a->file->generation == a->generation && a->file->writers == 0 && a->file->cache->mode == MODE_PROD;
}

/* Called and returns with the lock; gives it up meanwhile. */
static void mark(struct admission *a) {
        struct cache *c = a->file->cache;
        const struct span *span = &a->flight->span;
        uint64_t trusted = may_admit(a) ? judge_suspects(a) : 0;

        if (!may_admit(a)) {
                count(c, COUNT_dropped_bytes, span->len - trusted);
                return;
        }
        uint64_t marked = policy_admit(c->policy, &a->file->map, span->off, span->len, sink_evicted, NULL);
        count(c, COUNT_declined_bytes, span->len - marked - trusted);
        collect_marked(a);
}

/* Called and returns with the lock; gives it up meanwhile. */
static void admit(struct cache *c, struct flight *fl) {
        struct cache_file *f = fl->handle->file;
        struct admission a = { .flight = fl, .file = f, .id = f->id, .nonce = f->nonce, .generation = fl->generation };

        mark(&a);
        if (a.list.count > 0) {
                drain_removals(c);
                pthread_mutex_unlock(&c->lock);
                write_parts(&a);
                pthread_mutex_lock(&c->lock);
                conclude(&a);
        }
        flight_leave_tree(fl);
        pthread_mutex_unlock(&c->lock);
        flight_unref(fl);
        pthread_mutex_lock(&c->lock);
}

static void *writer(void *arg) {
        struct cache *c = arg;
        struct flight *fl;

        pthread_mutex_lock(&c->lock);
        for (;;) {
                drain_removals(c);
                if ((fl = TAILQ_FIRST(&c->queue))) {
                        TAILQ_REMOVE(&c->queue, fl, link);
                        c->queue_bytes -= buffer_room(fl->span.len);
                        admit(c, fl);
                } else if (c->stopping) {
                        break;
                } else {
                        pthread_cond_wait(&c->work, &c->lock);
                }
        }
        pthread_mutex_unlock(&c->lock);
        return NULL;
}

int writer_start(struct cache *c) {
        int r = thread_start(&c->writer, "hs-write", writer, c);
        c->writer_runs = r == 0;
        return r;
}

void writer_stop(struct cache *c) {
        pthread_mutex_lock(&c->lock);
        c->stopping = true;
        pthread_cond_broadcast(&c->work);
        pthread_mutex_unlock(&c->lock);
        if (c->writer_runs)
                pthread_join(c->writer, NULL);
        c->writer_runs = false;
}
