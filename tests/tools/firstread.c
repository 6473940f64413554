/* SPDX-License-Identifier: Apache-2.0 */
/*
 * firstread: what several processes read first, when they open at once a file that has changed behind a mount.
 *
 *        firstread SOURCE MOUNT FILES ROUNDS PROCESSES AGE_MS read|map
 *
 * Each round writes every file of SOURCE anew, with the same size, waits until that is AGE_MS old, and then lets all
 * processes open each file through MOUNT at once and read it.  A file holds one number all over, the round's, so any
 * older byte shows.  The pages of the round before are in the kernel's cache, as everybody has just read them.
 *
 * Prints "reads N stale N failed N".
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_PROCESSES 64
#define WORDS 8192 /* of 8 bytes: a file of 64 KiB */
#define FILE_SIZE (WORDS * sizeof(uint64_t))

struct shared {
        pthread_barrier_t together, written;
        _Atomic uint64_t reads, stale, failed;
};

static struct {
        const char *source, *mount;
        unsigned files, rounds, processes, age_ms;
        bool by_map;
} options;

static void die(const char *what) {
        fprintf(stderr, "firstread: %s: %s\n", what, strerror(errno));
        exit(1);
}

static const char *path_of(const char *top, unsigned file, char *room, size_t size) {
        snprintf(room, size, "%s/first-%u", top, file);
        return room;
}

/* Behind the mount, in place. */
static void write_file(unsigned file, uint64_t number) {
        static uint64_t words[WORDS];
        char path[4096];
        int fd = open(path_of(options.source, file, path, sizeof(path)), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

        for (size_t i = 0; i < WORDS; i++)
                words[i] = number;
        if (fd < 0 || pwrite(fd, words, FILE_SIZE, 0) != (ssize_t)FILE_SIZE || close(fd) < 0)
                die(path);
}

/* Round 0 only brings the pages in: no matter how old its version is. */
static void write_all(uint64_t number) {
        const struct timespec age = { .tv_sec = options.age_ms / 1000,
                                      .tv_nsec = (long)(options.age_ms % 1000) * 1000000 };

        for (unsigned i = 0; i < options.files; i++)
                write_file(i, number);
        if (number > 0)
                nanosleep(&age, NULL);
}

static bool all_are(const uint64_t *words, uint64_t number) {
        for (size_t i = 0; i < WORDS; i++)
                if (words[i] != number)
                        return false;
        return true;
}

static bool copy_map(int fd, uint64_t *words) {
        void *map = mmap(NULL, FILE_SIZE, PROT_READ, MAP_SHARED, fd, 0);

        if (map == MAP_FAILED)
                return false;
        memcpy(words, map, FILE_SIZE);
        munmap(map, FILE_SIZE);
        return true;
}

static void read_file(struct shared *s, unsigned file, uint64_t number) {
        static uint64_t words[WORDS];
        char path[4096];
        int fd = open(path_of(options.mount, file, path, sizeof(path)), O_RDONLY | O_CLOEXEC);

        if (fd < 0 || !(options.by_map ? copy_map(fd, words) : pread(fd, words, FILE_SIZE, 0) == (ssize_t)FILE_SIZE))
                s->failed++;
        else if (!all_are(words, number))
                s->stale++;
        s->reads++;
        if (fd >= 0)
                close(fd);
}

static void reader(struct shared *s) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint64_t round = 0; round <= options.rounds; round++) {
                pthread_barrier_wait(&s->written);
                for (unsigned i = 0; i < options.files; i++) {
                        pthread_barrier_wait(&s->together);
                        read_file(s, i, round);
                }
                pthread_barrier_wait(&s->written);
        }
        _exit(0);
}

static struct shared *share(void) {
        struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pthread_barrierattr_t attr;

        if (s == MAP_FAILED)
                die("mmap");
        pthread_barrierattr_init(&attr);
        pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&s->together, &attr, options.processes);
        pthread_barrier_init(&s->written, &attr, options.processes + 1);
        return s;
}

static void run(struct shared *s) {
        for (uint64_t round = 0; round <= options.rounds; round++) {
                write_all(round);
                pthread_barrier_wait(&s->written);
                pthread_barrier_wait(&s->written);
                if (round == 0) /* which does not count */
                        s->reads = s->stale = s->failed = 0;
        }
}

int main(int argc, char **argv) {
        if (argc != 8) {
                fputs("usage: firstread SOURCE MOUNT FILES ROUNDS PROCESSES AGE_MS read|map\n", stderr);
                return 1;
        }
        options.source = argv[1];
        options.mount = argv[2];
        options.files = (unsigned)atoi(argv[3]);
        options.rounds = (unsigned)atoi(argv[4]);
        options.processes = (unsigned)atoi(argv[5]);
        options.age_ms = (unsigned)atoi(argv[6]);
        options.by_map = strcmp(argv[7], "map") == 0;
        if (options.processes == 0 || options.processes > MAX_PROCESSES)
                return 1;
        struct shared *s = share();
        for (unsigned i = 0; i < options.processes; i++) {
                const pid_t pid = fork();

                if (pid < 0)
                        die("fork");
                if (pid == 0)
                        reader(s);
        }
        run(s);
        while (wait(NULL) > 0)
                ;
        printf("reads %" PRIu64 " stale %" PRIu64 " failed %" PRIu64 "\n", s->reads, s->stale, s->failed);
        return 0;
}
