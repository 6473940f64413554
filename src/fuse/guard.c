/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/guard.h"

#include "base/util.h"
#include "source/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct word {
        bool dismissed;
        unsigned minor;
        int mount_id;
        char mountpoint[PATH_MAX];
};

/* ---- in the guard ---- */

static volatile sig_atomic_t parent_gone;
static void on_parent_gone(int sig) { parent_gone = sig; }

static void force_unmount(const struct word *w) {
        struct mount_entry m;

        if (w->mount_id == 0 || mountinfo_find_point(w->mountpoint, &m) < 0)
                return;
        if (m.id == w->mount_id && mount_entry_is_hotset(&m))
                umount2(w->mountpoint, MNT_FORCE | UMOUNT_NOFOLLOW); /* where somebody is inside, it stays, and is dead */
        mount_entry_clear(&m);
}

/* Until the parent is gone (true), or has dismissed us.  Its signal is blocked but in ppoll, so it cannot come in between.
 * (getppid tells nothing: while another thread of the parent is stuck, that one is the parent.) */
static bool watch_parent(int fd, struct word *w, int *abort_fd) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        struct word next;
        sigset_t blocked;

        sigfillset(&blocked);
        sigdelset(&blocked, SIGUSR1);
        for (;;) {
                int n = ppoll(&p, 1, NULL, &blocked);
                if (parent_gone)
                        return true;
                if (n < 0 && errno == EINTR)
                        continue;
                if (recv(fd, &next, sizeof next, MSG_DONTWAIT) != (ssize_t)sizeof next)
                        return true;
                if (next.dismissed)
                        return false;
                *w = next;
                *abort_fd = guard_open_abort(w->minor);
        }
}

static _Noreturn void guard(int fd, pid_t parent) {
        struct sigaction sa = { .sa_handler = on_parent_gone };
        struct word w = { 0 };
        int abort_fd = -1;
        sigset_t all;

        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        sigaction(SIGUSR1, &sa, NULL);
        prctl(PR_SET_PDEATHSIG, SIGUSR1);
        prctl(PR_SET_NAME, "hotset-guard");
        setsid();
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int i = 0; null >= 0 && i < 3; i++)
                dup2(null, i);
        for (int i = 3; i < 1024; i++)
                if (i != fd)
                        close(i);
        if (chdir("/") < 0 || (getppid() == parent && !watch_parent(fd, &w, &abort_fd)))
                _exit(0);
        if (abort_fd < 0 || write(abort_fd, "1", 1) != 1)
                force_unmount(&w);
        _exit(0);
}

/* ---- in the daemon ---- */

int guard_open_abort(unsigned minor) {
        char path[64];

        snprintf(path, sizeof path, "/sys/fs/fuse/connections/%u/abort", minor);
        return open(path, O_WRONLY | O_CLOEXEC);
}

int guard_start(struct guard *ret) {
        pid_t parent = getpid();
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
                return -errno;
        pid_t pid = fork();
        if (pid == 0)
                guard(fds[1], parent);
        close(fds[1]);
        if (pid < 0) {
                close(fds[0]);
                return -errno;
        }
        *ret = (struct guard){ pid, fds[0] };
        return 0;
}

static void send_word(const struct guard *g, const struct word *w) { send(g->fd, w, sizeof *w, MSG_NOSIGNAL); }

void guard_tell(struct guard *g, unsigned minor, int mount_id, const char *mountpoint) {
        struct word w = { .minor = minor, .mount_id = mount_id };

        if (strlen(mountpoint) < sizeof w.mountpoint)
                strcpy(w.mountpoint, mountpoint);
        send_word(g, &w);
}

void guard_dismiss(struct guard *g) {
        if (g->pid <= 0)
                return;
        send_word(g, &(struct word){ .dismissed = true });
        close(g->fd);
        while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
                ;
        g->pid = 0;
}
