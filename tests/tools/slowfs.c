/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slowfs: options, session, start and end.  slowfs.h has the idea, `slowfs --help` the options.
 *
 * The command returns when the mount answers: whoever waits for the mounted session asks it for its counters, which
 * only the running daemon can give.  Without -f that is the parent of the daemon, with -f a child of it.
 *
 * At the end the mount is taken away only if the topmost one at the mount point is the one made here; otherwise
 * somebody already did, and what lies there is not ours.
 */
#include "slowfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define READY_TIMEOUT_S 30

struct slowfs_options slowfs_options;

/* As the command line has them; sizes and times are read afterwards. */
struct raw_options {
        unsigned disks;
        double seek_ms, rate_mb, latency_ms;
        char *stripe, *max_read, *readahead, *hold_ops;
        int help;
};
static struct raw_options raw = { .seek_ms = 8, .rate_mb = 150 };

static struct fuse_session *session;
static pthread_t main_thread;
static atomic_bool session_over;

#define RAW(template, member) \
        { template, offsetof(struct raw_options, member), 0 }
#define RAW_FLAG(template, member) \
        { template, offsetof(struct raw_options, member), 1 }
#define OPT(template, member) \
        { template, offsetof(struct slowfs_options, member), 0 }
#define FLAG(template, member) \
        { template, offsetof(struct slowfs_options, member), 1 }

static const struct fuse_opt raw_options[] = {
        RAW("disks=%u", disks),         RAW("seek_ms=%lf", seek_ms),
        RAW("rate_mb=%lf", rate_mb),    RAW("latency_ms=%lf", latency_ms),
        RAW("stripe=%s", stripe),       RAW("max_read=%s", max_read),
        RAW("readahead=%s", readahead), RAW("hold_ops=%s", hold_ops),
        RAW_FLAG("-h", help),           RAW_FLAG("--help", help),
        FUSE_OPT_END,
};

static const struct fuse_opt options[] = {
        OPT("fail=%s", fail),
        OPT("fail_glob=%s", fail_glob),
        OPT("hold=%s", hold),
        OPT("hold_glob=%s", hold_glob),
        OPT("stats=%s", stats),
        OPT("log=%s", log),
        OPT("pidfile=%s", pidfile),
        OPT("timeout=%lf", timeout),
        FLAG("direct_io", direct_io),
        FLAG("writable", writable),
        FLAG("-f", foreground),
        FUSE_OPT_END,
};

static void usage(FILE *f) {
        fputs("usage: slowfs BACKING MOUNTPOINT [-f] [-o OPTION[,OPTION...]]\n"
              "\n"
              "Serve BACKING, count what is read and model slow disks.\n"
              "\n"
              "  disks=N          modelled disks (0: no delay, only counting)\n"
              "  seek_ms=MS       a seek (8)\n"
              "  rate_mb=MB       10^6 bytes per second and disk (150)\n"
              "  stripe=SIZE      bytes of a file on one disk before the next one follows (1M)\n"
              "  latency_ms=MS    added to each read (0)\n"
              "  fail=PATH        while PATH exists, reads answer EIO; fail_glob=GLOB: of files with such a name\n"
              "  hold=PATH        while PATH exists, reads wait; hold_glob=GLOB: of files with such a name\n"
              "  hold_ops=WORDS   what waits, joined by +: read open fsync write lookup (read)\n"
              "  writable         files may be written and synced (read-only); nothing else is changed\n"
              "  stats=PATH       write the counters there on SIGUSR1 and at the end\n"
              "  log=PATH         write there a line for each read: time in ns, inode, offset, length\n"
              "  pidfile=PATH     write the daemon's process id there\n"
              "  direct_io        past the page cache: each read is counted\n"
              "  max_read=SIZE    largest read (1M)\n"
              "  readahead=SIZE   of the mount (the kernel's default)\n"
              "  timeout=S        how long names and attributes are believed (0)\n"
              "\n"
              "getfattr -n " SLOWFS_XATTR_STATS " MOUNTPOINT prints the counters, setfattr -n " SLOWFS_XATTR_RESET
              " MOUNTPOINT zeroes them.\n",
              f);
}

/* ---- options ---- */

static int parse_size(const char *what, const char *s, uint64_t *value) {
        static const char units[] = "KMGT";
        const char *unit;
        char *end;
        double v;

        if (!s)
                return 0;
        v = strtod(s, &end);
        if (end != s && *end && (unit = strchr(units, *end))) {
                for (ptrdiff_t i = unit - units; i >= 0; i--)
                        v *= 1024;
                end++;
        }
        if (end == s || *end || !(v >= 0 && v < 9e18)) {
                fprintf(stderr, "slowfs: %s=%s: not a size\n", what, s);
                return -EINVAL;
        }
        *value = (uint64_t)v;
        return 0;
}

static int take_positional(void *data, const char *arg, int key, struct fuse_args *out) {
        struct slowfs_options *o = data;

        (void)out;
        if (key != FUSE_OPT_KEY_NONOPT)
                return 1;
        if (!o->backing)
                return (o->backing = strdup(arg)) ? 0 : -1;
        if (!o->mountpoint)
                return (o->mountpoint = realpath(arg, NULL)) ? 0 : (perror(arg), -1);
        return -1;
}

/* Paths are used after the daemon has left the directory it was started in. */
static int make_absolute(const char **path) {
        char *cwd, *joined = NULL;

        if (!*path || **path == '/')
                return 0;
        cwd = getcwd(NULL, 0);
        if (!cwd || asprintf(&joined, "%s/%s", cwd, *path) < 0)
                joined = NULL;
        free(cwd);
        if (!joined)
                return -ENOMEM;
        *path = joined;
        return 0;
}

/* Words joined by '+'. */
static int parse_hold_ops(const char *words, unsigned *ret) {
        static const struct {
                const char *word;
                unsigned kind;
        } kinds[] = { { "read", HOLD_READ },
                      { "open", HOLD_OPEN },
                      { "fsync", HOLD_FSYNC },
                      { "write", HOLD_WRITE },
                      { "lookup", HOLD_LOOKUP } };

        *ret = words ? 0 : HOLD_READ;
        while (words) {
                const size_t len = strcspn(words, "+");
                const unsigned before = *ret;

                for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
                        if (strlen(kinds[i].word) == len && strncmp(kinds[i].word, words, len) == 0)
                                *ret |= kinds[i].kind;
                if (*ret == before) {
                        fprintf(stderr, "slowfs: hold_ops: what is '%s'?\n", words);
                        return -EINVAL;
                }
                words = words[len] ? words + len + 1 : NULL;
        }
        return 0;
}

static int finish_options(struct slowfs_options *o) {
        const char **paths[] = { &o->fail, &o->hold, &o->stats, &o->log, &o->pidfile };

        for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
                if (make_absolute(paths[i]) < 0)
                        return -ENOMEM;
        o->disk.disks = raw.disks;
        o->disk.seek_ns = (uint64_t)(raw.seek_ms * 1e6);
        o->disk.latency_ns = (uint64_t)(raw.latency_ms * 1e6);
        o->disk.rate = (uint64_t)(raw.rate_mb * 1e6);
        if (parse_hold_ops(raw.hold_ops, &o->hold_ops) < 0 || parse_size("stripe", raw.stripe, &o->disk.stripe) < 0 ||
            parse_size("max_read", raw.max_read, &o->max_read) < 0 ||
            parse_size("readahead", raw.readahead, &o->readahead) < 0)
                return -EINVAL;
        if (o->max_read < 4096 || o->max_read > 16 << 20) {
                fprintf(stderr, "slowfs: max_read is 4K to 16M\n");
                return -EINVAL;
        }
        return 0;
}

static int parse(struct fuse_args *args) {
        struct slowfs_options *o = &slowfs_options;
        char *more = NULL;

        *o = (struct slowfs_options){ .disk.stripe = 1 << 20, .max_read = 1 << 20, .readahead = UINT64_MAX };
        if (fuse_opt_parse(args, &raw, raw_options, NULL) < 0)
                return -EINVAL;
        if (raw.help)
                return 0;
        if (fuse_opt_parse(args, o, options, take_positional) < 0 || !o->mountpoint) {
                usage(stderr);
                return -EINVAL;
        }
        if (finish_options(o) < 0)
                return -EINVAL;
        if (asprintf(&more, "-osubtype=slowfs,fsname=slowfs,default_permissions%s,max_read=%llu",
                     geteuid() == 0 ? ",allow_other" : "", (unsigned long long)o->max_read) < 0)
                return -ENOMEM;
        fuse_opt_add_arg(args, more);
        free(more);
        return 0;
}

/* ---- the mount as seen from outside ---- */

struct mount_id {
        uint64_t id;
        unsigned major, minor;
};

/* Without asking the daemon: it may not run yet, or no longer. */
static int mount_at(const char *path, struct mount_id *ret) {
        struct statx x;

        if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_MNT_ID, &x) < 0)
                return -errno;
        *ret = (struct mount_id){ .id = x.stx_mnt_id, .major = x.stx_dev_major, .minor = x.stx_dev_minor };
        return 0;
}

static int set_readahead(const struct mount_id *m) {
        char path[64];
        FILE *f;
        int r;

        if (slowfs_options.readahead == UINT64_MAX)
                return 0;
        snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", m->major, m->minor);
        f = fopen(path, "we");
        if (f) {
                r = fprintf(f, "%llu\n", (unsigned long long)(slowfs_options.readahead >> 10));
                if (fclose(f) == 0 && r > 0)
                        return 0;
        }
        fprintf(stderr, "slowfs: %s: %s\n", path, strerror(errno));
        return -EIO;
}

/* In the process that is not the daemon.  Exits. */
static void wait_until_it_answers(int mounted_fd) {
        struct mount_id m;
        char json[512];
        ssize_t n;

        alarm(READY_TIMEOUT_S);
        do
                n = read(mounted_fd, &m, sizeof(m));
        while (n < 0 && errno == EINTR);
        if (n != sizeof(m))
                _exit(1); /* the daemon has said why */
        if (getxattr(slowfs_options.mountpoint, SLOWFS_XATTR_STATS, json, sizeof(json)) < 0) {
                fprintf(stderr, "slowfs: %s does not answer: %s\n", slowfs_options.mountpoint, strerror(errno));
                _exit(1);
        }
        _exit(set_readahead(&m) < 0 ? 1 : 0);
}

/*
 * Two processes from here on: this one goes on as the daemon.  Returns the pipe's end to write the mount to.
 */
static int split(void) {
        int fds[2];
        pid_t pid;

        if (pipe2(fds, O_CLOEXEC) < 0 || (pid = fork()) < 0)
                return -errno;
        if ((pid == 0) == (slowfs_options.foreground != 0)) {
                close(fds[1]);
                wait_until_it_answers(fds[0]);
        }
        close(fds[0]);
        return fds[1];
}

/* ---- signals and counters ---- */

static void write_stats(void) {
        const char *path = slowfs_options.stats;
        char json[512], *tmp;
        FILE *f;

        if (!path || asprintf(&tmp, "%s.new", path) < 0)
                return;
        slowfs_stats_json(json, sizeof(json));
        f = fopen(tmp, "we");
        if (!f || fprintf(f, "%s\n", json) < 0 || fclose(f) != 0 || rename(tmp, path) < 0)
                fprintf(stderr, "slowfs: %s: %s\n", path, strerror(errno));
        free(tmp);
}

static void wake_up(int sig) { (void)sig; }

/* Between the session's look at its flag and its sleep a signal would be lost: repeat it until it was seen. */
static void end_session(void) {
        const struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };

        fuse_session_exit(session);
        while (!session_over) {
                pthread_kill(main_thread, SIGUSR2);
                nanosleep(&pause, NULL);
        }
}

static void *serve_signals(void *set) {
        int sig;

        while (sigwait(set, &sig) == 0) {
                if (sig == SIGUSR1) {
                        write_stats();
                } else if (sig == SIGUSR2) {
                        break; /* the session ended by itself */
                } else {
                        end_session();
                        break;
                }
        }
        return NULL;
}

/* All of them are the signal thread's, but SIGUSR2 interrupts the sleep of the main thread too. */
static int start_signals(pthread_t *ret) {
        static sigset_t served;
        sigset_t usr2;
        int r;

        main_thread = pthread_self();
        sigaction(SIGUSR2, &(struct sigaction){ .sa_handler = wake_up }, NULL);
        sigemptyset(&usr2);
        sigaddset(&usr2, SIGUSR2);
        served = usr2;
        sigaddset(&served, SIGTERM);
        sigaddset(&served, SIGINT);
        sigaddset(&served, SIGHUP);
        sigaddset(&served, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &served, NULL);
        r = pthread_create(ret, NULL, serve_signals, &served);
        pthread_sigmask(SIG_UNBLOCK, &usr2, NULL);
        return -r;
}

/* ---- the daemon ---- */

static int loop(void) {
        struct fuse_loop_config *config = fuse_loop_cfg_create();
        pthread_t signals;
        int r;

        if (!config)
                return -ENOMEM;
        fuse_loop_cfg_set_max_threads(config, 16);
        fuse_loop_cfg_set_idle_threads(config, 16);
        r = start_signals(&signals);
        if (r == 0) {
                r = fuse_session_loop_mt(session, config);
                session_over = true;
                pthread_kill(signals, SIGUSR2);
                pthread_join(signals, NULL);
        }
        fuse_loop_cfg_destroy(config);
        return r < 0 ? r : 0;
}

/* Whoever waits for the command's output must not wait for the daemon's end. */
static void detach(void) {
        const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        if (slowfs_options.foreground)
                return;
        setsid();
        for (int fd = 0; null >= 0 && fd < 3; fd++)
                dup2(null, fd);
        if (null > 2)
                close(null);
}

static void write_pid(void) {
        FILE *f = slowfs_options.pidfile ? fopen(slowfs_options.pidfile, "we") : NULL;

        if (!f)
                return;
        fprintf(f, "%ld\n", (long)getpid());
        fclose(f);
}

static int serve(const struct mount_id *mount, int mounted_fd) {
        const int r = slowfs_wait_start();

        if (r < 0) {
                fprintf(stderr, "slowfs: %s\n", strerror(-r));
                return r;
        }
        write_pid();
        if (write(mounted_fd, mount, sizeof(*mount)) != sizeof(*mount))
                fprintf(stderr, "slowfs: nobody waits for the mount\n");
        close(mounted_fd);
        detach();
        if (chdir("/") < 0)
                perror("/");
        loop();
        slowfs_wait_stop();
        write_stats();
        return 0;
}

/* Also ends the process: without an unmount the session's descriptor is all that has to go. */
static void leave(const struct mount_id *mount, int r) {
        struct mount_id now;

        if (mount_at(slowfs_options.mountpoint, &now) == 0 && now.id == mount->id)
                fuse_session_unmount(session);
        if (slowfs_options.pidfile)
                unlink(slowfs_options.pidfile);
        fflush(NULL);
        _exit(r < 0 ? 1 : 0);
}

static int run(struct fuse_args *args, int mounted_fd) {
        struct mount_id mount;
        int r;

        r = slowfs_tree_open(slowfs_options.backing);
        if (r < 0) {
                fprintf(stderr, "slowfs: %s: %s\n", slowfs_options.backing, strerror(-r));
                return r;
        }
        session = fuse_session_new(args, &slowfs_ops, sizeof(slowfs_ops), NULL);
        if (!session || fuse_session_mount(session, slowfs_options.mountpoint) != 0)
                return -EIO; /* libfuse has said why */
        r = mount_at(slowfs_options.mountpoint, &mount);
        if (r == 0)
                r = serve(&mount, mounted_fd);
        leave(&mount, r);
        return r;
}

int main(int argc, char **argv) {
        struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
        struct rlimit files;
        int fd;

        if (parse(&args) < 0)
                return 1;
        if (raw.help) {
                usage(stdout);
                return 0;
        }
        /* A descriptor per node; and buffers of 1 MiB that are not mapped and unmapped for each read. */
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                setrlimit(RLIMIT_NOFILE, &files);
        }
        mallopt(M_MMAP_THRESHOLD, 64 << 20);
        mallopt(M_TRIM_THRESHOLD, 256 << 20);
        signal(SIGPIPE, SIG_IGN);
        fd = split();
        if (fd < 0) {
                fprintf(stderr, "slowfs: %s\n", strerror(-fd));
                return 1;
        }
        return run(&args, fd) < 0 ? 1 : 0;
}
