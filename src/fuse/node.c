/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/node.h"

#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

enum { ROOT_ID = 1 };

struct link {
        RB_ENTRY(link) by_name;
        LIST_ENTRY(link) of_node;
        struct node *node, *parent;
        pid_t seen_by; /* who looked it up last; meaningful while the node is ambiguous */
        char name[];
};
RB_HEAD(link_tree, link);

struct node {
        RB_ENTRY(node) by_inode;
        dev_t dev;
        ino_t ino;
        mode_t type;
        uint64_t generation, lookups;
        unsigned children, users; /* links below it; threads that use its descriptor */
        bool indexed, unlinked;   /* found by inode; its descriptor is its last way in */
        int fd;                   /* O_PATH, or -1 */
        LIST_HEAD(, node_handle) handles; /* their descriptors are the way in where names fail */
        struct file_version told;  /* the kernel's attributes */
        struct file_version pages; /* what its pages were read from, while has_pages */
        bool told_any, has_pages, pages_settled;
        bool too_large, too_small; /* the size that the kernel believes may be, since it did not believe an answer */
        int64_t dropped_at;        /* monotonic ns: pages went last */
        int64_t ambiguous_until; /* monotonic ns */
        LIST_HEAD(, link) links;
        TAILQ_ENTRY(node) lru; /* while fd >= 0 and users == 0 and it is a directory with a name */
        bool in_lru;
};
RB_HEAD(node_tree, node);

struct node_table {
        pthread_mutex_t lock;
        struct node_tree nodes;
        struct link_tree links;
        struct node *root;
        uint64_t generation;
        int64_t trust_ns;
        TAILQ_HEAD(, node) idle_dirs;
        unsigned idle_count, idle_max;
};

static int cmp_inode(const struct node *a, const struct node *b) {
        if (a->dev != b->dev)
                return a->dev < b->dev ? -1 : 1;
        return a->ino < b->ino ? -1 : a->ino > b->ino;
}

static int cmp_link(const struct link *a, const struct link *b) {
        if (a->parent != b->parent)
                return a->parent < b->parent ? -1 : 1;
        return strcmp(a->name, b->name);
}

RB_GENERATE_INTERNAL(node_tree, node, by_inode, cmp_inode, static __attribute__((unused)))
RB_GENERATE_INTERNAL(link_tree, link, by_name, cmp_link, static __attribute__((unused)))

/* ---- life ---- */

static struct node *node_new(struct node_table *t, const struct stat *st) {
        struct node *n = calloc(1, sizeof *n);

        if (!n)
                return NULL;
        n->dev = st->st_dev;
        n->ino = st->st_ino;
        n->type = st->st_mode & S_IFMT;
        n->generation = ++t->generation;
        n->fd = -1;
        LIST_INIT(&n->links);
        LIST_INIT(&n->handles);
        return n;
}

int node_table_new(int root_fd, int64_t trust_ns, struct node_table **ret) {
        struct node_table *t = calloc(1, sizeof *t);
        struct rlimit lim = { 0 };
        struct stat st;

        if (!t)
                return -ENOMEM;
        pthread_mutex_init(&t->lock, NULL);
        t->trust_ns = trust_ns;
        RB_INIT(&t->nodes);
        RB_INIT(&t->links);
        TAILQ_INIT(&t->idle_dirs);
        getrlimit(RLIMIT_NOFILE, &lim);
        t->idle_max = (unsigned)min_u64(lim.rlim_cur / 4, 16384);
        if (fstat(root_fd, &st) < 0 || !(t->root = node_new(t, &st)) ||
            (t->root->fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3)) < 0) {
                free(t->root);
                free(t);
                return -errno;
        }
        t->root->lookups = 1;
        t->root->users = 1; /* its descriptor never goes */
        t->root->indexed = true;
        RB_INSERT(node_tree, &t->nodes, t->root);
        *ret = t;
        return 0;
}

static void close_idle(struct node_table *t, struct node *n) {
        if (!n->in_lru)
                return;
        TAILQ_REMOVE(&t->idle_dirs, n, lru);
        t->idle_count--;
        n->in_lru = false;
}

static void link_free(struct node_table *t, struct link *l) {
        RB_REMOVE(link_tree, &t->links, l);
        LIST_REMOVE(l, of_node);
        l->parent->children--;
        free(l);
}

/* Frees a node that nobody needs any more, and parents that were kept for it alone. */
static void node_collect(struct node_table *t, struct node *n) {
        while (n && n->lookups == 0 && n->children == 0 && n->users == 0 && LIST_EMPTY(&n->handles)) {
                struct link *l;
                struct node *parent = NULL;

                close_idle(t, n);
                while ((l = LIST_FIRST(&n->links))) {
                        struct node *p = l->parent;
                        link_free(t, l);
                        if (parent && parent != p)
                                node_collect(t, parent);
                        parent = p;
                }
                if (n->indexed)
                        RB_REMOVE(node_tree, &t->nodes, n);
                closep(&n->fd);
                free(n);
                n = parent;
        }
}

struct node_table *node_table_free(struct node_table *t) {
        struct node *n, *next;
        struct link *l;

        if (!t)
                return NULL;
        while ((l = RB_ROOT(&t->links)))
                link_free(t, l);
        for (n = RB_MIN(node_tree, &t->nodes); n; n = next) {
                next = RB_NEXT(node_tree, &t->nodes, n);
                RB_REMOVE(node_tree, &t->nodes, n);
                closep(&n->fd);
                free(n);
        }
        pthread_mutex_destroy(&t->lock);
        free(t);
        return NULL;
}

struct node *node_root(struct node_table *t) { return t->root; }
uint64_t node_id(const struct node *n) { return n->generation == 1 ? ROOT_ID : (uintptr_t)n; }
struct node *node_from_id(struct node_table *t, uint64_t id) { return id == ROOT_ID ? t->root : (struct node *)(uintptr_t)id; }
uint64_t node_generation(const struct node *n) { return n->generation; }

/* ---- names ---- */

static struct link *link_find(struct node_table *t, struct node *parent, const char *name) {
        _Alignas(struct link) char room[sizeof(struct link) + NODE_NAME_MAX + 1]; /* a key: a link and its name */
        struct link *key = (struct link *)room;

        if (strlen(name) > NODE_NAME_MAX)
                return NULL;
        key->parent = parent;
        strcpy(key->name, name);
        return RB_FIND(link_tree, &t->links, key);
}

/* A directory has one name, and the last sighting knows it.  Names from before it was moved behind the mount would add
 * up to circles. */
static void forget_other_links(struct node_table *t, struct node *n, const struct link *keep) {
        struct link *l, *next;

        for (l = LIST_FIRST(&n->links); l; l = next) {
                struct node *parent = l->parent;
                next = LIST_NEXT(l, of_node);
                if (l == keep)
                        continue;
                link_free(t, l);
                node_collect(t, parent);
        }
}

static void link_add(struct node_table *t, struct node *n, struct node *parent, const char *name, pid_t thread) {
        struct link *l = link_find(t, parent, name);

        if (l && l->node == n) {
                l->seen_by = thread;
                if (S_ISDIR(n->type))
                        forget_other_links(t, n, l);
                return;
        }
        if (l) { /* the name leads elsewhere now */
                struct node *old = l->node;
                link_free(t, l);
                node_collect(t, old);
        }
        if (!(l = malloc(sizeof *l + strlen(name) + 1)))
                return; /* the node is ESTALE at its next use, and looked up again */
        *l = (struct link){ .node = n, .parent = parent, .seen_by = thread };
        strcpy(l->name, name);
        parent->children++;
        LIST_INSERT_HEAD(&n->links, l, of_node);
        RB_INSERT(link_tree, &t->links, l);
        if (S_ISDIR(n->type))
                forget_other_links(t, n, l);
}

static struct node *by_inode(struct node_table *t, const struct stat *st) {
        struct node key = { .dev = st->st_dev, .ino = st->st_ino };
        struct node *n = RB_FIND(node_tree, &t->nodes, &key);

        /* The number was given to a file of another kind: the kernel must not take it for the same inode. */
        if (n && n->type != (st->st_mode & S_IFMT) && n != t->root) {
                RB_REMOVE(node_tree, &t->nodes, n);
                n->indexed = false;
                n = NULL;
        }
        return n;
}

static struct node *node_meet(struct node_table *t, const struct stat *st) {
        struct node *n = by_inode(t, st);

        if (!n && (n = node_new(t, st))) {
                n->indexed = true;
                RB_INSERT(node_tree, &t->nodes, n);
        }
        if (n)
                n->lookups++;
        return n;
}

static bool has_other_link(const struct node *n, const struct node *parent, const char *name) {
        const struct link *l = LIST_FIRST(&n->links);

        return l && (LIST_NEXT(l, of_node) || l->parent != parent || strcmp(l->name, name) != 0);
}

static void check_links(struct node_table *t, struct node *n);

struct node *node_seen(struct node_table *t, struct node *parent, const char *name, const struct stat *st, pid_t thread) {
        pthread_mutex_lock(&t->lock);
        struct node *n = node_meet(t, st);
        bool moved = n && n != t->root && !S_ISDIR(n->type) && has_other_link(n, parent, name);
        pthread_mutex_unlock(&t->lock);
        if (moved)
                check_links(t, n); /* a hard link, or a name that led here before a rename behind us */
        pthread_mutex_lock(&t->lock);
        if (n && n != t->root)
                link_add(t, n, parent, name, thread);
        pthread_mutex_unlock(&t->lock);
        return n;
}

struct node *node_nameless(struct node_table *t, int fd, const struct stat *st) {
        pthread_mutex_lock(&t->lock);
        struct node *n = node_meet(t, st);
        if (n && n->fd < 0) {
                n->fd = take_fd(&fd);
                n->unlinked = true;
        }
        pthread_mutex_unlock(&t->lock);
        closep(&fd);
        return n;
}

void node_forget(struct node_table *t, struct node *n, uint64_t lookups) {
        pthread_mutex_lock(&t->lock);
        n->lookups -= min_u64(lookups, n->lookups);
        if (n != t->root)
                node_collect(t, n);
        pthread_mutex_unlock(&t->lock);
}

/* ---- descriptors ---- */

static void use_fd(struct node_table *t, struct node *n) {
        close_idle(t, n);
        n->users++;
}

/* The oldest idle directories beyond the limit lose their descriptors. */
static void trim_idle(struct node_table *t) {
        while (t->idle_count > t->idle_max) {
                struct node *n = TAILQ_FIRST(&t->idle_dirs);
                close_idle(t, n);
                close(take_fd(&n->fd));
        }
}

void node_hold(struct node_table *t, struct node *n) {
        pthread_mutex_lock(&t->lock);
        use_fd(t, n);
        pthread_mutex_unlock(&t->lock);
}

void node_dir_done(struct node_table *t, struct node *n) {
        pthread_mutex_lock(&t->lock);
        if (--n->users == 0) {
                if (n->fd >= 0 && !n->unlinked && S_ISDIR(n->type)) {
                        TAILQ_INSERT_TAIL(&t->idle_dirs, n, lru);
                        t->idle_count++;
                        n->in_lru = true;
                        trim_idle(t);
                }
                node_collect(t, n);
        }
        pthread_mutex_unlock(&t->lock);
}

/* One way to a node: a name below its parent, which is held. */
struct way {
        struct node *parent;
        char name[NODE_NAME_MAX + 1];
};

/* The `nth` name of the node.  -ENOENT: there are not so many. */
static int way_take(struct node_table *t, struct node *n, unsigned nth, struct way *ret) {
        int r = -ENOENT;
        struct link *l;

        pthread_mutex_lock(&t->lock);
        LIST_FOREACH(l, &n->links, of_node)
                if (nth-- == 0) {
                        ret->parent = l->parent;
                        l->parent->users++; /* kept alive; its descriptor comes with node_dir */
                        close_idle(t, l->parent);
                        strcpy(ret->name, l->name);
                        r = 0;
                        break;
                }
        pthread_mutex_unlock(&t->lock);
        return r;
}

/* Another kind of file under the same number is another file, which the kernel must not take for this one. */
static bool is_node(const struct node *n, const struct stat *st) {
        return st->st_dev == n->dev && st->st_ino == n->ino && (st->st_mode & S_IFMT) == n->type;
}

static int reopen(int fd, int flags, struct stat *ret_st) {
        _cleanup_close_ int again = open(path_of_fd(fd).text, (flags & ~O_NOFOLLOW) | O_CLOEXEC);
        if (again < 0)
                return -errno;
        return fstat(again, ret_st) < 0 ? -errno : take_fd(&again);
}

/* Looks before it opens: opening what has come in the file's place may hang (a FIFO) or do something (a device). */
static int open_same(const struct node *n, int dir, const char *name, int flags, struct stat *ret_st) {
        _cleanup_close_ int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0)
                return errno == ENOENT || errno == ENOTDIR ? -ESTALE : -errno;
        if (fstat(fd, ret_st) < 0)
                return -errno;
        if (!is_node(n, ret_st))
                return -ESTALE;
        return flags & O_PATH ? take_fd(&fd) : reopen(fd, flags, ret_st);
}

/*
 * Descriptors of directories are opened below their parents', which may have to be opened as well.  `depth` bounds the
 * climb: names that moved behind the mount can form a circle until they are seen anew.  What nests deeper than any
 * path can say is such a circle.
 */
enum { DEPTH_MAX = 2048 };
static int dir_at(struct node_table *t, struct node *n, unsigned depth);

/* One name: a descriptor, -ESTALE if it leads elsewhere, or -errno. */
static int open_way(struct node_table *t, const struct node *n, const struct way *w, int flags, unsigned depth,
                    struct stat *ret_st) {
        int dir = dir_at(t, w->parent, depth);

        if (dir < 0)
                return dir;
        int fd = open_same(n, dir, w->name, flags, ret_st);
        node_dir_done(t, w->parent);
        return fd;
}

/* Through whichever name leads there. */
static int open_below(struct node_table *t, struct node *n, int flags, unsigned depth, struct stat *ret_st) {
        struct way *w = malloc(sizeof *w); /* not on a stack that may hold thousands of them */
        int r = w ? -ESTALE : -ENOMEM;

        for (unsigned nth = 0; r == -ESTALE && way_take(t, n, nth, w) == 0; nth++) {
                r = open_way(t, n, w, flags, depth, ret_st);
                node_dir_done(t, w->parent);
        }
        free(w);
        return r;
}

static int open_by_name(struct node_table *t, struct node *n, int flags, struct stat *ret_st) {
        return open_below(t, n, flags, DEPTH_MAX, ret_st);
}

/* Keeps the first descriptor that comes; another thread may have been faster. */
static int keep_dir(struct node_table *t, struct node *n, int fd) {
        pthread_mutex_lock(&t->lock);
        int extra = n->fd >= 0 ? fd : -1;
        if (n->fd < 0)
                n->fd = fd;
        fd = n->fd;
        pthread_mutex_unlock(&t->lock);
        closep(&extra);
        return fd;
}

static int dir_at(struct node_table *t, struct node *n, unsigned depth) {
        struct stat st;

        pthread_mutex_lock(&t->lock);
        use_fd(t, n);
        int fd = n->fd;
        pthread_mutex_unlock(&t->lock);
        if (fd >= 0)
                return fd;
        fd = depth > 0 ? open_below(t, n, O_PATH | O_DIRECTORY, depth - 1, &st) : -ESTALE;
        if (fd >= 0)
                return keep_dir(t, n, fd);
        node_dir_done(t, n);
        return fd;
}

int node_dir(struct node_table *t, struct node *n) { return dir_at(t, n, DEPTH_MAX); }

/* ---- names that moved behind the mount ---- */

static void forget_link(struct node_table *t, struct node *n, const struct way *w) {
        struct link *l;

        pthread_mutex_lock(&t->lock);
        l = link_find(t, w->parent, w->name);
        if (l && l->node == n)
                link_free(t, l);
        n->ambiguous_until = monotonic_ns() + t->trust_ns;
        LIST_FOREACH(l, &n->links, of_node)
                l->seen_by = 0;
        pthread_mutex_unlock(&t->lock);
}

/* Forgets the names that lead elsewhere now. */
static void check_links(struct node_table *t, struct node *n) {
        struct stat st;
        struct way w;

        for (unsigned nth = 0; way_take(t, n, nth, &w) == 0;) {
                int fd = open_way(t, n, &w, O_PATH, DEPTH_MAX, &st);
                if (fd == -ESTALE)
                        forget_link(t, n, &w); /* the next one moves up */
                else
                        nth++;
                closep(&fd);
                node_dir_done(t, w.parent);
        }
}

/* The one name that this thread has just looked up.  It counts once: the next open may come by another. */
static int take_seen_way(struct node_table *t, struct node *n, pid_t thread, struct way *ret) {
        struct link *l;
        unsigned nth = 0;
        bool found = false;

        pthread_mutex_lock(&t->lock);
        LIST_FOREACH(l, &n->links, of_node) {
                if ((found = thread != 0 && l->seen_by == thread))
                        break;
                nth++;
        }
        if (found)
                l->seen_by = 0;
        pthread_mutex_unlock(&t->lock);
        return found ? way_take(t, n, nth, ret) : -ESTALE;
}

static int open_ambiguous(struct node_table *t, struct node *n, int flags, pid_t thread, struct stat *ret_st) {
        struct way w;

        if (take_seen_way(t, n, thread, &w) < 0)
                return -ESTALE;
        int r = open_way(t, n, &w, flags, DEPTH_MAX, ret_st);
        node_dir_done(t, w.parent);
        return r;
}

enum names { NAMELESS, ONE_NAME, MANY_NAMES };
static enum names names_of(struct node_table *t, struct node *n, bool *ret_ambiguous) {
        pthread_mutex_lock(&t->lock);
        const struct link *l = LIST_FIRST(&n->links);
        enum names names = !l ? NAMELESS : !LIST_NEXT(l, of_node) ? ONE_NAME : MANY_NAMES;
        *ret_ambiguous = n->ambiguous_until > 0 && n->ambiguous_until > monotonic_ns();
        pthread_mutex_unlock(&t->lock);
        return names;
}

/* A duplicate of a descriptor that the node has anyway, or -1. */
static int dup_own(struct node_table *t, struct node *n) {
        pthread_mutex_lock(&t->lock);
        const struct node_handle *h = LIST_FIRST(&n->handles);
        int fd = n->fd >= 0 ? n->fd : h ? h->fd : -1;
        if (fd >= 0)
                fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        pthread_mutex_unlock(&t->lock);
        return fd;
}

static int open_named(struct node_table *t, struct node *n, int flags, pid_t thread, struct stat *ret_st) {
        bool ambiguous;
        int r = -ESTALE;

        if (names_of(t, n, &ambiguous) == ONE_NAME && !ambiguous) {
                if ((r = open_by_name(t, n, flags, ret_st)) == -ESTALE)
                        check_links(t, n);
                return r;
        }
        check_links(t, n);
        names_of(t, n, &ambiguous);
        return ambiguous ? open_ambiguous(t, n, flags, thread, ret_st) : open_by_name(t, n, flags, ret_st);
}

int node_open(struct node_table *t, struct node *n, int flags, pid_t thread, struct stat *ret_st) {
        bool ambiguous;

        if (names_of(t, n, &ambiguous) != NAMELESS)
                return open_named(t, n, flags, thread, ret_st);
        _cleanup_close_ int own = dup_own(t, n); /* the kernel came by a descriptor or a map */
        return own < 0 ? -ESTALE : reopen(own, flags, ret_st);
}

int node_open_path(struct node_table *t, struct node *n) {
        struct stat st;
        int fd = -1;

        if (n->fd >= 0)
                fd = dup_own(t, n);
        if (fd < 0)
                fd = open_by_name(t, n, O_PATH, &st);
        if (fd == -ESTALE && (fd = dup_own(t, n)) < 0)
                return -ESTALE;
        return fd;
}

static int stat_by_name(struct node_table *t, struct node *n, struct stat *ret) {
        struct way w;
        int r = -ESTALE;

        for (unsigned nth = 0; r == -ESTALE && way_take(t, n, nth, &w) == 0; nth++) {
                int dir = node_dir(t, w.parent);
                if (dir < 0)
                        r = dir;
                else if (fstatat(dir, w.name, ret, AT_SYMLINK_NOFOLLOW) < 0)
                        r = errno == ENOENT || errno == ENOTDIR ? -ESTALE : -errno;
                else
                        r = is_node(n, ret) ? 0 : -ESTALE;
                if (dir >= 0)
                        node_dir_done(t, w.parent);
                node_dir_done(t, w.parent);
        }
        return r;
}

int node_stat(struct node_table *t, struct node *n, struct stat *ret) {
        _cleanup_close_ int own = n->fd >= 0 ? dup_own(t, n) : -1; /* a hint only: the LRU may be closing it */

        if (own < 0) {
                int r = stat_by_name(t, n, ret);
                if (r != -ESTALE || (own = dup_own(t, n)) < 0)
                        return r;
        }
        return fstat(own, ret) < 0 ? -errno : 0;
}

/* ---- changes through the mount ---- */

void node_pin(struct node_table *t, struct node *parent, const char *name) {
        struct stat st;

        pthread_mutex_lock(&t->lock);
        struct link *l = link_find(t, parent, name);
        struct node *n = l && l->node->fd < 0 ? l->node : NULL;
        if (n)
                n->users++;
        pthread_mutex_unlock(&t->lock);
        if (!n)
                return;
        int fd = open_by_name(t, n, O_PATH, &st);
        pthread_mutex_lock(&t->lock);
        if (fd >= 0 && n->fd < 0)
                n->fd = take_fd(&fd);
        n->users--;
        pthread_mutex_unlock(&t->lock);
        closep(&fd);
}

/* A regular file's descriptor is only wanted while it has no name. */
static void unpin(struct node *n) {
        if (n->users == 0 && !n->unlinked && !S_ISDIR(n->type)) {
                closep(&n->fd);
                n->fd = -1;
        }
}

/* The name is gone.  A node that has another one does not need the pin. */
static void lose_link(struct node_table *t, struct link *l) {
        struct node *n = l->node;

        link_free(t, l);
        n->unlinked = LIST_EMPTY(&n->links);
        if (n->unlinked)
                close_idle(t, n);
        unpin(n);
        node_collect(t, n);
}

void node_unpin(struct node_table *t, struct node *parent, const char *name) {
        pthread_mutex_lock(&t->lock);
        struct link *l = link_find(t, parent, name);
        if (l)
                unpin(l->node);
        pthread_mutex_unlock(&t->lock);
}

void node_unlinked(struct node_table *t, struct node *parent, const char *name) {
        pthread_mutex_lock(&t->lock);
        struct link *l = link_find(t, parent, name);
        if (l)
                lose_link(t, l);
        pthread_mutex_unlock(&t->lock);
}

void node_renamed(struct node_table *t, struct node *old_parent, const char *old_name, struct node *new_parent,
                  const char *new_name, bool exchange) {
        pthread_mutex_lock(&t->lock);
        struct link *from = link_find(t, old_parent, old_name), *to = link_find(t, new_parent, new_name);
        struct node *moved = from ? from->node : NULL, *other = to ? to->node : NULL;

        if (moved)
                moved->users++;
        if (other)
                other->users++;
        if (from)
                link_free(t, from);
        if (to && exchange)
                link_free(t, to);
        else if (to)
                lose_link(t, to);
        if (moved)
                link_add(t, moved, new_parent, new_name, 0);
        if (other && exchange)
                link_add(t, other, old_parent, old_name, 0);
        for (int i = 0; i < 2; i++) {
                struct node *n = i ? other : moved;
                if (!n)
                        continue;
                n->users--;
                unpin(n);
                node_collect(t, n);
        }
        pthread_mutex_unlock(&t->lock);
}

/* ---- versions: each question and its consequence under one hold of the lock ---- */

/* What was asked for before pages went is not believed, and a question may have been on its way for a while. */
#define DOUBT_NS 10000000

bool node_may_tell(struct node_table *t, struct node *n, const struct file_version *v) {
        pthread_mutex_lock(&t->lock);
        bool believed = n->dropped_at == 0 || monotonic_ns() - n->dropped_at > DOUBT_NS;
        bool same = !n->has_pages || !n->told_any || file_version_equal(&n->told, v);
        bool shrinks = n->told_any && v->size < n->told.size && !n->too_small;
        if (same || shrinks) {
                n->too_large = !believed && (n->too_large || shrinks);
                n->too_small = !believed && n->too_small;
                n->told = *v;
                n->told_any = true;
        }
        pthread_mutex_unlock(&t->lock);
        return same || shrinks;
}

void node_set_told(struct node_table *t, struct node *n, const struct file_version *v, bool grown) {
        pthread_mutex_lock(&t->lock);
        n->too_large |= n->told_any && v->size < n->told.size;
        n->too_small = !grown;
        n->told = *v;
        n->told_any = true;
        n->dropped_at = monotonic_ns();
        pthread_mutex_unlock(&t->lock);
}

void node_note_end(struct node_table *t, struct node *n, uint64_t end, bool empty) {
        pthread_mutex_lock(&t->lock);
        n->too_large |= empty || (n->told_any && end < n->told.size);
        pthread_mutex_unlock(&t->lock);
}

bool node_was_told(struct node_table *t, struct node *n, const struct file_version *v) {
        pthread_mutex_lock(&t->lock);
        bool told = n->told_any && !n->too_large && file_version_equal(&n->told, v);
        pthread_mutex_unlock(&t->lock);
        return told;
}

bool node_pages_unsettled(struct node_table *t, struct node *n, const struct file_version *v) {
        pthread_mutex_lock(&t->lock);
        bool unsettled = n->has_pages && !n->pages_settled && file_version_equal(&n->pages, v);
        pthread_mutex_unlock(&t->lock);
        return unsettled;
}

bool node_begin_open(struct node_table *t, struct node *n, const struct file_version *v, bool settled) {
        pthread_mutex_lock(&t->lock);
        bool none = !n->has_pages; /* nothing has to go, and nobody has to wait for it */
        bool keep = none || (n->pages_settled && file_version_equal(&n->pages, v));
        if (!keep || none) {
                n->pages = *v;
                n->has_pages = true;
                n->pages_settled = none && settled;
        }
        pthread_mutex_unlock(&t->lock);
        return keep;
}

void node_settle_pages(struct node_table *t, struct node *n, const struct file_version *v) {
        pthread_mutex_lock(&t->lock);
        n->pages_settled |= n->has_pages && file_version_equal(&n->pages, v);
        pthread_mutex_unlock(&t->lock);
}

void node_changed(struct node_table *t, struct node *n, const struct file_version *before, const struct file_version *after,
                  bool kernel_knows, bool content_kept) {
        pthread_mutex_lock(&t->lock);
        if (kernel_knows && n->told_any && file_version_equal(&n->told, before))
                n->told = *after;
        n->pages_settled = n->pages_settled && content_kept && file_version_equal(&n->pages, before);
        n->pages = *after;
        pthread_mutex_unlock(&t->lock);
}

void node_add_handle(struct node_table *t, struct node *n, struct node_handle *h) {
        pthread_mutex_lock(&t->lock);
        LIST_INSERT_HEAD(&n->handles, h, of_node);
        pthread_mutex_unlock(&t->lock);
}

void node_remove_handle(struct node_table *t, struct node *n, struct node_handle *h) {
        pthread_mutex_lock(&t->lock);
        LIST_REMOVE(h, of_node);
        if (n != t->root)
                node_collect(t, n);
        pthread_mutex_unlock(&t->lock);
}
