/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths as text and against a directory, and mountinfo: the real one, which has to agree with stat, and one of ours
 * with what only an unusual machine would show.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "must.h"
#include "source/mountinfo.h"
#include "source/paths.h"
#include "temp_dir.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The linker sends the library's fopen here: with `our_table`, mountinfo is that text. */
static const char *our_table;
FILE *__real_fopen(const char *path, const char *mode);
FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

static FILE *table_for(const char *path) {
        if (!our_table || strcmp(path, "/proc/self/mountinfo") != 0)
                return NULL;
        FILE *f = tmpfile();
        fputs(our_table, f);
        rewind(f);
        return f;
}

FILE *__wrap_fopen(const char *path, const char *mode) {
        FILE *f = table_for(path);
        return f ? f : __real_fopen(path, mode);
}

FILE *__wrap_fopen64(const char *path, const char *mode) {
        FILE *f = table_for(path);
        return f ? f : __real_fopen64(path, mode);
}

static void setup(void) {
        our_table = NULL;
        temp_dir_empty();
}

/* ---- normalising ---- */

static const struct {
        const char *path, *normal;
} normals[] = {
        { "/", "/" },           { "//", "/" },          { "/.", "/" },           { "/..", "/" },
        { "/../..", "/" },      { "/a", "/a" },         { "/a/", "/a" },         { "//a///b//", "/a/b" },
        { "/./a/./b/.", "/a/b" }, { "/a/..", "/" },     { "/a/../b", "/b" },     { "/a/b/../..", "/" },
        { "/a/b/../../..", "/" }, { "/../a", "/a" },    { "/a/b/c/../d", "/a/b/d" }, { "/...", "/..." },
        { "/..a/.b", "/..a/.b" }, { "/a../b.", "/a../b." }, { "/a b/\xff", "/a b/\xff" },
        { "/a/b/../../c/../d/./e//", "/d/e" },
};

START_TEST(an_absolute_path_is_normalised_by_text_alone) {
        char *got = NULL;

        ck_assert_int_eq(path_normalise(normals[_i].path, &got), 0);
        ck_assert_msg(strcmp(got, normals[_i].normal) == 0, "%s: %s", normals[_i].path, got);
        free(got);
}
END_TEST

START_TEST(a_normal_path_stays_as_it_is) {
        char *got = NULL;

        ck_assert_int_eq(path_normalise(normals[_i].normal, &got), 0);
        ck_assert_str_eq(got, normals[_i].normal);
        free(got);
}
END_TEST

static void normalises_to(const char *path, const char *base, const char *rest) {
        char want[400], *got = NULL;

        snprintf(want, sizeof want, "%s%s", base, rest);
        ck_assert_int_eq(path_normalise(path, &got), 0);
        ck_assert_str_eq(got, want);
        free(got);
}

START_TEST(a_relative_path_begins_where_we_are) {
        char *here;

        ck_assert_int_eq(chdir(temp_dir), 0);
        here = getcwd(NULL, 0);
        normalises_to("a/b", here, "/a/b");
        normalises_to("./a/../b", here, "/b");
        normalises_to(".", here, "");
        normalises_to("", here, "");
        *strrchr(here, '/') = '\0';
        normalises_to("..", here, "");
        normalises_to("../x", here, "/x");
        free(here);
}
END_TEST

START_TEST(a_relative_path_at_the_root_has_one_slash) {
        ck_assert_int_eq(chdir("/"), 0);
        normalises_to("a", "/a", "");
        normalises_to(".", "/", "");
        normalises_to("../..", "/", "");
}
END_TEST

START_TEST(without_a_place_a_relative_path_is_an_error_and_an_absolute_one_is_not) {
        char path[300], *got = NULL;

        snprintf(path, sizeof path, "%s/gone", temp_dir);
        ck_assert_int_eq(mkdir(path, 0700), 0);
        ck_assert_int_eq(chdir(path), 0);
        ck_assert_int_eq(rmdir(path), 0);
        ck_assert_int_eq(path_normalise("a", &got), -ENOENT);
        ck_assert_ptr_null(got);
        normalises_to("/a/./b", "/a/b", "");
}
END_TEST

START_TEST(nothing_has_to_exist_and_links_are_not_followed) {
        char path[300];

        snprintf(path, sizeof path, "%s/link", temp_dir);
        ck_assert_int_eq(symlink("/usr/bin", path), 0);
        strcat(path, "/..");
        normalises_to(path, temp_dir, "");
}
END_TEST

START_TEST(a_very_long_path_is_whole) {
        char *path = malloc(100001), *got = NULL;

        for (size_t i = 0; i < 100000; i += 2)
                memcpy(path + i, "/a", 2);
        path[100000] = '\0';
        ck_assert_int_eq(path_normalise(path, &got), 0);
        ck_assert_int_eq(strcmp(got, path), 0);
        free(got);
        free(path);
}
END_TEST

/* ---- below ---- */

static bool below(const char *path, const char *dir) {
        char full_path[400], full_dir[400];

        snprintf(full_path, sizeof full_path, "%s/%s", temp_dir, path);
        snprintf(full_dir, sizeof full_dir, "%s/%s", temp_dir, dir);
        int fd = open(full_dir, O_PATH | O_DIRECTORY);
        ck_assert_int_ge(fd, 0);
        bool r = path_is_below(full_path, full_dir, fd);
        close(fd);
        return r;
}

static void make_folders(void) {
        static const char *const names[] = { "/a", "/a/b", "/ab" };
        char path[400];

        for (size_t i = 0; i < COUNT(names); i++) {
                snprintf(path, sizeof path, "%s%s", temp_dir, names[i]);
                ck_assert_int_eq(mkdir(path, 0700), 0);
        }
        snprintf(path, sizeof path, "%s/link", temp_dir);
        ck_assert_int_eq(symlink("a/b", path), 0);
}

START_TEST(a_directory_is_below_itself_and_its_parents) {
        make_folders();
        ck_assert(below("a", "a"));
        ck_assert(below("a/b", "a"));
        ck_assert(!below("a", "a/b"));
}
END_TEST

START_TEST(a_name_that_begins_like_another_is_not_below_it) {
        make_folders();
        ck_assert(!below("ab", "a"));
        ck_assert(!below("ab/new", "a"));
}
END_TEST

START_TEST(what_is_not_there_yet_is_below_its_nearest_parent) {
        make_folders();
        ck_assert(below("a/b/new/newer", "a"));
        ck_assert(!below("new/a", "a"));
}
END_TEST

START_TEST(a_link_leads_below) {
        make_folders();
        ck_assert(below("link", "a"));
        ck_assert(below("link/new", "a"));
        ck_assert(!below("link", "ab"));
}
END_TEST

/* ---- mountinfo, the real one ---- */

static int count(struct mount_entry *m, void *ctx) {
        must(m->point[0] == '/' && m->type[0] && m->options[0]);
        ++*(int *)ctx;
        return 0;
}

START_TEST(there_are_as_many_mounts_as_lines) {
        FILE *f = fopen("/proc/self/mountinfo", "re");
        int lines = 0, mounts = 0, c;

        while ((c = fgetc(f)) != EOF)
                lines += c == '\n';
        fclose(f);
        ck_assert_int_eq(mountinfo_each(count, &mounts), 0);
        ck_assert_int_eq(mounts, lines);
        ck_assert_int_gt(mounts, 0);
}
END_TEST

START_TEST(proc_is_found_by_point_path_and_device) {
        struct mount_entry m;
        struct stat st;

        ck_assert_int_eq(mountinfo_find_point("/proc", &m), 0);
        ck_assert_str_eq(m.type, "proc");
        ck_assert_str_eq(m.root, "/");
        ck_assert_int_eq(stat("/proc", &st), 0);
        ck_assert_uint_eq(makedev(m.major, m.minor), st.st_dev);
        mount_entry_clear(&m);
        ck_assert_int_eq(mountinfo_find_path("/proc/self/status", &m), 0);
        ck_assert_str_eq(m.point, "/proc");
        mount_entry_clear(&m);
        ck_assert_int_eq(mountinfo_find_dev(st.st_dev, &m), 0);
        ck_assert_str_eq(m.type, "proc");
        mount_entry_clear(&m);
}
END_TEST

/* ---- mountinfo, ours ---- */

static const char table[] =
        "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "21 20 0:5 / /proc rw - proc proc rw\n"
        "22 20 0:30 / /mnt/a\\040b\\011c\\134d\\012e rw - tmpfs tm\\040pfs rw\n"
        "23 20 8:17 /sub/vol /mnt/bind ro,nosuid shared:3 master:4 propagate_from:5 - xfs /dev/sdb1 rw,noquota\n"
        "24 20 0:31 / /mnt/nosource rw - tmpfs  rw\n"
        "25 20 0:32 / /mnt/deep rw - fuse.one first rw\n"
        "26 25 0:33 / /mnt/deep rw - fuse.two second rw\n"
        "27 25 0:34 / /mnt/deep/er rw - fuse.three third rw\n"
        "28 20 259:1048575 / /mnt/bad\\04escape\\9 rw - ext4 /dev/nvme rw\n"
        "29 20 0:32 / /mnt/again rw - fuse.one first rw\n";

START_TEST(all_fields_are_read) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_point("/mnt/bind", &m), 0);
        ck_assert_int_eq(m.id, 23);
        ck_assert_int_eq(m.parent, 20);
        ck_assert_uint_eq(m.major, 8);
        ck_assert_uint_eq(m.minor, 17);
        ck_assert_str_eq(m.root, "/sub/vol");
        ck_assert_str_eq(m.options, "ro,nosuid");
        ck_assert_str_eq(m.type, "xfs");
        ck_assert_str_eq(m.source, "/dev/sdb1");
        mount_entry_clear(&m);
        ck_assert_ptr_null(m.point);
}
END_TEST

START_TEST(blanks_tabs_lines_and_backslashes_are_unescaped) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_point("/mnt/a b\tc\\d\ne", &m), 0);
        ck_assert_str_eq(m.source, "tm pfs");
        mount_entry_clear(&m);
}
END_TEST

START_TEST(what_is_no_escape_stays) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_point("/mnt/bad\\04escape\\9", &m), 0);
        ck_assert_uint_eq(m.minor, 1048575);
        mount_entry_clear(&m);
}
END_TEST

START_TEST(a_mount_without_a_source_is_a_mount) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_point("/mnt/nosource", &m), 0);
        ck_assert_str_eq(m.type, "tmpfs");
        mount_entry_clear(&m);
}
END_TEST

START_TEST(the_topmost_mount_of_a_point_wins) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_point("/mnt/deep", &m), 0);
        ck_assert_str_eq(m.type, "fuse.two");
        mount_entry_clear(&m);
}
END_TEST

static void lies_in(const char *path, const char *type) {
        struct mount_entry m;

        ck_assert_int_eq(mountinfo_find_path(path, &m), 0);
        ck_assert_msg(strcmp(m.type, type) == 0, "%s lies in %s", path, m.type);
        mount_entry_clear(&m);
}

START_TEST(a_path_lies_in_the_longest_mount_that_holds_it) {
        our_table = table;
        lies_in("/mnt/deep/er/x", "fuse.three");
        lies_in("/mnt/deep/er", "fuse.three");
        lies_in("/mnt/deep/erx", "fuse.two");
        lies_in("/mnt/deep", "fuse.two");
        lies_in("/mnt/deeper", "ext4");
        lies_in("/proc/1", "proc");
        lies_in("/process", "ext4");
        lies_in("/", "ext4");
}
END_TEST

START_TEST(a_device_is_found_where_it_was_mounted_first) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_dev(makedev(0, 32), &m), 0);
        ck_assert_int_eq(m.id, 25);
        mount_entry_clear(&m);
}
END_TEST

START_TEST(what_is_not_mounted_is_not_found) {
        struct mount_entry m;

        our_table = table;
        ck_assert_int_eq(mountinfo_find_point("/mnt", &m), -ENOENT);
        ck_assert_int_eq(mountinfo_find_point("/mnt/deep/", &m), -ENOENT);
        ck_assert_int_eq(mountinfo_find_dev(makedev(1, 1), &m), -ENOENT);
        ck_assert_int_eq(mountinfo_find_path("relative", &m), -ENOENT);
        our_table = "";
        ck_assert_int_eq(mountinfo_find_path("/", &m), -ENOENT);
}
END_TEST

static int stop_at_third(struct mount_entry *m, void *ctx) {
        (void)m;
        return ++*(int *)ctx == 3 ? 77 : 0;
}

START_TEST(a_walk_stops_where_it_is_told) {
        int seen = 0;

        our_table = table;
        ck_assert_int_eq(mountinfo_each(stop_at_third, &seen), 77);
        ck_assert_int_eq(seen, 3);
}
END_TEST

static int take_point(struct mount_entry *m, void *ctx) {
        *(char **)ctx = m->point;
        m->point = NULL;
        return 1;
}

START_TEST(a_string_that_was_taken_out_stays) {
        char *point = NULL;

        our_table = table;
        ck_assert_int_eq(mountinfo_each(take_point, &point), 1);
        ck_assert_str_eq(point, "/");
        free(point);
}
END_TEST

START_TEST(a_line_that_is_none_is_passed_over) {
        static const char *const bad[] = { "\n", "20 1 8:1 / /\n", "20 1 8:1 / / rw\n", "20 1 8:1 / / rw -\n",
                                           "20 1 x / / rw - ext4 a rw\n", "20 1 8 / / rw - ext4 a rw\n" };
        char text[200];

        for (size_t i = 0; i < COUNT(bad); i++) {
                int n = 0;
                snprintf(text, sizeof text, "%s21 20 0:5 / /proc rw - proc proc rw\n", bad[i]);
                our_table = text;
                ck_assert_int_eq(mountinfo_each(count, &n), 0);
                ck_assert_int_eq(n, 1);
        }
}
END_TEST

int main(void) {
        Suite *s = suite_create("paths");
        TCase *t = tcase_create("all");

        tcase_add_checked_fixture(t, setup, NULL);
        tcase_add_loop_test(t, an_absolute_path_is_normalised_by_text_alone, 0, (int)COUNT(normals));
        tcase_add_loop_test(t, a_normal_path_stays_as_it_is, 0, (int)COUNT(normals));
        tcase_add_test(t, a_relative_path_begins_where_we_are);
        tcase_add_test(t, a_relative_path_at_the_root_has_one_slash);
        tcase_add_test(t, without_a_place_a_relative_path_is_an_error_and_an_absolute_one_is_not);
        tcase_add_test(t, nothing_has_to_exist_and_links_are_not_followed);
        tcase_add_test(t, a_very_long_path_is_whole);
        tcase_add_test(t, a_directory_is_below_itself_and_its_parents);
        tcase_add_test(t, a_name_that_begins_like_another_is_not_below_it);
        tcase_add_test(t, what_is_not_there_yet_is_below_its_nearest_parent);
        tcase_add_test(t, a_link_leads_below);
        tcase_add_test(t, there_are_as_many_mounts_as_lines);
        tcase_add_test(t, proc_is_found_by_point_path_and_device);
        tcase_add_test(t, all_fields_are_read);
        tcase_add_test(t, blanks_tabs_lines_and_backslashes_are_unescaped);
        tcase_add_test(t, what_is_no_escape_stays);
        tcase_add_test(t, a_mount_without_a_source_is_a_mount);
        tcase_add_test(t, the_topmost_mount_of_a_point_wins);
        tcase_add_test(t, a_path_lies_in_the_longest_mount_that_holds_it);
        tcase_add_test(t, a_device_is_found_where_it_was_mounted_first);
        tcase_add_test(t, what_is_not_mounted_is_not_found);
        tcase_add_test(t, a_walk_stops_where_it_is_told);
        tcase_add_test(t, a_string_that_was_taken_out_stays);
        tcase_add_test(t, a_line_that_is_none_is_passed_over);
        suite_add_tcase(s, t);
        return temp_dir_run(s);
}
