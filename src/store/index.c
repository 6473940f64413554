/* SPDX-License-Identifier: Apache-2.0 */
#include "store/index.h"

#include "base/fault.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define SCHEMA_VERSION 2

enum statement { PUT_FILE, DELETE_FILE, DELETE_EXTENTS, CLEAR_SEGMENT, PUT_EXTENT, STATEMENTS };
static const char *const statement_sql[STATEMENTS] = {
        [PUT_FILE] = "INSERT OR REPLACE INTO files(id, fs, inode, path, size, mtime, ctime, sum) VALUES(?,?,?,?,?,?,?,?)",
        [DELETE_FILE] = "DELETE FROM files WHERE id = ?",
        [DELETE_EXTENTS] = "DELETE FROM extents WHERE file = ?",
        [CLEAR_SEGMENT] = "DELETE FROM extents WHERE file = ? AND off >= ? AND off < ?",
        [PUT_EXTENT] = "INSERT INTO extents(file, off, len, nonce, suspect, heat, age, sum) VALUES(?,?,?,?,?,?,?,?)",
};
static const char schema[] = "CREATE TABLE files(id INTEGER PRIMARY KEY, fs INTEGER NOT NULL, inode INTEGER NOT NULL,"
                             " path INTEGER NOT NULL, size INTEGER NOT NULL, mtime INTEGER NOT NULL,"
                             " ctime INTEGER NOT NULL, sum INTEGER NOT NULL);"
                             "CREATE TABLE extents(file INTEGER NOT NULL, off INTEGER NOT NULL, len INTEGER NOT NULL,"
                             " nonce INTEGER NOT NULL, suspect INTEGER NOT NULL, heat REAL NOT NULL, age INTEGER NOT NULL, sum INTEGER NOT NULL,"
                             " PRIMARY KEY(file, off)) WITHOUT ROWID;"
                             "PRAGMA user_version = 2;";
/* Exclusive WAL: no shared-memory file, no other reader, one fsync per checkpoint.  A checkpoint after each batch and
 * a truncated log keep the database's size known. */
static const char pragmas[] = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
                              "PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY;"
                              "PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF; PRAGMA mmap_size = 0;";

struct index {
        sqlite3 *db;
        bool fresh;
        sqlite3_stmt *statements[STATEMENTS];
};

/* SQLite's word as errno.  Whatever means "these bytes are no database" is -EBADMSG. */
static int to_errno(int rc) {
        switch (rc & 0xff) {
        case SQLITE_OK:
        case SQLITE_DONE:
        case SQLITE_ROW: return 0;
        case SQLITE_FULL: return -ENOSPC;
        case SQLITE_NOMEM: return -ENOMEM;
        case SQLITE_READONLY:
        case SQLITE_PERM: return -EROFS;
        case SQLITE_BUSY:
        case SQLITE_LOCKED: return -EBUSY;
        case SQLITE_IOERR:
        case SQLITE_CANTOPEN: return -EIO;
        default: return -EBADMSG;
        }
}

static int run(struct index *ix, const char *sql) { return to_errno(sqlite3_exec(ix->db, sql, NULL, NULL, NULL)); }

static int get_int(struct index *ix, const char *sql, int *ret) {
        sqlite3_stmt *st = NULL;
        int rc = sqlite3_prepare_v2(ix->db, sql, -1, &st, NULL);

        if (rc == SQLITE_OK)
                rc = sqlite3_step(st);
        if (rc == SQLITE_ROW)
                *ret = sqlite3_column_int(st, 0);
        sqlite3_finalize(st);
        return rc == SQLITE_ROW ? 0 : rc == SQLITE_DONE ? -EBADMSG : to_errno(rc);
}

static int prepare_all(struct index *ix) {
        for (int i = 0; i < STATEMENTS; i++) {
                int rc = sqlite3_prepare_v3(ix->db, statement_sql[i], -1, SQLITE_PREPARE_PERSISTENT, &ix->statements[i], NULL);
                if (rc != SQLITE_OK)
                        return to_errno(rc);
        }
        return 0;
}

static void close_db(struct index *ix) {
        for (int i = 0; i < STATEMENTS; i++) {
                sqlite3_finalize(ix->statements[i]);
                ix->statements[i] = NULL;
        }
        sqlite3_close_v2(ix->db);
        ix->db = NULL;
}

/* The path goes through our descriptor: the directory may have been renamed, and no path of a mount is resolved. */
static int open_db(struct index *ix, int dir) {
        char path[64];
        int version = 0, r;

        snprintf(path, sizeof path, "/proc/self/fd/%d/index.db", dir);
        /* Made by us, for nobody else's eyes; SQLite gives its log the same mode. */
        _cleanup_close_ int fd = openat(dir, "index.db", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return errno == EISDIR || errno == ELOOP ? -EBADMSG : -errno;
        int rc = sqlite3_open_v2(path, &ix->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
        if (rc != SQLITE_OK)
                return to_errno(rc);
        sqlite3_db_config(ix->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        if ((r = run(ix, pragmas)) < 0 || (r = get_int(ix, "PRAGMA user_version", &version)) < 0)
                return r;
        ix->fresh = version == 0;
        if (ix->fresh && (r = run(ix, schema)) < 0)
                return r;
        if (version != 0 && version != SCHEMA_VERSION)
                return -EBADMSG;
        /* We opened it for writing: a header that says otherwise is damaged. */
        if (sqlite3_db_readonly(ix->db, "main") == 1)
                return -EBADMSG;
        return prepare_all(ix);
}

void index_delete(int dir) {
        static const char *const names[] = { "index.db", "index.db-wal", "index.db-shm", "index.db-journal" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                if (unlinkat(dir, names[i], 0) < 0 && errno == EISDIR)
                        unlinkat(dir, names[i], AT_REMOVEDIR);
}

int index_open(int dir, struct index **ret, bool *ret_fresh) {
        struct index *ix = calloc(1, sizeof *ix);
        int r;

        if (!ix)
                return -ENOMEM;
        r = open_db(ix, dir);
        if (r == -EBADMSG)
                r = index_reset(ix, dir);
        if (r < 0) {
                close_db(ix);
                free(ix);
                return r;
        }
        *ret = ix;
        *ret_fresh = ix->fresh;
        return 0;
}

int index_reset(struct index *ix, int dir) {
        close_db(ix);
        index_delete(dir);
        return open_db(ix, dir);
}

struct index *index_close(struct index *ix) {
        if (!ix)
                return NULL;
        run(ix, "PRAGMA wal_checkpoint(TRUNCATE)");
        close_db(ix);
        free(ix);
        return NULL;
}

static uint64_t file_sum(const struct index_file *f) {
        const uint64_t v[] = { f->id, f->identity.key.fs, f->identity.key.inode, f->identity.key.path,
                               f->identity.version.size, (uint64_t)f->identity.version.mtime_ns,
                               (uint64_t)f->identity.version.ctime_ns };
        return XXH3_64bits(v, sizeof v);
}

/* The heat is left out: a wrong one costs a hit at most. */
static uint64_t extent_sum(uint64_t id, const struct index_extent *e) {
        const uint64_t v[] = { id, e->off, e->len, e->nonce, e->suspect };
        return XXH3_64bits(v, sizeof v);
}

static void bind_all(sqlite3_stmt *st, const uint64_t *values, int count) {
        for (int i = 0; i < count; i++)
                sqlite3_bind_int64(st, i + 1, (sqlite3_int64)values[i]);
}

static int step(struct index *ix, enum statement which) {
        int rc = sqlite3_step(ix->statements[which]);

        sqlite3_reset(ix->statements[which]);
        return to_errno(rc);
}

int index_put_file(struct index *ix, const struct index_file *f) {
        const struct identity *id = &f->identity;
        const uint64_t v[] = { f->id, id->key.fs, id->key.inode, id->key.path, id->version.size,
                               (uint64_t)id->version.mtime_ns, (uint64_t)id->version.ctime_ns, file_sum(f) };

        bind_all(ix->statements[PUT_FILE], v, (int)ARRAY_SIZE(v));
        return step(ix, PUT_FILE);
}

int index_delete_file(struct index *ix, uint64_t id) {
        bind_all(ix->statements[DELETE_EXTENTS], &id, 1);
        bind_all(ix->statements[DELETE_FILE], &id, 1);
        int r = step(ix, DELETE_EXTENTS);
        return r < 0 ? r : step(ix, DELETE_FILE);
}

int index_put_segment(struct index *ix, uint64_t id, uint64_t segment, const struct index_extent *rows, size_t count) {
        const uint64_t bounds[] = { id, segment * INDEX_SEGMENT, (segment + 1) * INDEX_SEGMENT };
        sqlite3_stmt *put = ix->statements[PUT_EXTENT];

        bind_all(ix->statements[CLEAR_SEGMENT], bounds, (int)ARRAY_SIZE(bounds));
        int r = step(ix, CLEAR_SEGMENT);
        for (size_t i = 0; r == 0 && i < count; i++) {
                const uint64_t v[] = { id, rows[i].off, rows[i].len, rows[i].nonce, rows[i].suspect };
                bind_all(put, v, (int)ARRAY_SIZE(v));
                sqlite3_bind_double(put, 6, rows[i].heat);
                sqlite3_bind_int64(put, 7, (sqlite3_int64)rows[i].age);
                sqlite3_bind_int64(put, 8, (sqlite3_int64)extent_sum(id, &rows[i]));
                r = step(ix, PUT_EXTENT);
        }
        return r;
}

int index_begin(struct index *ix) { return run(ix, "BEGIN IMMEDIATE"); }

int index_commit(struct index *ix) {
        int r = fault_check(FAULT_INDEX_COMMIT);

        if (r == 0)
                r = run(ix, "COMMIT");
        if (r < 0)
                return r;
        run(ix, "PRAGMA wal_checkpoint(TRUNCATE)"); /* a failure leaves the log longer, and it is counted as used */
        return fault_check(FAULT_INDEX_COMMIT);
}

void index_rollback(struct index *ix) { run(ix, "ROLLBACK"); }

static uint64_t column(sqlite3_stmt *st, int i) { return (uint64_t)sqlite3_column_int64(st, i); }

/* Both: does the row verify? */
static bool load_file(sqlite3_stmt *st, const struct index_reader *reader) {
        struct index_file f = {
                .id = column(st, 0),
                .identity.key = { column(st, 1), column(st, 2), column(st, 3) },
                .identity.version = { column(st, 4), sqlite3_column_int64(st, 5), sqlite3_column_int64(st, 6) },
                .identity.lasting = true,
        };
        if (column(st, 7) != file_sum(&f) || f.id == 0)
                return false;
        reader->file(reader->ctx, &f);
        return true;
}

static bool load_extent(sqlite3_stmt *st, const struct index_reader *reader) {
        struct index_extent e = { .off = column(st, 1), .len = column(st, 2), .nonce = column(st, 3),
                                  .suspect = column(st, 4) != 0, .heat = sqlite3_column_double(st, 5),
                                  .age = column(st, 6) };
        if (column(st, 7) != extent_sum(column(st, 0), &e))
                return false;
        reader->extent(reader->ctx, column(st, 0), &e);
        return true;
}

static int each_row(struct index *ix, const char *sql, bool (*fn)(sqlite3_stmt *, const struct index_reader *),
                    const struct index_reader *reader, uint64_t *bad) {
        sqlite3_stmt *st = NULL;
        int rc = sqlite3_prepare_v2(ix->db, sql, -1, &st, NULL);

        while (rc == SQLITE_OK || rc == SQLITE_ROW)
                if ((rc = sqlite3_step(st)) == SQLITE_ROW)
                        *bad += !fn(st, reader);
        sqlite3_finalize(st);
        return to_errno(rc);
}

int index_load(struct index *ix, const struct index_reader *reader, uint64_t *ret_bad_rows) {
        uint64_t bad = 0;
        int r = each_row(ix, "SELECT id, fs, inode, path, size, mtime, ctime, sum FROM files", load_file, reader, &bad);

        if (r == 0)
                r = each_row(ix, "SELECT file, off, len, nonce, suspect, heat, age, sum FROM extents", load_extent, reader, &bad);
        *ret_bad_rows = bad;
        return r;
}
