/*
 * boot_test.c: which processes may join a world, and which are refused.
 *
 * Every reason for a refusal is tested, and both sides must report it. Unauthenticated peers of all kinds
 * connect while ranks join and afterwards: they must not affect the ranks.
 */
#include "comm/control_world.h"

/* ---- refusals --------------------------------------------------------------------------------------------- */

/* The next frame from the hub; type 0 if it closes the connection. */
static tdm__frame next_word(tdm__channel *channel)
{
    tdm__frame frame = {0};
    for (double until_s = tdm_clock_s() + 20; tdm_clock_s() < until_s;) {
        int got = tdm__channel_next(channel, &frame);
        if (got > 0) return frame;
        if (got < 0) break;
        tdm__channel_flush(channel);
        poll(&(struct pollfd){.fd = channel->stream.fd, .events = POLLIN}, 1, 100);
        if (tdm__channel_read(channel) != TDM__CHANNEL_OK && channel->in_count == 0) break;
    }
    return (tdm__frame){0};
}

/* Sends a request to join with the values of the test, with a valid or an invalid proof, and returns the
 * answer of the hub. */
static tdm__frame knock(tdm__rendezvous *meeting, tdm__frame join, const char *secret)
{
    tdm__frame frame = {0};
    tdm__channel channel;
    tdm__facts facts = {.security = TDM_SECURITY_PSK};
    int fd = -1;
    CHECK_INT(tdm__rendezvous_connect(meeting, tdm_clock_s() + 20, &fd, NULL), TDM_OK);
    if (fd < 0) return frame;
    tdm__channel_init(&channel, fd, TDM__MAX_WIRE_JOIN);
    tdm__frame hello = next_word(&channel);
    CHECK_INT(hello.type, TDM__FRAME_HELLO);
    tdm__frame prove = {
        .type = TDM__FRAME_PROVE, .protocol = join.protocol, .protection = hello.protection};
    tdm__prove(TDM__PROVER_RANK, secret, &prove, hello.nonce, prove.mac);
    CHECK(tdm__channel_put_frame(&channel, &prove));
    frame = next_word(&channel);
    tdm_comm_security security = {.mode = facts.security};
    CHECK_INT(tdm__tls_context_create(&security, &facts.tls, NULL), TDM_OK);
    if (frame.type == TDM__FRAME_ACCEPT) {
        CHECK_INT(tdm__channel_secure(&channel, &facts, secret, &prove, hello.nonce, false, NULL),
                  TDM_OK);
        join.type = TDM__FRAME_JOIN;
        CHECK(tdm__channel_put_frame(&channel, &join));
        frame = next_word(&channel);
    }
    tdm__channel_release(&channel);
    tdm__tls_context_destroy(facts.tls);
    return frame;
}

static int rank_that_waits_for_a_word(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    CHECK(await(&shared->may_go, 1, 30));
    control->ops->close(control);
    return 0;
}

static tdm__frame right_join(const world *w)
{
    tdm__frame join = {
        .protocol = TDM__WIRE_PROTOCOL, .rank = 1, .size = (uint32_t)w->size, .pid = 4711};
    snprintf(join.version, sizeof(join.version), "%s", TDM_VERSION);
    snprintf(join.job, sizeof(join.job), "%s", w->job);
    snprintf(join.host_name, sizeof(join.host_name), "elsewhere");
    return join;
}

static void turn_away_every_misfit(tdm_security security)
{
    world w = {.size = 2,
               .security = security,
               .rendezvous = tcp_name(AF_INET),
               .secret = "s1",
               .job = "job A",
               .victim = -1,
               .rank = rank_that_waits_for_a_word};
    start(&w);
    CHECK(await(&shared->joined, 2, 20));
    tdm__rendezvous meeting;
    CHECK_INT(tdm__rendezvous_init(&meeting, w.rendezvous, NULL, NULL), TDM_OK);
    static const struct {
        const char *what, *first, *second;
    } cases[] = {
        {"secret", "another secret", ""},
        {"version", "0.0.9", TDM_VERSION},
        {"job", "\"job B\"", "\"job A\""},
        {"size", "world of 7", "one of 2"},
        {"epoch", "epoch 3", "epoch 0"},
        {"rank", "rank 2 exceeds", "world of 2"},
        {"taken", "rank 1 has already joined", "process "},
        {"zero", "rank 0 has already joined", "process "},
        {"protocol", "protocol 9", "protocol 4"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm__frame misfit = right_join(&w);
        const char *what = cases[i].what;
        if (!strcmp(what, "version")) snprintf(misfit.version, sizeof(misfit.version), "0.0.9");
        if (!strcmp(what, "job")) snprintf(misfit.job, sizeof(misfit.job), "job B");
        if (!strcmp(what, "size")) misfit.size = 7;
        if (!strcmp(what, "epoch")) misfit.epoch = 3;
        if (!strcmp(what, "rank")) misfit.rank = 2;
        if (!strcmp(what, "zero")) misfit.rank = 0;
        if (!strcmp(what, "protocol")) misfit.protocol = 9;
        forget_warnings();
        tdm__frame answer = knock(&meeting, misfit, strcmp(what, "secret") ? "s1" : "s2");
        CHECK_INT(answer.type, TDM__FRAME_REFUSED);
        CHECK_HAS(answer.text, cases[i].first);
        CHECK_HAS(answer.text, cases[i].second);
        CHECK(await(&shared->warnings, 1, 20));
        CHECK_HAS(shared->warning, "refused a rank from 127.0.0.1 port ");
        CHECK_HAS(shared->warning, cases[i].first);
        CHECK_HAS(shared->warning, cases[i].second);
    }
    /* A rank without the secret gets no other information, even if more of its values are wrong. */
    tdm__frame misfit = right_join(&w);
    misfit.size = 7;
    tdm__frame answer = knock(&meeting, misfit, "");
    CHECK_TEXT(answer.text, "it has another secret");
    shared->may_go = 1;
    finish(&w);
}

static void every_mismatch_is_refused(void)
{
    turn_away_every_misfit(TDM_SECURITY_OFF);
    turn_away_every_misfit(TDM_SECURITY_PSK);
}

/* The same through tdm__control_open. Rank 0 waits for a rank 1 that matches. */
static int rank_that_is_refused(const world *w, int rank)
{
    if (rank == 0) return rank_that_waits_for_a_word(w, rank);
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    options.job = "another";
    CHECK_INT(tdm__control_open(&options, &control, &err), TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "rank 0 at unix:");
    CHECK_HAS(err.message, "refused rank 1: rank 1 has job \"another\", rank 0 has job \"j\"");
    options.job = "j";
    options.secret = "wrong";
    CHECK_INT(tdm__control_open(&options, &control, &err), TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "another secret");
    options.secret = NULL;
    options.epoch = 2;
    CHECK_INT(tdm__control_open(&options, &control, &err), TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "epoch 2");
    shared->may_go = 1;
    return rank_that_waits_for_a_word(w, rank);
}

/* The others try to connect, or are about to, when rank 0 listens for a short time. */
static double open_last(int rank, int others)
{
    const double short_s = 3, long_s = 40;
    if (rank > 0) shared->saw++;
    if (rank == 0) CHECK(await(&shared->saw, others, 20));
    return rank == 0 ? short_s : long_s;
}

/* A rank that was refused and does not try again: rank 0's own error contains the reason why it is missing.
 * */
static int rank_that_never_fits(const world *w, int rank)
{
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    options.join_s = open_last(rank, 1);
    if (rank == 1) options.secret = "wrong";
    tdm_status status = tdm__control_open(&options, &control, &err);
    CHECK_INT(status, rank == 0 ? TDM_ERR_PEER_TIMEOUT : TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "another secret");
    CHECK_HAS(err.message, "rank 1");
    return 0;
}

static void turn_away_a_wrong_secret(void)
{
    world w = {.size = 2,
               .rendezvous = unix_name(),
               .job = "j",
               .secret = "right",
               .victim = -1,
               .rank = rank_that_never_fits};
    start(&w);
    finish(&w);
}

/* A process of another user, if the kernel reports the user: both sides report it. */
static int rank_of_another_user(const world *w, int rank)
{
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    if (rank == 1 && setuid(65534) != 0) return 1;
    options.join_s = open_last(rank, 1);
    tdm_status status = tdm__control_open(&options, &control, &err);
    CHECK_INT(status, rank == 0 ? TDM_ERR_PEER_TIMEOUT : TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "it belongs to another user");
    return 0;
}

static void turn_away_another_user(void)
{
    if (geteuid() != 0) return; /* only root can change its user */
    world w = {.size = 2, .rendezvous = unix_name(), .victim = -1, .rank = rank_of_another_user};
    start(&w);
    finish(&w);
}

static void a_refused_rank_may_try_again(void)
{
    world w = {.size = 2,
               .rendezvous = unix_name(),
               .job = "j",
               .victim = -1,
               .rank = rank_that_is_refused};
    start(&w);
    finish(&w);
}

static int rank_that_waits_in_vain(const world *w, int rank)
{
    if (rank == 2 || rank == 3) return 0;
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    options.join_s = open_last(rank, 1);
    double before_s = tdm_clock_s();
    CHECK_INT(tdm__control_open(&options, &control, &err), TDM_ERR_PEER_TIMEOUT);
    /* rank 1 is notified that rank 0 does not wait any more */
    CHECK(tdm_clock_s() - before_s < 30);
    CHECK_HAS(err.message, "rank 2 is missing");
    CHECK_HAS(err.message, "rank 3 is missing");
    CHECK(!strstr(err.message, "rank 1"));
    return 0;
}

static int rank_without_a_hub(const world *w, int rank)
{
    if (rank == 0) return 0;
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm__control_open(&options, &control, &err), TDM_ERR_PEER_TIMEOUT);
    CHECK_HAS(err.message, "rank 1 did not find rank 0 within 1 s: no process listens at ");
    return 0;
}

static void wait_in_vain(void)
{
    world w = {.size = 4, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_waits_in_vain};
    start(&w);
    finish(&w);
}

static void wait_without_a_hub(void)
{
    world w = {.size = 2,
               .rendezvous = tcp_name(AF_INET),
               .join_s = 1,
               .victim = -1,
               .rank = rank_without_a_hub};
    start(&w);
    finish(&w);
}

static void missing_ranks_are_named(void)
{
    void (*const waits[])(void) = {turn_away_a_wrong_secret, turn_away_another_user, wait_in_vain,
                                   wait_without_a_hub};
    run_at_once(waits, sizeof(waits) / sizeof(waits[0]));
}

/* ---- strangers -------------------------------------------------------------------------------------------- */

/* A client that is not a rank: `kind` selects what it does. Returns its socket, or -1. */
static int send_stranger(tdm__rendezvous *meeting, int kind, tdm_rng *rng)
{
    int fd = -1;
    if (tdm__rendezvous_connect(meeting, tdm_clock_s() + 5, &fd, NULL) != TDM_OK) return -1;
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const uint8_t huge[] = {'T', 'd', 'm', 'C', 2, 0, 0, 0, 255, 255, 255, 127};
    uint8_t bytes[3000];
    size_t count = (size_t)tdm_rng_below(rng, sizeof(bytes));
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)tdm_rng_u32(rng);
    if (kind % 6 == 0) send(fd, http, sizeof(http) - 1, MSG_NOSIGNAL);
    if (kind % 6 == 1) send(fd, bytes, count, MSG_NOSIGNAL);
    if (kind % 6 == 2) send(fd, huge, sizeof(huge), MSG_NOSIGNAL);
    if (kind % 6 == 3 && count > 12) { /* looks like a join */
        uint8_t head[12] = {
            'T', 'd', 'm', 'C', 2, 0, 0, 0, (uint8_t)(count - 12), (uint8_t)((count - 12) >> 8)};
        memcpy(bytes, head, sizeof(head));
        send(fd, bytes, count, MSG_NOSIGNAL);
    }
    if (kind % 6 == 4) { /* closes at once, with a reset */
        struct linger hard = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    if (kind % 6 != 5) { /* 5 sends nothing and stays connected */
        close(fd);
        fd = -1;
    }
    return fd;
}

static void send_strangers(const char *rendezvous, int count)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 7, .stream = TDM_RNG_STREAM_USER});
    tdm__rendezvous meeting;
    CHECK_INT(tdm__rendezvous_init(&meeting, rendezvous, NULL, NULL), TDM_OK);
    int silent[256], silent_count = 0;
    for (int i = 0; i < count; i++) {
        int fd = send_stranger(&meeting, i, &rng);
        if (fd >= 0) silent[silent_count++] = fd;
    }
    for (int i = 0; i < silent_count; i++) close(silent[i]);
}

/* The listening socket, both ends of rank 0's own connection, two ranks, two bells, one epoll. */
enum { HUB_FDS = 8 };

static int rank_among_strangers(const world *w, int rank)
{
    int before = count_in("/proc/self/fd");
    /* set when all other peers have connected */
    if (rank == 2) CHECK(await(&shared->may_go, 1, 30));
    tdm__control *control = join(w, rank);
    for (bool end = false; !end && check_failures == 0; pause_s(0.002)) {
        uint8_t **all = NULL, mine = (uint8_t)shared->may_go;
        size_t *sizes = NULL;
        tdm_error err = {0};
        CHECK_INT(control->ops->exchange(control, &mine, 1, &all, &sizes, &err), TDM_OK);
        CHECK_TEXT(err.message, "");
        end = all != NULL; /* true when all have observed it: all of them do in the same exchange */
        for (int i = 0; all && i < w->size; i++) end = end && *all[i] == 2;
        free(all);
        free(sizes);
    }
    if (rank == 0) { /* all unauthenticated peers have disconnected */
        double until_s = tdm_clock_s() + 20;
        while (count_in("/proc/self/fd") > before + HUB_FDS && tdm_clock_s() < until_s)
            pause_s(0.02);
        CHECK_INT(count_in("/proc/self/fd"), before + HUB_FDS);
        shared->saw = 1;
    }
    CHECK(await(&shared->saw, 1, 30));
    control->ops->close(control);
    return 0;
}

static void unauthenticated_connections_have_no_effect(void)
{
    for (int i = 0; i < 2; i++) {
        world w = {.size = 3,
                   .rendezvous = i ? unix_name() : tcp_name(AF_INET),
                   .victim = -1,
                   .rank = rank_among_strangers};
        start(&w);
        send_strangers(w.rendezvous, 200);
        shared->may_go = 1;
        CHECK(await(&shared->joined, 3, 30));
        send_strangers(w.rendezvous, 200);
        shared->may_go = 2;
        finish(&w);
        CHECK_INT(shared->warnings, 1);
        CHECK_HAS(shared->warning, "not a rank of tandem");
    }
}

/* ---- what is left of a secret ----------------------------------------------------------------------------- */

enum { MASK = 0x55, SECRET = 32 };
static uint8_t masked[SECRET]; /* the secret, stored so that the search does not find it here */

static size_t count_secrets(const uint8_t *bytes, size_t count)
{
    size_t found = 0;
    const uint8_t *at = bytes, *end = bytes + count;
    while (end - at >= SECRET) {
        at = memchr(at, masked[0] ^ MASK, (size_t)(end - at) - SECRET + 1);
        if (!at) break;
        size_t i = 1;
        while (i < SECRET && (at[i] ^ MASK) == masked[i]) i++;
        found += i == SECRET;
        at++;
    }
    return found;
}

/* The number of copies of the secret in the writable memory of this process. */
static size_t secrets_in_memory(void)
{
    enum { PART = 64 << 10, MAX_REGION = 1 << 30 };
    static uint8_t part[PART + SECRET];
    char line[512];
    size_t found = 0;
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(memory >= 0 && maps);
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long long begin = 0, end = 0;
        char rights[8] = "";
        if (sscanf(line, "%llx-%llx %7s", &begin, &end, rights) != 3 || rights[1] != 'w') continue;
        if (end - begin > MAX_REGION) continue; /* shadow memory of a sanitizer */
        for (unsigned long long at = begin; at < end; at += PART) {
            ssize_t got = pread(memory, part, sizeof(part), (off_t)at);
            if (got > 0) found += count_secrets(part, (size_t)got);
            explicit_bzero(part, sizeof(part));
        }
    }
    if (maps) fclose(maps);
    close(memory);
    return found;
}

/* The secret that rank 0 has generated for a rendezvous file. */
static void mask_secret_of_file(const char *path)
{
    char bytes[4096] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(read(fd, bytes, sizeof(bytes) - 1) > 0);
    close(fd);
    const char *secret = strstr(bytes, "secret ");
    CHECK(secret);
    for (int i = 0; secret && i < SECRET; i++) masked[i] = (uint8_t)secret[7 + i] ^ MASK;
    explicit_bzero(bytes, sizeof(bytes));
}

static int rank_that_wipes(const world *w, int rank)
{
    char secret[SECRET + 1] = "";
    bool is_file = strchr(w->rendezvous, '/') != NULL;
    for (int i = 0; !is_file && i < SECRET; i++) secret[i] = (char)('A' + (i * 7) % 26);
    for (int i = 0; i < SECRET; i++) masked[i] = (uint8_t)secret[i] ^ MASK;
    tdm_comm_options options = options_of(w, rank);
    options.transport = "tcp";
    options.security.mode = TDM_SECURITY_PSK;
    options.secret = secret;
    tdm_comm *comm = NULL;
    CHECK_INT(tdm_comm_open(&options, &comm, NULL), TDM_OK);
    if (!comm) return 1;
    if (is_file) mask_secret_of_file(w->rendezvous);
    if (!is_file) CHECK(secrets_in_memory() > 0); /* the process that finds `secret` */
    explicit_bzero(secret, sizeof(secret));
    shared->saw++;
    CHECK(await(&shared->saw, w->size, 60));
    tdm_comm_close(comm);
    CHECK_INT(secrets_in_memory(), 0);
    return 0;
}

static void a_secret_is_not_left_in_memory(void)
{
    for (int i = 0; i < 2; i++) {
        world w = {.size = 3,
                   .rendezvous = i ? file_name() : tcp_name(AF_INET),
                   .victim = -1,
                   .rank = rank_that_wipes};
        start(&w);
        finish(&w);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------ */

static void put_file(const char *path, const char *text, int mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
    CHECK_INT(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

/* A file has one address, which is used unchanged, or the file is invalid. */
static void addresses_of_a_file(void)
{
    static const struct {
        const char *address;
        bool is_good;
    } cases[] = {
        {"10.0.0.1", true},
        {"2001:db8::1", true},
        {"fe80::1%eth0", true},
        {"fe80::1%bond0.100-a_", true},
        {"fe80::1%3", true},
        {"fe80::1%", false},
        {"fe80::1%a b", false},
        {"fe80::1%\a", false},
        {"fe80::1%eth0%eth0", false},
        {"fe80::1%a_name_that_is_too_long", false},
        {"10.0.0.1%eth0", false},
        {"%eth0", false},
        {"alpha", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[300];
        tdm__meeting_file file = {0};
        int length = snprintf(text, sizeof(text),
                              "tandem rendezvous 1\nhost 0a\nprocess 7\nname x\nsecret 0b\nport "
                              "9\naddress %s\nend\n",
                              cases[i].address);
        CHECK_INT(tdm__meeting_file_parse(text, (size_t)length, &file), cases[i].is_good);
        if (cases[i].is_good) CHECK_TEXT(file.address[0], cases[i].address);
    }
}

static int rank_that_looks_at_the_file(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    struct stat info;
    CHECK_INT(stat(w->rendezvous, &info), 0);
    CHECK_INT(info.st_mode & 0777, 0600);
    if (rank == 0) { /* a second world cannot use the same file */
        tdm_comm_options options = options_of(w, 0);
        tdm__control *other = NULL;
        tdm_error err = {0};
        CHECK_INT(tdm__control_open(&options, &other, &err), TDM_ERR_BUSY);
        CHECK_HAS(err.message, "in use by another world");
    }
    shared->saw++;
    CHECK(await(&shared->saw, w->size, 20));
    control->ops->close(control);
    return 0;
}

static int rank_that_dies(const world *w, int rank)
{
    join(w, rank);
    pause_s(RANK_S);
    return 1;
}

static void files_of_the_dead_are_replaced(void)
{
    const char *path = file_name();
    world w = {.size = 1, .rendezvous = path, .victim = 0, .rank = rank_that_dies};
    start(&w);
    CHECK(await(&shared->joined, 1, 20));
    kill(w.pids[0], SIGKILL);
    finish(&w);
    CHECK_INT(access(path, F_OK), 0);
    w = (world){.size = 3, .rendezvous = path, .victim = -1, .rank = rank_that_looks_at_the_file};
    start(&w);
    finish(&w);
    CHECK(access(path, F_OK) != 0);
}

static int rank_with_a_bad_file(const world *w, int rank)
{
    tdm_comm_options options = options_of(w, rank);
    tdm__control *control = NULL;
    tdm_error err = {0};
    tdm_status status = tdm__control_open(&options, &control, &err);
    CHECK(status == TDM_ERR_FORMAT || status == TDM_ERR_INVALID);
    CHECK(strstr(err.message, "not a rendezvous file") || strstr(err.message, "another user"));
    return 0;
}

static void other_files_are_left_alone(void)
{
    const char *path = file_name();
    put_file(path, "my precious notes\n", 0600);
    world w = {.size = 2, .rendezvous = path, .victim = -1, .rank = rank_with_a_bad_file};
    start(&w);
    finish(&w);
    CHECK_INT(access(path, F_OK), 0);
    if (geteuid() == 0) { /* root can give the file away; the ranks of any user would refuse it */
        put_file(path, "tandem rendezvous 1\nend\n", 0644);
        CHECK_INT(chown(path, 12345, 12345), 0);
        start(&w);
        finish(&w);
    }
    unlink(path);
}

/* ---- hosts ------------------------------------------------------------------------------------------------ */

static int rank_on_two_hosts(const world *w, int rank)
{
    setenv("TANDEM_HOST", rank == 1 ? "beta" : rank == 3 ? "gamma" : "alpha", 1);
    tdm_comm_options options = options_of(w, rank);
    if (rank == 3) options.host = "beta"; /* takes precedence over the environment */
    tdm__control *control = NULL;
    CHECK_INT(tdm__control_open(&options, &control, NULL), TDM_OK);
    if (!control) return 1;
    static const int hosts[] = {0, 1, 0, 1, 0};
    for (int i = 0; i < w->size; i++) CHECK_INT(control->host_of[i], hosts[i]);
    int who = 1;
    char text[500];
    control->ops->report(control, &who, 1, text, sizeof(text));
    CHECK_HAS(text, "rank 1 (beta, process ");
    shared->saw++;
    CHECK(await(&shared->saw, w->size, 20));
    control->ops->close(control);
    return 0;
}

static void hosts_are_numbered_by_their_lowest_rank(void)
{
    world w = {.size = 5, .rendezvous = unix_name(), .victim = -1, .rank = rank_on_two_hosts};
    start(&w);
    finish(&w);
}

static const check_test tests[] = {
    CHECK_TEST(every_mismatch_is_refused),
    CHECK_TEST(a_refused_rank_may_try_again),
    CHECK_TEST(missing_ranks_are_named),
    CHECK_TEST(unauthenticated_connections_have_no_effect),
    CHECK_TEST(a_secret_is_not_left_in_memory),
    CHECK_TEST(files_of_the_dead_are_replaced),
    CHECK_TEST(addresses_of_a_file),
    CHECK_TEST(other_files_are_left_alone),
    CHECK_TEST(hosts_are_numbered_by_their_lowest_rank),
};

int main(int argc, char **argv)
{
    return world_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
