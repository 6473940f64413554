/* SPDX-License-Identifier: Apache-2.0 */
#include "source/inodes.h"

#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

#define TAG_SHIFT 48
#define TAGS 65536u

struct tagged {
        dev_t dev;
        uint16_t tag; /* never 0 */
};
struct inode_tags {
        dev_t root;
        pthread_mutex_t lock; /* below it */
        struct tagged *list;
        size_t count, room;
};

int inode_tags_new(dev_t root, struct inode_tags **ret) {
        struct inode_tags *t = calloc(1, sizeof *t);

        if (!t)
                return -ENOMEM;
        t->root = root;
        pthread_mutex_init(&t->lock, NULL);
        *ret = t;
        return 0;
}

struct inode_tags *inode_tags_free(struct inode_tags *t) {
        if (!t)
                return NULL;
        pthread_mutex_destroy(&t->lock);
        free(t->list);
        free(t);
        return NULL;
}

static uint16_t find(const struct inode_tags *t, dev_t dev) {
        for (size_t i = 0; i < t->count; i++)
                if (t->list[i].dev == dev)
                        return t->list[i].tag;
        return 0;
}

static bool is_taken(const struct inode_tags *t, uint16_t tag) {
        for (size_t i = 0; i < t->count; i++)
                if (t->list[i].tag == tag)
                        return true;
        return false;
}

/* Without memory for it, or for a name, files of two file systems may show one number: as if there were no tags. */
static void add(struct inode_tags *t, dev_t dev, uint64_t hash) {
        uint16_t tag = (uint16_t)(hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48);

        if (find(t, dev) || t->count + 1 >= TAGS)
                return;
        if (t->count == t->room) {
                size_t room = t->room ? 2 * t->room : 16;
                struct tagged *grown = realloc(t->list, room * sizeof *grown);
                if (!grown)
                        return;
                t->list = grown;
                t->room = room;
        }
        while (tag == 0 || is_taken(t, tag))
                tag++;
        t->list[t->count++] = (struct tagged){ dev, tag };
}

void inode_tags_meet(struct inode_tags *t, dev_t dev, int dir, const char *name) {
        struct fs_identity id = { .fs = dev };

        if (dev == t->root)
                return;
        pthread_mutex_lock(&t->lock);
        bool known = find(t, dev);
        pthread_mutex_unlock(&t->lock);
        if (known)
                return;
        _cleanup_close_ int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && fs_identity_of(fd, &id) < 0)
                id.fs = dev;
        pthread_mutex_lock(&t->lock);
        add(t, dev, id.fs);
        pthread_mutex_unlock(&t->lock);
}

ino_t inode_tags_show(struct inode_tags *t, dev_t dev, ino_t ino) {
        if (dev == t->root)
                return ino;
        pthread_mutex_lock(&t->lock);
        uint64_t tag = find(t, dev);
        pthread_mutex_unlock(&t->lock);
        return ino ^ (tag << TAG_SHIFT);
}
