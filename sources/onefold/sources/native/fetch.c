/* Batches of Kafka records, copied out of librdkafka into Arrow's layout without a Python object for each record.
 *
 * The caller (consumer.py) goes: open, assign, then again and again gather (take records out of librdkafka's queue, up
 * to the end of a range, a number of records, a number of bytes, or a time) and hand_over (copy what was gathered into
 * buffers that the caller made, of the sizes that gather reported), then close. What is decided from errors, timeouts
 * and missing offsets is decided in fetching.py, for this consumer as for the one without C.
 *
 * Memory: a consumer owns the messages it took out of the queue until hand_over or close, and nothing else; buffers
 * belong to the caller. Threads: one caller at a time for each consumer; librdkafka's own threads come in through
 * on_log only. No call touches Python, so all of them run without its lock, and none waits longer than it was asked to.
 */

#define _GNU_SOURCE
#include "rdkafka.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef ONEFOLD_SOURCE
#error "compiled by building.py, which says what this was compiled from: -DONEFOLD_SOURCE=..."
#endif

#define EXPORTED __attribute__((visibility("default")))
#define TEXT_MAX 512
#define TOPIC_MAX 250    /* with the 0 at the end: Kafka's own limit is 249 */
#define SAID_MAX 8       /* errors, and as many log lines, wait for the caller; older ones give way */
#define DEQUEUE_MAX 512  /* messages at once: so many may lie taken out but not yet gathered */
#define HEADER_BYTES 16  /* what a header counts beside its bytes, so that empty ones have a bound, too */

/* --- what the caller sees (mirrored in library.py) --- */

enum { WANT_KEY = 1, WANT_TIMESTAMP = 2, WANT_HEADERS = 4, WANT_LINES = 8 };

typedef struct onefold_gathered {
    int64_t arrived;            /* records gathered by this call */
    int64_t records;            /* records gathered since the last hand_over, and what they hold: */
    int64_t value_bytes;        /* with WANT_LINES a newline after each is counted */
    int64_t key_bytes;
    int64_t headers;
    int64_t header_name_bytes;
    int64_t header_value_bytes;
    int64_t reached;            /* no record below this offset is still to come */
    int64_t stray;              /* the offset of a record that does not belong here, or -1 */
    int32_t full;               /* as many records or bytes as were asked for */
    int32_t said;               /* errors and log lines wait for onefold_said */
} onefold_gathered;

typedef struct onefold_buffers {
    int64_t *offset;
    int64_t *size; /* of each record as it was: value, key and headers (with HEADER_BYTES each), as far as wanted */
    uint8_t *value_valid;
    int32_t *value_ends; /* records + 1, as Arrow's offsets are */
    uint8_t *value;
    uint8_t *key_valid;
    int32_t *key_ends;
    uint8_t *key;
    uint8_t *timestamp_valid;
    int64_t *timestamp;
    uint8_t *headers_valid;
    int32_t *headers_ends;
    int32_t *header_name_ends;
    uint8_t *header_name;
    uint8_t *header_value_valid;
    int32_t *header_value_ends;
    uint8_t *header_value;
    /* answers */
    int64_t value_nulls;
    int64_t key_nulls;
    int64_t timestamp_nulls;
    int64_t headers_nulls; /* librdkafka refuses to read the headers of so many */
    int64_t header_value_nulls;
    int64_t too_large; /* so many have more bytes than a record may have: of their key and value the first, no headers */
    int32_t are_objects; /* WANT_LINES: every value begins with { and ends with } */
    int32_t is_ascii;    /* WANT_LINES */
} onefold_buffers;

enum { SAID_EVENT = 1, SAID_ERROR = 2, SAID_LOG = 3 };

typedef struct onefold_said_line {
    int32_t kind;
    int32_t code; /* of an event or error: librdkafka's; of a log line: syslog's level */
    int64_t offset; /* of an event: where it is */
    char text[TEXT_MAX];
} onefold_said_line;

/* --- librdkafka, found at run time --- */

#define DECLARE(result, name, arguments) result(*name) arguments;
static struct {
    RDKAFKA_FUNCTIONS(DECLARE)
} rd;

EXPORTED const char *onefold_source(void) { return ONEFOLD_SOURCE; }

EXPORTED size_t onefold_size(int which) {
    return which == 0 ? sizeof(onefold_gathered) : which == 1 ? sizeof(onefold_buffers) : sizeof(onefold_said_line);
}

EXPORTED const char *onefold_librdkafka(void) { return rd.version_str(); }

/* Bind to the librdkafka that `path` (confluent-kafka's module, in this process already) is linked to. 0, or `why`. */
EXPORTED int onefold_bind(const char *path, char *why, size_t why_size) {
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (module == NULL) {
        snprintf(why, why_size, "%s is not loaded", path);
        return -1;
    }
#define BIND(result, name, arguments)                                                                                  \
    *(void **)&rd.name = dlsym(module, "rd_kafka_" #name);                                                             \
    if (rd.name == NULL) {                                                                                             \
        snprintf(why, why_size, "the librdkafka in %s does not show its function rd_kafka_" #name, path);              \
        return -1;                                                                                                     \
    }
    RDKAFKA_FUNCTIONS(BIND)
    int version = rd.version();
    if (version < 0x01060000 || version > 0x02ffffff) { /* what rdkafka.h was compared with, and its soname covers */
        snprintf(why, why_size, "librdkafka %s is not one of 1.6 to 2.x", rd.version_str());
        return -1;
    }
    return 0;
}

/* --- a consumer --- */

typedef struct onefold_queue {
    onefold_said_line lines[SAID_MAX];
    int first, count;
} onefold_queue;

typedef struct onefold_consumer {
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    char topic[TOPIC_MAX];
    int32_t partition;
    int64_t passed; /* librdkafka has delivered all below */
    unsigned wanted;
    int64_t record_bytes_max, cut_bytes; /* a record with more bytes is cut: so many of its key, and of its value, stay */
    rd_kafka_message_t **messages; /* [0, gathered): for the next hand_over; [gathered, count): further ones */
    size_t gathered, count, capacity;
    onefold_gathered sums;
    pthread_mutex_t lock; /* of what follows: librdkafka's threads write it */
    onefold_queue errors, log;
} onefold_consumer;

static void say(onefold_consumer *consumer, onefold_queue *queue, const onefold_said_line *line) {
    pthread_mutex_lock(&consumer->lock);
    if (queue->count == SAID_MAX) {
        queue->first = (queue->first + 1) % SAID_MAX;
        queue->count--;
    }
    queue->lines[(queue->first + queue->count++) % SAID_MAX] = *line;
    pthread_mutex_unlock(&consumer->lock);
}

static void say_error(onefold_consumer *consumer, int kind, int code, int64_t offset, const char *text, size_t length) {
    onefold_said_line line = {.kind = kind, .code = code, .offset = offset};
    memcpy(line.text, text, length < TEXT_MAX ? length : TEXT_MAX - 1); /* the rest is zero */
    say(consumer, &consumer->errors, &line);
}

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque) {
    (void)rk;
    say_error(opaque, SAID_ERROR, code, -1, reason, strlen(reason));
}

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text) {
    onefold_consumer *consumer = rk != NULL ? rd.opaque(rk) : NULL;
    if (consumer == NULL) return;
    onefold_said_line line = {.kind = SAID_LOG, .code = level};
    snprintf(line.text, TEXT_MAX, "%s [%s] %s", facility, rd.name(rk), text);
    say(consumer, &consumer->log, &line);
}

static void drop(onefold_consumer *consumer, size_t first) {
    for (size_t i = first; i < consumer->count; i++) rd.message_destroy(consumer->messages[i]);
    consumer->count = first;
}

static void forget(onefold_consumer *consumer) {
    drop(consumer, 0);
    consumer->gathered = 0;
    memset(&consumer->sums, 0, sizeof consumer->sums);
}

EXPORTED void onefold_close(onefold_consumer *consumer) {
    forget(consumer);
    if (consumer->queue != NULL) rd.queue_destroy(consumer->queue);
    /* It never joined its group, so there is nothing to leave. */
    if (consumer->rk != NULL) rd.destroy_flags(consumer->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    pthread_mutex_destroy(&consumer->lock);
    free(consumer->messages);
    free(consumer);
}

/* A consumer with these settings, name after value after name; NULL, with `why`, if librdkafka refuses them. */
EXPORTED onefold_consumer *onefold_open(const char *const *settings, int count, char *why, size_t why_size) {
    onefold_consumer *consumer = calloc(1, sizeof *consumer);
    rd_kafka_conf_t *configuration = consumer == NULL ? NULL : rd.conf_new();
    if (configuration == NULL) {
        snprintf(why, why_size, "no memory for a consumer");
        free(consumer);
        return NULL;
    }
    pthread_mutex_init(&consumer->lock, NULL);
    rd.conf_set_opaque(configuration, consumer);
    rd.conf_set_error_cb(configuration, on_error);
    rd.conf_set_log_cb(configuration, on_log);
    for (int i = 0; i < count; i++) {
        if (rd.conf_set(configuration, settings[2 * i], settings[2 * i + 1], why, why_size) != RD_KAFKA_CONF_OK) {
            rd.conf_destroy(configuration);
            onefold_close(consumer);
            return NULL;
        }
    }
    consumer->rk = rd.new(RD_KAFKA_CONSUMER, configuration, why, why_size);
    if (consumer->rk == NULL) {
        rd.conf_destroy(configuration);
        onefold_close(consumer);
        return NULL;
    }
    rd.poll_set_consumer(consumer->rk);
    consumer->queue = rd.queue_get_consumer(consumer->rk);
    return consumer;
}

/* Read from here on, and forget what was taken of anything else. 0, or librdkafka's code. */
EXPORTED int onefold_assign(onefold_consumer *consumer, const char *topic, int32_t partition, int64_t offset) {
    forget(consumer);
    snprintf(consumer->topic, sizeof consumer->topic, "%s", topic);
    consumer->partition = partition;
    consumer->passed = offset;
    rd_kafka_topic_partition_list_t *list = rd.topic_partition_list_new(1);
    rd.topic_partition_list_add(list, topic, partition);
    rd.topic_partition_list_set_offset(list, topic, partition, offset);
    int code = rd.assign(consumer->rk, list);
    rd.topic_partition_list_destroy(list);
    return code;
}

/* What comes along with each record from now on: WANT_...; the gathered ones must have been handed over. */
EXPORTED void onefold_want(onefold_consumer *consumer, unsigned wanted, int64_t record_bytes_max, int64_t cut_bytes) {
    consumer->wanted = wanted;
    consumer->record_bytes_max = record_bytes_max;
    consumer->cut_bytes = cut_bytes;
}

/* The oldest error, or else the oldest log line, that waits. 0 if there is none. */
EXPORTED int onefold_said(onefold_consumer *consumer, onefold_said_line *line) {
    pthread_mutex_lock(&consumer->lock);
    onefold_queue *queue = consumer->errors.count > 0 ? &consumer->errors : &consumer->log;
    int found = queue->count > 0;
    if (found) {
        *line = queue->lines[queue->first];
        queue->first = (queue->first + 1) % SAID_MAX;
        queue->count--;
    }
    pthread_mutex_unlock(&consumer->lock);
    return found;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A record's headers; NULL if it has none, or if librdkafka refuses to read them, as those of more than 100,000. */
static const rd_kafka_headers_t *headers_of(const rd_kafka_message_t *message, size_t *count, bool *are_refused) {
    rd_kafka_headers_t *headers = NULL;
    int code = rd.message_headers(message, &headers);
    *are_refused = code != 0 && code != RD_KAFKA_RESP_ERR__NOENT;
    *count = code == 0 && headers != NULL ? rd.header_cnt(headers) : 0;
    return *count > 0 ? headers : NULL;
}

/* What a record has, and what of it is handed over. */
typedef struct onefold_extent {
    int64_t size; /* as it was, as far as it is wanted */
    bool is_cut;
    bool is_odd; /* its headers are refused */
    size_t value, key;
    int64_t headers, header_name_bytes, header_value_bytes;
} onefold_extent;

static onefold_extent extent_of(const onefold_consumer *consumer, const rd_kafka_message_t *message) {
    onefold_extent found = {.value = message->len, .key = consumer->wanted & WANT_KEY ? message->key_len : 0};
    if (consumer->wanted & WANT_HEADERS) {
        size_t count;
        const rd_kafka_headers_t *headers = headers_of(message, &count, &found.is_odd);
        for (size_t i = 0; i < count; i++) {
            const char *name;
            const void *value;
            size_t size = 0;
            rd.header_get_all(headers, i, &name, &value, &size);
            found.header_name_bytes += (int64_t)strlen(name);
            found.header_value_bytes += value != NULL ? (int64_t)size : 0;
        }
        found.headers = (int64_t)count;
    }
    found.size = (int64_t)(found.value + found.key) + found.header_name_bytes + found.header_value_bytes +
                 found.headers * HEADER_BYTES;
    found.is_cut = found.size > consumer->record_bytes_max;
    if (found.is_cut) {
        size_t cut = (size_t)consumer->cut_bytes;
        if (found.value > cut) found.value = cut;
        if (found.key > cut) found.key = cut;
        found.headers = found.header_name_bytes = found.header_value_bytes = 0;
    }
    return found;
}

/* Take one more message into the batch, unless it would hold more than `bytes_max` then. */
static bool gather_one(onefold_consumer *consumer, const rd_kafka_message_t *message, int64_t bytes_max) {
    onefold_gathered sums = consumer->sums;
    onefold_extent extent = extent_of(consumer, message);
    sums.records++;
    sums.value_bytes += (int64_t)extent.value + (consumer->wanted & WANT_LINES ? 1 : 0);
    sums.key_bytes += (int64_t)extent.key;
    sums.headers += extent.headers;
    sums.header_name_bytes += extent.header_name_bytes;
    sums.header_value_bytes += extent.header_value_bytes;
    int64_t bytes = sums.value_bytes + sums.key_bytes + sums.header_name_bytes + sums.header_value_bytes +
                    sums.headers * HEADER_BYTES;
    if (bytes > bytes_max && consumer->gathered > 0) return false;
    consumer->sums = sums;
    consumer->gathered++;
    return true;
}

/* An event of what was read before may still come, and means nothing to what is read now. Some are of no topic at all. */
static bool is_of_another(const onefold_consumer *consumer, const rd_kafka_message_t *message) {
    if (message->rkt == NULL) return false;
    return message->partition != consumer->partition || strcmp(rd.topic_name(message->rkt), consumer->topic) != 0;
}

/* Sort what came out of the queue: records stay, events are noted. False if an event needs the caller. */
static bool sort_out(onefold_consumer *consumer, size_t came, int64_t *stray) {
    bool is_quiet = true;
    size_t first = consumer->count;
    for (size_t i = first; i < first + came; i++) {
        rd_kafka_message_t *message = consumer->messages[i];
        if (message->err == 0) {
            if (message->partition != consumer->partition || message->offset < consumer->passed ||
                message->offset == INT64_MAX) { /* no partition could end behind it */
                *stray = message->offset;
                is_quiet = false;
                rd.message_destroy(message);
                continue;
            }
            consumer->passed = message->offset + 1;
            consumer->messages[consumer->count++] = message;
            continue;
        }
        if (is_of_another(consumer, message)) {
            rd.message_destroy(message);
            continue;
        }
        if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
            if (message->offset > consumer->passed) consumer->passed = message->offset;
        } else {
            const char *text = message->payload != NULL ? message->payload : rd.err2str(message->err);
            say_error(consumer, SAID_EVENT, message->err, message->offset, text,
                      message->payload != NULL ? message->len : strlen(text));
            is_quiet = false;
        }
        rd.message_destroy(message);
    }
    return is_quiet;
}

static bool make_room(onefold_consumer *consumer) {
    size_t wanted = consumer->count + DEQUEUE_MAX;
    if (wanted <= consumer->capacity) return true;
    size_t capacity = consumer->capacity * 2 > wanted ? consumer->capacity * 2 : wanted;
    void *messages = realloc(consumer->messages, capacity * sizeof *consumer->messages);
    if (messages == NULL) return false;
    consumer->messages = messages;
    consumer->capacity = capacity;
    return true;
}

/* Gather records below `end`, until there are `records_max`, or `bytes_max` bytes (one record is always taken), or
 * `end` is reached, or an event came, or `wait_ms` are over. 0; -1: no memory. */
EXPORTED int onefold_gather(onefold_consumer *consumer, int64_t end, int64_t records_max, int64_t bytes_max,
                            int wait_ms, onefold_gathered *out) {
    int64_t deadline = now_ms() + wait_ms, before = (int64_t)consumer->gathered, stray = -1;
    bool is_full = false, is_quiet = true;
    int result = 0;
    for (;;) {
        while (!is_full && consumer->gathered < consumer->count &&
               consumer->messages[consumer->gathered]->offset < end) {
            is_full = (int64_t)consumer->gathered >= records_max ||
                      !gather_one(consumer, consumer->messages[consumer->gathered], bytes_max);
        }
        is_full = is_full || (int64_t)consumer->gathered >= records_max;
        if (is_full || !is_quiet || consumer->gathered < consumer->count || consumer->passed >= end) break;
        int64_t left_ms = deadline - now_ms();
        if (!make_room(consumer)) {
            result = -1;
            break;
        }
        rd_kafka_message_t **room = consumer->messages + consumer->count;
        ssize_t came = rd.consume_batch_queue(consumer->queue, 0, room, DEQUEUE_MAX);
        if (came <= 0 && left_ms > 0) /* it would wait for all that it may deliver: so, wait for one */
            came = rd.consume_batch_queue(consumer->queue, (int)left_ms, room, 1);
        if (came > 0)
            is_quiet = sort_out(consumer, (size_t)came, &stray);
        else if (left_ms <= 0)
            break;
    }
    *out = consumer->sums;
    out->arrived = (int64_t)consumer->gathered - before;
    out->reached = consumer->gathered < consumer->count ? consumer->messages[consumer->gathered]->offset
                                                        : consumer->passed;
    out->stray = stray;
    out->full = is_full;
    pthread_mutex_lock(&consumer->lock);
    out->said = consumer->errors.count + consumer->log.count;
    pthread_mutex_unlock(&consumer->lock);
    return result;
}

/* --- into Arrow's layout --- */

static inline void set_bit(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1u << (at & 7)); }

/* Append bytes to a column of binary values; a NULL is a null. Returns how many bytes it has then. */
static inline int32_t append(uint8_t *data, int32_t used, uint8_t *valid, int64_t at, const void *bytes, size_t length,
                             int64_t *nulls) {
    if (bytes == NULL) {
        ++*nulls;
        return used;
    }
    set_bit(valid, at);
    if (length > 0) memcpy(data + used, bytes, length);
    return used + (int32_t)length;
}

static int64_t append_headers(const rd_kafka_message_t *message, onefold_buffers *to, int64_t used) {
    size_t count;
    bool are_refused;
    const rd_kafka_headers_t *headers = headers_of(message, &count, &are_refused);
    for (size_t i = 0; i < count; i++, used++) {
        const char *name;
        const void *value;
        size_t size = 0;
        rd.header_get_all(headers, i, &name, &value, &size);
        size_t length = strlen(name);
        memcpy(to->header_name + to->header_name_ends[used], name, length);
        to->header_name_ends[used + 1] = to->header_name_ends[used] + (int32_t)length;
        to->header_value_ends[used + 1] =
            append(to->header_value, to->header_value_ends[used], to->header_value_valid, used, value, size,
                   &to->header_value_nulls);
    }
    return used;
}

static bool is_object(const rd_kafka_message_t *message) {
    const char *text = message->payload;
    return text != NULL && message->len >= 2 && text[0] == '{' && text[message->len - 1] == '}';
}

static bool is_ascii(const uint8_t *bytes, int64_t length) {
    uint8_t all = 0;
    for (int64_t i = 0; i < length; i++) all |= bytes[i];
    return all < 0x80;
}

/* Copy what was gathered into buffers of at least the sizes that gather reported; validity bits must be zero there. The
 * records are the caller's then, and the next batch begins. */
EXPORTED void onefold_hand_over(onefold_consumer *consumer, onefold_buffers *to) {
    unsigned wanted = consumer->wanted;
    int32_t value_end = 0, key_end = 0;
    int64_t header = 0;
    bool are_objects = true;
    to->value_ends[0] = 0;
    if (wanted & WANT_KEY) to->key_ends[0] = 0;
    if (wanted & WANT_HEADERS) to->headers_ends[0] = to->header_name_ends[0] = to->header_value_ends[0] = 0;
    for (size_t i = 0; i < consumer->gathered; i++) {
        rd_kafka_message_t *message = consumer->messages[i];
        if (i + 4 < consumer->gathered) __builtin_prefetch(consumer->messages[i + 4]);
        if (i + 2 < consumer->gathered) __builtin_prefetch(consumer->messages[i + 2]->payload);
        onefold_extent extent = extent_of(consumer, message);
        to->offset[i] = message->offset;
        to->size[i] = extent.size;
        if (extent.is_cut) to->too_large++;
        value_end = append(to->value, value_end, to->value_valid, (int64_t)i, message->payload, extent.value,
                           &to->value_nulls);
        if (wanted & WANT_LINES) {
            to->value[value_end++] = '\n';
            are_objects = are_objects && !extent.is_cut && is_object(message);
        }
        to->value_ends[i + 1] = value_end;
        if (wanted & WANT_KEY) {
            key_end = append(to->key, key_end, to->key_valid, (int64_t)i, message->key, extent.key, &to->key_nulls);
            to->key_ends[i + 1] = key_end;
        }
        if (wanted & WANT_TIMESTAMP) {
            int kind = RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
            int64_t timestamp = rd.message_timestamp(message, &kind);
            to->timestamp[i] = kind == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? 0 : timestamp;
            if (kind == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE)
                to->timestamp_nulls++;
            else
                set_bit(to->timestamp_valid, (int64_t)i);
        }
        if (wanted & WANT_HEADERS) {
            if (extent.is_odd)
                to->headers_nulls++;
            else
                set_bit(to->headers_valid, (int64_t)i);
            if (!extent.is_cut) header = append_headers(message, to, header);
            to->headers_ends[i + 1] = (int32_t)header;
        }
        rd.message_destroy(message);
    }
    to->are_objects = are_objects;
    to->is_ascii = (wanted & WANT_LINES) != 0 && is_ascii(to->value, value_end);
    consumer->count -= consumer->gathered;
    memmove(consumer->messages, consumer->messages + consumer->gathered, consumer->count * sizeof *consumer->messages);
    consumer->gathered = 0;
    memset(&consumer->sums, 0, sizeof consumer->sums);
}
