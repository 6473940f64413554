/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/session.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "fuse/guard.h"
#include "fuse/waited.h"
#include "source/inodes.h"
#include "source/mountinfo.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>

enum {
        WORKERS = 128,        /* each holds a buffer for requests and one for hits, 1 MiB each: README states the bound */
        IDLE_WORKERS = 32,    /* the others come when that many wait for the source, and go */
        MAX_BACKGROUND = 256, /* the kernel's default of 12 lets a few slow misses starve every hit */
        SHUTDOWN_SECONDS = 4,
};

struct session {
        struct fs fs;
        char *mountpoint;
        _Atomic int mount_id; /* 0: unknown, or gone */
        unsigned minor;
        int abort_fd;
        pthread_t main_thread, signal_thread;
        bool signal_runs;
        _Atomic bool ended;
};

static void want(struct fuse_conn_info *conn, uint64_t cap, bool on) {
        if (on)
                fuse_set_feature_flag(conn, cap); /* refused where the kernel lacks it */
        else
                fuse_unset_feature_flag(conn, cap);
}

static void op_init(void *userdata, struct fuse_conn_info *conn) {
        struct fs *fs = userdata;

        want(conn, FUSE_CAP_AUTO_INVAL_DATA, false); /* it lets a writer read back stale data; we invalidate ourselves */
        want(conn, FUSE_CAP_EXPLICIT_INVAL_DATA, true);
        want(conn, FUSE_CAP_ATOMIC_O_TRUNC, false);  /* so that a truncation is always a SETATTR */
        want(conn, FUSE_CAP_WRITEBACK_CACHE, false); /* writes reach the source before they return */
        want(conn, FUSE_CAP_HANDLE_KILLPRIV, false); /* the kernel clears setuid by a SETATTR; as root, we would not */
        want(conn, FUSE_CAP_POSIX_ACL, true); /* the kernel asks for the source's ACLs and enforces them */
        want(conn, FUSE_CAP_SPLICE_READ, false);
        want(conn, FUSE_CAP_SPLICE_WRITE, false);
        want(conn, FUSE_CAP_SPLICE_MOVE, false);
        want(conn, FUSE_CAP_FLOCK_LOCKS, false);
        want(conn, FUSE_CAP_POSIX_LOCKS, false);
        want(conn, FUSE_CAP_DONT_MASK, creds_have_umask()); /* where a default ACL decides, the umask does not count */
        want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP, true);
        fs->direct_maps = fuse_get_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
        conn->max_background = MAX_BACKGROUND;
        conn->congestion_threshold = MAX_BACKGROUND * 3 / 4;
        conn->max_read = CACHE_READ_MAX;
        conn->max_write = CACHE_READ_MAX; /* it sets the pages of a request, so of a READ too */
}

const struct fuse_lowlevel_ops fs_ops = {
        .init = op_init,
        .lookup = op_lookup,
        .forget = op_forget,
        .forget_multi = op_forget_multi,
        .getattr = op_getattr,
        .setattr = op_setattr,
        .readlink = op_readlink,
        .mknod = op_mknod,
        .mkdir = op_mkdir,
        .unlink = op_unlink,
        .rmdir = op_rmdir,
        .symlink = op_symlink,
        .rename = op_rename,
        .link = op_link,
        .open = op_open,
        .read = op_read,
        .write = op_write,
        .flush = op_flush,
        .release = op_release,
        .fsync = op_fsync,
        .opendir = op_opendir,
        .readdir = op_readdir,
        .readdirplus = op_readdirplus,
        .releasedir = op_releasedir,
        .fsyncdir = op_fsyncdir,
        .statfs = op_statfs,
        .setxattr = op_setxattr,
        .getxattr = op_getxattr,
        .listxattr = op_listxattr,
        .removexattr = op_removexattr,
        .create = op_create,
        .fallocate = op_fallocate,
        .copy_file_range = op_copy_file_range,
        .lseek = op_lseek,
        .ioctl = op_ioctl,
        .tmpfile = op_tmpfile,
};

/* ---- mounting ---- */

/* Into an option value: libfuse splits at commas, and a backslash protects them. */
static char *escape_option(const char *s) {
        char *copy = malloc(2 * strlen(s) + 1), *out = copy;

        for (; copy && *s; s++) {
                if (*s == ',' || *s == '\\')
                        *out++ = '\\';
                *out++ = *s;
        }
        if (copy)
                *out = '\0';
        return copy;
}

static bool may_allow_other(void) {
        char line[128];
        bool allowed = geteuid() == 0;
        FILE *f = allowed ? NULL : fopen("/etc/fuse.conf", "re");

        while (f && fgets(line, sizeof line, f))
                allowed |= strncmp(line, "user_allow_other", 16) == 0;
        if (f)
                fclose(f);
        return allowed;
}

/* What the source's own mount forbids stays forbidden; libfuse would add nosuid and nodev by itself. */
static char *mount_words(const struct session_config *cfg) {
        const struct options *o = cfg->options;
        _cleanup_free_ char *source = escape_option(cfg->source_path);
        bool root = geteuid() == 0;
        struct statvfs sv = { 0 };
        char *words = NULL;

        fstatvfs(source_root(cfg->source), &sv);
        bool nosuid = o->nosuid || (sv.f_flag & ST_NOSUID), nodev = o->nodev || (sv.f_flag & ST_NODEV);
        bool noexec = o->noexec || (sv.f_flag & ST_NOEXEC);
        if (!source || asprintf(&words, "fsname=%s,subtype=hotset,default_permissions,max_read=%u%s%s%s%s%s", source,
                                CACHE_READ_MAX, may_allow_other() ? ",allow_other" : "", o->ro ? ",ro" : "",
                                root ? (nosuid ? ",nosuid" : ",suid") : "", root ? (nodev ? ",nodev" : ",dev") : "",
                                noexec ? ",noexec" : "") < 0)
                return NULL;
        return words;
}

static struct fuse_session *new_session(const struct session_config *cfg, struct fs *fs) {
        _cleanup_free_ char *words = mount_words(cfg);
        struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
        struct fuse_session *se = NULL;

        if (words && fuse_opt_add_arg(&args, "hotset") == 0 && fuse_opt_add_arg(&args, "-o") == 0 &&
            fuse_opt_add_arg(&args, words) == 0)
                se = fuse_session_new(&args, &fs_ops, sizeof fs_ops, fs);
        fuse_opt_free_args(&args);
        return se;
}

static void log_libfuse(enum fuse_log_level level, const char *fmt, va_list ap) {
        char line[512];

        vsnprintf(line, sizeof line, fmt, ap);
        line[strcspn(line, "\n")] = '\0';
        log_msg(level <= FUSE_LOG_ERR ? LOG_LVL_ERROR : level <= FUSE_LOG_WARNING ? LOG_LVL_WARN : LOG_LVL_DEBUG, "%s", line);
}

static int is_our_mount(struct session *s, struct mount_entry *m) {
        int r = mountinfo_find_point(s->mountpoint, m);

        if (r < 0)
                return r;
        if (!mount_entry_is_hotset(m)) {
                mount_entry_clear(m);
                return -ENOENT;
        }
        return 0;
}

static int learn_mount(struct session *s) {
        struct mount_entry m;
        int r = is_our_mount(s, &m);

        if (r < 0)
                return r;
        s->mount_id = m.id;
        s->minor = m.minor;
        s->abort_fd = guard_open_abort(m.minor);
        mount_entry_clear(&m);
        return 0;
}

static int make_tables(struct fs *fs) {
        int root = source_root(fs->source), r;
        struct stat st;

        if (fstat(root, &st) < 0)
                return -errno;
        if ((r = inode_tags_new(st.st_dev, &fs->tags)) < 0 || (r = refusals_new(fs)) < 0 ||
            (r = desks_new(fs)) < 0)
                return r;
        return node_table_new(root, (int64_t)(fs->options->attr_timeout * 1e9), &fs->nodes);
}

int session_mount(const struct session_config *cfg, struct session **ret, char *error) {
        struct session *s = calloc(1, sizeof *s);
        int r = -ENOMEM;

        fuse_set_log_func(log_libfuse);
        if (s)
                s->abort_fd = -1;
        if (!s || !(s->mountpoint = strdup(cfg->mountpoint)))
                goto fail;
        s->fs = (struct fs){ .options = cfg->options, .source = cfg->source, .cache = cfg->cache };
        if ((r = make_tables(&s->fs)) < 0)
                goto fail;
        r = -EINVAL;
        if (!(s->fs.session = new_session(cfg, &s->fs)))
                goto fail;
        r = -EIO;
        if (fuse_session_mount(s->fs.session, s->mountpoint) < 0) {
                snprintf(error, SESSION_ERROR_MAX, "cannot mount on %s: %s", s->mountpoint,
                         access("/dev/fuse", F_OK) < 0 ? "there is no /dev/fuse; load the kernel module (modprobe fuse)"
                                                       : "the kernel or fusermount3 refused (see above)");
                session_free(s);
                return r;
        }
        if ((r = learn_mount(s)) < 0 || (r = tellers_start(&s->fs)) < 0 || (r = kill_watch_start(&s->fs)) < 0)
                goto fail;
        *ret = s;
        return 0;
fail:
        snprintf(error, SESSION_ERROR_MAX, "cannot mount on %s: %s", cfg->mountpoint, strerror(-r));
        session_free(s);
        return r;
}

unsigned session_minor(const struct session *s) { return s->minor; }
int session_mount_id(const struct session *s) { return s->mount_id; }

/* ---- unmounting ---- */

static void unmount_as_user(const char *mountpoint) {
        const char *argv[] = { "fusermount3", "-u", "-z", "-q", "--", mountpoint, NULL };
        extern char **environ;
        pid_t pid;

        if (posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)argv, environ) == 0)
                waitpid(pid, NULL, 0);
}

/* Only the topmost mount there, and only if it is the one that we made.  In order if nobody is inside: what programs
 * stored by map is written back.  Otherwise by force: whoever waits for us inside gets an error at once. */
static void unmount_ours(struct session *s) {
        struct mount_entry m;

        int id = s->mount_id;

        /* Once only: after it has gone, the kernel gives its number to another mount. */
        s->mount_id = 0;
        if (id == 0 || is_our_mount(s, &m) < 0)
                return;
        bool ours = m.id == id;
        mount_entry_clear(&m);
        if (!ours || umount2(s->mountpoint, UMOUNT_NOFOLLOW) == 0)
                return;
        if (umount2(s->mountpoint, MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW) < 0 && errno == EPERM)
                unmount_as_user(s->mountpoint);
}

/* For a mount that cannot be reached any more (umount -l). */
static void abort_connection(const struct session *s) {
        if (s->abort_fd < 0 || write(s->abort_fd, "1", 1) != 1)
                log_warn("%s: cannot abort its connection: %s", s->mountpoint, strerror(errno));
}

static void nothing(int sig) { (void)sig; }

static void *unmount(void *arg) {
        unmount_ours(arg);
        return NULL;
}

/* The kernel may wait for the source meanwhile, so another thread does it, and is not waited for. */
static void unmount_in_time(struct session *s) {
        struct timespec until;
        pthread_t t;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (thread_start(&t, "hs-umount", unmount, s) < 0)
                unmount_ours(s);
        else if (pthread_timedjoin_np(t, NULL, &until) != 0)
                pthread_detach(t);
}

/* Ends the mount when asked to.  Programs inside get errors at once, and no hung source can hold up a shutdown. */
static void *signal_loop(void *arg) {
        struct session *s = arg;
        int64_t end;
        sigset_t set;
        int sig;

        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGHUP);
        if (sigwait(&set, &sig) != 0)
                return NULL;
        end = monotonic_ns() + SHUTDOWN_SECONDS * 1000000000ll;
        log_info("signal %d: unmounting %s", sig, s->mountpoint);
        unmount_in_time(s);
        /* While there are workers to answer the reads that it may wait for. */
        if (!tellers_quiet(&s->fs, 1))
                abort_connection(s);
        fuse_session_exit(s->fs.session);
        while (!s->ended && monotonic_ns() < end) {
                pthread_kill(s->main_thread, SIGUSR1); /* out of its wait for the workers */
                nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
        }
        if (!s->ended) {
                log_warn("%s: the source does not answer; leaving without waiting for it", s->mountpoint);
                _exit(0);
        }
        return NULL;
}

int session_run(struct session *s) {
        struct sigaction sa = { .sa_handler = nothing };
        struct fuse_loop_config *loop = fuse_loop_cfg_create();
        sigset_t usr1;

        if (!loop)
                return -ENOMEM;
        sigaction(SIGUSR1, &sa, NULL);
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
        signal(SIGPIPE, SIG_IGN);
        s->main_thread = pthread_self();
        s->signal_runs = thread_start(&s->signal_thread, "hs-signal", signal_loop, s) == 0;
        fuse_loop_cfg_set_max_threads(loop, WORKERS);
        fuse_loop_cfg_set_idle_threads(loop, IDLE_WORKERS); /* what comes and goes loses its buffers each time */
        int r = fuse_session_loop_mt(s->fs.session, loop);
        fuse_loop_cfg_destroy(loop);
        unmount_ours(s); /* SIGTERM did it; after an error of the loop it is still there */
        return r;
}

struct session *session_free(struct session *s) {
        if (!s)
                return NULL;
        s->ended = true;
        if (s->signal_runs) {
                pthread_cancel(s->signal_thread);
                pthread_join(s->signal_thread, NULL);
        }
        if (s->fs.session) {
                unmount_ours(s);
                tellers_stop(&s->fs);
                kill_watch_stop(&s->fs);
                fuse_session_destroy(s->fs.session);
        }
        refusals_free(&s->fs);
        desks_free(&s->fs);
        node_table_free(s->fs.nodes);
        inode_tags_free(s->fs.tags);
        closep(&s->abort_fd);
        free(s->mountpoint);
        free(s);
        return NULL;
}
