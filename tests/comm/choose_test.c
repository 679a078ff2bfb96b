/*
 * choose_test.c: tables of choices, from files and bytes, valid and invalid; the algorithms that are chosen
 * from them; and how lanes are divided into nodes.
 */

#include "check.h"
#include "comm/algorithms/build.h"
#include "comm/choices.h"
#include "comm/comm.h"
#include "comm/engine.h"
#include "os/os.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct place {
    tdm_comm comm;
    tdm_group group;
} place;

static void place_init(place *p, int size, int host_count)
{
    memset(p, 0, sizeof(*p));
    tdm_error err;
    CHECK_INT(tdm__choices_load(NULL, &p->comm.choices, &err), TDM_OK);
    p->group = (tdm_group){.comm = &p->comm, .size = size, .host_count = host_count};
}

static tdm_algorithm chosen(const place *p, tdm_call call)
{
    tdm_algorithm algorithm = TDM_ALGORITHM_AUTO;
    CHECK_INT(tdm_call_algorithm(&p->group, &call, &algorithm, NULL), TDM_OK);
    return algorithm;
}

static tdm_call sum_of(tdm_dtype dtype, size_t count)
{
    return (tdm_call){.kind = TDM_CALL_ALL_REDUCE, .dtype = dtype, .count = count};
}

/* ---- the choice --------------------------------------------------------------------------------- */

static void everything_has_an_algorithm_that_fits(void)
{
    for (int size = 1; size <= 2048; size = size < 20 ? size + 1 : 2 * size)
        for (int hosts = 1; hosts <= size; hosts += hosts < 3 ? 1 : size) {
            place p;
            place_init(&p, size, hosts);
            for (int kind = TDM_CALL_BARRIER; kind <= TDM_CALL_RECV; kind++)
                for (size_t count = 1; count <= (size_t)1 << 40; count *= 1024) {
                    tdm_call call = {
                        .kind = (tdm_call_kind)kind, .dtype = TDM_DTYPE_F32, .count = count};
                    const tdm__algorithm_ops *algorithm = NULL;
                    CHECK_INT(tdm__choose(&p.group, &call, &algorithm, NULL), TDM_OK);
                    CHECK(algorithm->fits(&p.group, &call));
                    tdm__cut cut = algorithm->cut(&p.group, &call);
                    CHECK(cut.segment > 0 && cut.flight >= 1 && cut.flight <= TDM__MAX_FLIGHT);
                }
            tdm__choices_release(&p.comm.choices);
        }
    place p;
    place_init(&p, 2, 2);
    tdm_error err;
    tdm_call call = {.kind = (tdm_call_kind)77};
    const tdm__algorithm_ops *algorithm = NULL;
    CHECK_INT(tdm__choose(&p.group, &call, &algorithm, &err), TDM_ERR_INVALID);
    tdm__choices_release(&p.comm.choices);
}

static void the_requested_algorithm_is_used_if_possible(void)
{
    place p;
    place_init(&p, 6, 6);
    tdm_call call = sum_of(TDM_DTYPE_F32, 10);
    call.algorithm = TDM_ALGORITHM_TREE;
    CHECK_INT(chosen(&p, call), TDM_ALGORITHM_TREE);
    call.algorithm = TDM_ALGORITHM_RING;
    /* supports floats if it is requested by name */
    CHECK_INT(chosen(&p, call), TDM_ALGORITHM_RING);
    call.reduce = TDM_REDUCE_USER;
    CHECK(chosen(&p, call) != TDM_ALGORITHM_RING); /* the function need not commute */
    call.algorithm = TDM_ALGORITHM_WINDOW;
    CHECK(chosen(&p, call) != TDM_ALGORITHM_WINDOW); /* the group has several hosts */
    call = (tdm_call){.kind = TDM_CALL_SCATTER, .dtype = TDM_DTYPE_U8, .count = 9};
    call.algorithm = TDM_ALGORITHM_DOUBLING;
    CHECK_INT(chosen(&p, call), TDM_ALGORITHM_DIRECT);
    tdm__choices_release(&p.comm.choices);
}

static void rows_count_by_size_then_bytes_then_order(void)
{
    place p;
    place_init(&p, 8, 8);
    tdm__choices_release(&p.comm.choices);
    tdm__choice rows[] = {
        {TDM_CALL_ALL_REDUCE, TDM__GROUP_PLACE_HOSTS, 2, 0, TDM_ALGORITHM_TREE, 0},
        {TDM_CALL_ALL_REDUCE, TDM__GROUP_PLACE_HOSTS, 2, 4096, TDM_ALGORITHM_DOUBLING, 0},
        {TDM_CALL_ALL_REDUCE, TDM__GROUP_PLACE_HOSTS, 8, 1024, TDM_ALGORITHM_RING, 65536},
        {TDM_CALL_ALL_REDUCE, TDM__GROUP_PLACE_HOSTS, 8, 1024, TDM_ALGORITHM_DIRECT, 2048},
        {TDM_CALL_ALL_REDUCE, TDM__GROUP_PLACE_HOSTS, 9, 0, TDM_ALGORITHM_TREE, 0},
        {TDM_CALL_ALL_REDUCE, TDM__GROUP_PLACE_HOST, 1, 0, TDM_ALGORITHM_DOUBLING, 0},
    };
    p.comm.choices = (tdm__choices){.rows = rows, .count = sizeof(rows) / sizeof(rows[0])};
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 10)), TDM_ALGORITHM_TREE);
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 256)), TDM_ALGORITHM_RING);
    /* a ring is not chosen for floats */
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_F32, 256)), TDM_ALGORITHM_DIRECT);
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_F32, 100000)), TDM_ALGORITHM_DIRECT);
    p.group.size = 7;
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 1023)), TDM_ALGORITHM_TREE);
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 1024)), TDM_ALGORITHM_DOUBLING);
    p.group.size = 100;
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 1024)), TDM_ALGORITHM_TREE);
    p.group.host_count = 1;
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 1024)), TDM_ALGORITHM_DOUBLING);
    p.group.size = 1; /* no row applies */
    p.group.host_count = 2;
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_I32, 1024)), TDM_ALGORITHM_DIRECT);

    /* A row's segment size applies to its algorithm only. */
    p.group.size = p.group.host_count = 8;
    tdm_call call = sum_of(TDM_DTYPE_I32, 1000000);
    CHECK_INT(tdm__algorithm_ring.cut(&p.group, &call).segment, 16384);
    CHECK_INT(tdm__algorithm_direct.cut(&p.group, &call).segment, 512);
}

/* However large the call, the numbers of its messages do not overlap. */
static void cuts_leave_enough_step_numbers(void)
{
    place p;
    place_init(&p, 1024, 1024);
    tdm__choices_release(&p.comm.choices);
    for (int kind = TDM_CALL_BROADCAST; kind <= TDM_CALL_ALL_TO_ALL; kind++)
        for (int i = 0; i < tdm__algorithm_count; i++) {
            const tdm__algorithm_ops *algorithm = tdm__algorithms[i];
            tdm_call call = {.kind = (tdm_call_kind)kind,
                             .dtype = TDM_DTYPE_I32,
                             .count = (size_t)1 << 50,
                             .algorithm = algorithm->id};
            tdm__choice row = {(uint8_t)kind, TDM__GROUP_PLACE_HOSTS, 1, 0, (uint8_t)algorithm->id,
                               1024};
            p.comm.choices = (tdm__choices){.rows = &row, .count = 1};
            if (algorithm->window || !algorithm->fits(&p.group, &call)) continue;
            tdm__cut cut = algorithm->cut(&p.group, &call);
            CHECK((call.count + cut.segment - 1) / cut.segment <= ((uint64_t)1 << 32) / 64);
            if (tdm__kind_has_slices(call.kind)) CHECK_INT(cut.segment % 1024, 0);
        }
}

/* ---- files and bytes ---------------------------------------------------------------------------- */

static const char *file_with(const char *text)
{
    return check_write("tune.json", text);
}

#define ROW(KIND, HOST, SIZE, BYTES, ALGORITHM, SEGMENT)                                           \
    "{\"kind\": " KIND ", \"one_host\": " HOST ", \"size\": " SIZE ", \"bytes\": " BYTES           \
    ", \"algorithm\": " ALGORITHM ", \"segment_bytes\": " SEGMENT "}"
#define FILE_OF(ROWS) "{\"tandem_tune\": 1, \"choices\": [" ROWS "]}"

static void measured_rows_take_the_place_of_built_in_ones(void)
{
    place p;
    place_init(&p, 2, 2);
    tdm__choices_release(&p.comm.choices);
    tdm_error err;
    const char *path = file_with(
        FILE_OF(ROW("\"all_reduce\"", "false", "2", "0", "\"tree\"", "0") ", " ROW(
            "\"all_reduce\"", "false", "2", "5000", "\"direct\"",
            "4096") ", " ROW("\"broadcast\"", "true", "3", "0", "\"ring\"", "0")));
    CHECK_INT(tdm__choices_read(path, &p.comm.choices, &err), TDM_OK);
    CHECK_INT(p.comm.choices.count, 3);
    tdm__choices_release(&p.comm.choices);
    CHECK_INT(tdm__choices_load(path, &p.comm.choices, &err), TDM_OK);
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_F32, 10)), TDM_ALGORITHM_TREE);
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_F32, 2000)), TDM_ALGORITHM_DIRECT);
    tdm_call call = sum_of(TDM_DTYPE_F32, 100000);
    CHECK_INT(tdm__algorithm_direct.cut(&p.group, &call).segment, 1024);
    /* Calls that were not measured are chosen as before: other kinds, topologies and sizes. */
    call = (tdm_call){.kind = TDM_CALL_BARRIER};
    CHECK_INT(chosen(&p, call), TDM_ALGORITHM_DIRECT);
    p.group.size = p.group.host_count = 6;
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_F32, 10)), TDM_ALGORITHM_DOUBLING);
    p.group.host_count = 1;
    call = (tdm_call){.kind = TDM_CALL_BROADCAST, .dtype = TDM_DTYPE_U8, .count = 1};
    CHECK_INT(chosen(&p, call), TDM_ALGORITHM_RING);
    /* Several hosts with many ranks each count as several hosts as well. */
    p.group.size = 3;
    p.group.host_count = 2;
    CHECK_INT(chosen(&p, sum_of(TDM_DTYPE_F32, 10)), TDM_ALGORITHM_TREE);
    tdm__choices_release(&p.comm.choices);
}

static void bad_files_are_refused(void)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "choices in"},
        {"[]", "tandem_tune"},
        {"{\"tandem_tune\": 2, \"choices\": []}", "tandem_tune"},
        {"{\"tandem_tune\": 1}", "array"},
        {"{\"tandem_tune\": 1, \"choices\": {}}", "array"},
        {FILE_OF("7"), "kind"},
        {FILE_OF(ROW("\"all_reduce\"", "false", "2", "0", "\"tree\"", "0") ", {}"), "byte 138"},
        {FILE_OF(ROW("\"al_reduce\"", "false", "2", "0", "\"tree\"", "0")), "kind"},
        {FILE_OF(ROW("3", "false", "2", "0", "\"tree\"", "0")), "kind"},
        {FILE_OF(ROW("\"reduce\"", "1", "2", "0", "\"tree\"", "0")), "one_host"},
        {FILE_OF(ROW("\"reduce\"", "true", "0", "0", "\"tree\"", "0")), "size"},
        {FILE_OF(ROW("\"reduce\"", "true", "65536", "0", "\"tree\"", "0")), "size"},
        {FILE_OF(ROW("\"reduce\"", "true", "2.5", "0", "\"tree\"", "0")), "size"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "-1", "\"tree\"", "0")), "bytes"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "1e400", "\"tree\"", "0")), "choices in"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "0", "\"auto\"", "0")), "algorithm"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "0", "\"bush\"", "0")), "algorithm"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "0", "null", "0")), "algorithm"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "0", "\"tree\"", "3")), "segment_bytes"},
        {FILE_OF(ROW("\"reduce\"", "true", "2", "0", "\"tree\"", "99999999999")), "segment_bytes"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tdm_error err = {.message = ""};
        tdm__choices choices = {0};
        CHECK(tdm__choices_load(file_with(bad[i].text), &choices, &err) != TDM_OK);
        CHECK_HAS(err.message, bad[i].says);
        CHECK(!choices.rows);
    }
    tdm_error err;
    tdm__choices choices = {0};
    CHECK_INT(tdm__choices_load("build/no/such/file", &choices, &err), TDM_ERR_NOT_FOUND);
}

static void bytes_round_trip(void)
{
    tdm__choices built_in = {0}, back = {0};
    tdm_error err;
    CHECK_INT(tdm__choices_load(NULL, &built_in, &err), TDM_OK);
    CHECK_INT(built_in.count, tdm__choices_builtin_count);
    size_t count = tdm__choices_pack(&built_in, NULL);
    uint8_t *bytes = malloc(count);
    CHECK_INT(tdm__choices_pack(&built_in, bytes), count);
    CHECK_INT(tdm__choices_unpack(bytes, count, &back, &err), TDM_OK);
    CHECK_INT(back.count, built_in.count);
    for (int i = 0; i < back.count && i < built_in.count; i++) {
        const tdm__choice *a = &back.rows[i], *b = &built_in.rows[i];
        CHECK(a->kind == b->kind && a->place == b->place && a->size == b->size &&
              a->bytes == b->bytes && a->algorithm == b->algorithm &&
              a->segment_bytes == b->segment_bytes);
    }
    tdm__choices_release(&back);
    /* On the heap, so that the sanitizer detects a read past the end. */
    for (size_t cut = 0; cut < count; cut++) {
        uint8_t *part = malloc(cut + 1);
        memcpy(part, bytes, cut);
        CHECK_INT(tdm__choices_unpack(part, cut, &back, &err), TDM_ERR_FORMAT);
        free(part);
    }
    for (size_t i = 0; i < count; i++) { /* damaged: refused, or a table of valid rows */
        uint8_t before = bytes[i];
        bytes[i] ^= 0xff;
        if (tdm__choices_unpack(bytes, count, &back, &err) == TDM_OK) {
            for (int j = 0; j < back.count; j++)
                CHECK(back.rows[j].kind <= TDM_CALL_RECV && back.rows[j].size > 0 &&
                      back.rows[j].algorithm <= TDM_ALGORITHM_WINDOW);
            tdm__choices_release(&back);
        }
        bytes[i] = before;
    }
    free(bytes);
    tdm__choices_release(&built_in);
}

/* ---- lanes and slices ---------------------------------------------------------------------------- */

/* A node is one of the largest complete sub-trees of [first, last) if it is inside, its parent is not, and at
 * least one of its lanes is present. */
static int plain_nodes(const tdm_lanes *lanes, int64_t first, int64_t last, int64_t *out)
{
    int count = 0;
    for (int64_t lane = first; lane < last;) {
        int64_t node = lanes->lane_count + lane, begin = lane, end = lane + 1;
        while (node > 1) { /* go up while the parent is inside */
            int64_t width = 2 * (end - begin), parent_begin = begin / width * width;
            if (parent_begin < first || parent_begin + width > last) break;
            node /= 2;
            begin = parent_begin;
            end = parent_begin + width;
        }
        bool present = !lanes->absent;
        for (int64_t i = begin; i < end && !present; i++) present = !lanes->absent[i];
        if (present) out[count++] = node;
        lane = end;
    }
    return count;
}

static void lane_nodes_are_the_largest_whole_sub_trees(void)
{
    uint8_t absent[64];
    for (int64_t lane_count = 1; lane_count <= 64; lane_count *= 2)
        for (int with = 0; with < 3; with++) {
            for (int i = 0; i < 64; i++) absent[i] = with == 1 ? i % 3 == 0 : i % 16 < 11;
            tdm_lanes lanes = {.lane_count = lane_count, .absent = with ? absent : NULL};
            for (int64_t first = 0; first <= lane_count; first++)
                for (int64_t last = first; last <= lane_count; last++) {
                    int64_t found[TDM_MAX_LANE_PARTS], expected[TDM_MAX_LANE_PARTS] = {0};
                    int count = tdm_lane_nodes(&lanes, first, last, found);
                    CHECK_INT(count, plain_nodes(&lanes, first, last, expected));
                    for (int i = 0; i < count; i++) CHECK_INT(found[i], expected[i]);
                }
        }
    /* The maximum number of parts. */
    int64_t found[TDM_MAX_LANE_PARTS], max = (int64_t)1 << 32;
    CHECK_INT(tdm_lane_nodes(&(tdm_lanes){.lane_count = max}, 1, max - 1, found), 62);
}

static void lanes_are_checked(void)
{
    int64_t good[] = {0, 3, 3, 8}, falling[] = {0, 5, 3, 8}, late[] = {1, 3, 3, 8};
    uint8_t all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    tdm_error err;
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){8, good, NULL}, 3, &err), TDM_OK);
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){8, falling, NULL}, 3, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "rank 1 begins at lane 5, but rank 2 at lane 3");
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){8, late, NULL}, 3, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){16, good, NULL}, 3, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){6, good, NULL}, 3, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "lane count 6 is not a power of two");
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){0, good, NULL}, 3, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){8, NULL, NULL}, 3, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){8, good, all}, 3, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "absent");
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){(int64_t)1 << 40, good, NULL}, 3, &err), TDM_ERR_RANGE);
    all[7] = 0;
    CHECK_INT(tdm__lanes_check(&(tdm_lanes){8, good, all}, 3, &err), TDM_OK);

    /* Ranks with the same choices have the same hash, other choices have another one. */
    uint64_t hash = tdm__lanes_hash(&(tdm_lanes){8, good, NULL}, 3);
    int64_t same[] = {0, 3, 3, 8}, other[] = {0, 3, 4, 8};
    CHECK(hash == tdm__lanes_hash(&(tdm_lanes){8, same, NULL}, 3));
    CHECK(hash != tdm__lanes_hash(&(tdm_lanes){8, other, NULL}, 3));
    CHECK(hash != tdm__lanes_hash(&(tdm_lanes){8, good, all}, 3));
    CHECK(hash != 0 && tdm__lanes_hash(NULL, 3) == 0);
}

static void slices_cover_everything_once(void)
{
    for (int size = 1; size < 40; size++)
        for (size_t count = 0; count < 200; count += count < 50 ? 1 : 49) {
            size_t next = 0, min = SIZE_MAX, max = 0;
            for (int r = 0; r < size; r++) {
                tdm_extent slice = tdm_group_slice(count, size, r);
                CHECK_INT(slice.first, next);
                next += slice.count;
                if (slice.count < min) min = slice.count;
                if (slice.count > max) max = slice.count;
            }
            CHECK_INT(next, count);
            CHECK(max - min <= 1);
        }
}

static const check_test tests[] = {
    CHECK_TEST(everything_has_an_algorithm_that_fits),
    CHECK_TEST(the_requested_algorithm_is_used_if_possible),
    CHECK_TEST(rows_count_by_size_then_bytes_then_order),
    CHECK_TEST(cuts_leave_enough_step_numbers),
    CHECK_TEST(measured_rows_take_the_place_of_built_in_ones),
    CHECK_TEST(bad_files_are_refused),
    CHECK_TEST(bytes_round_trip),
    CHECK_TEST(lane_nodes_are_the_largest_whole_sub_trees),
    CHECK_TEST(lanes_are_checked),
    CHECK_TEST(slices_cover_everything_once),
};

CHECK_MAIN(tests)
