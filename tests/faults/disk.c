/* A disk that fails when a test says so: preloaded, it stands between SQLite and libc.
 *
 * Only files whose name has "store.db" in it are touched. MQTTD_DISK names a file of 64 bytes that
 * the test shares (`tests/faults/disk.py`): calls that write are counted there, and fail from one
 * number to another in the way it says, or the process ends there. MQTTD_DISK_UNDO names a file to which everything that is
 * overwritten goes before it is, and each fsync, so that the test can take back what no fsync has
 * covered, as a power cut does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NONE, FAIL, SHORT, END };
enum { WRITE = 1, TRUNCATE, SYNC };

struct control {
    volatile uint64_t calls; /* that write or sync, so far */
    volatile uint64_t from, to; /* those that fail: from <= number < to */
    volatile uint32_t kind, error;
    volatile uint32_t slow; /* milliseconds that each fsync takes longer */
    volatile uint32_t failed; /* how many have */
};

struct record {
    uint32_t what, length;
    uint64_t offset, size; /* where; how long the file was */
    char name[40]; /* the end of its name */
};

static struct control *control;
static int undo = -1;
static char *names[1024];

static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_ftruncate)(int, off64_t);
static ssize_t (*real_sendfile)(int, int, off64_t *, size_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_close)(int);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MQTTD_DISK");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_sendfile = dlsym(RTLD_NEXT, "sendfile64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_close = dlsym(RTLD_NEXT, "close");
    if (path) {
        int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
        if (fd >= 0) {
            void *at = mmap(0, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            control = at == MAP_FAILED ? 0 : at;
            real_close(fd);
        }
    }
    path = getenv("MQTTD_DISK_UNDO");
    if (path)
        undo = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int known(int fd) {
    return fd >= 0 && fd < 1024 && names[fd];
}

static int opened(int fd, const char *path) {
    if (fd >= 0 && fd < 1024 && strstr(path, "store.db")) {
        const char *end = strrchr(path, '/');
        names[fd] = strdup(end ? end + 1 : path);
    }
    return fd;
}

/* Whether this call fails; errno says how. */
static int fails(uint32_t kind) {
    if (!control)
        return 0;
    uint64_t number = __sync_fetch_and_add(&control->calls, 1);
    if (control->kind == END && number >= control->from)
        raise(SIGKILL);
    if (control->kind != kind || number < control->from || number >= control->to)
        return 0;
    __sync_fetch_and_add(&control->failed, 1);
    errno = control->error;
    return 1;
}

static void note(int fd, uint32_t what, uint64_t offset, size_t length) {
    struct record record = {what, 0, offset, 0, ""};
    struct stat st;
    char *old = 0;
    if (undo < 0)
        return;
    fstat(fd, &st);
    record.size = st.st_size;
    strncpy(record.name, names[fd], sizeof record.name - 1);
    if (what != SYNC && offset < record.size) {
        if (length > record.size - offset)
            length = record.size - offset;
        old = malloc(sizeof record + length);
        ssize_t got = pread64(fd, old + sizeof record, length, offset);
        record.length = got > 0 ? got : 0;
    } else {
        old = malloc(sizeof record);
    }
    memcpy(old, &record, sizeof record);
    real_write(undo, old, sizeof record + record.length);
    free(old);
}

static ssize_t written(int fd, const void *data, size_t size, off64_t at, int here) {
    if (fails(FAIL))
        return -1;
    if (control && control->kind == SHORT && control->calls > control->from &&
        control->calls <= control->to && size > 1) {
        __sync_fetch_and_add(&control->failed, 1);
        size /= 2;
    }
    note(fd, WRITE, here ? (uint64_t)lseek64(fd, 0, SEEK_CUR) : (uint64_t)at, size);
    return here ? real_write(fd, data, size) : real_pwrite(fd, data, size, at);
}

#define OPEN(name, call, ...)                                                                      \
    int name(__VA_ARGS__, int flags, ...) {                                                        \
        mode_t mode = 0;                                                                           \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                       \
            va_list more;                                                                          \
            va_start(more, flags);                                                                 \
            mode = va_arg(more, mode_t);                                                           \
            va_end(more);                                                                          \
        }                                                                                          \
        return opened(call, path);                                                                 \
    }
OPEN(open, syscall(SYS_openat, AT_FDCWD, path, flags, mode), const char *path)
OPEN(open64, syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode), const char *path)
OPEN(openat, syscall(SYS_openat, at, path, flags, mode), int at, const char *path)
OPEN(openat64, syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode), int at, const char *path)

int close(int fd) {
    if (known(fd)) {
        free(names[fd]);
        names[fd] = 0;
    }
    return real_close(fd);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return known(fd) ? written(fd, data, size, at, 0) : real_pwrite(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}

ssize_t write(int fd, const void *data, size_t size) {
    return known(fd) ? written(fd, data, size, 0, 1) : real_write(fd, data, size);
}

/* Nothing that is copied so is taken back by a power cut: it is synced before it has its name. */
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    return known(to) && fails(FAIL) ? -1 : real_sendfile(to, from, at, size);
}

ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    return sendfile64(to, from, at, size);
}

int ftruncate64(int fd, off64_t size) {
    if (known(fd)) {
        if (fails(FAIL))
            return -1;
        note(fd, TRUNCATE, size, SIZE_MAX);
    }
    return real_ftruncate(fd, size);
}

int ftruncate(int fd, off_t size) {
    return ftruncate64(fd, size);
}

static int synced(int fd, int (*real)(int)) {
    if (!known(fd))
        return real(fd);
    if (control && control->slow) {
        struct timespec time = {control->slow / 1000, control->slow % 1000 * 1000000L};
        nanosleep(&time, 0);
    }
    if (fails(FAIL))
        return -1;
    int result = real(fd);
    if (!result)
        note(fd, SYNC, 0, 0);
    return result;
}

int fsync(int fd) {
    return synced(fd, real_fsync);
}

int fdatasync(int fd) {
    return synced(fd, real_fdatasync);
}
