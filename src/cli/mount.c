/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hotset mount: checks, then two processes.  The daemon mounts and serves; the watcher waits for its word, asks the
 * mount itself whether it answers, sets its readahead, and says how it went.  In the background the watcher is the
 * command that returns; in the foreground (-f) it is a child.
 *
 * The source is opened before anything is mounted over it.
 */
#include "base/fault.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/util.h"
#include "cache/cache.h"
#include "cli/cli.h"
#include "control/server.h"
#include "fuse/guard.h"
#include "fuse/session.h"
#include "source/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

#define READY "ready" /* the daemon's word; anything else is the reason why not */
#define ANSWER_SECONDS 30

struct mounting {
        struct options options;
        bool foreground;
        char *source_path, *mountpoint; /* absolute, without links */
        struct source *source;
        struct cache *cache;
        struct session *session;
        struct control_server *control;
        struct guard guard;
        char error[CACHE_ERROR_MAX];
};

static void usage(void) {
        puts("usage: hotset mount SOURCE MOUNTPOINT [-o OPTION[,OPTION...]] [-f]\n\n"
             "Mounts SOURCE on MOUNTPOINT (which may be the same directory).  The tree and the bytes are unchanged;\n"
             "ranges of files that are read again come from the cache.  Returns when the mount answers.\n\n"
             "  -f    stay in the foreground, log to standard error\n"
             "  -o    mount options; words of mount(8) and fstab (nofail, noauto, _netdev, x-...) are accepted\n\n"
             "Options:");
        options_help(stdout);
        puts("\nSizes are numbers with K, M, G or T (binary).  End a mount with: umount MOUNTPOINT");
}

/* ---- checks before anything happens ---- */

static int parse_args(struct mounting *m, int argc, char **argv, const char **ret_source, const char **ret_point) {
        static const struct option longs[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
        int opt;

        if (options_init(&m->options) < 0)
                return cli_fail(EXIT_SYSTEM, "out of memory");
        while ((opt = getopt_long(argc, argv, "o:fh", longs, NULL)) != -1)
                switch (opt) {
                case 'o':
                        if (options_parse(&m->options, optarg, m->error, sizeof m->error) < 0)
                                return cli_fail(EXIT_USAGE, "%s", m->error);
                        break;
                case 'f': m->foreground = true; break;
                case 'h': usage(); exit(0);
                default: return cli_fail(EXIT_USAGE, "see 'hotset mount --help'");
                }
        if (argc - optind != 2)
                return cli_fail(EXIT_USAGE, "mount takes a SOURCE and a MOUNTPOINT; see 'hotset mount --help'");
        *ret_source = argv[optind];
        *ret_point = argv[optind + 1];
        return 0;
}

static int check_options(const struct options *o) {
        if (!o->cache && o->mode != MODE_OFF)
                return cli_fail(EXIT_USAGE, "no cache directory, and nothing is written where nobody asked: add -o "
                                "cache=DIR (on NVMe), or -o mode=off to pass everything through");
        if (o->readahead < 4 * KIB || o->readahead > 1024 * MIB)
                return cli_fail(EXIT_USAGE, "option readahead: it must be from 4K to 1G");
        if (o->admit == ADMIT_SECOND)
                return cli_fail(EXIT_USAGE, "admit=second is not there yet; leave it out (admit=free)");
        return 0;
}

static int resolve(const char *what, const char *path, char **ret) {
        struct stat st;

        if (!(*ret = realpath(path, NULL)) || stat(*ret, &st) < 0)
                return cli_fail(EXIT_MOUNT, "%s %s: %s%s", what, path, strerror(errno),
                                errno == ENOTCONN ? "; a mount there has died: 'umount' it first" : "");
        if (!S_ISDIR(st.st_mode))
                return cli_fail(EXIT_MOUNT, "%s %s is not a directory", what, path);
        return 0;
}

/* No file system of ours below itself, in neither direction: a request would wait for itself. */
static int check_places(const struct mounting *m) {
        _cleanup_close_ int point = open(m->mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC);
        bool over_itself = strcmp(m->source_path, m->mountpoint) == 0;

        if (!over_itself && path_is_below(m->mountpoint, m->source_path, source_root(m->source)))
                return cli_fail(EXIT_MOUNT, "mount point %s lies inside the source %s; mount over the source itself "
                                "(hotset mount %s %s), or elsewhere", m->mountpoint, m->source_path, m->source_path,
                                m->source_path);
        if (m->options.cache && point >= 0 && path_is_below(m->options.cache, m->mountpoint, point))
                return cli_fail(EXIT_MOUNT, "cache %s lies inside the mount point %s; give a directory elsewhere",
                                m->options.cache, m->mountpoint);
        return 0;
}

static int make_cache_absolute(struct options *o) {
        char *absolute = NULL;

        if (!o->cache)
                return 0;
        if (path_normalise(o->cache, &absolute) < 0)
                return cli_fail(EXIT_SYSTEM, "cache %s: %s", o->cache, strerror(errno));
        free(o->cache);
        o->cache = absolute;
        return 0;
}

static int prepare(struct mounting *m, int argc, char **argv) {
        const char *source = NULL, *point = NULL;
        int code = parse_args(m, argc, argv, &source, &point);

        if (code != 0 || (code = check_options(&m->options)) != 0 || (code = make_cache_absolute(&m->options)) != 0 ||
            (code = resolve("source", source, &m->source_path)) != 0 ||
            (code = resolve("mount point", point, &m->mountpoint)) != 0)
                return code;
        int r = source_new(m->source_path, &m->source);
        if (r < 0)
                return cli_fail(EXIT_MOUNT, "source %s: %s", m->source_path, strerror(-r));
        return check_places(m);
}

/* ---- the daemon ---- */

/* The shell's limits are not meant for a daemon, and some end it with a signal. */
static void lift_limit(int which) {
        struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY }, lim;

        if (setrlimit(which, &none) == 0 || getrlimit(which, &lim) < 0)
                return;
        lim.rlim_cur = lim.rlim_max;
        setrlimit(which, &lim);
}

static void set_limits(void) {
        struct rlimit lim;

        if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
                lim.rlim_cur = lim.rlim_max;
                setrlimit(RLIMIT_NOFILE, &lim);
        }
        lift_limit(RLIMIT_FSIZE); /* the writers' limits count, and the kernel has asked about those */
        lift_limit(RLIMIT_CPU);
        signal(SIGXFSZ, SIG_IGN);
        signal(SIGXCPU, SIG_IGN);
        signal(SIGIO, SIG_IGN); /* somebody waits for a lease that ends by itself */
        signal(SIGPIPE, SIG_IGN);
        mallopt(M_ARENA_MAX, 2);          /* an arena a thread is memory that nobody bounds */
        prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0); /* memory reclaim must not wait for us; needs CAP_SYS_RESOURCE */
        /* With it, what users write would pass their quotas and the file system's own reserve. */
        capabilities_change(0, 1u << CAP_SYS_RESOURCE);
        umask(0);                         /* modes come from the programs, masked already */
        if (chdir("/") < 0)               /* no file system is kept busy */
                log_warn("cannot change to /: %s", strerror(errno));
}

static int open_cache(struct mounting *m) {
        const struct cache_config cfg = { &m->options, m->source, m->mountpoint, m->source_path };
        int r = cache_new(&cfg, &m->cache, m->error);
        char text[CACHE_ERROR_MAX + 64];

        if (r == 0 || !m->options.nofail)
                return r;
        snprintf(text, sizeof text, "passing everything through: %s", m->error);
        m->options.mode = MODE_OFF;
        if ((r = cache_new(&cfg, &m->cache, m->error)) == 0)
                cache_warn(m->cache, text);
        return r;
}

static void warn_of_limits(struct mounting *m) {
        if (geteuid() == 0)
                return;
        cache_warn(m->cache, "not mounted by root: the readahead stays at the kernel's default, and other users see the "
                             "mount only where /etc/fuse.conf says user_allow_other");
}

static int bring_up(struct mounting *m) {
        int r = guard_start(&m->guard);

        if (r == 0)
                r = source_start(m->source);
        if (r < 0)
                snprintf(m->error, sizeof m->error, "source %s: cannot start: %s", m->source_path, strerror(-r));
        if (r < 0 || (r = open_cache(m)) < 0)
                return r;
        const struct session_config cfg = { &m->options, m->source, m->cache, m->source_path, m->mountpoint };
        if ((r = session_mount(&cfg, &m->session, m->error)) < 0)
                return r;
        guard_tell(&m->guard, session_minor(m->session), session_mount_id(m->session), m->mountpoint);
        warn_of_limits(m);
        const struct control_config control = { &m->options, m->cache, m->mountpoint, m->source_path,
                                                session_minor(m->session) };
        if ((r = control_start(&control, &m->control)) < 0)
                cache_warn(m->cache, "no control socket in /run/hotset: 'hotset status' will not find this mount");
        return 0;
}

static int tear_down(struct mounting *m) {
        control_stop(m->control);
        if (!cache_free(m->cache))
                _exit(0); /* a read of the source hangs, and its buffers with it; the kernel and the guard clean up */
        session_free(m->session);
        guard_dismiss(&m->guard);
        source_free(m->source);
        options_clear(&m->options);
        free(m->source_path);
        free(m->mountpoint);
        return 0;
}

static void leave_terminal(void) {
        _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        setsid();
        for (int fd = 0; null >= 0 && fd < 3; fd++)
                dup2(null, fd);
        log_to_syslog();
}

static void tell(int pipe_fd, const char *text) {
        ssize_t n = write(pipe_fd, text, strlen(text));
        (void)n; /* the watcher takes silence for a death */
}

static int serve(struct mounting *m, int pipe_fd) {
        sigset_t set;

        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGHUP);
        sigprocmask(SIG_BLOCK, &set, NULL);
        set_limits();
        int r = bring_up(m);
        if (r < 0) {
                tell(pipe_fd, m->error);
                tear_down(m);
                return EXIT_MOUNT;
        }
        if (!m->foreground)
                leave_terminal();
        log_info("mounted %s on %s, cache %s", m->source_path, m->mountpoint, m->options.cache ? m->options.cache : "none");
        tell(pipe_fd, READY);
        close(pipe_fd);
        r = session_run(m->session);
        log_info("unmounted %s", m->mountpoint);
        tear_down(m);
        return r < 0 ? EXIT_SYSTEM : 0;
}

/* ---- the watcher ---- */

static void set_readahead(dev_t dev, uint64_t bytes) {
        char path[64], text[24];

        snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(dev), minor(dev));
        _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
        int n = snprintf(text, sizeof text, "%llu", (unsigned long long)(bytes / KIB));
        if ((fd < 0 || write(fd, text, (size_t)n) != n) && geteuid() == 0)
                fprintf(stderr, "hotset: cannot set the readahead in %s: %s\n", path, strerror(errno));
}

/* A statfs goes to the daemon each time: only a living mount answers it. */
static int ask_mount(const struct mounting *m) {
        struct statfs sf;
        struct stat st;

        if (stat(m->mountpoint, &st) < 0 || statfs(m->mountpoint, &sf) < 0)
                return cli_fail(EXIT_MOUNT, "%s does not answer: %s", m->mountpoint, strerror(errno));
        set_readahead(st.st_dev, m->options.readahead);
        return 0;
}

/* In a process of its own: one that waits for a mount can be killed, and nothing else ends its waiting. */
static int ask_mount_in_time(const struct mounting *m) {
        int status = 0;
        pid_t pid = fork();

        if (pid == 0)
                _exit(ask_mount(m));
        for (int i = 0; pid > 0 && i < ANSWER_SECONDS * 100; i++) {
                if (waitpid(pid, &status, WNOHANG) == pid)
                        return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_MOUNT;
                nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
        }
        if (pid > 0)
                kill(pid, SIGKILL);
        return cli_fail(EXIT_MOUNT, "%s does not answer; is its source alive?", m->mountpoint);
}

static int watch(const struct mounting *m, int pipe_fd) {
        char word[CACHE_ERROR_MAX + 1];
        size_t len = 0;
        ssize_t n;

        while (len < sizeof word - 1 && (n = read(pipe_fd, word + len, sizeof word - 1 - len)) != 0) {
                if (n < 0 && errno != EINTR)
                        break;
                len += n > 0 ? (size_t)n : 0;
        }
        word[len] = '\0';
        if (strcmp(word, READY) == 0)
                return ask_mount_in_time(m);
        return cli_fail(EXIT_MOUNT, "%s", len > 0 ? word : "the daemon died before it could mount; see the system log");
}

/* In the foreground the daemon is us, and the watcher a grandchild, so that nobody has to wait for it. */
static int split(const struct mounting *m, bool *ret_watcher) {
        pid_t pid = fork();

        if (pid < 0)
                return cli_fail(EXIT_SYSTEM, "cannot fork: %s", strerror(errno));
        *ret_watcher = m->foreground ? pid == 0 : pid > 0;
        if (m->foreground && pid > 0)
                waitpid(pid, NULL, 0);
        if (m->foreground && pid == 0 && fork() != 0)
                _exit(0);
        return 0;
}

int cmd_mount(int argc, char **argv) {
        struct mounting m = { 0 };
        const char *bad_fault = NULL;
        int fds[2], code;

        close_range(3, ~0u, 0); /* one of them might pin a mount */
        if (fault_setup(getenv("HOTSET_FAULTS"), &bad_fault) < 0)
                return cli_fail(EXIT_USAGE, "HOTSET_FAULTS: cannot use '%s'", bad_fault);
        if ((code = prepare(&m, argc, argv)) != 0)
                return code;
        log_set_level((enum log_level)m.options.log);
        if (pipe2(fds, O_CLOEXEC) < 0)
                return cli_fail(EXIT_SYSTEM, "cannot make a pipe: %s", strerror(errno));
        bool watcher = false;
        if ((code = split(&m, &watcher)) != 0)
                return code;
        close(fds[watcher ? 1 : 0]);
        return watcher ? watch(&m, fds[0]) : serve(&m, fds[1]);
}
