/* SPDX-License-Identifier: Apache-2.0 */
/* The source: where a descriptor is, whether a version may be kept, alone with a file, inode numbers of several disks. */
#include "source/source.h"
#include "base/util.h"
#include "source/inodes.h"
#include "temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static struct source *source;
static char top[512], elsewhere[512];

static const char *in_top(const char *name) {
        static char path[2][1024];
        static int turn;

        turn = !turn;
        snprintf(path[turn], sizeof path[turn], "%s/%s", top, name);
        return path[turn];
}

static int make_file(const char *name, size_t size) {
        int fd = open(in_top(name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
        return fd;
}

static void setup(void) {
        temp_dir_empty();
        snprintf(top, sizeof top, "%s/top", temp_dir);
        snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", temp_dir);
        ck_assert_int_eq(mkdir(top, 0700), 0);
        ck_assert_int_eq(source_new(top, &source), 0);
        ck_assert_int_eq(source_start(source), 0);
}
static void teardown(void) { source = source_free(source); }

static void path_is(int fd, const char *name, const char *want) {
        _cleanup_free_ char *path = NULL;
        int r = source_path(source, fd, name, &path);

        if (!want) {
                ck_assert_int_eq(r, -ENOENT);
                return;
        }
        ck_assert_int_eq(r, 0);
        ck_assert_str_eq(path, want);
}

START_TEST(a_path_is_where_the_file_is_now) {
        ck_assert_int_eq(mkdir(in_top("a"), 0700), 0);
        _cleanup_close_ int fd = make_file("a/f", 1), dir = open(in_top("a"), O_PATH | O_CLOEXEC);

        path_is(fd, NULL, "a/f");
        path_is(dir, "g", "a/g");
        path_is(source_root(source), NULL, "");
        path_is(source_root(source), "x", "x");
        ck_assert_int_eq(rename(in_top("a"), in_top("b")), 0);
        path_is(fd, NULL, "b/f");
        path_is(dir, "g", "b/g");
        ck_assert_int_eq(rename(top, elsewhere), 0); /* the source itself */
        path_is(fd, NULL, "b/f");
        ck_assert_int_eq(rename(elsewhere, top), 0);
        ck_assert_int_eq(rename(in_top("b/f"), elsewhere), 0); /* out of it */
        path_is(fd, NULL, NULL);
}
END_TEST

START_TEST(what_was_unlinked_has_no_path) {
        _cleanup_close_ int gone = make_file("f", 1), odd = make_file("g (deleted)", 1);

        ck_assert_int_eq(unlink(in_top("f")), 0);
        path_is(gone, NULL, NULL);
        path_is(odd, NULL, "g (deleted)");
        _cleanup_close_ int other = make_file("f (deleted)", 1);
        path_is(gone, NULL, NULL);
        path_is(other, NULL, "f (deleted)");
}
END_TEST

static void grow_old(int fd, struct file_version *ret) {
        struct stat st;

        ck_assert_int_eq(fstat(fd, &st), 0);
        *ret = file_version_of(&st);
        for (int i = 0; i < 500 && !file_version_settled(ret); i++)
                nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
}

static struct file_version version_now(int fd) {
        struct stat st;

        ck_assert_int_eq(fstat(fd, &st), 0);
        return file_version_of(&st);
}

START_TEST(a_young_version_is_not_settled) {
        _cleanup_close_ int fd = make_file("f", BLOCK);
        struct file_version v = version_now(fd);

        ck_assert(!source_settle(source, fd, &v));
        grow_old(fd, &v);
        ck_assert(source_settle(source, fd, &v));
        v.mtime_ns--; /* it has changed since */
        ck_assert(!source_settle(source, fd, &v));
}
END_TEST

/* The fault that it is for: without it the second store leaves no trace in the times. */
START_TEST(after_it_a_store_by_map_moves_the_times) {
        _cleanup_close_ int fd = make_file("f", 4 * BLOCK), reader = open(in_top("f"), O_RDONLY | O_CLOEXEC);
        char *map = mmap(NULL, 4 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        struct file_version v, now;

        ck_assert_ptr_ne(map, MAP_FAILED);
        map[BLOCK] = 1;
        grow_old(fd, &v);
        ck_assert(source_settle(source, reader, &v));
        map[BLOCK] = 2;
        now = version_now(fd);
        ck_assert(!file_version_equal(&v, &now));
        munmap(map, 4 * BLOCK);
}
END_TEST

static bool leased(int fd) {
        enum lease l = source_lease(source, fd);

        ck_assert_int_ne(l, LEASE_UNKNOWN); /* the test directory is on a local file system */
        if (l == LEASE_HELD)
                source_unlease(fd);
        return l == LEASE_HELD;
}

START_TEST(a_writer_is_alone_if_nobody_else_has_it_open) {
        _cleanup_close_ int fd = make_file("f", BLOCK);

        ck_assert(leased(fd));
        int reader = open(in_top("f"), O_RDONLY | O_CLOEXEC);
        ck_assert(!leased(fd));
        close(reader);
        ck_assert(leased(fd));
        int path = open(in_top("f"), O_PATH | O_CLOEXEC); /* cannot write */
        ck_assert(leased(fd));
        close(path);
        int again = open(in_top("f"), O_RDWR | O_CLOEXEC);
        char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        close(again);
        ck_assert(!leased(fd)); /* a map is enough */
        munmap(map, BLOCK);
        ck_assert(leased(fd));
}
END_TEST

START_TEST(a_reader_minds_writers_only) {
        int writer = make_file("f", BLOCK);
        _cleanup_close_ int fd = open(in_top("f"), O_RDONLY | O_CLOEXEC), other = open(in_top("f"), O_RDONLY | O_CLOEXEC);

        ck_assert(!leased(fd));
        char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, writer, 0);
        close(writer);
        ck_assert(!leased(fd));
        munmap(map, BLOCK);
        ck_assert(leased(fd));
}
END_TEST

START_TEST(numbers_of_other_disks_are_one_to_one) {
        struct inode_tags *tags;
        ino_t shown[3][3];

        ck_assert_int_eq(inode_tags_new(7, &tags), 0);
        for (dev_t dev = 7; dev < 10; dev++) {
                inode_tags_meet(tags, dev, AT_FDCWD, "no such file");
                for (ino_t ino = 0; ino < 3; ino++)
                        shown[dev - 7][ino] = inode_tags_show(tags, dev, 254 + ino);
        }
        for (size_t i = 0; i < 9; i++)
                for (size_t j = 0; j < i; j++)
                        ck_assert_uint_ne(shown[i / 3][i % 3], shown[j / 3][j % 3]);
        ck_assert_uint_eq(shown[0][1], 255);
        inode_tags_meet(tags, 8, AT_FDCWD, ".");
        ck_assert_uint_eq(inode_tags_show(tags, 8, 254), shown[1][0]); /* met again, the same */
        inode_tags_free(tags);
}
END_TEST

int main(void) {
        Suite *s = suite_create("source");
        TCase *t = tcase_create("source");

        tcase_add_checked_fixture(t, setup, teardown);
        tcase_set_timeout(t, 20);
        tcase_add_test(t, a_path_is_where_the_file_is_now);
        tcase_add_test(t, what_was_unlinked_has_no_path);
        tcase_add_test(t, a_young_version_is_not_settled);
        tcase_add_test(t, after_it_a_store_by_map_moves_the_times);
        tcase_add_test(t, a_writer_is_alone_if_nobody_else_has_it_open);
        tcase_add_test(t, a_reader_minds_writers_only);
        tcase_add_test(t, numbers_of_other_disks_are_one_to_one);
        suite_add_tcase(s, t);
        return temp_dir_run(s);
}
