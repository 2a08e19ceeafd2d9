/*
 * mqttload - an MQTT load generator that checks what it measures.
 *
 * One process, N worker threads, one epoll set per thread, non-blocking
 * sockets.  Every payload carries (run, publisher, sequence, time), so each
 * delivery is checked for loss, duplication, order, routing and integrity
 * while the rates are being taken.  See README.md for scenarios and figures.
 *
 * MQTT 3.1.1 and 5.0 over TCP or WebSocket, with TLS where OpenSSL was found
 * at build time.  C11, Linux only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#else
typedef struct ssl_st SSL;          /* never made */
#endif

#define VERSION "1.5"
#define HDR_BYTES 24u               /* magic(4) publisher(4) sequence(8) time(8) */
#define UPROP_BYTES 14u             /* 0x26, "kNN", "PPPPPP" */
#define RECV_BUF (8192u * 1024u)     /* shared per thread */
#define WRITE_HIGH (128u * 1024u)   /* stop building messages above this backlog */
#define MAX_THREADS 16
#define MAX_PIDS 64
#define MAX_CRED 4096u              /* longest user name and password */
#define NS 1000000000ull

/* ---- options ---------------------------------------------------------- */

enum scenario { SC_FANIN, SC_FANOUT, SC_P2P, SC_WILDCARD, SC_CONNSTORM, SC_IDLE,
                SC_RETAINED, SC_OFFLINE, SC_LATENCY, SC_N };
static const char *const sc_name[SC_N] = { "fanin", "fanout", "p2p", "wildcard",
    "connstorm", "idle", "retained", "offline", "latency" };

static struct {
    const char *host, *user, *pass, *wspath, *cafile, *cert, *key;
    int port, scenario, threads;
    long pubs, subs, topics, filters, filter_conns, conns, count, drop_after, stall, user_props;
    int qos, sub_qos;
    long payload, inflight, window, batch, concurrency, keepalive, srcs;
    double rate, duration, warmup, connect_timeout, drain;
    bool echo, say, will, unheard, refuse; long vlo, vhi, conn_subs, first, clients; const char *share, *prefix; char *sf[16]; int nsf;
    int fill;
    bool shared_topics, random_topics, unique, mixq, props5, mixsubs, X; long levels, sub_ids, overlap;
    bool persistent, retain, json, mqtt5, ws, tls, alias, hold, subscribe, keep, strict, quiet;
    int npids; int pids[MAX_PIDS];
} o = { .host = "127.0.0.1", .port = 1883, .scenario = SC_P2P, .threads = 1,
        .pubs = -1, .subs = -1, .topics = -1, .filters = 100000, .filter_conns = 50,
        .conns = 1000, .count = 0, .qos = 0, .sub_qos = -1, .payload = 64,
        .inflight = 20, .window = 256, .batch = 64, .concurrency = 100,
        .keepalive = 600, .srcs = 0, .duration = 5, .warmup = 1,
        .connect_timeout = 60, .drain = 3, .wspath = "/mqtt" };

/* ---- small helpers ---------------------------------------------------- */

#define RLX memory_order_relaxed
#define INC(x, n) atomic_store_explicit(&(x), atomic_load_explicit(&(x), RLX) + (uint64_t)(n), RLX)
#define GET(x) atomic_load_explicit(&(x), RLX)

static uint64_t now_ns(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}
static void *xmalloc(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p) { fprintf(stderr, "mqttload: out of memory\n"); exit(2); }
    return p;
}
static void *xcalloc(size_t a, size_t b) {
    void *p = calloc(a ? a : 1, b);
    if (!p) { fprintf(stderr, "mqttload: out of memory\n"); exit(2); }
    return p;
}
static void fatal(const char *fmt, ...) {
    va_list ap; va_start(ap, fmt);
    fprintf(stderr, "mqttload: "); vfprintf(stderr, fmt, ap); fputc('\n', stderr);
    va_end(ap); exit(2);
}
static inline void put16(uint8_t *p, unsigned v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static inline unsigned get16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }
static unsigned put_varint(uint8_t *p, uint32_t v) {
    unsigned n = 0;
    do { uint8_t b = v & 127; v >>= 7; p[n++] = b | (v ? 128 : 0); } while (v);
    return n;
}
/* 1..4 bytes read, 0 = need more, -1 = malformed */
static inline int get_varint(const uint8_t *p, size_t len, uint32_t *out) {
    uint32_t v = 0;
    for (unsigned i = 0; i < 4; i++) {
        if (i >= len) return 0;
        v |= (uint32_t)(p[i] & 127) << (7 * i);
        if (!(p[i] & 128)) { *out = v; return (int)i + 1; }
    }
    return -1;
}

/* ---- latency histogram: log2 with 64 linear steps, <1.6 % error -------- */

#define HB 64
typedef struct { uint64_t n, sum, min, max, c[58 * HB + HB]; } hist;

static inline void hist_add(hist *h, uint64_t v) {
    unsigned i;
    if (v < HB) i = (unsigned)v;
    else {
        unsigned e = 63u - (unsigned)__builtin_clzll(v) - 5u;   /* >= 1 */
        i = e * HB / 2 + HB / 2 + (unsigned)(v >> e) - HB / 2;
    }
    h->c[i]++; h->n++; h->sum += v;
    if (v > h->max) h->max = v;
    if (h->n == 1 || v < h->min) h->min = v;
}
static void hist_merge(hist *a, const hist *b) {
    if (!b->n) return;
    if (!a->n || b->min < a->min) a->min = b->min;
    if (b->max > a->max) a->max = b->max;
    a->n += b->n; a->sum += b->sum;
    for (size_t i = 0; i < sizeof a->c / sizeof *a->c; i++) a->c[i] += b->c[i];
}
static double hist_q(const hist *h, double q) {
    if (!h->n) return 0;
    uint64_t want = (uint64_t)ceil(q * (double)h->n), s = 0;
    if (!want) want = 1;
    for (size_t i = 0; i < sizeof h->c / sizeof *h->c; i++) {
        s += h->c[i];
        if (s >= want) {
            if (i < HB) return (double)i;
            unsigned e = (unsigned)(i - HB / 2) / (HB / 2), m = (unsigned)(i - HB / 2) % (HB / 2) + HB / 2;
            double lo = (double)((uint64_t)m << e), hi = lo + (double)(1ull << e);
            double v = (lo + hi) / 2;
            return v > (double)h->max ? (double)h->max : v;
        }
    }
    return (double)h->max;
}

/* ---- connections ------------------------------------------------------ */

enum role { R_SUB, R_PUB, R_FILTER, R_CONN };
enum state { ST_NEW, ST_TCP, ST_TLS, ST_WSHAND, ST_CONNACK, ST_SUBACK, ST_READY, ST_CLOSED };

/* One (subscriber, publisher) sequence: next expected number and which of the
 * 64 numbers below it have been seen.  `full` replaces the window by an exact
 * bitmap where the message count is known beforehand. */
typedef struct { uint64_t next, win; uint64_t *full; } stream;

/* A PUBLISH ready but for its numbers: topic alone, topic with alias, alias alone. */
enum { TP_TOPIC, TP_BOTH, TP_ALIAS, TP_N };
typedef struct { uint8_t *b; uint32_t len, o_topic, o_pid, o_alias, o_pay; } tmpl;

typedef struct {
    _Alignas(64) _Atomic uint64_t delivered;    /* written by receiving threads */
    _Alignas(64) uint64_t sent, acked, limit, written_off, seen_delivered, t_progress;
    uint32_t id, fan, inflight, cap, n_local;
    uint16_t *freeq; uint32_t fhead, fcount;
    uint8_t *pstate; uint64_t *pts;
    tmpl tm[TP_N];
    uint32_t alias_max, n_topics; uint64_t aliased;
    bool blocked_window;
} pubst;

typedef struct conn {
    bool v5, said; uint8_t sqos, echo; uint32_t subid;
    int fd; uint8_t role, state; bool want_out, dropped, expect_session, stall, more;
    uint32_t id; SSL *ssl;
    uint8_t *wb; uint32_t wlen, woff, wcap;
    uint8_t *cb; uint32_t clen, ccap;
    uint64_t t_open, n_recv;
    uint32_t sub_pos, sub_total, sub_batch, next_pid;
    stream *st; uint64_t *q2; pubst *pub;
    uint64_t ws_left; uint8_t ws_hdr[14]; uint8_t ws_hlen;
    uint32_t ws_from;                       /* start of unframed output in wb */
} conn;

typedef struct thread {
    pthread_t tid; int idx, ep, evfd;
    conn **pubs; int npubs;
    conn **all; int nall;
    conn **openq; int open_cap; _Atomic int open_end; int open_pos, opening;
    _Atomic int cmd;
    uint8_t *rb;
    hist lat, ack, con;
    _Alignas(64) _Atomic uint64_t sent, acked, recv, rbytes, opened, failed, pubs_idle;
    /* correctness */
    uint64_t dup, dup_unflagged, ooo, gap, misrouted, corrupt, rejected, disc,
             stalls, retain_wrong, sess_missing, proto, subfail, late_old, props_missing, props_wrong, ids_wrong;
} thread;

static thread T[MAX_THREADS];
static conn *subs, *pubs, *fconns, *xconns;
static long n_subs, n_pubs, n_fconns, n_xconns;
static _Atomic int g_run, g_measure, g_quit, g_int;
static uint64_t g_tstart;
static uint32_t g_magic, g_runid, g_mod;
static char g_prefix[64]; static uint32_t g_plen, g_tlen;
static struct sockaddr_storage g_addr; static socklen_t g_addrlen; static bool g_loopback;
static bool g_resubscribe = true, g_clean = true, g_pub_retain_clear;
static _Atomic int g_nerr; static char g_err[8][160];
static char g_tls[96];                  /* protocol and cipher of the first handshake */

static void note(const char *fmt, ...) {
    int i = atomic_fetch_add(&g_nerr, 1);
    if (i >= 8) return;
    va_list ap; va_start(ap, fmt); vsnprintf(g_err[i], sizeof g_err[i], fmt, ap); va_end(ap);
    for (char *p = g_err[i]; *p; p++) if (*p == '"' || *p == '\\' || (unsigned char)*p < 32) *p = '\'';
}

static void conn_flush(thread *t, conn *c);

/* ---- TLS or plain socket ----------------------------------------------- */

#ifdef HAVE_OPENSSL
static SSL_CTX *g_ctx;
static _Atomic int g_tls_seen;

static const char *tls_error(const SSL *s) {
    long v = s ? SSL_get_verify_result(s) : X509_V_OK;
    unsigned long n = ERR_get_error();
    const char *e = n && ERR_GET_LIB(n) == ERR_LIB_SYS ? strerror(ERR_GET_REASON(n)) : ERR_reason_error_string(n);
    ERR_clear_error();
    return v != X509_V_OK && o.cafile ? X509_verify_cert_error_string(v) : e ? e : "TLS error";
}
static void tls_setup(void) {
    if (!(g_ctx = SSL_CTX_new(TLS_client_method()))) fatal("OpenSSL: %s", tls_error(NULL));
    SSL_CTX_set_options(g_ctx, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(g_ctx, SSL_SESS_CACHE_OFF);      /* every handshake is a full one */
    SSL_CTX_set_mode(g_ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (o.scenario == SC_IDLE || o.scenario == SC_CONNSTORM) SSL_CTX_set_mode(g_ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(g_ctx, 1);
    if (o.cafile) {
        if (SSL_CTX_load_verify_locations(g_ctx, o.cafile, NULL) != 1) fatal("--cafile %s: %s", o.cafile, tls_error(NULL));
        SSL_CTX_set_verify(g_ctx, SSL_VERIFY_PEER, NULL);
    }
    if (o.cert) {
        if (SSL_CTX_use_certificate_chain_file(g_ctx, o.cert) != 1) fatal("--cert %s: %s", o.cert, tls_error(NULL));
        if (SSL_CTX_use_PrivateKey_file(g_ctx, o.key, SSL_FILETYPE_PEM) != 1) fatal("--key %s: %s", o.key, tls_error(NULL));
        if (SSL_CTX_check_private_key(g_ctx) != 1) fatal("--key: %s", tls_error(NULL));
    }
}
static bool tls_start(conn *c) {
    struct in6_addr a; bool ip = inet_pton(AF_INET, o.host, &a) == 1 || inet_pton(AF_INET6, o.host, &a) == 1;
    if (!(c->ssl = SSL_new(g_ctx)) || SSL_set_fd(c->ssl, c->fd) != 1) return false;
    if (!ip && SSL_set_tlsext_host_name(c->ssl, o.host) != 1) return false;
    if (o.cafile && (ip ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->ssl), o.host) : SSL_set1_host(c->ssl, o.host)) != 1) return false;
    SSL_set_connect_state(c->ssl);
    return true;
}
/* The result of an SSL call in the manner of send() and recv(). */
static ssize_t tls_result(const conn *c, int r) {
    int en = errno;
    if (r > 0) return r;
    switch (SSL_get_error(c->ssl, r)) {
    case SSL_ERROR_WANT_READ: case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: ERR_clear_error(); errno = en ? en : ECONNRESET; return -1;
    default: errno = EPROTO; return -1;
    }
}
#endif
static ssize_t io_send(conn *c, const void *b, size_t n) {
#ifdef HAVE_OPENSSL
    if (c->ssl) return tls_result(c, SSL_write(c->ssl, b, (int)(n < 1u << 30 ? n : 1u << 30)));
#endif
    return send(c->fd, b, n, MSG_NOSIGNAL);
}
/* TLS: takes all that OpenSSL holds.  c->more: there is still something in it,
 * of which epoll knows nothing. */
static ssize_t io_recv(conn *c, uint8_t *b, size_t n) {
#ifdef HAVE_OPENSSL
    if (c->ssl) {
        size_t w = 0; ssize_t r;
        do {
            r = tls_result(c, SSL_read(c->ssl, b + w, (int)(n - w)));
            if (r > 0) w += (size_t)r;
        } while (r > 0 && w < n && SSL_has_pending(c->ssl));
        c->more = w && (r > 0 ? SSL_has_pending(c->ssl) : !r || errno != EAGAIN);
        return w ? (ssize_t)w : r;
    }
#endif
    return recv(c->fd, b, n, 0);
}
static const char *io_error(const conn *c) {
#ifdef HAVE_OPENSSL
    if (c->ssl && errno == EPROTO) return tls_error(c->ssl);
#endif
    (void)c;
    return strerror(errno);
}

static void wb_need(conn *c, uint32_t n) {
    if (c->woff && c->woff == c->wlen) c->woff = c->wlen = c->ws_from = 0;
    if (c->wlen + n <= c->wcap) return;
    if (c->woff) {
        memmove(c->wb, c->wb + c->woff, c->wlen - c->woff);
        c->wlen -= c->woff; c->ws_from -= c->woff; c->woff = 0;
        if (c->wlen + n <= c->wcap) return;
    }
    uint32_t cap = c->wcap ? c->wcap : 128;
    while (cap < c->wlen + n) cap *= 2;
    c->wb = realloc(c->wb, cap); c->wcap = cap;
    if (!c->wb) fatal("out of memory");
}
static void wb_put(conn *c, const void *p, uint32_t n) {
    wb_need(c, n); memcpy(c->wb + c->wlen, p, n); c->wlen += n;
}
static void ep_mod(thread *t, conn *c, bool out) {
    if (c->want_out == out) return;
    struct epoll_event e = { .events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c };
    epoll_ctl(t->ep, EPOLL_CTL_MOD, c->fd, &e); c->want_out = out;
}
static void conn_close(thread *t, conn *c, bool abort_) {
    (void)t;
    if (c->fd < 0) { c->state = ST_CLOSED; return; }
#ifdef HAVE_OPENSSL
    if (c->ssl) {
        if (!abort_ && SSL_is_init_finished(c->ssl)) SSL_shutdown(c->ssl);
        SSL_free(c->ssl); c->ssl = NULL; ERR_clear_error();
    }
#endif
    if (abort_) { struct linger l = { 1, 0 }; setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l); }
    close(c->fd); c->fd = -1; c->state = ST_CLOSED; c->want_out = c->more = false;
    free(c->wb); c->wb = NULL; c->wlen = c->woff = c->wcap = c->ws_from = 0;
    free(c->cb); c->cb = NULL; c->clen = c->ccap = 0;
    c->ws_left = 0; c->ws_hlen = 0;
}
static void conn_lost(thread *t, conn *c, const char *why) {
    bool opening = c->state != ST_READY && c->state != ST_CLOSED;
    if (c->state != ST_CLOSED) {
        static const char *const rn[] = { "sub", "pub", "filter", "conn" };
        static const char *const sn[] = { "new", "tcp", "tls", "ws", "connack", "suback", "ready", "closed" };
        note("%s %u closed in state %s: %s", rn[c->role], c->id, sn[c->state], why);
        t->disc++;
    }
    conn_close(t, c, true);
    if (opening) { t->opening--; INC(t->failed, 1); }
}

/* WebSocket: wrap everything written since the last frame in one binary frame.
 * The mask key is zero, which leaves the payload as it is. */
static void ws_frame(conn *c) {
    uint32_t n = c->wlen - c->ws_from;
    if (!o.ws || c->state < ST_CONNACK || !n) { c->ws_from = c->wlen; return; }
    uint8_t h[14] = { 0x82 }; unsigned hl;
    if (n < 126) { h[1] = 0x80 | (uint8_t)n; hl = 6; }
    else if (n < 65536) { h[1] = 0x80 | 126; put16(h + 2, n); hl = 8; }
    else { h[1] = 0x80 | 127; put16(h + 2, 0); put16(h + 4, 0); put16(h + 6, n >> 16); put16(h + 8, n & 65535); hl = 14; }
    wb_need(c, hl);
    memmove(c->wb + c->ws_from + hl, c->wb + c->ws_from, n);
    memcpy(c->wb + c->ws_from, h, hl);
    c->wlen += hl; c->ws_from = c->wlen;
}
static void conn_flush(thread *t, conn *c) {
    if (c->fd < 0) return;
    if (o.ws) ws_frame(c);
    while (c->woff < c->wlen) {
        ssize_t n = io_send(c, c->wb + c->woff, c->wlen - c->woff);
        if (n > 0) { c->woff += (uint32_t)n; continue; }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) { ep_mod(t, c, true); return; }
        conn_lost(t, c, n ? io_error(c) : "end of stream"); return;
    }
    c->wlen = c->woff = c->ws_from = 0;
    ep_mod(t, c, false);
}

static inline uint32_t mixh(uint64_t a, uint32_t b) { uint64_t x = a * 0x9E3779B97F4A7C15ull + b * 0xBF58476D1CE4E5B9ull; x ^= x >> 29; x *= 0x94D049BB133111EBull; x ^= x >> 32; return (uint32_t)x; }
static inline uint32_t leaf_of(uint64_t seq, uint32_t who) { if (o.unique) return (uint32_t)((o.shared_topics ? seq * (uint64_t)n_pubs + who : seq) % 1000000000u); return (uint32_t)(o.random_topics ? mixh(seq, who) % (uint64_t)o.topics : seq % (uint64_t)o.topics); }
static inline uint32_t paylen_of(uint64_t seq, uint32_t who) { return o.vhi ? (uint32_t)o.vlo + mixh(seq + 77, who) % (uint32_t)(o.vhi - o.vlo + 1) : (uint32_t)o.payload; }

/* --fill: payloads are cut from a pool, as each one's publisher and number say.  It is larger than
 * what a compressor looks back over, so that it finds what is alike within the text, not a text
 * that it had before.  The same in every run. */
enum { FILL_LETTERS, FILL_TEXT, FILL_RANDOM, FILL_N };
static const char *const fill_name[FILL_N] = { "letters", "text", "random" };
#define POOL (16u << 20)
static uint8_t *g_pool;
static void pool_make(uint32_t longest) {
    static const char *const state[] = { "ok", "warning", "failed", "unknown" };
    uint32_t n = 0, size = POOL + longest;
    g_pool = xmalloc(size + 256);
    for (uint64_t i = 0; n < size; i++) {
        if (o.fill == FILL_RANDOM) { uint32_t r = mixh(i, 1); memcpy(g_pool + n, &r, 4); n += 4; continue; }
        uint32_t a = mixh(i, 2), b = mixh(i, 3), c = mixh(i, 4);
        n += (uint32_t)sprintf((char *)g_pool + n,
            "{\"device\":\"sensor-%05u\",\"time\":17%08u%03u,\"temperature\":%u.%02u,\"humidity\":%u.%u,\"state\":\"%s\",\"battery\":%u},",
            a % 100000, b % 100000000, c % 1000, (a >> 20) % 60, (b >> 20) % 100, (c >> 10) % 100, (c >> 20) % 10, state[(c >> 25) % 4], (a >> 8) % 101);
    }
}
static inline const uint8_t *pool_at(uint64_t seq, uint32_t who) { return g_pool + mixh(seq + 99, who) % POOL; }
#define LEAF (o.unique ? 9 : 5)
static inline int qos_of(uint64_t seq) { return o.mixq ? (int)(seq % 3) : o.qos; }
/* ---- topics and filters ----------------------------------------------- */

static uint32_t topic_str(char *b, uint32_t id, uint32_t leaf) {
    if (o.scenario == SC_WILDCARD) {
        uint32_t n = (uint32_t)sprintf(b, "%s/%06u/p%0*u", g_prefix, id, LEAF, leaf);
        for (long k = 5; k < o.levels; k++) n += (uint32_t)sprintf(b + n, "/x00");
        return n + (uint32_t)sprintf(b + n, "/m");
    }
    return (uint32_t)sprintf(b, "%s/%06u", g_prefix, id);
}
static inline void digits(uint8_t *p, int n, uint32_t v) {
    while (n--) { p[n] = (uint8_t)('0' + v % 10); v /= 10; }
}
/* What varies of a topic of `wildcard`, from its leaf on: the leaf, and two digits of each further level. */
static inline void leaf_put(uint8_t *p, uint32_t leaf) {
    digits(p, LEAF, leaf); p += LEAF + 2;
    for (long k = 5; k < o.levels; k++, p += 4) { digits(p, 2, leaf % 100); leaf = leaf / 7 + (uint32_t)k; }
}
/* Filter k of a subscriber with several: the topic itself, what begins with it, both with another first word. */
static uint32_t overlap_str(char *b, uint32_t id, uint32_t k) {
    const char *rest = strchr(g_prefix, '/');
    uint32_t n = (uint32_t)(k & 2 ? sprintf(b, "+%s/%06u", rest ? rest : "", id) : sprintf(b, "%s/%06u", g_prefix, id));
    return k & 1 ? n + (uint32_t)sprintf(b + n, "/#") : n;
}
/* Of --refuse: what this publisher says goes where the broker's rules let nobody publish. */
static inline bool refused(uint32_t pub) { return o.refuse && pub & 1; }
/* The topic of a publisher; that of one that is refused has an x where others have the t of the prefix. */
static uint32_t pub_topic(char *b, uint32_t pub) {
    uint32_t n = topic_str(b, pub % g_mod, 0);
    if (refused(pub)) b[g_plen - 1] = 'x';
    return n;
}
/* The k-th filter of a connection.  Preloaded filters share levels with the
 * published topics but match none of them. */
static uint32_t filter_str(char *b, const conn *c, uint32_t k) {
    if (c->role == R_CONN && o.conn_subs) return (uint32_t)sprintf(b, "%s/%06u/s%u/v", g_prefix, c->id, k);
    if (c->role == R_SUB && o.unheard) return (uint32_t)sprintf(b, "%s/none/%06u", g_prefix, c->id);
    if (c->role == R_SUB && (o.nsf || o.share)) {
        uint32_t n = 0; const char *q = o.nsf ? o.sf[c->id % (uint32_t)o.nsf] : "%P/%i";
        if (o.share) n += (uint32_t)sprintf(b, "$share/%s/", o.share);
        for (; *q; q++) {
            if (*q == '%' && q[1] == 'P') { n += (uint32_t)sprintf(b + n, "%s", g_prefix); q++; }
            else if (*q == '%' && q[1] == 'i') { n += (uint32_t)sprintf(b + n, "%06u", c->id % g_mod); q++; }
            else b[n++] = *q;
        }
        b[n] = 0; return n;
    }
    if (c->role == R_FILTER) {
        uint32_t f = c->id + k * (uint32_t)n_fconns, j = f / 4 % (uint32_t)n_pubs;
        switch (f % 4) {
        case 0: return (uint32_t)sprintf(b, "%s/%06u/d%06u/m", g_prefix, j, f);
        case 1: return (uint32_t)sprintf(b, "%s/%06u/+/x%06u", g_prefix, j, f);
        case 2: return (uint32_t)sprintf(b, "%s/%06u/d%06u/#", g_prefix, j, f);
        default: return (uint32_t)sprintf(b, "%s/+/d%06u/m", g_prefix, f);
        }
    }
    if (c->role == R_SUB && o.overlap > 1) return overlap_str(b, c->id % g_mod, k);
    switch (o.scenario) {
    case SC_RETAINED: return (uint32_t)sprintf(b, "%s/#", g_prefix);
    case SC_WILDCARD:
        if (c->id / (uint32_t)n_pubs % 2 == 0) {
            uint32_t n = (uint32_t)sprintf(b, "%s/%06u/+", g_prefix, c->id % g_mod);
            for (long d = 5; d < o.levels; d++) n += (uint32_t)sprintf(b + n, "/+");
            return n + (uint32_t)sprintf(b + n, "/m");
        }
        return (uint32_t)sprintf(b, "%s/%06u/#", g_prefix, c->id % g_mod);
    case SC_CONNSTORM: case SC_IDLE: return (uint32_t)sprintf(b, "%s/%06u", g_prefix, c->id);
    default: return topic_str(b, c->id % g_mod, 0);
    }
}

/* ---- outgoing packets -------------------------------------------------- */

static void send_connect(conn *c) {
    uint8_t v[2 * MAX_CRED + 128]; uint32_t n = 0; char cid[48];
    static const char rc[] = "spfc";
    int cl = snprintf(cid, sizeof cid, "ml%04x%c%u", o.prefix ? 0xabcd : g_runid & 0xffff, rc[c->role], c->id + (uint32_t)o.first);
    bool clean = c->role == R_SUB ? g_clean : c->role == R_CONN ? !o.persistent : true;
    put16(v, 4); memcpy(v + 2, "MQTT", 4); v[6] = c->v5 ? 5 : 4;
    bool will = o.will && c->role == R_CONN;
    v[7] = (uint8_t)((clean ? 2 : 0) | (o.user ? 0x80 : 0) | (o.pass ? 0x40 : 0) | (will ? 4 | o.qos << 3 | (o.retain ? 0x20 : 0) : 0));
    put16(v + 8, (unsigned)o.keepalive); n = 10;
    if (c->v5) {
        if (o.persistent && !clean) {
            v[n++] = 5; v[n++] = 0x11; put16(v + n, 0); put16(v + n + 2, 3600); n += 4;
        } else v[n++] = 0;
    }
    put16(v + n, (unsigned)cl); memcpy(v + n + 2, cid, (size_t)cl); n += 2 + (uint32_t)cl;
    if (will) {
        uint32_t l;
        if (c->v5) v[n++] = 0;
        l = filter_str((char *)v + n + 2, c, 0); put16(v + n, l); n += 2 + l;
        put16(v + n, (unsigned)cl); memcpy(v + n + 2, cid, (size_t)cl); n += 2 + (uint32_t)cl;
    }
    for (int i = 0; i < 2; i++) {
        const char *s = i ? o.pass : o.user;
        if (!s) continue;
        size_t l = strlen(s);
        put16(v + n, (unsigned)l); memcpy(v + n + 2, s, l); n += 2 + (uint32_t)l;
    }
    uint8_t h[5] = { 0x10 }; unsigned hl = 1 + put_varint(h + 1, n);
    wb_put(c, h, hl); wb_put(c, v, n);
    c->state = ST_CONNACK;
}
static void send_subscribe(conn *c) {
    uint32_t left = c->sub_total - c->sub_pos, k = c->subid ? 1 : left < 100 ? left : 100;
    uint8_t *v = xmalloc(8 + k * 128); uint32_t n = 2;
    c->next_pid = c->next_pid % 65535 + 1;
    put16(v, c->next_pid);
    if (c->v5) { if (c->subid) { uint8_t t5[6]; unsigned z = put_varint(t5, c->subid + c->sub_pos); v[n++] = (uint8_t)(z + 1); v[n++] = 0x0b; memcpy(v + n, t5, z); n += z; } else v[n++] = 0; }
    for (uint32_t i = 0; i < k; i++) {
        uint32_t l = filter_str((char *)v + n + 2, c, c->sub_pos + i);
        put16(v + n, l); n += 2 + l; v[n++] = c->role == R_SUB ? c->sqos : (uint8_t)o.sub_qos;
    }
    uint8_t h[5] = { 0x82 }; unsigned hl = 1 + put_varint(h + 1, n);
    wb_put(c, h, hl); wb_put(c, v, n); free(v);
    c->sub_batch = k; c->state = ST_SUBACK;
}
/* A QoS 1 message of a connection to itself; its own name is the payload. */
static void send_echo(conn *c) {
    uint8_t v[160]; char b[64]; uint32_t l = filter_str(b, c, 0), n = 2 + l;
    put16(v, l); memcpy(v + 2, b, l);
    put16(v + n, 1); n += 2;
    if (c->v5) v[n++] = 0;
    memcpy(v + n, b, l); n += l;
    uint8_t h[5] = { 0x32 }; unsigned hl = 1 + put_varint(h + 1, n);
    wb_put(c, h, hl); wb_put(c, v, n);
    c->echo = 2;                                             /* PUBACK and the message are awaited */
}
/* The one message of a visit; at QoS 1 PUBACK is awaited, at QoS 2 PUBREC and PUBCOMP. */
static void send_say(conn *c) {
    uint8_t v[256]; uint32_t n = 2, l = filter_str((char *)v + 2, c, 0);
    put16(v, l); n += l;
    if (o.qos) { put16(v + n, 1); n += 2; }
    if (c->v5) v[n++] = 0;
    memset(v + n, 'x', 64); n += 64;
    uint8_t h[5] = { (uint8_t)(0x30 | o.qos << 1 | o.retain) }; unsigned hl = 1 + put_varint(h + 1, n);
    wb_put(c, h, hl); wb_put(c, v, n);
    c->said = true;
}
static inline void send_ack(conn *c, uint8_t type, unsigned pid) {
    wb_need(c, 4); uint8_t *p = c->wb + c->wlen;
    p[0] = type; p[1] = 2; put16(p + 2, pid); c->wlen += 4;
}

/* User property i of a publisher, the same in each of its messages. */
static inline uint32_t user_prop(uint8_t *b, uint32_t pub, uint32_t i) {
    b[0] = 0x26; put16(b + 1, 3); b[3] = 'k'; digits(b + 4, 2, i); put16(b + 6, 6); digits(b + 8, 6, pub);
    return UPROP_BYTES;
}
static void pub_template(pubst *p, uint32_t fill) {
    char topic[128]; uint32_t tl = pub_topic(topic, p->id);
    for (int k = 0; k < (o.alias ? TP_N : 1); k++) {
        tmpl *m = &p->tm[k]; uint8_t vl[4]; uint32_t n = 0, l = k == TP_ALIAS ? 0 : tl;
        uint32_t props = (k ? 3 : 0) + (uint32_t)o.user_props * UPROP_BYTES, pn = put_varint(vl, props);
        uint32_t body = 2 + l + (o.qos ? 2 : 0) + (o.mqtt5 ? pn + props : 0) + fill;
        free(m->b); uint8_t *b = m->b = xmalloc(body + 8);
        b[n++] = (uint8_t)(0x30 | o.qos << 1 | (o.retain ? 1 : 0));
        n += put_varint(b + n, body);
        put16(b + n, l); m->o_topic = n + 2; memcpy(b + n + 2, topic, l); n += 2 + l;
        m->o_pid = n; if (o.qos) n += 2;
        if (o.mqtt5) {
            memcpy(b + n, vl, pn); n += pn;
            if (k) { b[n] = 0x23; m->o_alias = n + 1; n += 3; }
            for (uint32_t i = 0; i < (uint32_t)o.user_props; i++) n += user_prop(b + n, p->id, i);
        }
        m->o_pay = n;
        for (uint32_t i = 0; i < fill; i++) b[n + i] = (uint8_t)('a' + i % 26);
        m->len = n + fill;
    }
}
static void pub_one_x(conn *c, uint64_t ts) {
    pubst *p = c->pub; uint64_t seq = p->sent; uint32_t who = p->id, pl = paylen_of(seq, who), n = 0; int q = qos_of(seq);
    char topic[128]; uint32_t tl = pub_topic(topic, who);
    if (o.scenario == SC_WILDCARD) leaf_put((uint8_t *)topic + g_plen + 9, leaf_of(seq, who));
    uint32_t props = o.props5 ? 3 * UPROP_BYTES + 5 + 11 : 0;
    uint32_t body = 2 + tl + (q ? 2 : 0) + (o.mqtt5 ? 1 + props : 0) + pl;
    wb_need(c, body + 8);
    uint8_t *b = c->wb + c->wlen;
    b[n++] = (uint8_t)(0x30 | q << 1 | (o.retain ? 1 : 0)); n += put_varint(b + n, body);
    put16(b + n, tl); memcpy(b + n + 2, topic, tl); n += 2 + tl;
    if (q) {
        uint32_t pid = p->freeq[p->fhead]; p->fhead = (p->fhead + 1) % p->cap; p->fcount--;
        put16(b + n, pid); n += 2; p->pstate[pid] = (uint8_t)(q == 2 ? 3 : 1); p->pts[pid] = ts; p->inflight++;
    }
    if (o.mqtt5) {
        b[n++] = (uint8_t)props;
        if (props) {
            b[n++] = 2; put16(b + n, 0); put16(b + n + 2, 3600); n += 4;
            b[n++] = 9; put16(b + n, 8); memcpy(b + n + 2, &seq, 8); n += 10;
            for (uint32_t i = 0; i < 3; i++) n += user_prop(b + n, (uint32_t)((seq + i * 7) % 1000000), i);
        }
    }
    uint8_t *y = b + n;
    memcpy(y, &g_magic, 4); memcpy(y + 4, &who, 4); memcpy(y + 8, &seq, 8); memcpy(y + 16, &ts, 8);
    if (pl > HDR_BYTES) {
        if (o.fill) memcpy(y + HDR_BYTES, pool_at(seq, who), pl - HDR_BYTES);
        else memset(y + HDR_BYTES, 'a' + (int)(seq % 26), pl - HDR_BYTES);
        y[pl - 1] = (uint8_t)(seq ^ who);
    }
    c->wlen += n + pl; p->sent++;
}
/* Append one PUBLISH; the caller has checked the windows. */
static inline void pub_one(conn *c, uint64_t ts) {
    if (o.X) { pub_one_x(c, ts); return; }
    pubst *p = c->pub; uint64_t seq = p->sent; uint32_t pid, who = p->id, alias = 0;
    const tmpl *m = p->tm;
    if (o.alias) {                       /* topics come round in a fixed order */
        uint64_t k = seq % p->n_topics;
        if (k < p->alias_max) { alias = (uint32_t)k + 1; m += seq < p->n_topics ? TP_BOTH : TP_ALIAS; }
        if (m == p->tm + TP_ALIAS) p->aliased++;
    }
    bool topic = m != p->tm + TP_ALIAS;
    wb_need(c, m->len);
    uint8_t *b = c->wb + c->wlen; memcpy(b, m->b, m->len);
    if (alias) put16(b + m->o_alias, alias);
    if (o.scenario == SC_WILDCARD) {
        if (topic) digits(b + m->o_topic + g_plen + 9, 5, (uint32_t)(seq % (uint64_t)o.topics));
    } else if (o.scenario == SC_OFFLINE) {
        who = p->id + (uint32_t)(seq % p->n_local) * (uint32_t)n_pubs; seq /= p->n_local;
        if (topic) digits(b + m->o_topic + g_plen + 1, 6, who);
    } else if (o.scenario == SC_RETAINED) {
        who = p->id + (uint32_t)seq * (uint32_t)n_pubs; seq = 0;
        digits(b + m->o_topic + g_plen + 1, 6, who);
    }
    if (o.qos) {
        pid = p->freeq[p->fhead]; p->fhead = (p->fhead + 1) % p->cap; p->fcount--;
        put16(b + m->o_pid, pid); p->pstate[pid] = 1; p->pts[pid] = ts; p->inflight++;
    }
    if (!g_pub_retain_clear) {
        uint8_t *y = b + m->o_pay;
        memcpy(y, &g_magic, 4); memcpy(y + 4, &who, 4); memcpy(y + 8, &seq, 8); memcpy(y + 16, &ts, 8);
        if (o.payload > (long)HDR_BYTES) {
            if (o.fill) memcpy(y + HDR_BYTES, pool_at(seq, who), (size_t)o.payload - HDR_BYTES);
            y[o.payload - 1] = (uint8_t)(seq ^ who);
        }
    }
    c->wlen += m->len; p->sent++;
}
static inline uint64_t due_time(const pubst *p) {
    double per = 1e9 * (double)n_pubs / o.rate;
    return g_tstart + (uint64_t)(per * ((double)p->sent + (double)p->id / (double)n_pubs));
}
static bool windowed(void) {
    return o.window && !o.rate && o.scenario != SC_OFFLINE && o.scenario != SC_RETAINED;
}
static void pub_pump(thread *t, conn *c, uint64_t now) {
    pubst *p = c->pub; p->blocked_window = false;
    if (c->state != ST_READY || c->want_out || p->sent >= p->limit) return;
    uint64_t room = p->limit - p->sent, before = p->sent;
    if (room > (uint64_t)o.batch) room = (uint64_t)o.batch;
    if (o.qos || o.mixq) {
        if (!o.rate && p->inflight > p->cap / 2) return;     /* refill at half: batches */
        if (room > p->cap - p->inflight) room = p->cap - p->inflight;
    }
    if (windowed() && p->fan) {
        uint64_t d = GET(p->delivered);
        if (d != p->seen_delivered) { p->seen_delivered = d; p->t_progress = now; }
        uint64_t done = d / p->fan + p->written_off;
        uint64_t out = p->sent > done ? p->sent - done : 0;
        if (out > (uint64_t)o.window / 2) {
            p->blocked_window = true;
            if (now - p->t_progress > 2 * NS && p->t_progress) { p->written_off += out; t->stalls++; }
            return;
        }
        if (room > (uint64_t)o.window - out) room = (uint64_t)o.window - out;
        if (!p->t_progress) p->t_progress = now;
    }
    if (o.rate) {
        uint64_t d;
        while (room && (d = due_time(p)) <= now) { pub_one(c, d); room--; }
    } else while (room && c->wlen < WRITE_HIGH) { pub_one(c, now); room--; }
    if (p->sent != before) { INC(t->sent, p->sent - before); conn_flush(t, c); }
}

/* ---- incoming packets -------------------------------------------------- */

static void ready(thread *t, conn *c, uint64_t now);
static void set_up(thread *t, conn *c, uint64_t now);

static void stream_note(thread *t, conn *c, stream *s, uint64_t seq, bool dupflag, int qos) {
    (void)c;
    if (s->full) {
        uint64_t *w = &s->full[seq / 64], bit = 1ull << (seq % 64);
        if (*w & bit) { t->dup++; if (!dupflag || qos == 2) t->dup_unflagged++; return; }
        *w |= bit;
        if (seq < s->next) { t->ooo++; t->gap--; }
        else { t->gap += seq - s->next; s->next = seq + 1; }
        return;
    }
    if (seq >= s->next) {
        uint64_t d = seq - s->next + 1;
        t->gap += d - 1; s->win = d >= 64 ? 1 : s->win << d | 1; s->next = seq + 1;
        return;
    }
    uint64_t back = s->next - 1 - seq;
    if (back >= 64) { t->late_old++; if (dupflag) t->dup++; else t->ooo++; return; }
    if (s->win >> back & 1) { t->dup++; if (!dupflag || qos == 2) t->dup_unflagged++; }
    else { s->win |= 1ull << back; t->ooo++; t->gap--; }
}

/* MQTT 5: are all properties well-formed and allowed, the user properties those
 * that the publisher sent, in its order, and the Subscription Identifiers the subscriber's?
 * Where several filters match, a broker sends one copy with all of them, or one with each: false
 * for those but the first (3.3.4). */
static bool props_check(thread *t, const conn *c, const uint8_t *p, uint32_t len, uint32_t who, uint64_t seq) {
    const uint8_t *e = p + len; uint8_t want[UPROP_BYTES]; uint32_t n = 0, v = 0, named = 0, ids = 0; bool wrong = false;
    while (p < e) {
        uint32_t left = (uint32_t)(e - p), l;
        switch (*p) {
        case 0x01: l = 2; break;
        case 0x02: l = 5; break;
        case 0x0b: { int k = get_varint(p + 1, left - 1, &v); l = k > 0 ? 1 + (uint32_t)k : left + 1; ids++; if (v - c->subid < c->sub_total) named |= 1u << (v - c->subid); break; }
        case 0x03: case 0x08: case 0x09: l = left < 3 ? 3 : 3 + get16(p + 1); break;
        case 0x26:
            l = left < 3 ? 3 : 3 + get16(p + 1); l += left < l + 2 ? 2 : 2 + get16(p + l);
            user_prop(want, o.props5 ? (uint32_t)((seq + n * 7) % 1000000) : who % (uint32_t)n_pubs, n);
            if (l != UPROP_BYTES || l > left || memcmp(p, want, l)) wrong = true;
            n++; break;
        default: l = left + 1;              /* a Topic Alias too: no subscriber allows one */
        }
        if (l > left) { t->proto++; return true; }
        p += l;
    }
    long want_n = o.props5 ? 3 : o.user_props;
    uint32_t all = (1u << c->sub_total) - 1;
    bool copy = ids == 1 && named && c->subid;
    if (c->subid ? !copy && (ids != c->sub_total || named != all) : ids) t->ids_wrong++;
    if (!n && want_n) t->props_missing++;
    else if (wrong || n != (uint32_t)want_n) t->props_wrong++;
    return !copy || named == 1;
}
static inline void on_publish(thread *t, conn *c, uint8_t h, const uint8_t *p, uint32_t len, uint64_t now) {
    unsigned qos = h >> 1 & 3, tl; uint32_t off, pid = 0, pr = 0;
    if (len < 2 || (tl = get16(p)) + 2u + (qos ? 2u : 0u) > len || qos == 3) { t->proto++; return; }
    off = 2 + tl;
    if (qos) { pid = get16(p + off); off += 2; }
    if (c->v5) {
        int n = get_varint(p + off, len - off, &pr);
        if (n <= 0 || off + (uint32_t)n + pr > len) { t->proto++; return; }
        off += (uint32_t)n + pr;
    }
    const uint8_t *y = p + off; uint32_t yl = len - off, magic = 0, who = 0; uint64_t seq = 0, ts = 0;
    bool ok = true;
    if (yl >= HDR_BYTES) {
        memcpy(&magic, y, 4); memcpy(&who, y + 4, 4); memcpy(&seq, y + 8, 8); memcpy(&ts, y + 16, 8);
    }
    if (yl != paylen_of(seq, who) || magic != g_magic ||
        (yl > HDR_BYTES && (y[yl - 1] != (uint8_t)(seq ^ who) ||
            (o.fill && memcmp(y + HDR_BYTES, pool_at(seq, who), yl - HDR_BYTES - 1))))) { t->corrupt++; ok = false; }
    if (qos == 2) {
        if (!c->q2) c->q2 = xcalloc(1024, 8);
        uint64_t *w = &c->q2[pid / 64], bit = 1ull << (pid % 64);
        if (*w & bit) ok = false;               /* repeated before PUBREL: not a new message */
        *w |= bit;
    }
    if (ok) {
        bool counted = o.scenario == SC_OFFLINE || o.scenario == SC_RETAINED;
        uint32_t tid = 0, want = counted ? who : who % g_mod;
        const uint8_t *d = p + 2 + g_plen + 1;
        bool route = tl == g_tlen && !memcmp(p + 2, g_prefix, g_plen);
        if (route) for (int i = 0; i < 6; i++) tid = tid * 10 + (uint32_t)(d[i] - '0');
        if (route && o.scenario == SC_WILDCARD) {
            uint8_t topic[128]; uint32_t n = tl - g_plen - 9;
            memcpy(topic, d + 8, n); leaf_put(topic, leaf_of(seq, who));
            route = !memcmp(d + 8, topic, n);
        }
        bool counts = !(pr || o.user_props || c->subid) || props_check(t, c, p + off - pr, pr, who, seq);
        if (!counts) goto answer;
        if (!route || tid != want || c->role != R_SUB) t->misrouted++;
        else if (o.scenario == SC_RETAINED) {
            if (who >= (uint32_t)o.count) t->misrouted++;
            else {
                uint64_t *w = &c->st->full[who / 64], bit = 1ull << (who % 64);
                if (*w & bit) { t->dup++; if (!(h & 8)) t->dup_unflagged++; }
                else { *w |= bit; c->n_recv++; INC(t->recv, 1); }
                if (!(h & 1)) t->retain_wrong++;
            }
        } else if (counted) {
            if (who != c->id || seq >= (uint64_t)o.count) t->misrouted++;
            else {
                uint64_t was = t->dup;
                stream_note(t, c, c->st, seq, h & 8, (int)qos);
                if (was == t->dup) { c->n_recv++; INC(t->recv, 1); }
            }
        } else {
            if (who % g_mod != c->id % g_mod || who >= (uint32_t)n_pubs) t->misrouted++;
            else {
                stream *s = &c->st[who / g_mod];
                if (seq == s->next) { s->next++; s->win = s->win << 1 | 1; }
                else stream_note(t, c, s, seq, h & 8, (int)qos);
                INC(t->recv, 1);
                pubst *pb = pubs[who].pub;
                if (o.threads == 1) INC(pb->delivered, 1);
                else atomic_fetch_add_explicit(&pb->delivered, 1, RLX);
            }
        }
        INC(t->rbytes, yl);
        if (GET(g_measure)) hist_add(&t->lat, now > ts ? now - ts : 0);
    }
answer:
    if (qos == 1) send_ack(c, 0x40, pid);
    else if (qos == 2) send_ack(c, 0x50, pid);
}

static void pub_done(thread *t, conn *c, unsigned pid, uint64_t now) {
    pubst *p = c->pub;
    p->pstate[pid] = 0; p->inflight--;
    p->freeq[(p->fhead + p->fcount) % p->cap] = (uint16_t)pid; p->fcount++;
    p->acked++; INC(t->acked, 1);
    if (GET(g_measure) && now > p->pts[pid]) hist_add(&t->ack, now - p->pts[pid]);
}
static void parse_connack_props(conn *c, const uint8_t *p, uint32_t len) {
    uint32_t n; int k = get_varint(p, len, &n);
    if (k <= 0) return;
    const uint8_t *e = p + k + n; p += k;
    if (e > p + len) return;
    while (p < e) {
        switch (*p++) {
        case 0x21: if (c->pub && (o.qos || o.mixq) && get16(p) < c->pub->cap) {   /* Receive Maximum */
                c->pub->cap = c->pub->fcount = get16(p); } p += 2; break;
        case 0x22: if (c->pub) c->pub->alias_max = get16(p);             /* Topic Alias Maximum */
            p += 2; break;
        case 0x13: p += 2; break;
        case 0x11: case 0x27: p += 4; break;
        case 0x24: case 0x25: case 0x28: case 0x29: case 0x2a: p += 1; break;
        case 0x12: case 0x15: case 0x16: case 0x1a: case 0x1c: case 0x1f: p += 2 + get16(p); break;
        case 0x26: p += 2 + get16(p); p += 2 + get16(p); break;
        default: return;
        }
    }
}
/* false: the connection was closed */
static bool on_packet(thread *t, conn *c, uint8_t h, const uint8_t *p, uint32_t len, uint64_t now) {
    switch (h >> 4) {
    case 3:
        if (c->echo) {
            char b[64]; uint32_t l = filter_str(b, c, 0);
            if (len < l + 4 || get16(p) != l || memcmp(p + 2, b, l)) t->misrouted++;
            else if ((h >> 1 & 3) != 1 || memcmp(p + len - l, b, l)) t->corrupt++;
            else send_ack(c, 0x40, get16(p + 2 + l));
            if (!--c->echo) ready(t, c, now);
            return c->fd >= 0;
        }
        on_publish(t, c, h, p, len, now);
        if (o.drop_after && o.scenario == SC_OFFLINE && c->role == R_SUB && !c->dropped &&
            c->n_recv >= (uint64_t)o.drop_after) {
            c->dropped = true;                   /* acknowledgements in wb are lost on purpose */
            conn_close(t, c, true);
            t->openq[t->open_end % t->open_cap] = c; atomic_fetch_add(&t->open_end, 1);
            return false;
        }
        return true;
    case 2:
        if (c->state != ST_CONNACK || len < 2) { t->proto++; return true; }
        if (p[1]) { char b[32]; snprintf(b, sizeof b, "CONNACK code %u", p[1]); t->rejected++; conn_lost(t, c, b); return false; }
        if (c->expect_session && !(p[0] & 1)) t->sess_missing++;
        if (c->v5 && len > 2) parse_connack_props(c, p + 2, len - 2);
        if (o.alias && c->pub && !c->pub->alias_max) { conn_lost(t, c, "--alias: the broker's Topic Alias Maximum is 0"); return false; }
        hist_add(&t->con, now - c->t_open);
        if (c->sub_total && (c->role != R_SUB || g_resubscribe)) { c->sub_pos = 0; send_subscribe(c); }
        else set_up(t, c, now);
        return c->fd >= 0;
    case 9: {
        uint32_t off = 2, n;
        if (c->v5) { int k = get_varint(p + 2, len - 2, &n); if (k > 0) off += (uint32_t)k + n; }
        for (; off < len; off++) if (p[off] >= 0x80) t->subfail++;
        c->sub_pos += c->sub_batch;
        if (c->sub_pos < c->sub_total) send_subscribe(c); else if (o.echo) send_echo(c); else set_up(t, c, now);
        return c->fd >= 0; }
    case 4: case 5: case 7: {
        if (c->echo) { if (h >> 4 != 4) t->proto++; if (!--c->echo) ready(t, c, now); return c->fd >= 0; }
        if (c->said && c->state != ST_READY && len >= 2) {
            if (len > 2 && p[2] >= 0x80) t->rejected++;
            if (h >> 4 == 5) { if (o.qos != 2) t->proto++; send_ack(c, 0x62, get16(p)); }
            else { if (h >> 4 != (o.qos == 1 ? 4u : 7u)) t->proto++; ready(t, c, now); }
            return c->fd >= 0;
        }
        if (len < 2 || !c->pub || !(o.qos || o.mixq)) { t->proto++; return true; }
        unsigned pid = get16(p), ty = h >> 4; pubst *s = c->pub;
        if (!pid || pid > (unsigned)o.inflight || !s->pstate[pid]) { t->proto++; return true; }
        bool bad = len > 2 && p[2] >= 0x80;
        if (bad != refused(s->id)) t->rejected++;
        if (ty == 5 && !bad) { s->pstate[pid] = 2; send_ack(c, 0x62, pid); }
        else if ((ty == 4 && (o.qos == 1 || s->pstate[pid] == 1)) || ty == 7 || bad) pub_done(t, c, pid, now);
        else t->proto++;
        return true; }
    case 6:
        if (len < 2) { t->proto++; return true; }
        if (c->q2) c->q2[get16(p) / 64] &= ~(1ull << (get16(p) % 64));
        send_ack(c, 0x70, get16(p));
        return true;
    case 13: return true;
    case 14: { char b[32]; snprintf(b, sizeof b, "DISCONNECT code %u", len ? p[0] : 0u); conn_lost(t, c, b); return false; }
    default: t->proto++; return true;
    }
}

static void ready(thread *t, conn *c, uint64_t now) {
    (void)now;
    c->state = ST_READY; t->opening--; INC(t->opened, 1);
    if (c->stall) epoll_ctl(t->ep, EPOLL_CTL_DEL, c->fd, NULL);      /* never read again */
    if (o.scenario == SC_CONNSTORM && !o.hold) {
        static const uint8_t d[2] = { 0xe0, 0 };
        if (!o.will) wb_put(c, d, 2);
        conn_flush(t, c); conn_close(t, c, false);
    }
}
/* Connected and subscribed: a visitor says what it came for. */
static void set_up(thread *t, conn *c, uint64_t now) {
    if (o.say) send_say(c);
    if (!o.say || !o.qos) ready(t, c, now);
}

/* Consume MQTT bytes; returns how many were used, or -1 when closed. */
static long feed(thread *t, conn *c, const uint8_t *b, size_t len, uint64_t now) {
    size_t i = 0;
    while (len - i >= 2) {
        uint32_t rl; int k = get_varint(b + i + 1, len - i - 1, &rl);
        if (k < 0) { t->proto++; conn_lost(t, c, "malformed length"); return -1; }
        if (!k || len - i < 1u + (unsigned)k + rl) break;
        uint8_t h = b[i]; const uint8_t *p = b + i + 1 + k;
        i += 1u + (unsigned)k + rl;
        if (!on_packet(t, c, h, p, rl, now)) return -1;
    }
    return (long)i;
}

static void ws_handshake(conn *c) {
    char b[512];
    int n = snprintf(b, sizeof b, "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: bXF0dGxvYWQgbG9hZHRlcw==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n", o.wspath, o.host, o.port);
    wb_put(c, b, (uint32_t)n); c->ws_from = c->wlen; c->state = ST_WSHAND;
}
/* Strip frame headers in place: returns payload bytes left at b. */
static long ws_strip(thread *t, conn *c, uint8_t *b, size_t len) {
    size_t i = 0, w = 0;
    while (i < len) {
        if (c->ws_left) {
            size_t n = len - i < c->ws_left ? len - i : (size_t)c->ws_left;
            memmove(b + w, b + i, n); w += n; i += n; c->ws_left -= n; continue;
        }
        c->ws_hdr[c->ws_hlen++] = b[i++];
        if (c->ws_hlen < 2) continue;
        unsigned l7 = c->ws_hdr[1] & 127, need = l7 == 126 ? 4 : l7 == 127 ? 10 : 2, op = c->ws_hdr[0] & 15;
        if (c->ws_hlen < need) continue;
        uint64_t n = l7;
        if (l7 == 126) n = get16(c->ws_hdr + 2);
        else if (l7 == 127) { n = 0; for (int k = 2; k < 10; k++) n = n << 8 | c->ws_hdr[k]; }
        c->ws_hlen = 0;
        if (op == 8 || op == 9) { conn_lost(t, c, op == 8 ? "websocket close" : "websocket ping unsupported"); return -1; }
        c->ws_left = n;
    }
    return (long)w;
}

static void on_readable(thread *t, conn *c, uint64_t *now) {
    uint32_t have = c->clen;
    if (have) memcpy(t->rb, c->cb, have);
    ssize_t n = io_recv(c, t->rb + have, RECV_BUF - have);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        conn_lost(t, c, io_error(c)); return;
    }
    if (n == 0) { conn_lost(t, c, "end of stream"); return; }
    *now = now_ns();
    size_t len = (size_t)n;
    if (o.ws) {
        if (c->state == ST_WSHAND) {
            uint8_t *e = memmem(t->rb, have + len, "\r\n\r\n", 4);
            if (!e) { len += have; goto carry0; }
            if (have + len < 12 || memcmp(t->rb + 9, "101", 3)) { conn_lost(t, c, "websocket refused"); return; }
            size_t used = (size_t)(e + 4 - t->rb), rest = have + len - used;
            memmove(t->rb, e + 4, rest); have = 0; len = rest; c->clen = 0;
            send_connect(c);
        }
        long w = ws_strip(t, c, t->rb + have, len);
        if (w < 0) return;
        len = (size_t)w;
    }
    len += have;
    long used = feed(t, c, t->rb, len, *now);
    if (used < 0 || c->fd < 0) return;
    len -= (size_t)used;
    if (len) {
        if (len >= RECV_BUF) { conn_lost(t, c, "packet larger than buffer"); return; }
        memmove(t->rb, t->rb + used, len);
carry0:
        if (len > c->ccap) { c->ccap = (uint32_t)len * 2; c->cb = realloc(c->cb, c->ccap); if (!c->cb) fatal("out of memory"); }
        memcpy(c->cb, t->rb, len);
    }
    c->clen = (uint32_t)len;
    if (c->wlen > c->woff && !c->want_out) conn_flush(t, c);
}

/* ---- opening ----------------------------------------------------------- */

static void conn_open(thread *t, conn *c) {
    c->fd = socket(g_addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    t->opening++; c->state = ST_TCP; c->t_open = now_ns(); c->clen = 0;
    if (c->fd < 0) { note("socket: %s", strerror(errno)); c->state = ST_CLOSED; t->opening--; INC(t->failed, 1); return; }
    int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->stall) { int small = 16384; setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small); }
    if (g_loopback && o.srcs > 1) {
        struct sockaddr_in a = { .sin_family = AF_INET };
        a.sin_addr.s_addr = htonl(0x7f000001u + (c->id % (uint32_t)o.srcs));
        setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(c->fd, (struct sockaddr *)&a, sizeof a)) { conn_lost(t, c, strerror(errno)); return; }
    }
    int r = connect(c->fd, (struct sockaddr *)&g_addr, g_addrlen);
    if (r && errno != EINPROGRESS) { conn_lost(t, c, strerror(errno)); return; }
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT, .data.ptr = c };
    if (epoll_ctl(t->ep, EPOLL_CTL_ADD, c->fd, &e)) { conn_lost(t, c, "epoll"); return; }
    c->want_out = true;
}
static void greet(thread *t, conn *c) {
    if (o.ws) ws_handshake(c); else send_connect(c);
    conn_flush(t, c);
}
#ifdef HAVE_OPENSSL
/* One step of the handshake. */
static void on_tls(thread *t, conn *c) {
    int r = SSL_do_handshake(c->ssl);
    if (tls_result(c, r) > 0) {
        if (!GET(g_tls_seen) && !atomic_exchange(&g_tls_seen, 1))
            snprintf(g_tls, sizeof g_tls, "%s %s", SSL_get_version(c->ssl), SSL_get_cipher_name(c->ssl));
        greet(t, c);
    } else if (errno == EAGAIN) ep_mod(t, c, SSL_want_write(c->ssl));
    else conn_lost(t, c, io_error(c));
}
#endif
static void on_connected(thread *t, conn *c) {
    int err = 0; socklen_t l = sizeof err;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &l);
    if (err) { conn_lost(t, c, strerror(err)); return; }
#ifdef HAVE_OPENSSL
    if (o.tls) {
        c->state = ST_TLS;
        if (!tls_start(c)) { conn_lost(t, c, tls_error(NULL)); return; }
        on_tls(t, c); return;
    }
#endif
    greet(t, c);
}

/* ---- worker ------------------------------------------------------------ */

enum { CMD_CLOSE_SUBS = 1, CMD_CLOSE_PUBS = 2, CMD_CLOSE_ALL = 4 };

static void do_close(thread *t, int cmd) {
    static const uint8_t d[2] = { 0xe0, 0 };
    for (int i = 0; i < t->nall; i++) {
        conn *c = t->all[i];
        if (c->fd < 0) continue;
        if (!(cmd & CMD_CLOSE_ALL) && !((cmd & CMD_CLOSE_SUBS) && c->role == R_SUB) &&
            !((cmd & CMD_CLOSE_PUBS) && c->role == R_PUB)) continue;
        if (c->state == ST_READY && !c->stall) { wb_put(c, d, 2); conn_flush(t, c); }
        if (c->fd >= 0) conn_close(t, c, c->stall);
    }
}
static void *worker(void *arg) {
    thread *t = arg; struct epoll_event ev[512];
    uint64_t now = now_ns();
    while (!GET(g_quit)) {
        int cmd = GET(t->cmd);
        if (cmd) { do_close(t, cmd); atomic_store(&t->cmd, 0); }
        int lim = (int)(o.concurrency + o.threads - 1) / o.threads;
        while (t->open_pos < atomic_load(&t->open_end) && t->opening < lim)
            conn_open(t, t->openq[t->open_pos++ % t->open_cap]);
        bool run = GET(g_run); uint64_t wait = 20000000ull;
        if (run) {
            if (o.rate) {
                double R = o.rate / 1e9 * t->npubs / (double)n_pubs;
                uint64_t el = now_ns() - g_tstart;
                wait = R > 0 ? (uint64_t)((floor((double)el * R) + 1) / R) - el : wait;
                if (wait > 20000000ull) wait = 20000000ull;
            } else if (o.threads > 1) wait = 200000;
        }
        struct timespec ts = { .tv_sec = 0, .tv_nsec = (long)wait };
        int n = epoll_pwait2(t->ep, ev, 512, &ts, NULL);
        now = now_ns();
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (!c) { uint64_t v; if (read(t->evfd, &v, 8) < 0) {} continue; }
            if (c->fd < 0) continue;
            if (c->state == ST_TCP) { on_connected(t, c); continue; }
#ifdef HAVE_OPENSSL
            if (c->state == ST_TLS) { on_tls(t, c); continue; }
#endif
            if (ev[i].events & EPOLLOUT) conn_flush(t, c);
            if (c->fd >= 0 && ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                do { c->more = false; on_readable(t, c, &now); } while (c->more);
        }
        if (t->npubs) {
            uint64_t idle = 0;
            if (run) now = now_ns();
            for (int i = 0; i < t->npubs; i++) {
                conn *c = t->pubs[i];
                if (run) pub_pump(t, c, now);
                pubst *p = c->pub;
                if (c->state == ST_CLOSED || (p->inflight == 0 && c->wlen == c->woff && (!run || p->sent >= p->limit))) idle++;
            }
            atomic_store_explicit(&t->pubs_idle, idle | (uint64_t)run << 32, RLX);
        }
    }
    do_close(t, CMD_CLOSE_ALL);
    return NULL;
}
static void wake(void) {
    for (int i = 0; i < o.threads; i++) { uint64_t v = 1; if (write(T[i].evfd, &v, 8) < 0) {} }
}

/* ---- broker sampling --------------------------------------------------- */

typedef struct { double cpu, first; long rss, hwm, threads, procs; } sample;  /* first: of the first thread of each process */

static void sample_pid(int pid, sample *s, int depth) {
    char path[96], line[256]; FILE *f; bool task_ok = false;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = opendir(path);
    if (!d) return;
    s->procs++;
    struct dirent *e; int kids[256], nk = 0;
    while ((e = readdir(d))) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        s->threads++;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", pid, e->d_name);
        if ((f = fopen(path, "r"))) {
            unsigned long long ns; if (fscanf(f, "%llu", &ns) == 1) { s->cpu += (double)ns / 1e9; if (atoi(e->d_name) == pid) s->first += (double)ns / 1e9; task_ok = true; } fclose(f);
        }
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", pid, e->d_name);
        if ((f = fopen(path, "r"))) { while (nk < 256 && fscanf(f, "%d", &kids[nk]) == 1) nk++; fclose(f); }
    }
    closedir(d);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if ((f = fopen(path, "r"))) {
        long v;
        while (fgets(line, sizeof line, f)) {
            if (sscanf(line, "VmRSS: %ld", &v) == 1) s->rss += v;
            else if (sscanf(line, "VmHWM: %ld", &v) == 1) s->hwm += v;
        }
        fclose(f);
    }
    if (!task_ok) {
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        if ((f = fopen(path, "r"))) {
            char b[1024]; size_t n = fread(b, 1, sizeof b - 1, f); b[n] = 0; fclose(f);
            char *q = strrchr(b, ')'); unsigned long u, k;
            if (q && sscanf(q + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u, &k) == 2)
                s->cpu += (double)(u + k) / (double)sysconf(_SC_CLK_TCK);
        }
    }
    if (depth < 4) for (int i = 0; i < nk; i++) sample_pid(kids[i], s, depth + 1);
}
static long rss_peak;
static sample take(void) {
    sample s = { 0 };
    for (int i = 0; i < o.npids; i++) sample_pid(o.pids[i], &s, 0);
    if (s.rss > rss_peak) rss_peak = s.rss;
    return s;
}
static double self_cpu(void) {
    struct rusage r; getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_utime.tv_sec + (double)r.ru_stime.tv_sec + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* ---- control ----------------------------------------------------------- */

static uint64_t sum(size_t off) {
    uint64_t v = 0;
    for (int i = 0; i < o.threads; i++) v += GET(*(_Atomic uint64_t *)((char *)&T[i] + off));
    return v;
}
#define SUM(f) sum(offsetof(thread, f))

static void nap(double s) { struct timespec t = { (time_t)s, (long)((s - floor(s)) * 1e9) }; nanosleep(&t, NULL); }
/* sleep while keeping an eye on the broker's memory */
static void watch(double s) {
    uint64_t end = now_ns() + (uint64_t)(s * 1e9), n;
    while ((n = now_ns()) < end && !GET(g_int)) {
        double left = (double)(end - n) / 1e9; nap(left < 0.1 ? left : 0.1);
        if (o.npids && left > 0.1) take();
    }
}
static void enqueue(conn *c) { thread *t = &T[c->id % (uint32_t)o.threads]; t->openq[t->open_end % t->open_cap] = c; atomic_fetch_add(&t->open_end, 1); }

/* Open a group; returns seconds taken.  Fails the run when not all are up. */
static double open_group(conn *a, long n, const char *what, bool must) {
    uint64_t base = SUM(opened), fbase = SUM(failed), t0 = now_ns();
    for (long i = 0; i < n; i++) enqueue(&a[i]);
    wake();
    uint64_t last = base, tl = t0;
    for (;;) {
        uint64_t ok = SUM(opened) - base, bad = SUM(failed) - fbase, t = now_ns();
        if (ok + bad >= (uint64_t)n || GET(g_int)) {
            if (bad && must) note("%s: %" PRIu64 " of %ld failed to open", what, bad, n);
            break;
        }
        if (ok + bad != last) { last = ok + bad; tl = t; }
        if ((double)(t - t0) / 1e9 > o.connect_timeout + (double)n / 200.0 || (double)(t - tl) / 1e9 > o.connect_timeout) {
            note("%s: timeout, %" PRIu64 " of %ld open", what, ok, n); break; }
        nap(n > 2000 ? 0.005 : 0.0005);
    }
    return (double)(now_ns() - t0) / 1e9;
}
static void close_group(int cmd) {
    for (int i = 0; i < o.threads; i++) atomic_store(&T[i].cmd, cmd);
    wake();
    for (int i = 0; i < o.threads; i++) for (int k = 0; GET(T[i].cmd) && k < 20000; k++) nap(0.0005);
}
static double wait_recv(uint64_t want, double quiet_s, double cap_s) {
    uint64_t t0 = now_ns(), last = SUM(recv), tl = t0, t = t0, r;
    while ((r = SUM(recv)) < want && !GET(g_int)) {
        t = now_ns();
        if (r != last) { last = r; tl = t; }
        if ((double)(t - tl) / 1e9 > quiet_s || (double)(t - t0) / 1e9 > cap_s) return (double)(tl - t0) / 1e9;
        nap(0.001); if (o.npids && (t / 1000000) % 64 == 0) take();
    }
    return (double)(now_ns() - t0) / 1e9;
}
static double wait_pubs_idle(double quiet_s, double cap_s) {
    uint64_t t0 = now_ns(), tl = t0, last = ~0ull;
    for (;;) {
        nap(0.001);
        uint64_t t = now_ns(), prog = SUM(acked) + SUM(sent);
        uint64_t run = GET(g_run), idle = 0;             /* only counts taken in the present phase */
        for (int i = 0; i < o.threads; i++) {
            uint64_t v = GET(T[i].pubs_idle);
            if (v >> 32 == run) idle += v & 0xffffffffu;
        }
        if (idle >= (uint64_t)n_pubs || GET(g_int)) break;
        if (prog != last) { last = prog; tl = t; }
        if ((double)(t - tl) / 1e9 > quiet_s || (double)(t - t0) / 1e9 > cap_s) { note("publishers did not finish"); break; }
        if (o.npids && (t / 1000000) % 64 == 0) take();
    }
    return (double)(now_ns() - t0) / 1e9;
}

static void on_sig(int s) { (void)s; if (atomic_exchange(&g_int, 1)) _exit(130); }

static void usage(FILE *f) {
    fputs("usage: mqttload --scenario NAME [options]     (see README.md)\n"
    "scenarios: fanin fanout p2p wildcard connstorm idle retained offline latency\n"
    "  --host H --port P          broker (127.0.0.1 1883)\n"
    "  --mqtt5                    MQTT 5.0 instead of 3.1.1\n"
    "  --ws [--ws-path PATH]      over WebSocket (/mqtt)\n"
    "  --tls [--cafile FILE]      over TLS; the broker's certificate is checked only with --cafile\n"
    "  --cert FILE --key FILE     client certificate (PEM)\n"
    "  --username U --password P  credentials (also --user, --pass)\n"
    "  --alias                    MQTT 5: topic aliases instead of topics after the first message\n"
    "  --user-props N             MQTT 5: N user properties on each message\n"
    "  --vary LO-HI               payload length changes from message to message (24 to 4 MiB)\n"
    "  --fill letters|text|random what payloads hold: the alphabet, JSON, or what does not compress\n"
    "  --random-topics            wildcard: leaf drawn at random from --topics instead of in turn\n"
    "  --shared-topics            all publishers use one set of topics\n"
    "  --unique-topics            wildcard: no topic comes twice\n"
    "  --levels N                 wildcard: levels of the topics and of filters with + (5 to 16)\n"
    "  --props5                   MQTT 5: expiry, correlation data and 3 user properties, new on each message\n"
    "  --mix-qos                  QoS 0, 1, 2 in turn in one stream\n"
    "  --share GROUP              subscribers are members of $share/GROUP\n"
    "  --mix-subs                 fanout: 3.1.1 and 5.0 subscribers, QoS 0/1/2, subscription identifiers\n"
    "  --sub-ids N                MQTT 5: each of N subscribers has a Subscription Identifier of its own\n"
    "  --overlap N                1 to 4 filters for each subscriber, each of which matches its messages\n"
    "  --sub-filters A,B          filters of the subscribers in turn; %P prefix, %i own number\n"
    "  --unheard                  the subscribers' filters match nothing that is published\n"
    "  --refuse                   MQTT 5, QoS 1, 2: what every second publisher says must be refused\n"
    "  --conn-subs N              connstorm, idle: N subscriptions per connection\n"
    "  --clients N                connstorm: N clients in turn, each comes again; with --persistent to its session\n"
    "  --say                      connstorm: each publishes one message (--qos, --retain) before it leaves\n"
    "  --will                     connstorm: each has a will (--qos, --retain) and leaves without DISCONNECT\n"
    "  --echo                     idle: each connection sends itself a QoS 1 message, then rests\n"
    "  --prefix P                 topic prefix and stable client ids, for runs that continue one another\n"
    "  --first N                  number in the client ids of the first of each kind\n"
    "  --pubs N --subs N --topics N\n"
    "  --qos 0|1|2 --sub-qos 0|1|2 --payload BYTES (>= 24) --retain\n"
    "  --rate R                   messages/s in total, open loop; 0 = as fast as the windows allow\n"
    "  --inflight N               unacknowledged QoS 1/2 messages per publisher (20)\n"
    "  --window N                 undelivered messages per publisher at --rate 0 (256; 0 = none)\n"
    "  --batch N                  messages per write and publisher (64)\n"
    "  --count N                  messages per publisher/subscriber/in all (see README)\n"
    "  --duration S --warmup S --drain S\n"
    "  --filters N --filter-conns N   preloaded filters (wildcard)\n"
    "  --conns N --concurrency N --hold --subscribe   (connstorm, idle)\n"
    "  --src-addrs N              source addresses 127.0.0.1.. (loopback only)\n"
    "  --persistent               non-clean sessions for subscribers\n"
    "  --stall N                  fanout: N of the subscribers stop reading\n"
    "  --drop-after N             offline: cut each subscriber once after N messages\n"
    "  --keep                     leave retained messages / sessions in the broker\n"
    "  --threads N --keepalive S --connect-timeout S\n"
    "  --pid P[,P..]              broker processes to sample (with their children)\n"
    "  --strict                   QoS 0 loss also fails the run\n"
    "  --json                     one JSON object instead of text\n", f);
}
static long num(const char *name, const char *s, double lo, double hi, double *d) {
    char *e; double v = strtod(s, &e);
    if (*e || e == s || v < lo || v > hi) fatal("--%s: expected a number from %g to %g, got '%s'", name, lo, hi, s);
    if (d) *d = v;
    return (long)v;
}
enum { O_SC = 256, O_HOST, O_PORT, O_PUBS, O_SUBS, O_TOPICS, O_QOS, O_SUBQOS, O_PAYLOAD, O_RATE, O_INFL, O_WIN, O_BATCH,
       O_DUR, O_WARM, O_CLEAN, O_PERS, O_RETAIN, O_PID, O_JSON, O_THREADS, O_MQTT5, O_COUNT, O_FILT, O_FCONN, O_CONNS,
       O_CONC, O_HOLD, O_SUBSC, O_SRCS, O_KEEP, O_STRICT, O_KA, O_CTO, O_DRAIN, O_USER, O_PASS, O_WS, O_WSPATH, O_DROP, O_HELP, O_VER,
       O_TLS, O_CAFILE, O_CERT, O_KEY, O_ALIAS, O_UPROPS, O_STALL, X_SHT, X_RND, X_SF, X_VARY, X_MIXQ, X_P5, X_SHARE, X_MIXS, X_CS, X_ECHO, X_CLIENTS, X_SAY, X_WILL, X_PFX, X_FIRST, X_FILL, X_UNIQ, X_LEVELS, X_IDS, X_OVER, X_UNHEARD, X_REFUSE };
static const struct option lo[] = {
    {"scenario",1,0,O_SC},{"host",1,0,O_HOST},{"port",1,0,O_PORT},{"pubs",1,0,O_PUBS},{"subs",1,0,O_SUBS},{"topics",1,0,O_TOPICS},
    {"qos",1,0,O_QOS},{"sub-qos",1,0,O_SUBQOS},{"payload",1,0,O_PAYLOAD},{"rate",1,0,O_RATE},{"inflight",1,0,O_INFL},{"window",1,0,O_WIN},
    {"batch",1,0,O_BATCH},{"duration",1,0,O_DUR},{"warmup",1,0,O_WARM},{"clean",0,0,O_CLEAN},{"persistent",0,0,O_PERS},{"retain",0,0,O_RETAIN},
    {"pid",1,0,O_PID},{"json",0,0,O_JSON},{"threads",1,0,O_THREADS},{"mqtt5",0,0,O_MQTT5},{"count",1,0,O_COUNT},{"filters",1,0,O_FILT},
    {"filter-conns",1,0,O_FCONN},{"conns",1,0,O_CONNS},{"concurrency",1,0,O_CONC},{"hold",0,0,O_HOLD},{"subscribe",0,0,O_SUBSC},
    {"src-addrs",1,0,O_SRCS},{"keep",0,0,O_KEEP},{"strict",0,0,O_STRICT},{"keepalive",1,0,O_KA},{"connect-timeout",1,0,O_CTO},
    {"drain",1,0,O_DRAIN},{"user",1,0,O_USER},{"pass",1,0,O_PASS},{"ws",0,0,O_WS},{"ws-path",1,0,O_WSPATH},{"drop-after",1,0,O_DROP},
    {"username",1,0,O_USER},{"password",1,0,O_PASS},{"tls",0,0,O_TLS},{"cafile",1,0,O_CAFILE},{"cert",1,0,O_CERT},{"key",1,0,O_KEY},
    {"alias",0,0,O_ALIAS},{"user-props",1,0,O_UPROPS},{"stall",1,0,O_STALL},
    {"shared-topics",0,0,X_SHT},{"random-topics",0,0,X_RND},{"sub-filters",1,0,X_SF},{"vary",1,0,X_VARY},{"mix-qos",0,0,X_MIXQ},{"props5",0,0,X_P5},{"share",1,0,X_SHARE},{"mix-subs",0,0,X_MIXS},{"conn-subs",1,0,X_CS},{"echo",0,0,X_ECHO},{"clients",1,0,X_CLIENTS},{"say",0,0,X_SAY},{"will",0,0,X_WILL},{"prefix",1,0,X_PFX},{"first",1,0,X_FIRST},{"fill",1,0,X_FILL},
    {"unique-topics",0,0,X_UNIQ},{"levels",1,0,X_LEVELS},{"sub-ids",1,0,X_IDS},{"overlap",1,0,X_OVER},
    {"unheard",0,0,X_UNHEARD},{"refuse",0,0,X_REFUSE},
    {"help",0,0,O_HELP},{"version",0,0,O_VER},{0,0,0,0} };

static void parse(int argc, char **argv) {
    int c, idx = 0;
    while ((c = getopt_long(argc, argv, "", lo, &idx)) != -1) {
        const char *n = c == '?' ? "" : lo[idx].name;
        switch (c) {
        case O_SC: for (o.scenario = 0; o.scenario < SC_N && strcmp(sc_name[o.scenario], optarg); o.scenario++) {}
            if (o.scenario == SC_N) fatal("--scenario: unknown '%s'", optarg);
            break;
        case O_HOST: o.host = optarg; break;
        case O_PORT: o.port = (int)num(n, optarg, 1, 65535, 0); break;
        case O_PUBS: o.pubs = num(n, optarg, 0, 100000, 0); break;
        case O_SUBS: o.subs = num(n, optarg, 0, 100000, 0); break;
        case O_TOPICS: o.topics = num(n, optarg, 1, 99999, 0); break;
        case O_QOS: o.qos = (int)num(n, optarg, 0, 2, 0); break;
        case O_SUBQOS: o.sub_qos = (int)num(n, optarg, 0, 2, 0); break;
        case O_PAYLOAD: o.payload = num(n, optarg, HDR_BYTES, 4194304, 0); break;
        case O_RATE: num(n, optarg, 0, 1e8, &o.rate); break;
        case O_INFL: o.inflight = num(n, optarg, 1, 65535, 0); break;
        case O_WIN: o.window = num(n, optarg, 0, 1e6, 0); break;
        case O_BATCH: o.batch = num(n, optarg, 1, 100000, 0); break;
        case O_DUR: num(n, optarg, 0, 3600, &o.duration); break;
        case O_WARM: num(n, optarg, 0, 600, &o.warmup); break;
        case O_DRAIN: num(n, optarg, 0, 600, &o.drain); break;
        case O_CTO: num(n, optarg, 0.1, 600, &o.connect_timeout); break;
        case O_CLEAN: o.persistent = false; break;
        case O_PERS: o.persistent = true; break;
        case O_RETAIN: o.retain = true; break;
        case O_JSON: o.json = true; break;
        case O_THREADS: o.threads = (int)num(n, optarg, 1, MAX_THREADS, 0); break;
        case O_MQTT5: o.mqtt5 = true; break;
        case O_COUNT: o.count = num(n, optarg, 1, 1e9, 0); break;
        case O_FILT: o.filters = num(n, optarg, 0, 999999, 0); break;
        case O_FCONN: o.filter_conns = num(n, optarg, 1, 10000, 0); break;
        case O_CONNS: o.conns = num(n, optarg, 1, 999999, 0); break;
        case O_CONC: o.concurrency = num(n, optarg, 1, 10000, 0); break;
        case O_HOLD: o.hold = true; break;
        case O_SUBSC: o.subscribe = true; break;
        case O_SRCS: o.srcs = num(n, optarg, 1, 200, 0); break;
        case O_KEEP: o.keep = true; break;
        case O_STRICT: o.strict = true; break;
        case O_KA: o.keepalive = num(n, optarg, 0, 65535, 0); break;
        case O_USER: o.user = optarg; break;
        case O_PASS: o.pass = optarg; break;
        case O_WS: o.ws = true; break;
        case O_WSPATH: o.wspath = optarg; break;
        case O_DROP: o.drop_after = num(n, optarg, 1, 1e9, 0); break;
        case O_TLS: o.tls = true; break;
        case O_CAFILE: o.cafile = optarg; break;
        case O_CERT: o.cert = optarg; break;
        case O_KEY: o.key = optarg; break;
        case O_ALIAS: o.alias = o.mqtt5 = true; break;
        case O_UPROPS: o.user_props = num(n, optarg, 0, 99, 0); if (o.user_props) o.mqtt5 = true; break;
        case O_STALL: o.stall = num(n, optarg, 0, 99999, 0); break;
        case O_PID: for (char *s = strtok(optarg, ","); s; s = strtok(NULL, ",")) {
                if (o.npids == MAX_PIDS) fatal("--pid: more than %d", MAX_PIDS);
                o.pids[o.npids++] = (int)num(n, s, 1, 1e9, 0); }
            break;
        case X_SHT: o.shared_topics = true; break;
        case X_RND: o.random_topics = o.X = true; break;
        case X_SF: for (char *q = strtok(optarg, ","); q; q = strtok(NULL, ",")) o.sf[o.nsf++] = q; break;
        case X_VARY: if (sscanf(optarg, "%ld-%ld", &o.vlo, &o.vhi) != 2 || o.vlo < 24 || o.vhi < o.vlo) fatal("--vary"); o.X = true; break;
        case X_MIXQ: o.mixq = o.X = true; o.qos = 0; o.sub_qos = 2; break;
        case X_P5: o.props5 = o.X = o.mqtt5 = true; break;
        case X_SHARE: o.share = optarg; break;
        case X_MIXS: o.mixsubs = true; break;
        case X_UNIQ: o.unique = o.X = true; break;
        case X_LEVELS: o.levels = num(n, optarg, 5, 16, 0); o.X = true; break;
        case X_IDS: o.sub_ids = num(n, optarg, 1, 1e6, 0); o.mqtt5 = true; break;
        case X_OVER: o.overlap = num(n, optarg, 1, 4, 0); break;
        case X_ECHO: o.echo = o.subscribe = true; break;
        case X_CLIENTS: o.clients = num(n, optarg, 1, 999999, 0); break;
        case X_SAY: o.say = true; break;
        case X_WILL: o.will = true; break;
        case X_UNHEARD: o.unheard = true; break;
        case X_REFUSE: o.refuse = o.mqtt5 = true; break;
        case X_CS: o.conn_subs = num(n, optarg, 1, 100000, 0); break;
        case X_PFX: o.prefix = optarg; break;
        case X_FILL: for (o.fill = 0; o.fill < FILL_N && strcmp(fill_name[o.fill], optarg); o.fill++) {}
            if (o.fill == FILL_N) fatal("--fill: expected letters, text or random, got '%s'", optarg);
            break;
        case X_FIRST: o.first = num(lo[idx].name, optarg, 0, 1e9, NULL); break;
        case O_HELP: usage(stdout); exit(0);
#ifdef HAVE_OPENSSL
        case O_VER: printf("mqttload %s, %s\n", VERSION, OpenSSL_version(OPENSSL_VERSION)); exit(0);
#else
        case O_VER: puts("mqttload " VERSION ", without TLS"); exit(0);
#endif
        default: usage(stderr); exit(2);
        }
    }
    if (optind < argc) fatal("unexpected argument '%s'", argv[optind]);
#ifndef HAVE_OPENSSL
    if (o.tls) fatal("--tls: built without OpenSSL; install its development files and pkg-config, then: make clean all");
#endif
    if ((o.cafile || o.cert || o.key) && !o.tls) fatal("--cafile, --cert and --key need --tls");
    if (!o.cert != !o.key) fatal("--cert and --key go together");
    if (o.pass && !o.user && !o.mqtt5) fatal("--password needs --username, or --mqtt5");
    if ((o.user && strlen(o.user) > MAX_CRED) || (o.pass && strlen(o.pass) > MAX_CRED)) fatal("--username, --password: at most %u bytes", MAX_CRED);
}

static void jhist(FILE *f, const char *name, const hist *h) {
    fprintf(f, ",\"%s\":{\"n\":%" PRIu64 ",\"min\":%.1f,\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}",
        name, h->n, (double)h->min / 1e3, h->n ? (double)h->sum / (double)h->n / 1e3 : 0, hist_q(h, .5) / 1e3, hist_q(h, .9) / 1e3,
        hist_q(h, .99) / 1e3, hist_q(h, .999) / 1e3, (double)h->max / 1e3);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    if (o.sub_qos < 0) o.sub_qos = o.qos;
    int S = o.scenario;
#define DEF(f, v) if (o.f < 0) o.f = (v)
    switch (S) {
    case SC_FANIN: DEF(pubs, 100); DEF(subs, 1); break;
    case SC_FANOUT: DEF(pubs, 1); DEF(subs, 1000); DEF(topics, 1); break;
    case SC_LATENCY: if (!o.rate) o.rate = 1000; /* fall through */
    case SC_P2P: DEF(pubs, o.subs > 0 ? o.subs : 50); o.subs = o.pubs; break;
    case SC_WILDCARD: DEF(pubs, 50); DEF(subs, 2 * o.pubs); DEF(topics, 1000); break;
    case SC_RETAINED: DEF(pubs, 10); DEF(subs, 1); if (!o.count) o.count = 10000; o.retain = true; break;
    case SC_OFFLINE: DEF(subs, 100); DEF(pubs, 10); if (!o.count) o.count = 1000; o.persistent = true;
        if (!o.qos) o.qos = 1;
        if (o.sub_qos == 0) o.sub_qos = o.qos;
        break;
    default: o.pubs = o.subs = 0; break;
    }
    DEF(topics, 1);
    bool conn_only = S == SC_CONNSTORM || S == SC_IDLE;
    if (S == SC_IDLE) o.hold = true;
    if (o.echo && S != SC_IDLE) fatal("--echo: only in scenario idle");
    if (o.echo) o.sub_qos = 1;
    bool visits = S == SC_CONNSTORM && !o.hold;
    if ((o.clients || o.say || o.will) && !visits) fatal("--clients, --say, --will: only in scenario connstorm without --hold");
    if (o.say && (o.subscribe || o.conn_subs)) fatal("--say: not with subscriptions, nobody reads what they bring");
    if (o.clients && o.clients <= o.concurrency) fatal("--clients: more than --concurrency (%ld)", o.concurrency);
    if (!conn_only && (o.pubs < 1 || o.subs < 1)) fatal("--pubs and --subs must be at least 1");
    if ((S == SC_OFFLINE || S == SC_RETAINED) && o.count > 999999) fatal("--count: at most 999999 in this scenario");
    if (S == SC_OFFLINE && o.pubs > o.subs) o.pubs = o.subs;
    if (o.stall && S != SC_FANOUT) fatal("--stall: only in scenario fanout");
    if (o.stall && o.stall >= o.subs) fatal("--stall: fewer than --subs (%ld)", o.subs);
    if (o.alias && (conn_only || S == SC_RETAINED)) fatal("--alias: scenario %s publishes to no topic twice", sc_name[S]);
    if ((o.unique || o.levels) && S != SC_WILDCARD) fatal("--unique-topics, --levels: only in scenario wildcard");
    if (o.alias && o.unique) fatal("--alias: no topic comes twice");
    if (o.overlap > 1 && (o.share || o.nsf || S == SC_WILDCARD || S == SC_RETAINED)) fatal("--overlap: not with --share, --sub-filters, wildcard, retained");
    if ((o.unheard || o.refuse) && (conn_only || S == SC_RETAINED || S == SC_OFFLINE)) fatal("--unheard, --refuse: not in scenario %s", sc_name[S]);
    if (o.refuse && !o.qos) fatal("--refuse: only acknowledgements of QoS 1 and 2 say so");
    if (o.user_props && conn_only) fatal("--user-props: scenario %s publishes nothing", sc_name[S]);
    g_mod = (uint32_t)(S == SC_FANIN ? o.subs : S == SC_FANOUT ? o.topics : S == SC_OFFLINE || S == SC_RETAINED ? 1000000 : o.shared_topics ? 1 : o.pubs ? o.pubs : 1);
    if (o.share && S == SC_FANIN) g_mod = 1;
    n_pubs = o.pubs; n_subs = o.subs; n_fconns = S == SC_WILDCARD && o.filters ? o.filter_conns : 0; n_xconns = conn_only ? o.conns : 0;
    if (o.warmup + o.duration + 120 > (double)o.keepalive && o.keepalive) o.keepalive = (long)(o.warmup + o.duration + 120);
    if (!o.srcs) o.srcs = conn_only ? 8 : 1;

    struct rlimit rl; getrlimit(RLIMIT_NOFILE, &rl); rl.rlim_cur = rl.rlim_max; setrlimit(RLIMIT_NOFILE, &rl);
    long need = n_pubs + n_subs + n_fconns + (conn_only ? (o.hold ? n_xconns : o.concurrency) : 0) + 32;
    if ((unsigned long)need > rl.rlim_cur) fatal("%ld open files needed, the limit is %lu: raise it (ulimit -n)", need, (unsigned long)rl.rlim_cur);

    struct addrinfo hi = { .ai_socktype = SOCK_STREAM }, *ai; char ps[8]; snprintf(ps, sizeof ps, "%d", o.port);
    int ge = getaddrinfo(o.host, ps, &hi, &ai);
    if (ge) fatal("%s: %s", o.host, gai_strerror(ge));
    memcpy(&g_addr, ai->ai_addr, ai->ai_addrlen); g_addrlen = ai->ai_addrlen; freeaddrinfo(ai);
    if (g_addr.ss_family == AF_INET) g_loopback = ntohl(((struct sockaddr_in *)&g_addr)->sin_addr.s_addr) >> 24 == 127;

    struct timespec rt; clock_gettime(CLOCK_REALTIME, &rt);
    g_runid = (uint32_t)rt.tv_nsec ^ (uint32_t)rt.tv_sec * 2654435761u ^ (uint32_t)getpid() << 8;
    g_magic = 0x4d510000u ^ g_runid;
    g_plen = (uint32_t)snprintf(g_prefix, sizeof g_prefix, "ml%06x/t", g_runid & 0xffffff);
    if (o.prefix) g_plen = (uint32_t)snprintf(g_prefix, sizeof g_prefix, "%s", o.prefix);
    char tmp[128]; g_tlen = topic_str(tmp, 0, 0);

    struct sigaction sa = { .sa_handler = on_sig }; sigaction(SIGINT, &sa, NULL); sigaction(SIGTERM, &sa, NULL); signal(SIGPIPE, SIG_IGN);

#ifdef HAVE_OPENSSL
    if (o.tls) tls_setup();
#endif
    /* connections */
    subs = xcalloc((size_t)n_subs, sizeof *subs); pubs = xcalloc((size_t)n_pubs, sizeof *pubs);
    fconns = xcalloc((size_t)n_fconns, sizeof *fconns); xconns = xcalloc((size_t)n_xconns, sizeof *xconns);
    long per = S == SC_OFFLINE || S == SC_RETAINED ? 1 : (n_pubs + (long)g_mod - 1) / (long)g_mod;
    if ((double)n_subs * (double)per > 5e7) fatal("too many subscriber x publisher pairs");
    uint32_t fill = (uint32_t)o.payload;
    if (o.fill) pool_make(o.vhi > o.payload ? (uint32_t)o.vhi : fill);
    for (long i = 0; i < n_subs; i++) {
        conn *c = &subs[i]; c->fd = -1; c->role = R_SUB; c->id = (uint32_t)i; c->sub_total = o.overlap > 1 ? (uint32_t)o.overlap : 1; c->v5 = o.mixsubs ? i % 10 != 0 : o.mqtt5; c->sqos = o.mixsubs ? (uint8_t)(i / 10 % 3) : (uint8_t)o.sub_qos; c->subid = o.sub_ids && c->v5 ? (uint32_t)(i % o.sub_ids) * c->sub_total + 1 : o.mixsubs && c->v5 ? (uint32_t)i % 7 + 1 : 0; c->stall = i < o.stall;
        c->st = xcalloc((size_t)per, sizeof(stream));
        if (S == SC_OFFLINE || S == SC_RETAINED) c->st->full = xcalloc((size_t)o.count / 64 + 1, 8);
    }
    for (long i = 0; i < n_pubs; i++) {
        conn *c = &pubs[i]; c->fd = -1; c->role = R_PUB; c->id = (uint32_t)i; c->v5 = o.mqtt5;
        pubst *p = c->pub = aligned_alloc(64, (sizeof(pubst) + 63) / 64 * 64);
        if (!p) fatal("out of memory");
        memset(p, 0, sizeof *p);
        p->id = (uint32_t)i; p->limit = o.count ? (uint64_t)o.count : ~0ull; p->cap = (uint32_t)o.inflight;
        if (S == SC_OFFLINE) { p->n_local = (uint32_t)((n_subs - i + n_pubs - 1) / n_pubs); p->limit = (uint64_t)o.count * p->n_local; }
        else if (S == SC_RETAINED) p->limit = (uint64_t)((o.count - i + n_pubs - 1) / n_pubs);
        else {                                               /* the first --stall subscribers do not count */
            long up = (long)g_mod - 1 - i % (long)g_mod;
            p->fan = (uint32_t)((n_subs + up) / (long)g_mod - (o.stall + up) / (long)g_mod);
        }
        if (o.share) p->fan = 1;
        if (o.unheard || refused(p->id)) p->fan = 0;
        p->n_topics = S == SC_WILDCARD ? (uint32_t)o.topics : S == SC_OFFLINE ? p->n_local : 1;
        p->freeq = xmalloc(sizeof(uint16_t) * (size_t)o.inflight); p->fcount = p->cap;
        for (long k = 0; k < o.inflight; k++) p->freeq[k] = (uint16_t)(k + 1);
        p->pstate = xcalloc((size_t)o.inflight + 1, 1); p->pts = xcalloc((size_t)o.inflight + 1, 8);
        pub_template(p, fill);
    }
    for (long i = 0; i < n_fconns; i++) {
        conn *c = &fconns[i]; c->fd = -1; c->role = R_FILTER; c->id = (uint32_t)i; c->v5 = o.mqtt5;
        c->sub_total = (uint32_t)((o.filters - i + n_fconns - 1) / n_fconns);
    }
    for (long i = 0; i < n_xconns; i++) { conn *c = &xconns[i]; c->fd = -1; c->role = R_CONN; c->id = (uint32_t)(o.clients ? i % o.clients : i); c->expect_session = o.clients && o.persistent && i >= o.clients; c->v5 = o.mqtt5; c->sub_total = o.conn_subs ? (uint32_t)o.conn_subs : o.subscribe ? 1 : 0; }

    struct { conn *a; long n; } grp[4] = { { subs, n_subs }, { pubs, n_pubs }, { fconns, n_fconns }, { xconns, n_xconns } };
    for (int k = 0; k < o.threads; k++) {
        thread *t = &T[k]; t->idx = k; t->ep = epoll_create1(EPOLL_CLOEXEC); t->evfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL }; epoll_ctl(t->ep, EPOLL_CTL_ADD, t->evfd, &e);
        long tot = n_subs + n_pubs + n_fconns + n_xconns;
        t->rb = xmalloc(RECV_BUF); t->all = xmalloc(sizeof(conn *) * (size_t)tot); t->pubs = xmalloc(sizeof(conn *) * (size_t)n_pubs);
        t->open_cap = (int)tot + 1; t->openq = xmalloc(sizeof(conn *) * (size_t)t->open_cap);
        for (int g = 0; g < 4; g++) for (long i = k; i < grp[g].n; i += o.threads) {
            t->all[t->nall++] = &grp[g].a[i]; if (g == 1) t->pubs[t->npubs++] = &grp[g].a[i]; }
        if (t->ep < 0 || t->evfd < 0) fatal("epoll: %s", strerror(errno));
    }
    sample s_before = take();
    for (int k = 0; k < o.threads; k++) if (pthread_create(&T[k].tid, NULL, worker, &T[k])) fatal("pthread_create");

    /* run */
    sample s_conn = { 0 }, s_a = { 0 }, s_b = { 0 }, s_end = { 0 };
    double filters_cpu = 0; double t_open = 0, t_filters = 0, meas = 0, t_store = 0, t_drain = 0, lcpu = 0, drain_cpu = 0;
    uint64_t in = 0, out = 0, acks = 0, bytes = 0, expected = 0;
    g_clean = !o.persistent;

    if (conn_only) {
        s_a = s_before; lcpu = self_cpu();
        t_open = open_group(xconns, n_xconns, "connections", true);
        s_b = take(); lcpu = self_cpu() - lcpu; meas = t_open; in = out = SUM(opened);
        s_conn = s_b;
        if (S == SC_IDLE) { nap(0.5); s_a = take(); uint64_t t0 = now_ns(); watch(o.duration); s_b = take(); s_conn = s_b; t_drain = (double)(now_ns() - t0) / 1e9; drain_cpu = s_b.cpu - s_a.cpu; }
        else if (o.hold) { nap(0.3); s_conn = take(); }
    } else {
        if (n_fconns) { sample f0 = take(); t_filters = open_group(fconns, n_fconns, "filter connections", true); sample f1 = take(); filters_cpu = f1.cpu - f0.cpu; }
        if (S != SC_RETAINED) t_open += open_group(subs, n_subs, "subscribers", true);
        if (S == SC_OFFLINE) close_group(CMD_CLOSE_SUBS), nap(0.2);
        t_open += open_group(pubs, n_pubs, "publishers", true);
        nap(0.2); s_conn = take();
        bool up = SUM(failed) == 0 && !GET(g_int);
        if (up && (S == SC_OFFLINE || S == SC_RETAINED)) {
            s_a = take(); lcpu = self_cpu(); g_tstart = now_ns();
            atomic_store(&g_measure, 1);               /* acknowledgements: nobody receives yet */
            uint64_t t0 = now_ns(); atomic_store(&g_run, 1); wake();
            wait_pubs_idle(30, 600);
            atomic_store(&g_measure, 0);
            if (S == SC_RETAINED && !o.qos) nap(0.5);
            t_store = (double)(now_ns() - t0) / 1e9; if (S == SC_RETAINED && !o.qos) t_store -= 0.5;
            atomic_store(&g_run, 0); s_b = take(); in = SUM(sent); acks = SUM(acked);
            nap(0.3); s_end = take();
            expected = (uint64_t)n_subs * (uint64_t)o.count;
            if (S == SC_OFFLINE) { g_resubscribe = false; for (long i = 0; i < n_subs; i++) subs[i].expect_session = true; }
            sample d0 = take(); atomic_store(&g_measure, 1);
            t0 = now_ns();
            for (long i = 0; i < n_subs; i++) enqueue(&subs[i]);
            wake();
            t_drain = wait_recv(expected, 5 + o.drain, 600);
            atomic_store(&g_measure, 0);
            sample d1 = take(); drain_cpu = d1.cpu - d0.cpu; lcpu = self_cpu() - lcpu;
            meas = t_store; out = SUM(recv); bytes = SUM(rbytes);
            nap(0.2);
            if (!o.keep && S == SC_OFFLINE && !GET(g_int)) {
                close_group(CMD_CLOSE_SUBS); g_clean = true;
                for (long i = 0; i < n_subs; i++) subs[i].expect_session = false;
                open_group(subs, n_subs, "clean-up", false);
            } else if (!o.keep && !GET(g_int)) {                     /* clear retained */
                close_group(CMD_CLOSE_SUBS); uint64_t keep_sent = 0;
                g_pub_retain_clear = true;
                for (long i = 0; i < n_pubs; i++) { pubst *p = pubs[i].pub; pub_template(p, 0); keep_sent += p->sent; p->sent = 0; }
                (void)keep_sent; uint64_t a0 = SUM(acked), s0 = SUM(sent); (void)a0; (void)s0;
                atomic_store(&g_run, 1); wake(); nap(0.05); wait_pubs_idle(30, 600); atomic_store(&g_run, 0);
                if (!o.qos) nap(0.5);
            }
        } else if (up) {
            g_tstart = now_ns(); atomic_store(&g_run, 1); wake();
            watch(o.warmup);
            s_a = take(); lcpu = self_cpu(); uint64_t a0 = SUM(sent), b0 = SUM(recv), k0 = SUM(acked), y0 = SUM(rbytes), t0 = now_ns();
            atomic_store(&g_measure, 1);
            watch(o.duration);
            atomic_store(&g_measure, 0);
            uint64_t t1 = now_ns(); in = SUM(sent) - a0; out = SUM(recv) - b0; acks = SUM(acked) - k0; bytes = SUM(rbytes) - y0;
            s_b = take(); lcpu = self_cpu() - lcpu; meas = (double)(t1 - t0) / 1e9;
            atomic_store(&g_run, 0); wake(); nap(0.01);
            wait_pubs_idle(o.drain + 2, 60);
            for (long i = 0; i < n_pubs; i++) expected += pubs[i].pub->sent * pubs[i].pub->fan;
            t_drain = wait_recv(expected, o.drain, 120);
            nap(0.05); s_end = take();
        }
    }
    long stalled_closed = 0;
    for (long i = 0; i < o.stall; i++) {
        struct tcp_info ti; socklen_t l = sizeof ti;
        if (subs[i].fd < 0 || getsockopt(subs[i].fd, IPPROTO_TCP, TCP_INFO, &ti, &l) || ti.tcpi_state != TCP_ESTABLISHED) stalled_closed++;
    }
    atomic_store(&g_quit, 1); wake();
    for (int k = 0; k < o.threads; k++) pthread_join(T[k].tid, NULL);
    nap(0.2); sample s_closed = take();

    /* report */
    static hist lat, ack, con; thread z; memset(&z, 0, sizeof z);
    for (int k = 0; k < o.threads; k++) {
        thread *t = &T[k]; hist_merge(&lat, &t->lat); hist_merge(&ack, &t->ack); hist_merge(&con, &t->con);
        z.dup += t->dup; z.dup_unflagged += t->dup_unflagged; z.ooo += t->ooo; z.gap += t->gap; z.misrouted += t->misrouted; z.corrupt += t->corrupt;
        z.rejected += t->rejected; z.disc += t->disc; z.stalls += t->stalls; z.retain_wrong += t->retain_wrong; z.sess_missing += t->sess_missing;
        z.proto += t->proto; z.subfail += t->subfail; z.late_old += t->late_old;
        z.props_missing += t->props_missing; z.props_wrong += t->props_wrong; z.ids_wrong += t->ids_wrong;
    }
    uint64_t sent = 0, acked = 0, aliased = 0, recv_all = SUM(recv), uniq = recv_all;
    for (long i = 0; i < n_pubs; i++) { sent += pubs[i].pub->sent; acked += pubs[i].pub->acked; aliased += pubs[i].pub->aliased; }
    if (S == SC_OFFLINE || S == SC_RETAINED) { sent = in; acked = acks; } else uniq = recv_all > z.dup ? recv_all - z.dup : 0;
    uint64_t lost = expected > uniq ? expected - uniq : 0;
    uint64_t unacked = o.qos && !conn_only && sent > acked ? sent - acked : 0;
    int eff = o.qos < o.sub_qos ? o.qos : o.sub_qos;
    bool ok = !GET(g_nerr) && !z.ooo && !z.misrouted && !z.corrupt && !z.rejected && !z.disc && !z.proto && !z.subfail && !z.retain_wrong &&
              !z.sess_missing && !z.dup_unflagged && !z.props_wrong && !z.ids_wrong && !(z.props_missing && o.strict) && !unacked && !(lost && (eff > 0 || o.strict || S == SC_RETAINED)) && !GET(g_int) &&
              (conn_only || sent);
    double bcpu = s_b.cpu - s_a.cpu, rin = meas > 0 ? (double)in / meas : 0, rout = 0;
    double secs = S == SC_OFFLINE || S == SC_RETAINED ? t_drain : meas;       /* time of delivery */
    if (secs > 0) rout = (double)out / secs;
    const char *transport = o.tls ? o.ws ? "wss" : "tls" : o.ws ? "ws" : "tcp";
    FILE *f = stdout;
    if (o.json) {
        fprintf(f, "{\"tool\":\"mqttload %s\",\"scenario\":\"%s\",\"ok\":%s,\"mqtt\":\"%s\",\"transport\":\"%s\",\"threads\":%d,\"pubs\":%ld,\"subs\":%ld,\"topics\":%ld,"
            "\"qos\":%d,\"sub_qos\":%d,\"payload\":%ld,\"fill\":\"%s\",\"rate_target\":%.0f,\"inflight\":%ld,\"window\":%ld,\"batch\":%ld,\"persistent\":%s,\"retain\":%s",
            VERSION, sc_name[S], ok ? "true" : "false", o.mqtt5 ? "5.0" : "3.1.1", transport, o.threads, n_pubs, n_subs, o.topics, o.qos, o.sub_qos,
            o.payload, fill_name[o.fill], o.rate, o.inflight, o.window, o.batch, o.persistent ? "true" : "false", o.retain ? "true" : "false");
        if (o.tls) fprintf(f, ",\"tls\":\"%s\"", g_tls);
        if (o.alias) fprintf(f, ",\"aliased\":%" PRIu64, aliased);
        if (o.user_props) fprintf(f, ",\"user_props\":%ld,\"user_props_missing\":%" PRIu64, o.user_props, z.props_missing);
        if (o.mqtt5) fprintf(f, ",\"user_props_wrong\":%" PRIu64 ",\"identifiers_wrong\":%" PRIu64, z.props_wrong, z.ids_wrong);
        if (o.unheard || o.refuse) fprintf(f, ",\"unheard\":true");
        if (o.stall) fprintf(f, ",\"stalled\":%ld,\"stalled_closed\":%ld", o.stall, stalled_closed);
        fprintf(f, ",\"filters_cpu_s\":%.4f", filters_cpu);
        fprintf(f, ",\"measured_s\":%.3f,\"open_s\":%.3f,\"filters\":%ld,\"filters_s\":%.3f,\"store_s\":%.3f,\"drain_s\":%.3f", meas, t_open,
            n_fconns ? o.filters : 0, t_filters, t_store, t_drain);
        fprintf(f, ",\"sent\":%" PRIu64 ",\"acked\":%" PRIu64 ",\"expected\":%" PRIu64 ",\"received\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"duplicates\":%" PRIu64
            ",\"duplicates_unflagged\":%" PRIu64 ",\"out_of_order\":%" PRIu64 ",\"misrouted\":%" PRIu64 ",\"corrupt\":%" PRIu64 ",\"unacked\":%" PRIu64
            ",\"rejected\":%" PRIu64 ",\"sub_failures\":%" PRIu64 ",\"disconnects\":%" PRIu64 ",\"protocol_errors\":%" PRIu64 ",\"retain_flag_wrong\":%" PRIu64
            ",\"sessions_missing\":%" PRIu64 ",\"window_stalls\":%" PRIu64, sent, acked, expected, recv_all, lost, z.dup, z.dup_unflagged, z.ooo, z.misrouted,
            z.corrupt, unacked, z.rejected, z.subfail, z.disc, z.proto, z.retain_wrong, z.sess_missing, z.stalls);
        fprintf(f, ",\"in_per_s\":%.1f,\"acked_per_s\":%.1f,\"out_per_s\":%.1f,\"out_mbytes_per_s\":%.3f", rin, meas > 0 ? (double)acks / meas : 0, rout,
            !conn_only && secs > 0 ? (double)bytes / secs / 1e6 : 0);
        jhist(f, "latency_us", &lat); jhist(f, "ack_us", &ack); jhist(f, "connect_us", &con);
        fprintf(f, ",\"connections_ok\":%" PRIu64 ",\"connections_failed\":%" PRIu64, SUM(opened), SUM(failed));
        if (o.npids) {
            fprintf(f, ",\"broker\":{\"processes\":%ld,\"threads\":%ld,\"cpu_s\":%.4f,\"cpu_cores\":%.3f,\"cpu_s_per_m_in\":%.3f,\"cpu_s_per_m_out\":%.3f,\"first_thread_cpu_s\":%.4f,\"drain_cpu_s\":%.4f,"
                "\"rss_kb_before\":%ld,\"rss_kb_connected\":%ld,\"rss_kb_after\":%ld,\"rss_kb_peak\":%ld,\"rss_kb_closed\":%ld", s_before.procs, s_b.threads, bcpu,
                meas > 0 ? bcpu / (S == SC_IDLE ? t_drain : meas) : 0, in && S != SC_IDLE ? bcpu / (double)in * 1e6 : 0,
                S == SC_OFFLINE || S == SC_RETAINED ? (out ? drain_cpu / (double)out * 1e6 : 0) : out && S != SC_IDLE ? bcpu / (double)out * 1e6 : 0, s_b.first - s_a.first, drain_cpu,
                s_before.rss, s_conn.rss, s_end.rss, rss_peak, s_closed.rss);
            long held = conn_only ? (o.hold ? n_xconns : 0) : 0;
            if (held) fprintf(f, ",\"rss_bytes_per_conn\":%.0f", (double)(s_conn.rss - s_before.rss) * 1024.0 / (double)held);
            if (S == SC_OFFLINE) fprintf(f, ",\"rss_bytes_per_stored\":%.0f", (double)(s_end.rss - s_conn.rss) * 1024.0 / (double)(sent ? sent : 1));
            if (S == SC_RETAINED) fprintf(f, ",\"rss_bytes_per_stored\":%.0f", (double)(s_end.rss - s_conn.rss) * 1024.0 / (double)(sent ? sent : 1));
            if (n_fconns) fprintf(f, ",\"rss_bytes_per_filter\":%.0f", (double)(s_conn.rss - s_before.rss) * 1024.0 / (double)o.filters);
            fputc('}', f);
        }
        fprintf(f, ",\"loader\":{\"cpu_s\":%.3f,\"cpu_cores\":%.3f}", lcpu, meas > 0 ? lcpu / (meas + (S == SC_OFFLINE || S == SC_RETAINED ? t_drain : 0)) : 0);
        fprintf(f, ",\"errors\":[");
        int ne = GET(g_nerr); for (int i = 0; i < ne && i < 8; i++) fprintf(f, "%s\"%s\"", i ? "," : "", g_err[i]);
        fprintf(f, "],\"error_count\":%d}\n", ne);
    } else {
        fprintf(f, "%s %s  in %.0f/s  out %.0f/s  sent %" PRIu64 " received %" PRIu64 " of %" PRIu64 "  lost %" PRIu64 " dup %" PRIu64 " (%" PRIu64
            " unflagged) out-of-order %" PRIu64 " misrouted %" PRIu64 " corrupt %" PRIu64 "\n", sc_name[S], ok ? "ok" : "FAILED", rin, rout, sent, recv_all, expected,
            lost, z.dup, z.dup_unflagged, z.ooo, z.misrouted, z.corrupt);
        if (o.tls || o.alias || o.user_props || z.props_wrong || z.ids_wrong || o.stall)
            fprintf(f, "%s%s%s  aliased %" PRIu64 "  user properties missing %" PRIu64 " wrong %" PRIu64 "  identifiers wrong %" PRIu64 "  stalled %ld (%ld closed)\n", transport,
                o.tls ? " " : "", g_tls, aliased, z.props_missing, z.props_wrong, z.ids_wrong, o.stall, stalled_closed);
        const hist *h = conn_only ? &con : &lat;
        fprintf(f, "latency us p50 %.0f p90 %.0f p99 %.0f p99.9 %.0f max %.0f  open %.2fs store %.2fs drain %.2fs  loader %.2f cores\n", hist_q(h, .5) / 1e3,
            hist_q(h, .9) / 1e3, hist_q(h, .99) / 1e3, hist_q(h, .999) / 1e3, (double)h->max / 1e3, t_open, t_store, t_drain, meas > 0 ? lcpu / meas : 0);
        if (o.npids) fprintf(f, "broker cpu %.2fs (%.2f cores) %.2f cpu-s/M out  rss %ld -> %ld -> %ld kB peak %ld\n", bcpu, meas > 0 ? bcpu / meas : 0,
            out ? bcpu / (double)out * 1e6 : 0, s_before.rss, s_conn.rss, s_end.rss, rss_peak);
        int ne = GET(g_nerr); for (int i = 0; i < ne && i < 8; i++) fprintf(f, "error: %s\n", g_err[i]);
    }
    return ok ? 0 : 1;
}
