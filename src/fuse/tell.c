/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the kernel attributes, and before that, where they are of another version than the last ones, taking its
 * pages away.
 *
 * To take pages away waits for reads of them that are under way, which this daemon has to answer.  So it is never done
 * from inside a request, but by a few threads that do nothing else, and the request is answered after it.  The kernel
 * shows such an answer to its program and does not believe it (it was asked before the pages went); it asks again, and
 * by then nothing is in the way.
 */
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "fuse/waited.h"
#include "source/inodes.h"

#include <errno.h>
#include <time.h>

enum { TELLERS = 4 };

struct telling {
        struct waited waited; /* where somebody waits */
        TAILQ_ENTRY(telling) link;
        struct node *node; /* held */
        struct file_version version;
        struct fuse_entry_param entry; /* its attributes, in any case */
        enum { TELL_NOBODY, TELL_ENTRY, TELL_ATTR, TELL_STALE } what;
};

struct tellers {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        TAILQ_HEAD(, telling) queue;
        pthread_t threads[TELLERS];
        unsigned count, busy;
        bool quiet, stopping;
};

void show(struct fs *fs, struct stat *st) { st->st_ino = inode_tags_show(fs->tags, st->st_dev, st->st_ino); }

static void answer_entry(struct fs *fs, fuse_req_t req, const struct fuse_entry_param *e) {
        struct fuse_entry_param shown = *e;

        show(fs, &shown.attr);
        if (fuse_reply_entry(req, &shown) < 0)
                node_forget(fs->nodes, node_from_id(fs->nodes, e->ino), 1);
}

static void answer_attr(struct fs *fs, fuse_req_t req, const struct stat *st) {
        struct stat shown = *st;

        show(fs, &shown);
        fuse_reply_attr(req, &shown, fs->options->attr_timeout);
}

static void answer(struct fs *fs, struct telling *t) {
        bool ours = t->what != TELL_NOBODY && waited_claim(&t->waited);

        if (ours && t->what == TELL_ENTRY)
                answer_entry(fs, t->waited.req, &t->entry);
        else if (ours && t->what == TELL_ATTR)
                answer_attr(fs, t->waited.req, &t->entry.attr);
        else if (ours)
                fuse_reply_err(t->waited.req, ESTALE);
        else if (t->what == TELL_ENTRY) /* interrupted: the kernel never knew it */
                node_forget(fs->nodes, t->node, 1);
}

static void finish(struct fs *fs, struct telling *t, bool drop) {
        if (drop && !(t->what != TELL_NOBODY && node_was_told(fs->nodes, t->node, &t->version))) {
                fuse_lowlevel_notify_inval_inode(fs->session, node_id(t->node), 0, 0);
                if (t->what != TELL_NOBODY)
                        node_set_told(fs->nodes, t->node, &t->version);
        }
        answer(fs, t);
        node_dir_done(fs->nodes, t->node);
        if (t->what == TELL_NOBODY)
                free(t);
        else
                waited_put(&t->waited);
}

static void *tell(void *arg) {
        struct fs *fs = arg;
        struct tellers *ts = fs->tellers;
        struct telling *t;

        pthread_mutex_lock(&ts->lock);
        for (;;) {
                while (!(t = TAILQ_FIRST(&ts->queue)) && !ts->stopping)
                        pthread_cond_wait(&ts->wake, &ts->lock);
                if (!t)
                        break;
                TAILQ_REMOVE(&ts->queue, t, link);
                bool drop = !ts->quiet; /* at the end there is no kernel left to have pages */
                ts->busy++;
                pthread_mutex_unlock(&ts->lock);
                finish(fs, t, drop);
                pthread_mutex_lock(&ts->lock);
                ts->busy--;
        }
        pthread_mutex_unlock(&ts->lock);
        return NULL;
}

int tellers_start(struct fs *fs) {
        struct tellers *ts = calloc(1, sizeof *ts);
        int r = 0;

        if (!ts)
                return -ENOMEM;
        pthread_mutex_init(&ts->lock, NULL);
        pthread_cond_init(&ts->wake, NULL);
        TAILQ_INIT(&ts->queue);
        fs->tellers = ts;
        while (r == 0 && ts->count < TELLERS)
                if ((r = thread_start(&ts->threads[ts->count], "hs-tell", tell, fs)) == 0)
                        ts->count++;
        return ts->count > 0 ? 0 : r;
}

bool tellers_quiet(struct fs *fs, unsigned seconds) {
        struct tellers *ts = fs->tellers;
        bool busy = true;

        for (unsigned i = 0; busy && i < seconds * 100; i++) {
                pthread_mutex_lock(&ts->lock);
                ts->quiet = true;
                busy = ts->busy > 0;
                pthread_mutex_unlock(&ts->lock);
                if (busy)
                        nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
        }
        return !busy;
}

void tellers_stop(struct fs *fs) {
        struct tellers *ts = fs->tellers;

        if (!ts)
                return;
        pthread_mutex_lock(&ts->lock);
        ts->quiet = ts->stopping = true;
        pthread_cond_broadcast(&ts->wake);
        pthread_mutex_unlock(&ts->lock);
        for (unsigned i = 0; i < ts->count; i++)
                pthread_join(ts->threads[i], NULL);
        free(ts);
        fs->tellers = NULL;
}

static struct telling *telling_new(struct fs *fs, struct node *n, const struct fuse_entry_param *e) {
        struct telling *t = calloc(1, sizeof *t);

        if (!t)
                return NULL;
        t->entry = *e;
        t->version = file_version_of(&e->attr);
        t->node = n;
        node_hold(fs->nodes, n);
        return t;
}

static void push(struct fs *fs, struct telling *t) {
        struct tellers *ts = fs->tellers;

        pthread_mutex_lock(&ts->lock);
        TAILQ_INSERT_TAIL(&ts->queue, t, link);
        pthread_cond_signal(&ts->wake);
        pthread_mutex_unlock(&ts->lock);
}

/* Without memory for it: an error is better than old bytes. */
static void tell_later(fuse_req_t req, struct node *n, const struct fuse_entry_param *e, int what) {
        struct fs *fs = fs_of(req);
        struct telling *t = telling_new(fs, n, e);

        cache_observe(fs->cache, &e->attr);
        if (!t) {
                fuse_reply_err(req, ENOMEM);
                if (what == TELL_ENTRY)
                        node_forget(fs->nodes, n, 1);
                return;
        }
        t->what = what;
        waited_begin(&t->waited, req);
        push(fs, t);
}

bool tell_at_once(struct fs *fs, struct node *n, const struct stat *st) {
        struct file_version v = file_version_of(st);

        return !S_ISREG(st->st_mode) || node_may_tell(fs->nodes, n, &v);
}

void tell_entry(fuse_req_t req, const struct fuse_entry_param *e) {
        struct fs *fs = fs_of(req);
        struct node *n = node_from_id(fs->nodes, e->ino);

        if (tell_at_once(fs, n, &e->attr))
                answer_entry(fs, req, e);
        else
                tell_later(req, n, e, TELL_ENTRY);
}

void tell_attr(fuse_req_t req, struct node *n, const struct stat *st) {
        struct fs *fs = fs_of(req);

        if (tell_at_once(fs, n, st))
                answer_attr(fs, req, st);
        else
                tell_later(req, n, &(struct fuse_entry_param){ .attr = *st }, TELL_ATTR);
}

void tell_stale(fuse_req_t req, struct node *n, const struct stat *st) {
        if (tell_at_once(fs_of(req), n, st))
                fuse_reply_err(req, ESTALE);
        else
                tell_later(req, n, &(struct fuse_entry_param){ .attr = *st }, TELL_STALE);
}

void drop_pages(struct fs *fs, struct node *n) {
        struct telling *t = telling_new(fs, n, &(struct fuse_entry_param){ 0 });

        if (t)
                push(fs, t); /* without memory they stay until the next open */
}
