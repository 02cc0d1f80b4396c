/* fetch.c on a librdkafka that is made up: any offsets, events and headers, and buffers of exactly the sizes that gather
 * reported, so that the sanitizers see a byte too many. `fetch_fuzz ROUNDS SEED` */

#define ONEFOLD_SOURCE "fuzz"
#include "fetch.c"

#include <assert.h>

static uint64_t state;

static uint32_t upto(uint32_t most) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return most == 0 ? 0 : (uint32_t)(state >> 11) % most;
}

/* --- messages --- */

typedef struct {
    char *name;
    void *value;
    size_t size;
} header;

struct rd_kafka_headers_s {
    size_t count;
    header *each;
};

struct rd_kafka_topic_s {
    const char *name;
};

typedef struct {
    rd_kafka_message_t public;
    struct rd_kafka_headers_s headers;
    int code; /* what asking for the headers answers */
} message;

static struct rd_kafka_topic_s ours = {"t"}, another = {"other"};
static int64_t next_offset;
static long alive, made;

static void *some(size_t length) {
    char *bytes = malloc(length ? length : 1);
    for (size_t i = 0; i < length; i++) bytes[i] = (char)upto(256);
    return bytes;
}

static void make_headers(message *one) {
    static const int codes[] = {0, 0, 0, RD_KAFKA_RESP_ERR__NOENT, -199}; /* -199: a bad message */
    one->code = codes[upto(5)];
    one->headers.count = one->code != 0 ? 0 : upto(8) ? upto(5) : upto(3000);
    one->headers.each = calloc(one->headers.count + 1, sizeof(header));
    for (size_t i = 0; i < one->headers.count; i++) {
        size_t length = upto(4) ? upto(12) : 0;
        one->headers.each[i].name = some(length + 1);
        one->headers.each[i].name[length] = 0;
        one->headers.each[i].size = upto(3) ? upto(40) : 0;
        one->headers.each[i].value = upto(3) ? some(one->headers.each[i].size) : NULL;
    }
}

static rd_kafka_message_t *make(void) {
    message *one = calloc(1, sizeof *one);
    alive++, made++;
    one->public.rkt = &ours;
    make_headers(one);
    uint32_t what = upto(100);
    if (what < 6) { /* an event */
        static const int codes[] = {RD_KAFKA_RESP_ERR__PARTITION_EOF, -185, -172, 3, 6};
        one->public.err = codes[upto(5)];
        one->public.offset = upto(4) ? next_offset : INT64_MAX;
        if (upto(3) == 0) one->public.rkt = upto(2) ? NULL : &another;
        one->public.len = upto(2000);
        one->public.payload = upto(2) ? some(one->public.len) : NULL;
        return &one->public;
    }
    next_offset += 1 + (upto(10) ? 0 : upto(50));
    one->public.offset = what == 7 ? (int64_t)upto(2000) - 100 : what == 8 ? INT64_MAX - upto(3) : next_offset - 1;
    one->public.partition = what == 9;
    if (upto(6)) one->public.payload = some(one->public.len = upto(300));
    if (upto(3)) one->public.key = some(one->public.key_len = upto(50));
    return &one->public;
}

/* --- librdkafka --- */

static ssize_t consume(rd_kafka_queue_t *queue, int wait_ms, rd_kafka_message_t **to, size_t most) {
    (void)queue, (void)wait_ms;
    if (upto(10) == 0) return upto(2) ? 0 : -1;
    size_t count = 1 + upto((uint32_t)most);
    for (size_t i = 0; i < count; i++) to[i] = make();
    return (ssize_t)count;
}

static void destroy(rd_kafka_message_t *public) {
    message *one = (message *)public;
    for (size_t i = 0; i < one->headers.count; i++) free(one->headers.each[i].name), free(one->headers.each[i].value);
    free(one->headers.each), free(public->payload), free(public->key), free(one);
    alive--;
}

static int64_t timestamp(const rd_kafka_message_t *public, int *kind) {
    *kind = public->key == NULL ? RD_KAFKA_TIMESTAMP_NOT_AVAILABLE : 1;
    return INT64_MAX;
}

static int headers(const rd_kafka_message_t *public, rd_kafka_headers_t **to) {
    message *one = (message *)public;
    *to = &one->headers;
    return one->code;
}

static size_t header_count(const rd_kafka_headers_t *of) { return of->count; }

static int header_at(const rd_kafka_headers_t *of, size_t at, const char **name, const void **value, size_t *size) {
    *name = of->each[at].name, *value = of->each[at].value, *size = of->each[at].size;
    return 0;
}

static const char *name_of(const rd_kafka_topic_t *topic) { return topic->name; }
static const char *text_of(int code) { return code ? "an error" : ""; }
static rd_kafka_topic_partition_list_t *list_new(int count) { return malloc((size_t)count); }
static rd_kafka_topic_partition_t *list_add(rd_kafka_topic_partition_list_t *list, const char *topic, int32_t number) {
    (void)list, (void)topic, (void)number;
    return NULL;
}
static int list_set(rd_kafka_topic_partition_list_t *list, const char *topic, int32_t number, int64_t offset) {
    (void)list, (void)topic, (void)number, (void)offset;
    return 0;
}
static void list_free(rd_kafka_topic_partition_list_t *list) { free(list); }
static int assign(rd_kafka_t *rk, const rd_kafka_topic_partition_list_t *list) { return rk != NULL && list != NULL; }

/* --- the caller --- */

static void *exactly(int64_t length) { return calloc(length > 0 ? (size_t)length : 1, 1); }

static void hand_over(onefold_consumer *consumer, const onefold_gathered *sizes, unsigned wanted) {
    int64_t n = sizes->records, h = sizes->headers, bits = (n + 7) / 8;
    int64_t lengths[] = {8 * n, 8 * n, bits, 4 * (n + 1), sizes->value_bytes, bits, 4 * (n + 1), sizes->key_bytes, bits, 8 * n,
                         bits, 4 * (n + 1), 4 * (h + 1), sizes->header_name_bytes, (h + 7) / 8, 4 * (h + 1), sizes->header_value_bytes};
    enum { ADDRESSES = sizeof lengths / sizeof *lengths };
    onefold_buffers to = {0};
    void *made_here[ADDRESSES];
    for (size_t i = 0; i < ADDRESSES; i++) made_here[i] = exactly(lengths[i]);
    memcpy(&to, made_here, sizeof made_here); /* the addresses come first, in this order */
    onefold_hand_over(consumer, &to);
    assert(to.value_ends[n] == sizes->value_bytes);
    if (wanted & WANT_KEY) assert(to.key_ends[n] == sizes->key_bytes);
    if (wanted & WANT_HEADERS) {
        int64_t valid = 0;
        for (int64_t i = 0; i < n; i++) valid += to.headers_valid[i >> 3] >> (i & 7) & 1;
        assert(valid + to.headers_nulls == n && to.headers_ends[n] == h);
        assert(to.header_name_ends[h] == sizes->header_name_bytes && to.header_value_ends[h] == sizes->header_value_bytes);
    }
    for (int64_t i = 1; i < n; i++) assert(to.offset[i] > to.offset[i - 1]);
    for (size_t i = 0; i < ADDRESSES; i++) free(made_here[i]);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1, records = 0;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    rd.consume_batch_queue = consume, rd.message_destroy = destroy, rd.message_timestamp = timestamp;
    rd.message_headers = headers, rd.header_cnt = header_count, rd.header_get_all = header_at;
    rd.topic_name = name_of, rd.err2str = text_of, rd.assign = assign;
    rd.topic_partition_list_new = list_new, rd.topic_partition_list_add = list_add;
    rd.topic_partition_list_set_offset = list_set, rd.topic_partition_list_destroy = list_free;
    for (long round = 0; round < rounds; round++) {
        onefold_consumer *consumer = calloc(1, sizeof *consumer);
        pthread_mutex_init(&consumer->lock, NULL);
        onefold_assign(consumer, "t", 0, next_offset = upto(1000));
        for (int step = 0; step < 30; step++) {
            unsigned wanted = upto(16);
            if (consumer->gathered == 0) onefold_want(consumer, wanted, 1 + upto(upto(2) ? 200 : 50000), upto(100));
            onefold_gathered sizes = {0};
            int64_t end = upto(20) ? next_offset + upto(2000) : INT64_MAX;
            onefold_gather(consumer, end, 1 + upto(upto(2) ? 20 : 2000), 1 + upto(upto(2) ? 1000 : 2000000), 0, &sizes);
            onefold_said_line line;
            while (onefold_said(consumer, &line)) assert(memchr(line.text, 0, TEXT_MAX));
            if (sizes.records == 0) continue;
            hand_over(consumer, &sizes, consumer->wanted);
            records += sizes.records;
        }
        onefold_close(consumer);
        assert(alive == 0);
    }
    printf("%ld messages, %ld records\n", made, records);
    return records == 0;
}
