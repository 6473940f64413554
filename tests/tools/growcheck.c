/* SPDX-License-Identifier: Apache-2.0 */
/*
 * growcheck SOURCE VIEW [-t SECONDS] [-w WRITERS] [-r READERS] [-a ATTR_TIMEOUT] [-s SEED]
 *
 * Writers append to files in SOURCE, truncate and stretch them; readers read the same files whole through VIEW, by
 * either of two hard links (in links/, which must be there).  Each reading must be one that the writers' log allows
 * (growcheck.h).  With VIEW = SOURCE nothing may be found: that is how this program is tested.
 *
 * Exit status: 0; 1: something was wrong, and printed; 2: it could not run.
 */
#include "growcheck.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FILES = 16, MAX_READERS = 64, HELD_ROUNDS = 5 };

struct shared *shared;
static struct file *files;
static unsigned writers = 8, readers = 8, seconds = 10;
static double attr_timeout;
static const char *source, *view;
static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)((random_state >> 33) % n);
}

static void pause_ms(uint32_t ms) { nanosleep(&(struct timespec){ ms / 1000, (long)(ms % 1000) * 1000000 }, NULL); }

static void path_of(char path[PATH_MAX], const char *top, unsigned i, bool link) {
        snprintf(path, PATH_MAX, link ? "%s/links/%u" : "%s/%u", top, i);
}

static _Noreturn void die(const char *what) {
        fprintf(stderr, "growcheck: %s: %s\n", what, strerror(errno));
        exit(2);
}

/* ---- the writers ---- */

struct step {
        enum { APPEND, APPEND_BEYOND, STRETCH, FILL, CUT } op;
        uint32_t off, end; /* written, or stretched, from and to; the new end for CUT */
};

static struct state state_after(struct state s, const struct step *st) {
        s.cut = st->op == CUT ? st->end : NO_CUT;
        if (st->op == FILL) {
                s.hole_off = s.hole_end = 0;
                return s;
        }
        if (st->op == APPEND_BEYOND || st->op == STRETCH) {
                s.hole_off = s.size;
                s.hole_end = st->op == STRETCH ? st->end : st->off;
        }
        s.size = st->end;
        s.hole_end = s.hole_end < s.size ? s.hole_end : s.size;
        if (s.hole_off >= s.hole_end)
                s.hole_off = s.hole_end = 0;
        return s;
}

/* Style 0 appends until it is full; 1 is often cut as well; 2 has holes, 3 too, and rests between bursts. */
static struct step choose(const struct state *s, unsigned style) {
        uint32_t most = style == 0 ? 100000 : 30000, dice = random_below(100), skip = 1 + random_below(20000);
        uint32_t more = 1 + random_below(random_below(3) ? most : 3000);

        if (s->size + most + 20000 > MAX_SIZE || (style > 0 && s->size > 0 && dice < 15))
                return (struct step){ CUT, 0, random_below(style == 0 ? 30000 : s->size) };
        if (s->hole_end > 0 && dice < 60)
                return (struct step){ FILL, s->hole_off, s->hole_end };
        if (style >= 2 && s->hole_end == 0 && dice < 30)
                return (struct step){ STRETCH, s->size, s->size + more };
        if (style >= 2 && s->hole_end == 0 && dice < 40)
                return (struct step){ APPEND_BEYOND, s->size + skip, s->size + skip + more };
        return (struct step){ APPEND, s->size, s->size + more };
}

static void do_step(struct file *f, int fd, unsigned style) {
        uint32_t n = f->begun;
        struct step st = choose(&f->states[n], style);
        ssize_t len = (ssize_t)(st.end - st.off);

        f->states[n + 1] = state_after(f->states[n], &st);
        f->begun = n + 1;
        if (st.op == CUT || st.op == STRETCH ? ftruncate(fd, st.end) < 0 : pwrite(fd, f->byte + st.off, (size_t)len, st.off) != len)
                die("writing");
        f->done = n + 1;
}

static void writer(unsigned i) {
        struct file *f = &files[i];
        char path[PATH_MAX];

        path_of(path, source, i, false);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                die(path);
        while (!shared->stop && f->begun < STATES - 2) {
                do_step(f, fd, i % 4);
                if (i % 4 == 3 && random_below(12) == 0)
                        pause_ms(2300); /* old enough to be trusted, and kept by caches, before it goes on */
                else if (random_below(4) > 0)
                        pause_ms(1 + random_below(20));
        }
}

static struct reading reading; /* a process does one at a time */

/* ---- the readers ---- */

/* From front to back: as one (and a byte more, as many do), in 64 KiB, or in odd lengths. */
static bool by_read(int fd, struct reading *r) {
        const size_t steps[] = { (size_t)r->stat_size + 1, 65536, 1 + random_below(50000) };
        size_t step = steps[random_below(3)];
        ssize_t n = lseek(fd, 0, SEEK_SET);

        while (n >= 0 && r->n < BUFFER && (n = read(fd, r->bytes + r->n, step < BUFFER - r->n ? step : BUFFER - r->n)) > 0)
                r->n += (uint32_t)n;
        return n >= 0;
}

/* From back to front, so that the end comes first.  A short answer is the end. */
static bool by_pread(int fd, struct reading *r) {
        uint32_t step = 1 + random_below(100000);

        r->n = BUFFER;
        for (uint32_t off = r->stat_size / step * step;; off -= step) {
                size_t room = step < BUFFER - off ? step : BUFFER - off;
                ssize_t n = pread(fd, r->bytes + off, room, off);
                if (n >= 0 && (r->n == BUFFER || (size_t)n < room))
                        r->n = off + (uint32_t)n;
                if (n < 0 || off == 0)
                        return n >= 0;
        }
}

static sigjmp_buf on_bus;
static void bus(int sig) { siglongjmp(on_bus, sig); }

static bool by_mmap(int fd, struct reading *r) {
        static volatile uint32_t at;
        const uint8_t *map = r->stat_size > 0 ? mmap(NULL, r->stat_size, PROT_READ, MAP_SHARED, fd, 0) : NULL;

        if (map == MAP_FAILED)
                return false;
        if (sigsetjmp(on_bus, 1) == 0)
                for (at = 0; at < r->stat_size; at += PAGE)
                        memcpy(r->bytes + at, map + at, r->stat_size - at < PAGE ? r->stat_size - at : PAGE);
        else
                r->bus = true;
        r->n = at < r->stat_size ? at : r->stat_size;
        return !map || munmap((void *)(uintptr_t)map, r->stat_size) == 0;
}

static bool by_sendfile(int fd, struct reading *r) {
        static int ends[2] = { -1, -1 };
        off_t off = 0;
        ssize_t n = -1;

        if (ends[0] < 0 && pipe(ends) < 0)
                return false;
        while (r->n + 65536 <= BUFFER && (n = sendfile(ends[1], fd, &off, 65536)) > 0)
                for (ssize_t m; n > 0; n -= m, r->n += (uint32_t)m)
                        if ((m = read(ends[0], r->bytes + r->n, (size_t)n)) <= 0)
                                return false;
        return n >= 0;
}

static void read_once(struct reading *r, int fd) {
        static bool (*const ways[METHODS])(int fd, struct reading *r) = { by_read, by_pread, by_mmap, by_sendfile };
        struct stat st;

        r->bus = false;
        r->n = 0;
        r->method = (enum method)random_below(METHODS);
        r->stat_size = fstat(fd, &st) == 0 && st.st_size <= MAX_SIZE ? (uint32_t)st.st_size : BUFFER;
        if (r->stat_size < BUFFER && ways[r->method](fd, r))
                judge(r);
        else
                complain_of_call(r, method_names[r->method]);
}

/* Growth that nobody opens for: seen by name, while others hold the file open. */
static void look(struct reading *r, unsigned i) {
        uint32_t first = r->first;
        struct stat st;

        path_of(r->path, view, i, random_below(2));
        r->first = r->file->done;
        if (stat(r->path, &st) == 0)
                judge_stat(r, (uint32_t)st.st_size, attr_timeout == 0);
        else
                complain_of_call(r, "stat");
        r->first = first;
}

static void open_and_read(struct reading *r, unsigned i) {
        unsigned rounds = random_below(4) > 0 ? 1 : HELD_ROUNDS;

        path_of(r->path, view, i, random_below(2));
        r->first = r->file->done;
        int fd = open(r->path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                complain_of_call(r, "open");
        for (unsigned n = 0; fd >= 0 && n < rounds; n++) {
                if (n > 0)
                        look(r, i);
                read_once(r, fd);
        }
        if (fd >= 0)
                close(fd);
}

/* The last one only looks. */
static void reader(unsigned n) {
        signal(SIGBUS, bus);
        reading.reader = n;
        while (!shared->stop) {
                unsigned i = random_below(writers);
                reading.file = &files[i];
                if (n < readers) {
                        open_and_read(&reading, i);
                } else {
                        look(&reading, i);
                        pause_ms(1);
                }
        }
}

/* ---- all of them ---- */

static void *share(size_t len) {
        void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
                die("mmap");
        return p;
}

static void make_file(unsigned i) {
        char path[PATH_MAX], link_path[PATH_MAX];

        for (uint32_t o = 0; o < MAX_SIZE; o++)
                files[i].byte[o] = (uint8_t)(1 + ((o + i * 7919u) * 2654435761u >> 16) % 255);
        files[i].states[0].cut = NO_CUT;
        path_of(path, source, i, false);
        path_of(link_path, source, i, true);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0 || link(path, link_path) < 0)
                die(path);
        close(fd);
}

static pid_t start(void (*run)(unsigned i), unsigned i) {
        pid_t pid = fork();

        if (pid < 0)
                die("fork");
        if (pid == 0) {
                random_state += 1000 * (uint64_t)i + (run == writer);
                run(i);
                _exit(0);
        }
        return pid;
}

/* Whoever does not end is stuck in the view: to be killed, so that we can say so. */
static unsigned wait_for(const pid_t *pids, unsigned n) {
        unsigned bad = 0;
        int status = 0;

        for (unsigned i = 0, waited = 0; i < n; i++) {
                pid_t got;
                while ((got = waitpid(pids[i], &status, WNOHANG)) == 0 && waited++ < 2000)
                        pause_ms(10);
                if (got == 0) {
                        printf("WRONG process %u does not end\n", i);
                        kill(pids[i], SIGKILL);
                }
                bad += got == 0 || status != 0;
        }
        return bad;
}

static int report(unsigned bad) {
        unsigned wrong = bad + shared->failed + shared->wrong_stats + shared->wrong_fstats, steps = 0;

        for (unsigned i = 0; i < writers; i++)
                steps += files[i].done;
        printf("growcheck: %u steps; wrong of %u stats %u, fstats %u", steps, shared->stats, shared->wrong_stats,
               shared->wrong_fstats);
        for (int m = 0; m < METHODS; m++) {
                printf(", of %u by %s %u", shared->reads[m], method_names[m], shared->wrong[m]);
                wrong += shared->wrong[m];
        }
        printf("; %u of them at an old end; %u calls failed, %u processes\n", shared->at_old_end, shared->failed, bad);
        return wrong > 0;
}

static void parse(int argc, char **argv) {
        for (int opt; (opt = getopt(argc, argv, "t:w:r:a:s:")) != -1;)
                switch (opt) {
                case 't': seconds = (unsigned)atoi(optarg); break;
                case 'w': writers = (unsigned)atoi(optarg); break;
                case 'r': readers = (unsigned)atoi(optarg); break;
                case 'a': attr_timeout = atof(optarg); break;
                case 's': random_state = strtoull(optarg, NULL, 10); break;
                default: exit(2);
                }
        if (argc - optind != 2 || writers < 1 || writers > MAX_FILES || readers > MAX_READERS) {
                fputs("growcheck: see its source for how to call it\n", stderr);
                exit(2);
        }
        source = argv[optind], view = argv[optind + 1];
}

int main(int argc, char **argv) {
        pid_t pids[MAX_FILES + MAX_READERS + 1];
        unsigned n = 0;

        parse(argc, argv);
        shared = share(sizeof *shared);
        files = share(writers * sizeof *files);
        for (unsigned i = 0; i < writers; i++)
                make_file(i);
        for (unsigned i = 0; i < writers; i++)
                pids[n++] = start(writer, i);
        for (unsigned i = 0; i <= readers; i++)
                pids[n++] = start(reader, i);
        pause_ms(1000 * seconds);
        shared->stop = true;
        return report(wait_for(pids, n));
}
