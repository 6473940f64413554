/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read's answer.  One that waits for the source must end when its program is killed, so it becomes a waited request;
 * the source read goes on for others.  An answer that is there at once (a hit) needs none of this, and no memory.
 *
 * Where a file has become shorter behind the mount the kernel still fills pages behind its end.  Of several short answers
 * that are on their way it heeds the first alone: if that is an empty one, the kernel thinks that the file ends at that
 * page, and shows zeros up to it.  So an empty answer for a page waits until the reads of the file that came before it are
 * answered; one of them has the right end.  (A program's own read at the end, by direct I/O, moves nothing.)
 */
#include "base/util.h"
#include "fuse/fs.h"
#include "fuse/waited.h"

#include <errno.h>

struct waited_reply;
struct pending_read {
        TAILQ_ENTRY(pending_read) link; /* desk->reads, under its lock */
        struct node *node;
        uint64_t off;
        size_t size;
        uint64_t order;             /* of arrival; once `empty`, what came before that waits for */
        struct waited_reply *empty; /* done, empty, and waits for its turn */
};
TAILQ_HEAD(pending_reads, pending_read);

/* Reads under way, by a hash of their file. */
enum { DESKS = 64 };
struct desk {
        pthread_mutex_t lock;
        struct pending_reads reads; /* as they came */
        uint64_t orders;
};
struct desks {
        struct desk all[DESKS];
};

struct direct_reply {
        struct read_sink sink;
        fuse_req_t req;
        bool page; /* for the kernel's cache */
        struct desk *desk;
        struct pending_read pending;
};

struct waited_reply {
        struct waited waited;
        struct read_sink sink;
        bool page;
        struct desk *desk;
        struct pending_read pending;
};

int desks_new(struct fs *fs) {
        if (!(fs->desks = calloc(1, sizeof *fs->desks)))
                return -ENOMEM;
        for (size_t i = 0; i < DESKS; i++) {
                pthread_mutex_init(&fs->desks->all[i].lock, NULL);
                TAILQ_INIT(&fs->desks->all[i].reads);
        }
        return 0;
}

void desks_free(struct fs *fs) {
        free(fs->desks);
        fs->desks = NULL;
}

static struct waited_reply *of_sink(struct read_sink *s) { return container_of(s, struct waited_reply, sink); }

static size_t bytes_in(const struct iovec *iov, int count) {
        size_t n = 0;

        for (int i = 0; i < count; i++)
                n += iov[i].iov_len;
        return n;
}

/* Whoever opens the file after this must not trust the size that the kernel may have from it. */
static void answer(fuse_req_t req, const struct pending_read *p, bool page, const struct iovec *iov, int count) {
        size_t bytes = bytes_in(iov, count);

        if (page && bytes < p->size)
                node_note_end(fs_of(req)->nodes, p->node, p->off + bytes, bytes == 0);
        fuse_reply_iov(req, iov, count);
}

static void answer_waited(struct waited_reply *r, int error, const struct iovec *iov, int count) {
        if (waited_claim(&r->waited)) { /* so the file is still open, and its node there */
                if (error)
                        fuse_reply_err(r->waited.req, error);
                else
                        answer(r->waited.req, &r->pending, r->page, iov, count);
        }
        waited_put(&r->waited);
}

/* ---- at the desk ---- */

static void arrive(struct desk *d, struct pending_read *p) {
        pthread_mutex_lock(&d->lock);
        p->order = d->orders++;
        TAILQ_INSERT_TAIL(&d->reads, p, link);
        pthread_mutex_unlock(&d->lock);
}

static void take_place(struct desk *d, struct pending_read *old, struct pending_read *new) {
        pthread_mutex_lock(&d->lock);
        *new = *old;
        TAILQ_INSERT_BEFORE(old, new, link);
        TAILQ_REMOVE(&d->reads, old, link);
        pthread_mutex_unlock(&d->lock);
}

/* Under the lock: is a read of the file still under way that came before `order`? */
static bool anything_before(struct desk *d, const struct node *n, uint64_t order) {
        struct pending_read *p;

        TAILQ_FOREACH(p, &d->reads, link)
                if (p->node == n && !p->empty && p->order < order)
                        return true;
        return false;
}

/* An empty answer whose turn has come, or NULL. */
static struct waited_reply *take_empty(struct desk *d, const struct node *n) {
        struct waited_reply *r = NULL;
        struct pending_read *p;

        pthread_mutex_lock(&d->lock);
        TAILQ_FOREACH(p, &d->reads, link)
                if (p->node == n && p->empty && !anything_before(d, n, p->order)) {
                        TAILQ_REMOVE(&d->reads, p, link);
                        r = p->empty;
                        break;
                }
        pthread_mutex_unlock(&d->lock);
        return r;
}

/* It was answered: whoever waited for it may be. */
static void leave(struct desk *d, struct pending_read *p) {
        const struct node *n = p->node;
        struct waited_reply *r;

        pthread_mutex_lock(&d->lock);
        TAILQ_REMOVE(&d->reads, p, link);
        bool more = !TAILQ_EMPTY(&d->reads);
        pthread_mutex_unlock(&d->lock);
        while (more && (r = take_empty(d, n)))
                answer_waited(r, 0, NULL, 0);
}

/* True: it will be answered by whoever leaves last before it, and is not the caller's any more. */
static bool has_to_wait(struct waited_reply *r) {
        struct desk *d = r->desk;

        if (!r->page)
                return false;
        pthread_mutex_lock(&d->lock);
        r->pending.empty = r; /* does not count itself */
        bool waits = anything_before(d, r->pending.node, d->orders);
        if (waits)
                r->pending.order = d->orders;
        else
                r->pending.empty = NULL;
        pthread_mutex_unlock(&d->lock);
        return waits;
}

/* The entry leaves the desk after the answer, so that no later one overtakes it. */
static void finish_waited(struct waited_reply *r, int error, const struct iovec *iov, int count) {
        struct pending_read here; /* `r` goes with its answer */
        struct desk *d = r->desk;

        take_place(d, &r->pending, &here);
        answer_waited(r, error, iov, count);
        leave(d, &here);
}

/* ---- the sinks ---- */

static void waited_reply(struct read_sink *s, const struct iovec *iov, int count) {
        struct waited_reply *r = of_sink(s);

        if (bytes_in(iov, count) > 0 || !has_to_wait(r))
                finish_waited(r, 0, iov, count);
}
static void waited_fail(struct read_sink *s, int error) { finish_waited(of_sink(s), error, NULL, 0); }

static void direct_reply(struct read_sink *s, const struct iovec *iov, int count) {
        struct direct_reply *d = (struct direct_reply *)s;

        answer(d->req, &d->pending, d->page, iov, count);
        leave(d->desk, &d->pending);
}
static void direct_fail(struct read_sink *s, int error) {
        struct direct_reply *d = (struct direct_reply *)s;

        fuse_reply_err(d->req, error);
        leave(d->desk, &d->pending);
}

static void lost_reply(struct read_sink *s, const struct iovec *iov, int count) { (void)s, (void)iov, (void)count; }
static void lost_fail(struct read_sink *s, int error) { (void)s, (void)error; }

static struct read_sink *begin_waiting(struct read_sink *s) {
        static struct read_sink nobody = { lost_reply, lost_fail, NULL };
        struct direct_reply *d = (struct direct_reply *)s;
        struct waited_reply *r = calloc(1, sizeof *r);

        if (!r) {
                direct_fail(s, ENOMEM);
                return &nobody;
        }
        r->sink = (struct read_sink){ waited_reply, waited_fail, NULL };
        r->page = d->page;
        r->desk = d->desk;
        take_place(d->desk, &d->pending, &r->pending);
        waited_begin(&r->waited, d->req);
        return &r->sink;
}

void reply_read(fuse_req_t req, struct file *f, uint64_t off, size_t size, bool page) {
        struct direct_reply d = { .sink = { direct_reply, direct_fail, begin_waiting }, .req = req, .page = page };

        d.desk = &fs_of(req)->desks->all[((uintptr_t)f->node >> 6) % DESKS];
        d.pending = (struct pending_read){ .node = f->node, .off = off, .size = size };
        arrive(d.desk, &d.pending);
        cache_read(f->handle, off, size, &d.sink);
}
