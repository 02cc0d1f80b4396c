/* The part of librdkafka's public interface that fetch.c calls: names, argument types, one struct, a few constants.
 *
 * Written down here because confluent-kafka's wheel ships the library without its headers. All of it is what
 * librdkafka's own rdkafka.h promises for every release with the soname librdkafka.so.1 (1.0 to 2.x; read from 2.16.1).
 * librdkafka is Copyright (c) 2012-2022 Magnus Edenhill, 2023- Confluent Inc., under the 2-clause BSD licence (see the
 * licences in confluent-kafka's own wheel). None of its code is copied into onefold.
 */

#ifndef ONEFOLD_RDKAFKA_H
#define ONEFOLD_RDKAFKA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_topic_partition_s rd_kafka_topic_partition_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;

typedef struct rd_kafka_message_s {
    int err; /* an enum there; 0: a record, else an event about the partition */
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload; /* the value, NULL if it is null; of an event: its text */
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} rd_kafka_message_t;

enum {
    RD_KAFKA_CONSUMER = 1,             /* rd_kafka_type_t */
    RD_KAFKA_CONF_OK = 0,              /* rd_kafka_conf_res_t */
    RD_KAFKA_TIMESTAMP_NOT_AVAILABLE = 0,
    RD_KAFKA_RESP_ERR__PARTITION_EOF = -191,
    RD_KAFKA_RESP_ERR__NOENT = -156,           /* the record has no headers */
    RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE = 0x8,
};

typedef void rd_kafka_error_cb(rd_kafka_t *, int, const char *, void *);
typedef void rd_kafka_log_cb(const rd_kafka_t *, int, const char *, const char *);

/* result, name without rd_kafka_, arguments */
#define RDKAFKA_FUNCTIONS(F)                                                                                           \
    F(int, version, (void))                                                                                            \
    F(const char *, version_str, (void))                                                                               \
    F(rd_kafka_conf_t *, conf_new, (void))                                                                             \
    F(void, conf_destroy, (rd_kafka_conf_t *))                                                                         \
    F(int, conf_set, (rd_kafka_conf_t *, const char *, const char *, char *, size_t))                                  \
    F(void, conf_set_opaque, (rd_kafka_conf_t *, void *))                                                              \
    F(void, conf_set_error_cb, (rd_kafka_conf_t *, rd_kafka_error_cb *))                                               \
    F(void, conf_set_log_cb, (rd_kafka_conf_t *, rd_kafka_log_cb *))                                                   \
    F(rd_kafka_t *, new, (int, rd_kafka_conf_t *, char *, size_t))                                                     \
    F(void, destroy_flags, (rd_kafka_t *, int))                                                                        \
    F(void *, opaque, (const rd_kafka_t *))                                                                            \
    F(const char *, name, (const rd_kafka_t *))                                                                        \
    F(int, poll_set_consumer, (rd_kafka_t *))                                                                          \
    F(rd_kafka_queue_t *, queue_get_consumer, (rd_kafka_t *))                                                          \
    F(void, queue_destroy, (rd_kafka_queue_t *))                                                                       \
    F(rd_kafka_topic_partition_list_t *, topic_partition_list_new, (int))                                              \
    F(rd_kafka_topic_partition_t *, topic_partition_list_add,                                                          \
      (rd_kafka_topic_partition_list_t *, const char *, int32_t))                                                      \
    F(int, topic_partition_list_set_offset, (rd_kafka_topic_partition_list_t *, const char *, int32_t, int64_t))       \
    F(void, topic_partition_list_destroy, (rd_kafka_topic_partition_list_t *))                                         \
    F(int, assign, (rd_kafka_t *, const rd_kafka_topic_partition_list_t *))                                            \
    F(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))                          \
    F(const char *, topic_name, (const rd_kafka_topic_t *))                                                            \
    F(void, message_destroy, (rd_kafka_message_t *))                                                                   \
    F(int64_t, message_timestamp, (const rd_kafka_message_t *, int *))                                                 \
    F(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                                       \
    F(size_t, header_cnt, (const rd_kafka_headers_t *))                                                                \
    F(int, header_get_all, (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    F(const char *, err2str, (int))

#endif
