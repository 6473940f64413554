/* SPDX-License-Identifier: Apache-2.0 */
/*
 * growopen: how many opens fail while others change a file's size.
 *
 *        growopen CHANGED OPENED WRITERS OPENERS OPENS CUT
 *
 * CHANGED and OPENED are the same file, by two ways (behind a mount and through it, or twice through it).  WRITERS
 * processes append to CHANGED all the time, and cut it to nothing where it has become longer than CUT bytes (0:
 * never).  OPENERS processes open OPENED until together they have done so OPENS times.
 *
 * Prints "opens N ESTALE N other N", and the errno of the last other error.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PROCESSES 64

struct shared {
        _Atomic uint64_t opens, stale, other;
        _Atomic int error;
        _Atomic bool over;
};

static struct {
        const char *changed, *opened;
        unsigned writers, openers;
        uint64_t opens, cut;
} options;

static void note(struct shared *s) {
        if (errno == ESTALE) {
                s->stale++;
        } else {
                s->other++;
                s->error = errno;
        }
}

/* One append, through an open of its own: the file may be another one by now. */
static int append(size_t len) {
        static const char bytes[700];
        const int fd = open(options.changed, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        struct stat st;

        if (fd < 0)
                return -1;
        int r = write(fd, bytes, len) < 0 ? -1 : 0;
        if (r == 0 && options.cut > 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size > options.cut)
                r = ftruncate(fd, 0);
        const int err = errno;
        close(fd);
        errno = err;
        return r;
}

static void writer(struct shared *s, unsigned which) {
        while (!s->over)
                if (append(100 + 75 * (which % 8)) < 0)
                        note(s);
}

static void opener(struct shared *s) {
        while (s->opens++ < options.opens) {
                const int fd = open(options.opened, O_RDONLY | O_CLOEXEC);

                if (fd < 0)
                        note(s);
                else
                        close(fd);
        }
}

static pid_t start(struct shared *s, bool opens, unsigned which) {
        const pid_t pid = fork();

        if (pid < 0) {
                perror("growopen: fork");
                exit(1);
        }
        if (pid > 0)
                return pid;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (opens)
                opener(s);
        else
                writer(s, which);
        _exit(0);
}

int main(int argc, char **argv) {
        struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t openers[MAX_PROCESSES];

        if (argc != 7 || s == MAP_FAILED) {
                fputs("usage: growopen CHANGED OPENED WRITERS OPENERS OPENS CUT\n", stderr);
                return 1;
        }
        options.changed = argv[1];
        options.opened = argv[2];
        options.writers = (unsigned)atoi(argv[3]);
        options.openers = (unsigned)atoi(argv[4]);
        options.opens = strtoull(argv[5], NULL, 10);
        options.cut = strtoull(argv[6], NULL, 10);
        if (options.openers > MAX_PROCESSES)
                return 1;
        for (unsigned i = 0; i < options.writers; i++)
                start(s, false, i);
        for (unsigned i = 0; i < options.openers; i++)
                openers[i] = start(s, true, i);
        for (unsigned i = 0; i < options.openers; i++)
                waitpid(openers[i], NULL, 0);
        s->over = true;
        while (wait(NULL) > 0)
                ;
        printf("opens %" PRIu64 " ESTALE %" PRIu64 " other %" PRIu64 " (%s)\n", options.opens, s->stale, s->other,
               s->error ? strerror(s->error) : "none");
        return 0;
}
