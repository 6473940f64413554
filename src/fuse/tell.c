/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the kernel attributes, and before that, where they are of another version than the last ones, taking its
 * pages away.
 *
 * To take pages away waits for reads of them that are under way, which this daemon has to answer.  So it is never done
 * from inside a request, but by a few threads that do nothing else, and the request is answered after it.  The kernel
 * shows such an answer to its program and does not believe it (it was asked before the pages went); it asks again, and
 * by then nothing is in the way.  Of a larger size it is made to believe at once, by storing the last byte: a program that
 * has seen the size may map the file and touch its end without anybody asking again.
 */
#include "base/sys.h"
#include "base/thread.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "fuse/waited.h"
#include "source/inodes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <time.h>

enum { TELLERS = 4 };

struct telling {
        struct waited waited; /* where somebody waits */
        TAILQ_ENTRY(telling) link;
        struct node *node; /* held */
        struct file_version version;
        struct fuse_entry_param entry; /* its attributes, in any case */
        struct fuse_file_info file;    /* TELL_OPEN, TELL_CREATE */
        enum { TELL_NOBODY, TELL_ENTRY, TELL_ATTR, TELL_OPEN, TELL_CREATE, TELL_STALE } what;
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

static void answer_open(struct fs *fs, fuse_req_t req, const struct fuse_file_info *fi) {
        struct file *f = file_of(fi); /* once answered, it may be closed */

        if (fuse_reply_open(req, fi) < 0)
                file_close(fs, f);
}

static void answer_create(struct fs *fs, fuse_req_t req, const struct fuse_entry_param *e, const struct fuse_file_info *fi) {
        struct fuse_entry_param shown = *e;
        struct file *f = file_of(fi);

        show(fs, &shown.attr);
        if (fuse_reply_create(req, &shown, fi) == 0)
                return;
        file_close(fs, f);
        node_forget(fs->nodes, node_from_id(fs->nodes, e->ino), 1);
}

static void answer(struct fs *fs, const struct telling *t) {
        switch (t->what) {
        case TELL_NOBODY: break;
        case TELL_ENTRY: answer_entry(fs, t->waited.req, &t->entry); break;
        case TELL_ATTR: answer_attr(fs, t->waited.req, &t->entry.attr); break;
        case TELL_OPEN: answer_open(fs, t->waited.req, &t->file); break;
        case TELL_CREATE: answer_create(fs, t->waited.req, &t->entry, &t->file); break;
        case TELL_STALE: fuse_reply_err(t->waited.req, ESTALE); break;
        }
}

/* Its program was killed: the kernel knows nothing of it. */
static void take_back(struct fs *fs, const struct telling *t) {
        if (t->what == TELL_OPEN || t->what == TELL_CREATE)
                file_close(fs, file_of(&t->file));
        if (t->what == TELL_ENTRY || t->what == TELL_CREATE)
                node_forget(fs->nodes, t->node, 1);
}

/* What was read since the pages went is not older than this version, so nothing wrong comes into view by it.  Where the
 * byte is not at hand the kernel learns of the size when it asks the next time. */
static bool store_last_byte(struct fs *fs, const struct telling *t) {
        _cleanup_close_ int path = t->version.size > 0 ? node_open_path(fs->nodes, t->node) : -1;
        _cleanup_close_ int fd = path < 0 ? -1 : open(path_of_fd(path).text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        char byte;
        struct fuse_bufvec buf = FUSE_BUFVEC_INIT(1);
        off_t off = (off_t)t->version.size - 1;

        struct stat st;
        buf.buf[0].mem = &byte;
        return fd >= 0 && preadv2(fd, &(struct iovec){ &byte, 1 }, 1, off, RWF_NOWAIT) == 1 && fstat(fd, &st) == 0 &&
               st.st_size > off && fuse_lowlevel_notify_store(fs->session, node_id(t->node), off, &buf, 0) == 0;
}

static void take_pages(struct fs *fs, const struct telling *t) {
        if (t->what != TELL_NOBODY && node_was_told(fs->nodes, t->node, &t->version))
                return; /* by another, while this waited */
        fuse_lowlevel_notify_inval_inode(fs->session, node_id(t->node), 0, 0);
        if (t->what == TELL_NOBODY)
                return;
        node_set_told(fs->nodes, t->node, &t->version, store_last_byte(fs, t));
}

static void finish(struct fs *fs, struct telling *t, bool drop) {
        if (drop)
                take_pages(fs, t);
        if (t->what == TELL_NOBODY || waited_claim(&t->waited))
                answer(fs, t);
        else
                take_back(fs, t);
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

/* Without memory for it: an error is better than old bytes.  The last the caller sees of `t`. */
static void tell_later(fuse_req_t req, struct telling *t) {
        struct fs *fs = fs_of(req);

        cache_observe(fs->cache, &t->entry.attr);
        waited_begin(&t->waited, req);
        push(fs, t);
}

static struct telling *telling_of_attr(struct fs *fs, struct node *n, const struct stat *st) {
        return telling_new(fs, n, &(struct fuse_entry_param){ .attr = *st });
}

bool tell_at_once(struct fs *fs, struct node *n, const struct stat *st) {
        struct file_version v = file_version_of(st);

        if (!S_ISREG(st->st_mode))
                return true;
        bool told = node_was_told(fs->nodes, n, &v), may = node_may_tell(fs->nodes, n, &v);
        if (may && !told)
                cache_observe(fs->cache, st);
        return may;
}

void tell_entry(fuse_req_t req, const struct fuse_entry_param *e) {
        struct fs *fs = fs_of(req);
        struct node *n = node_from_id(fs->nodes, e->ino);
        struct telling *t;

        if (tell_at_once(fs, n, &e->attr)) {
                answer_entry(fs, req, e);
        } else if ((t = telling_new(fs, n, e))) {
                t->what = TELL_ENTRY;
                tell_later(req, t);
        } else {
                fuse_reply_err(req, ENOMEM);
                node_forget(fs->nodes, n, 1);
        }
}

/* Of a file that was just made there may be pages as well: its number was another's, which was removed behind us. */
void tell_create(fuse_req_t req, const struct fuse_entry_param *e, const struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);
        struct node *n = node_from_id(fs->nodes, e->ino);
        struct telling *t;

        if (tell_at_once(fs, n, &e->attr)) {
                answer_create(fs, req, e, fi);
        } else if ((t = telling_new(fs, n, e))) {
                t->what = TELL_CREATE;
                t->file = *fi;
                tell_later(req, t);
        } else {
                fuse_reply_err(req, ENOMEM);
                file_close(fs, file_of(fi));
                node_forget(fs->nodes, n, 1);
        }
}

void tell_attr(fuse_req_t req, struct node *n, const struct stat *st) {
        struct fs *fs = fs_of(req);
        struct telling *t;

        if (tell_at_once(fs, n, st)) {
                answer_attr(fs, req, st);
        } else if ((t = telling_of_attr(fs, n, st))) {
                t->what = TELL_ATTR;
                tell_later(req, t);
        } else {
                fuse_reply_err(req, ENOMEM);
        }
}

void tell_stale(fuse_req_t req, struct node *n, const struct stat *st) {
        struct fs *fs = fs_of(req);
        struct telling *t;

        if (!tell_at_once(fs, n, st) && (t = telling_of_attr(fs, n, st))) {
                t->what = TELL_STALE;
                tell_later(req, t);
        } else {
                fuse_reply_err(req, ESTALE);
        }
}

void tell_open(fuse_req_t req, struct node *n, const struct stat *st, const struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);
        struct telling *t = telling_of_attr(fs, n, st);

        if (!t) {
                fuse_reply_err(req, ENOMEM);
                file_close(fs, file_of(fi));
                return;
        }
        t->what = TELL_OPEN;
        t->file = *fi;
        tell_later(req, t);
}

void drop_pages(struct fs *fs, struct node *n) {
        struct telling *t = telling_new(fs, n, &(struct fuse_entry_param){ 0 });

        if (t)
                push(fs, t); /* without memory they stay until the next open */
}
