/*
 * The table of extents without a device: the order in which they expire against a plain list of
 * their ends, the order of use after a scan, and that no call does more because there are many.
 */
#include <errno.h>
#include <time.h>

#include "format_test.h"
#include "store.h"

enum { EXTENTS = 20000, DAY_S = 86400, MOVES_MAX = 1024 };

static int64_t now_s;

static int64_t boot_ns(struct kvs_clock *clock)
{
    (void)clock;
    return now_s * KVS_NS_PER_S;
}

static int64_t wall_s(struct kvs_clock *clock)
{
    (void)clock;
    return now_s;
}

static struct kvs_clock standing_clock = {boot_ns, wall_s};

struct subject {
    struct kvs_store *store;
    struct kvs_root *root;
    struct kvs_namespace *ns;
    struct kvs_extent *extents[EXTENTS];
    uint64_t state;
};

static void subject_open(struct subject *subject, uint64_t seed)
{
    struct kvs_class class = {"chat", 30 * DAY_S};
    struct kvs_options options = {.classes = &class, .class_count = 1, .clock = &standing_clock};
    now_s = 1000 * DAY_S;
    memset(subject, 0, sizeof(*subject));
    subject->state = seed;
    CHECK(kvs_store_new(&options, &subject->store) == 0);
    subject->root = kvs_root_add(subject->store);
    CHECK(kvs_namespace_add_locked(subject->store, "test", &subject->ns) == 0);
}

static void subject_close(struct subject *subject)
{
    for (int i = 0; i < EXTENTS; i++) {
        if (subject->extents[i]) {
            kvs_extent_forget_locked(subject->store, subject->extents[i], KVS_REASON_NONE);
        }
    }
    kvs_store_drop(subject->store);
}

static void add(struct subject *subject, int at, int64_t valid_until_s)
{
    struct kvs_extent *extent;
    CHECK(kvs_extent_add_locked(subject->store, subject->ns, 0, 1, &extent) == 0);
    extent->tags[0] = next_random(&subject->state);
    extent->valid_until_s = valid_until_s;
    extent->last_use_s = now_s - (int64_t)(next_random(&subject->state) % 100);
    extent->start = (uint32_t)(next_random(&subject->state) % 8);
    CHECK(kvs_extent_publish_locked(subject->store, extent) == 0);
    extent->pins = 0;
    subject->extents[at] = extent;
}

static void forget(struct subject *subject, int at)
{
    kvs_extent_forget_locked(subject->store, subject->extents[at], KVS_REASON_NONE);
    subject->extents[at] = NULL;
}

/* A second, a minute, a day or years away, also before now. */
static int64_t some_end_s(struct subject *subject)
{
    static const int64_t spans_s[] = {2, 90, 3600, 8 * DAY_S, 4000ll * DAY_S, (int64_t)1 << 58};
    uint64_t value = next_random(&subject->state);
    int64_t after_s = (int64_t)(value >> 8) % spans_s[value % 6];
    return now_s - 1 + after_s;
}

static int64_t least_end_s(const struct subject *subject, int count, int64_t none)
{
    int64_t least_s = none;
    for (int i = 0; i < count; i++) {
        if (subject->extents[i] && subject->extents[i]->valid_until_s < least_s) {
            least_s = subject->extents[i]->valid_until_s;
        }
    }
    return least_s;
}

static int place_of(const struct subject *subject, int count, const struct kvs_extent *extent)
{
    int at = 0;
    while (at < count && subject->extents[at] != extent) {
        at++;
    }
    CHECK(at < count);
    return at;
}

/* All that has expired comes, and nothing else; with renewals and removals in between. */
static void test_what_has_expired_and_nothing_else_comes(uint64_t seed)
{
    enum { COUNT = 200, STEPS = 3000 };
    struct subject *subject = malloc(sizeof(*subject));
    subject_open(subject, seed);
    for (int step = 0; step < STEPS; step++) {
        int at = (int)(next_random(&subject->state) % COUNT);
        if (!subject->extents[at]) {
            add(subject, at, some_end_s(subject));
        } else if (step % 3 == 0) {
            forget(subject, at);
        } else if (subject->extents[at]->valid_until_s < now_s + DAY_S) {
            subject->extents[at]->valid_until_s = now_s + DAY_S + step % 7 * 1000;
        }
        now_s += (int64_t)(next_random(&subject->state) % 4) * (step % 100 == 0 ? DAY_S : 1);
        struct kvs_extent *extent;
        while ((extent = kvs_expiry_first_locked(subject->root, now_s))) {
            CHECK(extent->valid_until_s <= now_s);
            forget(subject, place_of(subject, COUNT, extent));
        }
        CHECK(least_end_s(subject, COUNT, INT64_MAX) > now_s);
    }
    subject_close(subject);
    free(subject);
}

static void test_ends_that_were_all_ahead_come_in_exact_order(uint64_t seed)
{
    enum { COUNT = 2000 };
    struct subject *subject = malloc(sizeof(*subject));
    subject_open(subject, seed);
    for (int i = 0; i < COUNT; i++) {
        add(subject, i, now_s + 1 + (int64_t)(next_random(&subject->state) % (9 * DAY_S)));
    }
    now_s += 10 * DAY_S;
    for (int i = 0; i < COUNT;) {
        struct kvs_extent *extent = kvs_expiry_first_locked(subject->root, now_s);
        if (!extent) {
            continue; /* many moved: the next call goes on */
        }
        CHECK(extent->valid_until_s == least_end_s(subject, COUNT, INT64_MAX));
        forget(subject, place_of(subject, COUNT, extent));
        i++;
    }
    subject_close(subject);
    free(subject);
}

static struct kvs_extent *extent_of_16(struct subject *subject)
{
    struct kvs_extent *extent;
    CHECK(kvs_extent_add_locked(subject->store, subject->ns, 0, 16, &extent) == 0);
    for (int i = 0; i < 16; i++) {
        extent->tags[i] = next_random(&subject->state);
    }
    extent->valid_until_s = now_s + DAY_S;
    CHECK(kvs_extent_publish_locked(subject->store, extent) == 0);
    extent->pins = 0;
    return extent;
}

static void test_a_block_of_a_full_extent_takes_at_most_32_bytes(uint64_t seed)
{
    struct subject *subject = malloc(sizeof(*subject));
    subject_open(subject, seed);
    for (int i = 0; i < EXTENTS; i++) {
        subject->extents[i] = extent_of_16(subject);
        uint64_t blocks = 16 * ((uint64_t)i + 1);
        CHECK(blocks < 2000 || kvs_index_memory_locked(subject->store) <= 32 * blocks);
    }
    for (int i = 0; i < EXTENTS; i++) {
        forget(subject, i);
    }
    CHECK(kvs_index_memory_locked(subject->store) < 1024);
    subject_close(subject);
    free(subject);
}

static uint64_t count_of(const struct kvs_link *list)
{
    uint64_t count = 0;
    for (const struct kvs_link *at = list->next; at != list; at = at->next) {
        count++;
    }
    return count;
}

/* All end in one slot of the wheel, days from now: emptying it takes many calls, not one long. */
static void test_a_week_in_which_all_expire_is_taken_in_small_steps(uint64_t seed)
{
    struct subject *subject = malloc(sizeof(*subject));
    subject_open(subject, seed);
    for (int i = 0; i < EXTENTS; i++) {
        add(subject, i, now_s + 20 * DAY_S + i % 977);
    }
    now_s += 21 * DAY_S;
    struct kvs_expiry *wheel = &subject->root->expiry;
    struct kvs_extent *extent = NULL;
    uint64_t moving = 0;
    int calls = 0;
    for (; !extent; calls++) {
        extent = kvs_expiry_first_locked(subject->root, now_s);
        uint64_t still = count_of(&wheel->moving);
        CHECK(moving == 0 || still + MOVES_MAX >= moving);
        moving = still;
    }
    CHECK(calls > EXTENTS / MOVES_MAX && calls < 11 * (EXTENTS / MOVES_MAX + 2));
    CHECK(extent->valid_until_s == now_s - DAY_S);
    subject_close(subject);
    free(subject);
}

static void test_a_step_of_the_clock_moves_the_ends(uint64_t seed)
{
    struct subject *subject = malloc(sizeof(*subject));
    subject_open(subject, seed);
    for (int i = 0; i < 100; i++) {
        add(subject, i, now_s + 50 + i);
        subject->extents[i]->times_ours = 1;
    }
    now_s += 49;
    CHECK(!kvs_expiry_first_locked(subject->root, now_s));
    kvs_expiry_follow_locked(subject->root, 1000);
    CHECK(!kvs_expiry_first_locked(subject->root, now_s + 1000));
    CHECK(kvs_expiry_first_locked(subject->root, now_s + 1001) == subject->extents[0]);
    kvs_expiry_follow_locked(subject->root, -1000);
    CHECK(!kvs_expiry_first_locked(subject->root, now_s));
    CHECK(kvs_expiry_first_locked(subject->root, now_s + 1) == subject->extents[0]);
    subject_close(subject);
    free(subject);
}

/* After a scan victims come by last use, the deeper first; what was used since comes last, and what
 * is pinned not at all. */
static void test_victims_come_in_the_order_of_use_after_a_scan(uint64_t seed)
{
    enum { COUNT = 1500 };
    struct subject *subject = malloc(sizeof(*subject));
    subject_open(subject, seed);
    for (int i = 0; i < COUNT; i++) {
        add(subject, i, now_s + DAY_S);
    }
    CHECK(kvs_recency_sort(subject->root) == 0);
    struct kvs_extent *used = subject->extents[7], *held = subject->extents[9];
    kvs_extent_touch_locked(subject->store, used, -1);
    kvs_extent_pin_locked(held);
    int64_t last_use_s = 0;
    uint32_t start = UINT32_MAX;
    for (int i = 0; i < COUNT - 1; i++) {
        struct kvs_extent *victim = kvs_recency_victim_locked(subject->root);
        CHECK(victim && victim != held && (victim == used) == (i == COUNT - 2));
        CHECK(victim->last_use_s >= last_use_s);
        CHECK(victim->last_use_s > last_use_s || victim->start <= start || victim == used);
        last_use_s = victim->last_use_s;
        start = victim->start;
        kvs_list_remove(&victim->lru);
    }
    CHECK(!kvs_recency_victim_locked(subject->root));
    kvs_extent_unpin_locked(subject->store, held);
    CHECK(kvs_recency_victim_locked(subject->root) == held);
    subject_close(subject);
    free(subject);
}

int main(void)
{
    uint64_t seed = (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    test_what_has_expired_and_nothing_else_comes(seed);
    test_ends_that_were_all_ahead_come_in_exact_order(seed);
    test_a_week_in_which_all_expire_is_taken_in_small_steps(seed);
    test_a_step_of_the_clock_moves_the_ends(seed);
    test_a_block_of_a_full_extent_takes_at_most_32_bytes(seed);
    test_victims_come_in_the_order_of_use_after_a_scan(seed);
    return 0;
}
